"""What our v1 policy decides where vLLM decided: the same arrivals, the same steps.

Decisions of a scheduler follow from who is there at each of its calls. Given when each
request was in vLLM's queue, and when each of its steps began and ended, our policy makes
the same calls on the same requests; without that, a step that takes longer or shorter
than in a simulation brings other requests together, and other blocks into the cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.analysis.chains import with_long_runs, without_names
from harness.arrivals import OpenLoop
from harness.engine import Engine
from harness.executors.executor import Execution
from harness.recorder import Recorder
from harness.schedulers.batch import Batch, TransferId
from harness.schedulers.build import build_scheduler_v1
from harness.vllm_engine.measured_run import MeasuredRun
from harness.workload import Workload
from results.record import RequestRecord, RequestStatus

STUCK_AFTER, BARREN_AFTER = 8, 10_000
_KNOBS = (
    "block_size",
    "num_gpu_blocks",
    "enable_prefix_caching",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "sliding_window",
)
_DEFAULTS: dict[str, Any] = {
    "long_prefill_token_threshold": 0,
    "watermark": 0.0,
    "scheduler_reserve_full_isl": False,
    "scheduling_policy": "fcfs",
    "async_scheduling": False,
}
"""Knobs that versions which lack them behave as if set to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Both decisions, request by request.

    Attributes:
        num_compared: Requests that finished in vLLM.
        num_equal: Of these, requests with as many cached tokens and preemptions in both.
        hit_tokens: Prompt tokens found in the cache, in vLLM and in ours.
        preemptions: The same for preemptions.
        first_other: The earliest request that differs; None where none does.
        is_async: Calls were a step ahead, and their moments were not recorded.
    """

    num_compared: int
    num_equal: int
    hit_tokens: tuple[int, int]
    preemptions: tuple[int, int]
    first_other: int | None
    is_async: bool

    def in_words(self) -> str:
        """One sentence for people: the same, or what differs and why it may."""
        given = "sim --policy v1, given the same arrivals and steps,"
        if self.first_other is None:
            return (
                f"{given} decides the same for all {self.num_compared:,} requests:"
                f" {self.hit_tokens[0]:,} hit tokens, {self.preemptions[0]:,} preemptions"
            )
        num_other = self.num_compared - self.num_equal
        return (
            f"{given} decides otherwise for {num_other:,} of {self.num_compared:,}"
            f" requests, #{self.first_other} first: hit tokens {_pair(self.hit_tokens)},"
            f" preemptions {_pair(self.preemptions)} (vLLM, sim);"
            f" {self._reason()}"
        )

    def _reason(self) -> str:
        if self.is_async:
            return (
                "with asynchronous scheduling vLLM decides a step before the one before"
                " has ended, at a moment that is not recorded: --no-async-scheduling"
                " leaves no such difference"
            )
        return (
            "no moment is left open, so this version decides by other rules, or found"
            " outputs in its cache that the trace keeps apart"
        )


def _pair(values: tuple[int, int]) -> str:
    return f"{values[0]:,} and {values[1]:,}"


def can_run_beside(config: Mapping[str, Any]) -> bool:
    """Whether our policy has all that this engine has: v1, without an offload tier."""
    is_known = all(config.get(n) is not None for n in _KNOBS if n != "sliding_window")
    return is_known and config["policy"] == "v1" and not config.get("num_cpu_blocks")


def beside_sim(workload: Workload, config: Mapping[str, Any], run: MeasuredRun) -> Beside:
    """Let our policy decide at the moments at which vLLM did.

    Args:
        workload: What was sent.
        config: The engine's, for which ``can_run_beside``.
        run: What vLLM did.
    """
    theirs = {r.request_id: r for r in run.requests if r.status is RequestStatus.FINISHED}
    ours = _replayed(workload, config, run, sorted(theirs))
    pairs = [(theirs[number], ours[number]) for number in sorted(ours)]
    others = [mine.request_id for his, mine in pairs if _decided(his) != _decided(mine)]
    both = [[_decided(record) for record in pair] for pair in pairs]
    return Beside(
        num_compared=len(pairs),
        num_equal=len(pairs) - len(others),
        hit_tokens=(sum(a[0] for a, _ in both), sum(b[0] for _, b in both)),
        preemptions=(sum(a[1] for a, _ in both), sum(b[1] for _, b in both)),
        first_other=min(others, default=None),
        is_async=bool(config.get("async_scheduling")),
    )


def _decided(record: RequestRecord) -> tuple[int, int]:
    return record.num_cached_tokens, record.num_preemptions


def _replayed(
    workload: Workload,
    config: Mapping[str, Any],
    run: MeasuredRun,
    numbers: Sequence[int],
) -> dict[int, RequestRecord]:
    """Our records of these requests, by their numbers in the workload."""
    if not numbers:
        return {}
    queued = {r.request_id: r.queued_ns for r in run.requests}
    knobs = {name: config[name] for name in _KNOBS}
    given = {n: v for n in _DEFAULTS if (v := config.get(n)) is not None}
    scheduler = build_scheduler_v1(**knobs, **(_DEFAULTS | given))
    recorder = Recorder(scheduler, block_size=config["block_size"], is_journaled=False)
    part = workload.take(np.array(numbers))
    moments = np.array([queued[number] for number in numbers])
    part = replace(
        part,
        arrival_ns=moments,
        parent=np.full(len(part), -1),
        delay_ns=np.zeros(len(part), dtype=np.int64),
    )
    is_async = bool(config.get("async_scheduling"))
    Engine(
        OpenLoop(without_names(with_long_runs(part))),
        scheduler,
        _MeasuredSteps(run),
        recorder,
        num_in_flight=2 if is_async else 1,
        can_repeat=False,
        stuck_after=STUCK_AFTER,
        barren_after=BARREN_AFTER,
    ).run()
    return {
        numbers[record.request_id]: replace(record, request_id=numbers[record.request_id])
        for record in recorder.requests
    }


class _MeasuredSteps:
    """Steps begin and end when vLLM's did; behind the last each takes no time."""

    has_transfers = False

    def __init__(self, run: MeasuredRun) -> None:
        self._starts = run.steps.column("start_ns").tolist()
        self._ends = run.steps.column("end_ns").tolist()
        self._num_submitted = self._num_done = 0
        self._now_ns = 0
        self._move()

    @property
    def now_ns(self) -> int:
        """When the next call is made."""
        return self._now_ns

    def submit(self, batch: Batch) -> None:
        """Count it: its times are those of the step of that number."""
        self._num_submitted += 1

    def repeat(self, max_steps: int, until_ns: int | None) -> int:
        """Every step is decided."""
        return 0

    def wait(self) -> Execution:
        """Let the oldest batch end, and time pass to the next call."""
        place = self._num_done
        is_known = place < len(self._ends)
        start_ns = self._starts[place] if is_known else self._now_ns
        end_ns = self._ends[place] if is_known else self._now_ns
        self._num_done += 1
        self._now_ns = max(self._now_ns, end_ns)
        self._move()
        return Execution(
            start_ns=start_ns,
            first_step_end_ns=end_ns,
            last_step_start_ns=start_ns,
            end_ns=end_ns,
        )

    def idle_until(self, ns: int | None, *, is_blocked: bool) -> list[TransferId]:
        """To the next call that vLLM made, or to ``ns`` if that is later."""
        self._now_ns = max(self._now_ns + is_blocked, ns or 0)
        self._move()
        return []

    def ended_transfers(self) -> list[TransferId]:
        """There is no tier."""
        return []

    def _move(self) -> None:
        """To the moment at which the next step was decided."""
        if self._num_submitted < len(self._starts):
            self._now_ns = max(self._now_ns, self._starts[self._num_submitted])
