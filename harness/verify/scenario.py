"""Recorded scenarios and rows: reading them, and turning a scenario into a scheduler."""

import gzip
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.errors import TraceError, UsageError
from harness.request import Request, Run
from harness.schedulers.batch import PreemptionMode
from harness.schedulers.build import build_scheduler_v0
from harness.schedulers.scheduler_v0 import SchedulerV0

ROW_KEYS = {
    "step", "prefill", "decode", "swap_in", "swap_out", "copy_on_write", "ignored",
    "preempted", "computed_blocks", "free_gpu", "free_cpu", "waiting", "running",
    "swapped", "finished", "free_gpu_end", "free_cpu_end",
}  # fmt: skip
"""Keys of every v0 row; ``tables`` may be left out, as long runs do."""

_MAX_COUNT = 10_000_000
_SEE_FORMAT = "see docs/v0.md for the format"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A recorded scenario.

    Attributes:
        name: Its name.
        knobs: What its scheduler is built with.
        transfer_steps: Steps until a transfer is reported.
        requests: In file order; ``arrival_ns`` is the step at which one arrives.
    """

    name: str
    knobs: dict[str, Any]
    transfer_steps: int
    requests: list[Request]


class StepArrivals:
    """Hands out a scenario's requests at their steps, in file order."""

    def __init__(self, requests: list[Request]) -> None:
        self._left = deque(sorted(requests, key=lambda request: request.arrival_ns))

    def next_ns(self) -> int | None:
        """Step of the next arrival."""
        return self._left[0].arrival_ns if self._left else None

    def pop_due(self, now_ns: int) -> list[Request]:
        """Requests whose step has come."""
        due = []
        while self._left and self._left[0].arrival_ns <= now_ns:
            due.append(self._left.popleft())
        return due

    def on_finished(self, request: Request, now_ns: int) -> None:
        """Nothing waits for a finish: all steps are in the file."""


def read_scenario(path: Path) -> Scenario:
    """Read ``*.scenario.json``, gzipped or not.

    Raises:
        TraceError: It is not such a file.
        UsageError: Its policy is not there yet.
    """
    document = _parse(path, _read_bytes(path))
    try:
        policy = document["policy"]
        if policy != "v0":
            raise UsageError(
                f"{path}: policy {policy} cannot be replayed yet; scenarios of v0 can"
            )
        return Scenario(
            name=document.get("name", path.name),
            knobs=_knobs(document["config"]),
            transfer_steps=_count(document["config"].get("transfer_steps", 1), least=1),
            requests=_requests(document),
        )
    except KeyError as error:
        problem = f"not a recorded scenario: it lacks {error}"
        raise TraceError(path, problem, _SEE_FORMAT) from error
    except (TypeError, ValueError, AttributeError) as error:
        problem = f"not a recorded scenario: {error}"
        raise TraceError(path, problem, _SEE_FORMAT) from error


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read ``*.rows.jsonl``, gzipped or not, row by row.

    Raises:
        TraceError: A line is not a row.
    """
    for number, line in enumerate(_read_bytes(path).splitlines(), start=1):
        if not line.strip():
            continue
        row = _parse(path, line, number)
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise TraceError(path, "not a recorded row: no step", line=number)
        missing = [] if "error" in row else sorted(ROW_KEYS - row.keys())
        if missing:
            raise TraceError(
                path, f"a row of v0 lacks {', '.join(missing)}", _SEE_FORMAT, line=number
            )
        yield row


def scheduler_of(scenario: Scenario) -> SchedulerV0:
    """A scheduler with the scenario's knobs and pools, that dies where vLLM's dies."""
    return build_scheduler_v0(**scenario.knobs, dies_like_vllm=True)


def _knobs(config: dict[str, Any]) -> dict[str, Any]:
    """The recorded configuration by the names that a scheduler is built with."""
    mode = config["preemption_mode"]
    return {
        "block_size": _count(config["block_size"], least=1),
        "num_gpu_blocks": _count(config["num_gpu_blocks"]),
        "num_cpu_blocks": _count(config["num_cpu_blocks"]),
        "watermark": float(config["watermark"]),
        "enable_prefix_caching": bool(config["enable_prefix_caching"]),
        "max_num_seqs": _count(config["max_num_seqs"]),
        "max_num_batched_tokens": _count(config["max_num_batched_tokens"]),
        "max_model_len": _count(config["max_model_len"]),
        "enable_chunked_prefill": bool(config["chunked_prefill"]),
        "preemption_mode": None if mode is None else PreemptionMode(mode),
    }


def _count(value: Any, least: int = 0) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value <= _MAX_COUNT:
        raise ValueError(f"{value!r} is not a whole number from {least} to {_MAX_COUNT}")
    return int(value)


def _requests(document: dict[str, Any]) -> list[Request]:
    """Requests whose outputs are the segments named ``o{request}.{sample}``."""
    segments: dict[str, int] = {
        name: number for number, name in enumerate(document["segments"])
    }
    requests = []
    for row in document["requests"]:
        prompt: tuple[Run, ...] = tuple(
            (_count(s), _count(n)) for s, n in row["prompt"] if n
        )
        outputs = [
            (segments.setdefault(f"o{row['id']}.{sample}", len(segments)), _count(n, 1))
            for sample, n in enumerate(row["output_tokens"])
        ]
        if not prompt or not outputs:
            raise ValueError(f"request {row['id']} has no prompt or no output")
        requests.append(
            Request(
                request_id=_count(row["id"]),
                arrival_ns=_count(row["step"]),
                prompt=prompt,
                num_prompt_tokens=sum(n for _, n in prompt),
                outputs=tuple(outputs),
                priority=row.get("priority", 0),
                extra_keys=(row["cache_salt"],) if row.get("cache_salt") else (),
            )
        )
    return requests


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(path, f"cannot be read: {error}") from error


def _parse(path: Path, data: bytes, line: int | None = None) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise TraceError(path, f"not JSON: {error}", line=line) from error
