"""What a child process is told: which engine to start, and what to replay on it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.run_columns import RunColumns
from harness.workload import Workload

SPEC_FILE = "spec.json"
WORKLOAD_FILE = "workload.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An engine to start and how to load it; all of it is strict JSON.

    Attributes:
        policy: ``v0`` or ``v1``; None for what the version runs by itself.
        vllm_version: The version that was asked for; None for any.
        given: Values of engine arguments by vLLM's own names; no others are passed on.
        engine_args: Further arguments, as they follow ``vllm serve MODEL``.
        max_concurrency: Closed loop with so many requests outstanding; None for none.
        warmup_requests: Sent before the replay; the prefix cache is reset after them.
        temperature: Of sampling, so that outputs differ as those of a trace do.
        replays_tokens: Have the engine say the trace's own tokens where it can.
    """

    policy: str | None = None
    vllm_version: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()
    max_concurrency: int | None = None
    warmup_requests: int = 0
    temperature: float = 1.0
    replays_tokens: bool = True

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> "EngineSpec":
        """The specification as ``write_task`` wrote it."""
        return cls(**{**spec, "engine_args": tuple(spec["engine_args"])})


def write_task(folder: Path, spec: EngineSpec, workload: Workload) -> None:
    """Write what a child needs into a folder."""
    document = asdict(spec) | {
        "workload": {
            "name": workload.name,
            "extra_keys": [[i, list(k)] for i, k in workload.extra_keys.items()],
        }
    }
    text = json.dumps(document, allow_nan=False)
    (folder / SPEC_FILE).write_text(text, encoding="utf-8")
    columns: dict[str, Any] = {
        "arrival_ns": workload.arrival_ns,
        "parent": workload.parent,
        "delay_ns": workload.delay_ns,
        "priority": workload.priority,
    }
    for name in ("prompts", "outputs"):
        runs: RunColumns = getattr(workload, name)
        columns |= {
            f"{name}_offsets": runs.offsets,
            f"{name}_segments": runs.segments,
            f"{name}_lengths": runs.lengths,
        }
    np.savez(folder / WORKLOAD_FILE, **columns)


def read_task(folder: Path) -> tuple[EngineSpec, Workload]:
    """What ``write_task`` wrote."""
    document = json.loads((folder / SPEC_FILE).read_text(encoding="utf-8"))
    about = document.pop("workload")
    with np.load(folder / WORKLOAD_FILE) as columns:
        workload = Workload(
            name=about["name"],
            format="memory",
            content_hash="",
            arrival_ns=columns["arrival_ns"],
            prompts=_runs(columns, "prompts"),
            outputs=_runs(columns, "outputs"),
            parent=columns["parent"],
            delay_ns=columns["delay_ns"],
            priority=columns["priority"],
            extra_keys={int(i): tuple(k) for i, k in about["extra_keys"]},
        )
    return EngineSpec.from_dict(document), workload


def _runs(columns: Any, name: str) -> RunColumns:
    parts = ("offsets", "segments", "lengths")
    return RunColumns(*(columns[f"{name}_{part}"] for part in parts))
