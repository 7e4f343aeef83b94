"""A process that speaks as our child does, and fails as it is told to.

``python fake_child.py HOW FOLDER FD``; it knows nothing of vLLM.
"""

import json
import os
import signal
import sys
import time
from typing import Any

FACTS = {
    "policy": "v1",
    "vllm_version": "0.32.0",
    "block_size": 16,
    "num_gpu_blocks": 100,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "device": "cpu",
}


def send(event: str, **values: Any) -> None:
    """Write an event."""
    line = json.dumps({"event": event} | values) + "\n"
    os.write(int(sys.argv[3]), line.encode())


def request(number: int) -> dict[str, Any]:
    """A finished request."""
    times = {"arrival_ns": 0, "queued_ns": 1, "first_scheduled_ns": 2}
    return {
        "request_id": number,
        "num_prompt_tokens": 32,
        "num_output_tokens": 4,
        "max_sample_tokens": 4,
        "num_cached_tokens": 16,
        "first_token_ns": 10,
        "finished_ns": 40,
        "status": "finished",
    } | times


def main(how: str) -> None:
    """Go through a run until the failure that was asked for."""
    send("hello", pid=os.getpid(), python="3")
    if how == "refuses":
        send("failed", message="vLLM has no --swap-space", is_usage=True)
        sys.exit(1)
    if how == "no_start":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
        sys.exit(3)
    if how == "worker_fails":
        print(
            "(Worker_TP1 pid=9) ERROR 11-30 15:21:35 [multiproc_executor.py:951] ", end=""
        )
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
        said = "Exception: WorkerProc initialization failed due to an exception in a"
        print(said, flush=True)
        send("failed", message=said, is_usage=False)
        sys.exit(1)
    if how == "start_hangs":
        time.sleep(60)
    send("started", facts=FACTS, is_cold=True, unmeasured=["steps.num_used_tokens"])
    if sys.stdin.readline() != "go\n":
        sys.exit(4)
    send("rows", requests=[request(0)], steps=[])
    if how == "fails":
        send("failed", message="RuntimeError: CUDA out of memory", is_usage=False)
        sys.exit(1)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hangs":
        while True:
            send("beat", num_progress=1, has_work=True)
            time.sleep(0.05)
    if how == "stops":
        sys.stdin.readline()
    if how == "ignores":
        while True:
            send("beat", num_progress=0, has_work=False)
            time.sleep(0.05)
    send(
        "ended",
        is_stopped=how == "stops",
        wall_s=1.5,
        counters={"preemptions": 0},
        unmeasured=["steps.num_used_tokens"],
        lateness_s={"p50": 0.001, "p99": 0.002, "max": 0.003},
        is_cold=True,
        recording_s=0.01,
        readings={"pcie": None},
        notes=["a note"],
    )
    if how == "silent_end":
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
