"""Recorded scenarios and rows: reading them, and turning a scenario into a scheduler."""

import codecs
import gzip
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.errors import TraceError, UsageError
from harness.request import Request
from harness.schedulers.batch import PreemptionMode
from harness.traces.bad_row import shown
from harness.verify.fields import FieldError, Fields

ROW_KEYS = {
    "v0": {
        "step", "prefill", "decode", "swap_in", "swap_out", "copy_on_write", "ignored",
        "preempted", "computed_blocks", "free_gpu", "free_cpu", "waiting", "running",
        "swapped", "finished", "free_gpu_end", "free_cpu_end",
    },
    "v1": {
        "step", "scheduled", "new", "resumed", "preempted", "free", "waiting", "running",
        "finished", "free_end",
    },
}  # fmt: skip
"""Keys of every row of a policy; block tables may be left out, as long runs do."""

_SEE_FORMAT = "see docs/v0.md and docs/v1.md for the format"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A recorded scenario.

    Attributes:
        policy: ``v0`` or ``v1``.
        knobs: What its scheduler is built with.
        transfer_steps: Steps until a transfer is reported.
        requests: In file order; ``arrival_ns`` is the step at which one arrives.
    """

    policy: str
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
        UsageError: Its policy is neither v0 nor v1.
    """
    document = _parse(path, _read_bytes(path))
    try:
        return _scenario(Fields(document, "the file"), path)
    except FieldError as error:
        problem = f"not a recorded scenario: {error}"
        raise TraceError(path, problem, _SEE_FORMAT) from error


def read_rows(path: Path, policy: str) -> Iterator[dict[str, Any]]:
    """Read ``*.rows.jsonl`` of a policy, gzipped or not, row by row.

    Raises:
        TraceError: A line is not a row.
    """
    for number, line in enumerate(_read_bytes(path).splitlines(), start=1):
        if not line.strip():
            continue
        row = _parse(path, line, number)
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise TraceError(
                path, "not a recorded row: no step", _SEE_FORMAT, line=number
            )
        missing = [] if "error" in row else sorted(ROW_KEYS[policy] - row.keys())
        if missing:
            problem = f"a row of {policy} lacks {', '.join(missing)}"
            raise TraceError(path, problem, _SEE_FORMAT, line=number)
        yield row


def _scenario(document: Fields, path: Path) -> Scenario:
    policy = document.value("policy")
    knobs = {"v0": _knobs_v0, "v1": _knobs_v1}
    if not isinstance(policy, str) or policy not in knobs:
        raise UsageError(
            f"{path}: policy is {shown(policy)}; scenarios of v0 and v1 can be replayed"
        )
    config = Fields(document.value("config"), "config")
    return Scenario(
        policy=policy,
        knobs=knobs[policy](config),
        transfer_steps=config.count("transfer_steps", least=1, default=1),
        requests=_requests(document),
    )


def _knobs_v0(config: Fields) -> dict[str, Any]:
    """The recorded configuration by the names that a scheduler is built with."""
    mode = config.choice("preemption_mode", list(PreemptionMode))
    return _common_knobs(config) | {
        "num_cpu_blocks": config.count("num_cpu_blocks"),
        "enable_chunked_prefill": config.switch("chunked_prefill"),
        "preemption_mode": None if mode is None else PreemptionMode(mode),
    }


def _knobs_v1(config: Fields) -> dict[str, Any]:
    """The same for a scenario of v1; what it does not name is off."""
    return _common_knobs(config) | {
        "enable_chunked_prefill": config.switch("chunked_prefill", default=True),
        "long_prefill_token_threshold": config.count(
            "long_prefill_token_threshold", default=0
        ),
        "scheduler_reserve_full_isl": config.switch("scheduler_reserve_full_isl"),
        "async_scheduling": config.switch("async_scheduling"),
        "scheduling_policy": config.choice(
            "scheduling_policy", ["fcfs", "priority"], default="fcfs"
        ),
        "sliding_window": config.count("sliding_window", default=0) or None,
        "num_cpu_blocks": config.count("offload_blocks", default=0),
    }


def _common_knobs(config: Fields) -> dict[str, Any]:
    return {
        "block_size": config.count("block_size", least=1),
        "num_gpu_blocks": config.count("num_gpu_blocks"),
        "watermark": config.share("watermark"),
        "enable_prefix_caching": config.switch("enable_prefix_caching"),
        "max_num_seqs": config.count("max_num_seqs"),
        "max_num_batched_tokens": config.count("max_num_batched_tokens"),
        "max_model_len": config.count("max_model_len"),
    }


def _requests(document: Fields) -> list[Request]:
    """Requests whose outputs are the segments named ``o{request}.{sample}``."""
    names = map(str, document.items("segments"))
    segments = {name: number for number, name in enumerate(names)}
    requests = [
        _request(Fields(row, f"request {place}"), segments)
        for place, row in enumerate(document.items("requests"))
    ]
    if not requests or len({r.request_id for r in requests}) < len(requests):
        raise FieldError("it has no requests, or two with one id")
    return requests


def _request(row: Fields, segments: dict[str, int]) -> Request:
    request_id = row.count("id")
    prompt = tuple((segment, length) for segment, length in row.runs("prompt") if length)
    samples = row.counts("output_tokens", least=1)
    if not prompt or not samples:
        raise FieldError(f"{row.where} has no prompt or no output")
    salt = row.text("cache_salt", default="")
    return Request(
        request_id=request_id,
        arrival_ns=row.count("step"),
        prompt=prompt,
        num_prompt_tokens=sum(length for _, length in prompt),
        outputs=tuple(
            (segments.setdefault(f"o{request_id}.{sample}", len(segments)), length)
            for sample, length in enumerate(samples)
        ),
        priority=row.count("priority", default=0),
        extra_keys=(salt,) if salt else (),
    )


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        unpacked = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            path, f"the packed data ends or breaks ({error})", "copy the file again"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(path, f"cannot be read: {reason}", "check the path") from error
    return unpacked.removeprefix(codecs.BOM_UTF8)


def _parse(path: Path, data: bytes, line: int | None = None) -> Any:
    """What a JSON text holds; ``line`` is the file's, where the text is one of many."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise TraceError(
            path,
            f"not JSON: {error.msg} (column {error.colno})",
            "give the scenario with --scenario, its rows, one a line, with --rows",
            line=line or error.lineno,
        ) from error
