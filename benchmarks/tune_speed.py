"""What a search costs, how good its advice is, and whether it depends on the processes.

Run from the repository root, with blockbench installed::

    .venv/bin/python benchmarks/tune_speed.py [TRACE] [--part PART]… [--budget 40trials]
        [--limit N] [--jobs N] [--seed N]

Without ``TRACE``: Mooncake's conversations from ``BLOCKBENCH_DATA``. Exits with 1 if a
gate fails. Model and GPU are Llama-3.1-8B on H100-80GB, the version is 0.32.0, the trace
is replayed at a quarter of its speed, and wanted is ``ttft=2s,tpot=50ms``.

``whole``: the whole trace; wall time beside the seconds of all replays over the
processes. ``regret``: on the first requests, the loss of what the command advises beside
the least of a grid of 384 settings; both are replayed here. ``jobs``: on the first
requests, what one process and two answer.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from harness.config import EngineConfig
from harness.parallel import ReplayPool, default_jobs
from harness.replay import findable_of
from harness.traces import open_trace
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.objective import Objective
from harness.workload import Workload
from results.goodput import Slo
from results.run_info import RunInfo

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("BLOCKBENCH_DATA") or REPOSITORY.parent / "shared")
MOONCAKE = DATA / "traces" / "mooncake" / "conversation_trace.jsonl"

ENGINE: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100-80GB",
    "vllm_version": "0.32.0",
}
SPEEDUP = 0.25
SLO = Slo(ttft_s=2.0, tpot_s=0.05)

MOST_OVER_REPLAYS = 1.3
GOALS_S = (60.0, 20.0)
MOST_REGRET = 0.01

GRID: dict[str, tuple[Any, ...]] = {
    "gpu_memory_utilization": (0.88, 0.92, 0.95),
    "block_size": (16, 64),
    "max_num_seqs": (16, 1024),
    "max_num_batched_tokens": (512, 1024, 2048, 8192),
    "watermark": (0.0, 0.05),
}
CACHES: tuple[dict[str, Any], ...] = (
    {"enable_prefix_caching": False, "kv_offloading_size": 0.0},
    *(
        {"enable_prefix_caching": True, "kv_offloading_size": s}
        for s in (0.0, 16.0, 64.0)
    ),
)
GRID_BATCH = 8

VARYING = ("wall_s", "replay_s", "jobs")
"""What of a document may differ between two runs of the same search."""


@dataclass(slots=True)
class Gates:
    """What has been measured so far.

    Attributes:
        failed: Gates that failed, in words.
    """

    failed: list[str] = field(default_factory=list)

    def at_most(self, what: str, value: float, limit: float, unit: str = "") -> None:
        """Print whether a value keeps its limit."""
        line = f"{what}: {value:,.3g}{unit} (limit {limit:g}{unit})"
        print(f"  {'met   ' if value <= limit else 'FAILED'}  {line}", flush=True)
        if value > limit:
            self.failed.append(line)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    trace: Path
    parts: Sequence[str]
    budget: str
    limit: int
    jobs: int
    seed: int

    def tune(self, *more: object, jobs: int | None = None) -> dict[str, Any]:
        """The document of the installed command."""
        flags: dict[str, object] = {
            f"--{n.replace('_', '-')}": value for n, value in ENGINE.items()
        }
        flags |= {"--speedup": SPEEDUP, "--slo": "ttft=2s,tpot=50ms"}
        flags |= {"--budget": self.budget, "--search-seed": self.seed}
        flags |= {"--jobs": jobs or self.jobs}
        script = Path(sys.executable).parent / "blockbench"
        command = [script, "tune", self.trace, *_flat(flags), *more, "--json"]
        done = subprocess.run(
            [str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True
        )
        document: dict[str, Any] = json.loads(done.stdout)
        return document


def _flat(flags: dict[str, object]) -> Iterator[object]:
    for name, value in flags.items():
        yield from (name, value)


def described(document: dict[str, Any]) -> str:
    """What a search advises, and what it took, in a line."""
    changes = [f"{n} {c['from']} -> {c['to']}" for n, c in document["changes"].items()]
    return (
        f"{document['trials']} settings, {document['replays']} replays of"
        f" {document['replay_s']:,.1f} s together, {document['jobs']} processes,"
        f" {document['wall_s']:,.1f} s: {', '.join(changes) or 'no change'}"
    )


def part_whole(options: Options, gates: Gates) -> None:
    """The whole trace: wall time beside its replays, and beside the goals."""
    document = options.tune()
    print(f"whole trace: {described(document)}")
    wall_s, replay_s = document["wall_s"], document["replay_s"]
    ratio = wall_s / (replay_s / document["jobs"])
    gates.at_most("wall time over replays", ratio, MOST_OVER_REPLAYS, "x")
    for goal_s in GOALS_S:
        times = wall_s / goal_s
        print(f"  goal    {goal_s:g} s: {'met' if times <= 1 else f'{times:.1f}x of it'}")


def part_regret(options: Options, gates: Gates) -> None:
    """The first requests: the advice beside the best of the grid."""
    document = options.tune("--limit", options.limit)
    print(f"first {options.limit:,} requests: {described(document)}")
    workload = open_trace(options.trace).select(slice(options.limit))
    workload = workload.retimed(speedup=SPEEDUP)
    with ReplayPool(options.jobs, preload=("harness.tuning.trial",)) as pool:
        engine = engine_of(workload, pool)
        (advised,) = engine.evaluate([document["config"]])
        started = time.perf_counter()
        knobs, least = best_of_grid(engine)
    assert advised is not None, "nobody stopped it"
    took_s = time.perf_counter() - started
    shown = ", ".join(f"{name} {value}" for name, value in knobs.items())
    print(f"grid of {len(grid())} settings, {took_s:,.0f} s: {shown}")
    print(f"  loss of the advice {advised.loss:.5f}, least of the grid {least:.5f}")
    gates.at_most("regret", 100 * (advised.loss / least - 1), 100 * MOST_REGRET, " %")


def engine_of(workload: Workload, pool: ReplayPool) -> TrialEngine:
    """What replays settings of the first requests."""
    return TrialEngine(
        workload=workload,
        findable=findable_of(workload, "v1"),
        fixed=ENGINE,
        objective=Objective(name=ObjectiveName.GOODPUT, slo=SLO),
        make_info=info_of,
        pool=pool,
    )


def info_of(workload: Workload, config: EngineConfig, objective: Objective) -> RunInfo:
    """What is known of a run before it begins."""
    return RunInfo(
        source="simulated",
        engine="sim",
        policy=config.policy,
        config=config.to_dict(),
        trace={
            "name": workload.name,
            "format": workload.format,
            "num_requests": len(workload),
            "num_skipped": workload.num_skipped,
            "duration_s": workload.duration_s,
            "has_sharing": workload.has_sharing,
        },
        slo=None if objective.slo is None else objective.slo.to_dict(),
    )


def grid() -> list[dict[str, Any]]:
    """Every setting of it; those with most tokens a batch, the quickest, first."""
    settings = [
        dict(zip(GRID, values, strict=True)) | cache
        for values in product(*GRID.values())
        for cache in CACHES
    ]
    return sorted(settings, key=lambda knobs: -knobs["max_num_batched_tokens"])


def best_of_grid(engine: TrialEngine) -> tuple[dict[str, Any], float]:
    """The setting with the least loss; others are given up once they cannot be it."""
    best: tuple[dict[str, Any], float] = {}, float("inf")
    settings = grid()
    for begin in range(0, len(settings), GRID_BATCH):
        batch = settings[begin : begin + GRID_BATCH]
        for knobs, trial in zip(batch, engine.evaluate(batch, best[1]), strict=True):
            assert trial is not None, "nobody stopped it"
            if trial.is_complete and trial.loss < best[1]:
                best = knobs, trial.loss
    return best


def part_jobs(options: Options, gates: Gates) -> None:
    """The same seed and budget: the same answer from one process and two."""
    documents = [options.tune("--limit", options.limit, jobs=jobs) for jobs in (1, 2)]
    for document in documents:
        print(f"{document['jobs']} processes: {described(document)}")
        for name in VARYING:
            del document[name]
    differing = [
        name for name in documents[0] if documents[0][name] != documents[1][name]
    ]
    gates.at_most(f"differing entries {differing}", len(differing), 0)


PARTS = {"whole": part_whole, "regret": part_regret, "jobs": part_jobs}


def parsed_options() -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description="What a search costs, and finds.")
    add = parser.add_argument
    add("trace", nargs="?", type=Path, default=MOONCAKE)
    add("--part", action="append", choices=PARTS, help="measure this part; default: all")
    add("--budget", default="40trials", help="as the command takes it")
    add("--limit", type=int, default=1000, help="first requests of regret and jobs")
    add("--jobs", type=int, default=default_jobs(), help="processes")
    add("--seed", type=int, default=0, help="of the search")
    given = parser.parse_args()
    return Options(
        trace=given.trace,
        parts=given.part or list(PARTS),
        budget=given.budget,
        limit=given.limit,
        jobs=given.jobs,
        seed=given.seed,
    )


def main() -> None:
    """Measure the parts asked for."""
    options, gates = parsed_options(), Gates()
    for part in options.parts:
        PARTS[part](options, gates)
    sys.exit(1 if gates.failed else 0)


if __name__ == "__main__":
    main()
