"""What letting batches repeat is worth: wall time against one call for every step.

Run from the repository root: ``.venv/bin/python benchmarks/repeat_speed.py [TRACE]``.
Prints both times, the steps and calls behind them, and their ratio, all from one run.
"""

import sys
import time
from pathlib import Path

from harness.arrivals import OpenLoop
from harness.config import resolve_config
from harness.engine import Engine
from harness.recorder import Recorder
from harness.replay import build_executor, build_scheduler
from harness.traces import open_trace

BUNDLED = Path(__file__).resolve().parents[1] / "examples" / "chat_1000.jsonl"


def run(trace: Path, *, can_repeat: bool) -> tuple[float, int, int]:
    """Seconds, steps and scheduler calls of one replay."""
    workload = open_trace(trace)
    config = resolve_config(model="Llama-3.1-8B", gpu="H100-80GB", policy="v0")
    scheduler = build_scheduler(config)
    recorder = Recorder(scheduler, block_size=config.block_size)
    started = time.perf_counter()
    Engine(
        OpenLoop(workload),
        scheduler,
        build_executor(config),
        recorder,
        can_repeat=can_repeat,
    ).run()
    wall_s = time.perf_counter() - started
    return wall_s, sum(step.num_steps for step in recorder.steps), len(recorder.steps)


def main() -> None:
    """Measure both ways on one trace and print what was seen."""
    trace = Path(sys.argv[1]) if len(sys.argv) > 1 else BUNDLED
    single_s, steps, single_calls = run(trace, can_repeat=False)
    repeat_s, repeat_steps, repeat_calls = run(trace, can_repeat=True)
    assert steps == repeat_steps, "repeating must change nothing"
    print(f"{trace.name}: {steps:,} steps")
    print(f"  one call a step  {single_calls:>9,} calls  {single_s:8.2f} s")
    print(f"  repeated         {repeat_calls:>9,} calls  {repeat_s:8.2f} s")
    print(f"  ratio            {single_s / repeat_s:.1f}x")


if __name__ == "__main__":
    main()
