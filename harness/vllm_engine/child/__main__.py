"""``python -m harness.vllm_engine.child FOLDER FD``: start vLLM, replay, report.

The folder holds what :func:`harness.vllm_engine.spec.write_task` wrote, the number is
that of the pipe to the parent. Orders come through stdin.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.vllm_engine.child.channel import Channel
from harness.vllm_engine.child.device import GpuReadings, chosen_gpu, device_facts
from harness.vllm_engine.child.engine import ChangedVllmError, Vllm
from harness.vllm_engine.child.facts import block_bytes_of, facts_of
from harness.vllm_engine.child.replay import Replay
from harness.vllm_engine.spec import read_task


def main(folder: Path, fd: int) -> int:
    """Replay a task; an error becomes an event, and its traceback stays in the log."""
    os.set_inheritable(fd, False)
    channel = Channel(fd)
    try:
        run_task(folder, channel)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        channel.send("failed", message=in_words(error), is_usage=is_ours(error))
        return 1
    finally:
        channel.close()
    return 0


def run_task(folder: Path, channel: Channel) -> None:
    """Start an engine, replay once the parent says so, and tell how it went."""
    channel.send("hello", pid=os.getpid(), python=sys.version.split()[0])
    spec, workload = read_task(folder)
    vllm = Vllm(spec, folder)
    engine = vllm.start(spec)
    facts = facts_of(engine, vllm.version) | device_facts(vllm)
    facts |= engine_kind(engine, facts)
    replay = Replay(vllm, engine, spec, workload, facts, channel)
    replay.warm_up()
    channel.send("started", facts=facts, **replay.watch())
    channel.go.wait()
    readings = GpuReadings(is_cuda=facts["device"] == "cuda", gpu=chosen_gpu(engine))
    try:
        end = replay.run()
    finally:
        read = readings.close()
    channel.send("ended", readings=read, **end)


def engine_kind(engine: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Which of the two engines it is, and what only one of them says."""
    core = getattr(engine, "engine_core", None)
    if core is None:
        return {"policy": "v0", "async_scheduling": False, "block_bytes": None}
    scheduler = core.engine_core.scheduler
    return {"policy": "v1", "block_bytes": block_bytes_of(scheduler)}


def in_words(error: BaseException) -> str:
    """The error for a reader who does not see the traceback."""
    text = str(error).strip()
    if isinstance(error, (HarnessError, ChangedVllmError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_ours(error: BaseException) -> bool:
    """Whether the user has to change what was asked for, rather than vLLM failed."""
    return isinstance(error, HarnessError)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(code)  # vLLM's threads and workers would keep the process for seconds
