"""What a replay costs: ours, the naive loop, vLLM's own scheduler; long traces; memory.

Run from the repository root::

    .venv/bin/python benchmarks/replay_speed.py [TRACE] [--part PART]…
        [--vllm-python .venv-vllm-v1/bin/python] [--repeat N] [--limit N]

Without ``TRACE``: Mooncake's conversations from ``BLOCKBENCH_DATA``. Exits with 1 if a
gate fails; what was not measured cannot fail. Model and GPU are Llama-3.1-8B on
H100-80GB, the trace is replayed at a quarter of its speed, and knobs are v1's defaults.

Ours is the whole replay, clock and records included. The naive loop and vLLM get the
calls that ours made one step at a time on the first requests, each arrival before the
same call, and only these calls are timed. Times are the processor's, so that other work
on the machine counts little.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from naive_v1 import NaiveScheduler
from replay_calls import Calls, Diary, InOrder, Knobs, Stopwatch, play, write_calls

from harness.arrivals import FrontDoor, OpenLoop
from harness.config import EngineConfig, resolve_config
from harness.engine import Engine
from harness.recorder import Recorder
from harness.replay import build_executor, build_scheduler, replay
from harness.traces import open_trace
from harness.workload import Workload
from results.run_info import Ending

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("BLOCKBENCH_DATA") or REPOSITORY.parent / "shared")
MOONCAKE = DATA / "traces" / "mooncake" / "conversation_trace.jsonl"
AZURE = DATA / "traces" / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv"

SPEEDUP = 0.25
LEAST_TIMES_NAIVE = 2.0
LEAST_TIMES_VLLM = 50.0
MOST_GROWTH = 1.3
MOST_MEMORY_MIB = 1536.0
STEADY_SIZES = (1_000, 10_000, 100_000, 1_000_000)

KNOBS = (
    "block_size", "num_gpu_blocks", "enable_prefix_caching", "max_num_seqs",
    "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill",
    "long_prefill_token_threshold", "watermark", "scheduler_reserve_full_isl",
    "scheduling_policy", "async_scheduling", "sliding_window",
)  # fmt: skip


@dataclass(slots=True)
class Table:
    """What has been measured and printed so far.

    Attributes:
        failed: Gates that failed, in words.
    """

    failed: list[str] = field(default_factory=list)

    def heading(self) -> None:
        """Print the names of the columns."""
        print(f"{'':44} {'requests':>9} {'CPU s':>9} {'ms/request':>11}")

    def row(self, what: str, num_requests: int, cpu_s: float, note: str = "") -> float:
        """Print a measurement; milliseconds a request."""
        cost_ms = 1000 * cpu_s / num_requests
        line = f"{what:44} {num_requests:9,} {cpu_s:9.2f} {cost_ms:11.3f}  {note}"
        print(line.rstrip(), flush=True)
        return cost_ms

    def gate(self, what: str, value: float, limit: float, *, is_least: bool) -> None:
        """Print whether a value is on the right side of its limit."""
        is_met = value >= limit if is_least else value <= limit
        bound = "at least" if is_least else "at most"
        line = f"{what}: {value:,.2f}, must be {bound} {limit:,g}"
        print(f"  {'met   ' if is_met else 'FAILED'}  {line}", flush=True)
        if not is_met:
            self.failed.append(line)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    trace: Path
    parts: Sequence[str]
    limit: int
    repeat: int
    sizes: Sequence[int]
    vllm_python: Path | None

    def workload(self, *, speedup: float = SPEEDUP) -> Workload:
        """The trace at that speed."""
        return open_trace(self.trace).retimed(speedup=speedup)

    def best(self, measure: Callable[[], float]) -> float:
        """The fastest of the repetitions."""
        return min(measure() for _ in range(self.repeat))


def config_of(**knobs: Any) -> EngineConfig:
    """The engine that is replayed."""
    return resolve_config(
        model="Llama-3.1-8B", gpu="H100-80GB", policy="v1", **{"block_size": 16, **knobs}
    )


def replay_s(workload: Workload, **knobs: Any) -> float:
    """Seconds that our replay takes."""
    config = config_of(**knobs)
    started = time.process_time()
    result = replay(workload, config)
    cpu_s = time.process_time() - started
    assert result.outcome.ending is Ending.COMPLETE, result.outcome
    return cpu_s


def calls_of(workload: Workload, config: EngineConfig) -> Calls:
    """Who arrives before which call of our scheduler, with a call for every step."""
    diary = Diary(build_scheduler(config))
    recorder = Recorder(diary, block_size=config.block_size)
    source = FrontDoor(OpenLoop(workload), config.max_prompt_tokens, recorder.refused)
    engine = Engine(
        source,
        diary,
        build_executor(config),
        recorder,
        num_in_flight=1 + config.async_scheduling,
        can_repeat=False,
    )
    assert engine.run().ending is Ending.COMPLETE
    return diary.calls


def part_whole(options: Options, table: Table) -> None:
    """The whole trace: replayed, and loaded and replayed."""
    workload = options.workload()
    count = len(workload)
    table.row("whole trace, replay", count, options.best(partial(replay_s, workload)))
    load_s = options.best(lambda: replay_s(options.workload()))
    table.row("whole trace, load and replay", count, load_s)


def part_reference(options: Options, table: Table) -> None:
    """Ours on the whole trace; a naive loop and vLLM's scheduler on its beginning."""
    whole = options.workload()
    ours = table.row(
        "whole trace, replay", len(whole), options.best(partial(replay_s, whole))
    )
    workload = whole.select(slice(options.limit))
    count, config = len(workload), config_of()
    knobs: Knobs = {name: getattr(config, name) for name in KNOBS}
    calls = calls_of(workload, config)
    table.row("first requests, replay", count, options.best(partial(replay_s, workload)))
    naive_s = options.best(partial(naive_loop_s, knobs, calls))
    naive = table.row("first requests, naive loop", count, naive_s)
    if options.vllm_python is None:
        print(f"{'first requests, vLLM':44} not measured: give --vllm-python PATH")
    else:
        python = options.vllm_python
        cpu_s, version = vllm_s(python, knobs, calls)
        vllm = table.row(f"first requests, vLLM {version}", count, cpu_s)
        table.gate("times vLLM", vllm / ours, LEAST_TIMES_VLLM, is_least=True)
    table.gate("times naive", naive / ours, LEAST_TIMES_NAIVE, is_least=True)


def naive_loop_s(knobs: Knobs, calls: Calls) -> float:
    """Seconds in the naive scheduler."""
    naive, watch = NaiveScheduler(**knobs), Stopwatch()
    watch.watch(naive, "add", "schedule", "commit")
    play(calls, InOrder(naive, num_ahead=int(naive.async_scheduling)))
    return watch.total_s


def vllm_s(python: Path, knobs: Knobs, calls: Calls) -> tuple[float, str]:
    """Seconds in that interpreter's vLLM, and its version."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.json"
        write_calls(path, knobs, calls)
        script = REPOSITORY / "benchmarks" / "replay_calls.py"
        document = output_of([python, script, path])
    return document["cpu_s"], document["version"]


def part_block_sizes(options: Options, table: Table) -> None:
    """The whole trace with the smallest blocks and with large ones."""
    workload = options.workload()
    for size in (1, 128):
        cpu_s = options.best(partial(replay_s, workload, block_size=size))
        table.row(f"whole trace, block size {size}", len(workload), cpu_s)


def part_azure(options: Options, table: Table) -> None:
    """A trace of lengths alone, at its own speed."""
    workload = open_trace(AZURE)
    cpu_s = options.best(partial(replay_s, workload))
    table.row("Azure conversations, own speed", len(workload), cpu_s)


def part_overload(options: Options, table: Table) -> None:
    """The whole trace at its own speed, with a queue that grows."""
    workload = options.workload(speedup=1.0)
    cpu_s = options.best(partial(replay_s, workload))
    table.row("whole trace, own speed", len(workload), cpu_s)


def part_growth(options: Options, table: Table) -> None:
    """Ever longer traces of a steady load, each in a process of its own."""
    costs_ms, peaks_mib = [], []
    for size in options.sizes:
        runs = [steady_run(size) for _ in range(options.repeat)]
        best = min(runs, key=lambda run: run["cpu_s"])
        peaks_mib.append(max(run["peak_mib"] for run in runs))
        note = f"peak {peaks_mib[-1]:,.0f} MiB"
        costs_ms.append(table.row("steady load, replay", size, best["cpu_s"], note))
    growth = max(costs_ms) / min(costs_ms)
    table.gate("dearest over cheapest request", growth, MOST_GROWTH, is_least=False)
    table.gate("peak MiB", max(peaks_mib), MOST_MEMORY_MIB, is_least=False)


def steady_run(num_requests: int) -> dict[str, Any]:
    """Seconds and peak memory of a process that replays so many requests."""
    script = REPOSITORY / "benchmarks" / "replay_steady.py"
    return output_of([sys.executable, script, str(num_requests)])


def output_of(command: Sequence[str | Path]) -> dict[str, Any]:
    """The JSON document that a process prints last; its errors are shown."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


PARTS = {
    "whole": part_whole,
    "reference": part_reference,
    "block-sizes": part_block_sizes,
    "azure": part_azure,
    "overload": part_overload,
    "growth": part_growth,
}


def parsed_options() -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description="What a replay costs.")
    add = parser.add_argument
    add("trace", nargs="?", type=Path, default=MOONCAKE)
    add("--part", action="append", choices=PARTS, help="measure this part; default: all")
    add("--limit", type=int, default=1000, help="first requests that others replay too")
    add("--repeat", type=int, default=1, help="count the fastest of so many")
    add("--sizes", type=int, nargs="+", default=STEADY_SIZES, help="of the growth part")
    add("--vllm-python", type=Path, help="interpreter of a venv with vLLM")
    given = parser.parse_args()
    return Options(
        trace=given.trace,
        parts=given.part or list(PARTS),
        limit=given.limit,
        repeat=given.repeat,
        sizes=given.sizes,
        vllm_python=given.vllm_python,
    )


def main() -> None:
    """Measure the parts asked for."""
    options, table = parsed_options(), Table()
    table.heading()
    for part in options.parts:
        PARTS[part](options, table)
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
