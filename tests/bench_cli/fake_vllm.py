"""A Python that has vLLM, as far as ``--vllm-python`` can tell; it serves in an instant.

``FAKE_VLLM`` holds a JSON document: ``gpu``; ``slow`` and ``fails``, values of
``max_num_seqs`` whose requests take ten times as long, or with which it does not start;
``refuses`` and ``hangs``, whatever they are; ``told``, a file to which each start adds
what it was told.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "harness" / "vllm_engine"))
fake: Any = importlib.import_module("fake_child")

MS = 1_000_000


def request(number: int, place: int, took_ms: float) -> dict[str, Any]:
    """A finished request, of a start that was number ``place``."""
    first_ns = int((number + 1) * (took_ms + place % 3 * 0.01) * MS)
    times = {"first_token_ns": first_ns, "finished_ns": first_ns + 10 * MS}
    return fake.request(number) | times  # type: ignore[no-any-return]


def main(folder: Path) -> None:
    """Start, serve all requests, end."""
    spec = json.loads((folder / "spec.json").read_text())
    plan = json.loads(os.environ["FAKE_VLLM"])
    told = Path(plan["told"])
    place = len(told.read_text().splitlines()) if told.exists() else 0
    variables = {n: v for n, v in os.environ.items() if n.startswith("VLLM_")}
    with told.open("a") as file:
        file.write(json.dumps(spec | {"variables": variables}) + "\n")
    fake.send("hello", pid=os.getpid(), python="3")
    seqs = spec["given"]["max_num_seqs"]
    if plan.get("refuses"):
        fake.send("failed", message="vLLM has no --swap-space", is_usage=True)
        sys.exit(1)
    if plan.get("hangs"):
        time.sleep(60)
    if seqs in plan.get("fails", []):
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
        sys.exit(3)
    facts = fake.FACTS | {"gpu": plan.get("gpu"), "max_num_seqs": seqs}
    facts |= {"device": "cuda" if plan.get("gpu") else "cpu"}
    fake.send("started", facts=facts, is_cold=True, unmeasured=[])
    assert sys.stdin.readline() == "go\n"
    took_ms = 10.0 if seqs in plan.get("slow", []) else 1.0
    num_requests = plan.get("num_requests", 3)
    rows = [request(number, place, took_ms) for number in range(num_requests)]
    fake.send("rows", requests=rows, steps=[])
    fake.send(
        "ended",
        is_stopped=False,
        wall_s=1.5,
        counters={"preemptions": 0},
        unmeasured=[],
        lateness_s={"p50": 0.001, "p99": 0.002, "max": 0.003},
        is_cold=True,
        recording_s=0.01,
        readings={"pcie": None},
        notes=[],
    )


if __name__ == "__main__":
    if sys.argv[2] != "-c":
        sys.argv[3] = sys.argv[5]  # where the other fake looks for its pipe
        main(Path(sys.argv[4]))
