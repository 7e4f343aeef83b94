"""A trace through our block manager, on the simulated clock."""

from typing import TYPE_CHECKING

from bench_cli.run_end import exit_code_of_run, save_and_print
from bench_cli.run_start import run_info
from bench_cli.workload import WorkloadFlags

if TYPE_CHECKING:
    from bench_cli.measured_run import IsStopped, Measured, Order
    from harness.config import EngineConfig
    from harness.replay import RunResult
    from harness.workload import Workload
    from results.store import RunStore


def replay_into(
    store: "RunStore",
    workload: "Workload",
    config: "EngineConfig",
    timing: WorkloadFlags,
    is_stopped: "IsStopped",
    *,
    check: bool = False,
) -> "RunResult":
    """Replay with a bar for who watches, and a journal for who pulls the plug."""
    from bench_cli.progress import progress_bar
    from harness.replay import replay

    with progress_bar(f"replaying {workload.name}") as on_progress:
        return replay(
            workload,
            config,
            max_concurrency=timing.max_concurrency,
            check=check,
            on_progress=on_progress,
            journal=store.journal,
            is_stopped=is_stopped,
        )


def simulate(order: "Order", is_stopped: "IsStopped") -> "Measured":
    """Simulate what others measure, save and print."""
    from bench_cli.measured_run import Measured

    config = order.flags.resolve()
    info = run_info(order.workload, config, order.timing, order.limits)
    with order.store(info) as store:
        result = replay_into(store, order.workload, config, order.timing, is_stopped)
        saved = save_and_print(store, info, result, order.report)
    return Measured(saved, exit_code_of_run(result))
