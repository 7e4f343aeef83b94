"""The loop: requests arrive, the scheduler decides, the executor runs, tokens come back.

The same for every policy and every executor. In one turn, events take this order: what
the oldest batch in flight brought (tokens, finishes, ended transfers), then arrivals due
by now, then the scheduler's call.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from harness.arrivals import ArrivalSource
from harness.executors.executor import Execution, Executor
from harness.request import Request
from harness.schedulers.batch import Batch, Finished, Scheduler, TransferId
from harness.schedulers.errors import SchedulerDiedError
from results.run_info import Ending, Outcome


class Observer(Protocol):
    """Who wants to know what happens in the loop."""

    def arrived(self, request: Request) -> None:
        """A request was handed to the scheduler."""

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """A call was made; the scheduler is as it left it."""

    def repeated(self, batch: Batch, num_steps: int) -> None:
        """The batch ran ``num_steps`` more steps; its last tokens are not in yet."""

    def committed(self, batch: Batch, execution: Execution, done: list[Finished]) -> None:
        """The batch's last tokens are in; ``done`` finished with it."""

    def transferred(self, transfers: Sequence[TransferId]) -> None:
        """The scheduler was told that these copies have ended."""


class Engine:
    """Drives one run.

    Args:
        source: Where requests come from.
        scheduler: The policy.
        executor: What runs batches and tells the time.
        observer: Who is told.
        num_in_flight: 1 for synchronous scheduling; 2 for asynchronous, where a batch is
            scheduled before the tokens of the one before are in.
        can_repeat: Let batches repeat until there is something to decide. Without it each
            step is scheduled; the result is the same.
        stuck_after: Calls in a row that run and dismiss nothing after which the run is
            given up, once there is nothing left to wait for.
        barren_after: Calls in a row that sample no token and dismiss nobody after which
            the run is given up too: requests then only preempt each other. ``None``
            waits for ever.
        after_turn: Called after each turn; the run ends early when it returns False.
    """

    def __init__(
        self,
        source: ArrivalSource,
        scheduler: Scheduler,
        executor: Executor,
        observer: Observer,
        *,
        num_in_flight: int = 1,
        can_repeat: bool = True,
        stuck_after: int = 1,
        barren_after: int | None = None,
        after_turn: Callable[[], bool] | None = None,
    ) -> None:
        self._source = source
        self._scheduler = scheduler
        self._executor = executor
        self._observer = observer
        self._num_in_flight = num_in_flight
        self._can_repeat = can_repeat
        self._stuck_after = stuck_after
        self._barren_after = barren_after
        self._after_turn = after_turn
        self._in_flight: deque[Batch] = deque()
        self._num_blocked_calls = 0
        self._num_barren_calls = 0

    def run(self) -> Outcome:
        """Run until every request has left, or nothing can go on."""
        try:
            while self._turn():
                if self._after_turn is not None and not self._after_turn():
                    return Outcome(ending=Ending.INTERRUPTED)
        except SchedulerDiedError as error:
            return Outcome(ending=Ending.DIED, kind=error.kind, message=str(error))
        is_stuck = self._scheduler.has_unfinished
        return Outcome(ending=Ending.STUCK if is_stuck else Ending.COMPLETE)

    def _turn(self) -> bool:
        """Make a call, take in the batch before, let the new one run on.

        With one batch in flight the new batch is taken in, too.

        Returns:
            False at the end.
        """
        if self._barren_after is not None and self._num_barren_calls > self._barren_after:
            return False
        self._admit()
        has_started = self._scheduler.has_unfinished and self._schedule()
        if not self._in_flight:
            return self._wait_for_work()
        if not has_started or len(self._in_flight) > 1:
            self._take_in()
        else:
            self._report_transfers()
        if self._in_flight:
            self._run_on()
        if len(self._in_flight) == self._num_in_flight:
            self._take_in()
        return True

    def _admit(self) -> None:
        for request in self._source.pop_due(self._executor.now_ns):
            self._num_barren_calls = 0
            self._scheduler.add(request)
            self._observer.arrived(request)

    def _schedule(self) -> bool:
        """Make one call and start its batch; False if it found nothing to run."""
        batch = self._scheduler.schedule()
        now_ns = self._executor.now_ns
        self._observer.scheduled(batch, now_ns)
        for dismissed in batch.dismissed:
            self._source.on_finished(dismissed.request, now_ns)
        self._count_fruitless(batch)
        if batch.is_idle:
            return False
        self._executor.submit(batch)
        self._in_flight.append(batch)
        return True

    def _count_fruitless(self, batch: Batch) -> None:
        if batch.num_steady_seqs or batch.dismissed:
            self._num_blocked_calls = self._num_barren_calls = 0
            return
        self._num_blocked_calls = 0 if batch.scheduled else self._num_blocked_calls + 1
        if batch.scheduled:  # a call that only waits for copies is none
            self._num_barren_calls += 1
        if any(entry.samples for entry in batch.scheduled):
            self._num_barren_calls = 0

    def _run_on(self) -> None:
        """Repeat the only batch in flight until there is something to decide."""
        (batch,) = self._in_flight
        max_steps = self._scheduler.max_repeat(batch) if self._can_repeat else 0
        if max_steps > 0:
            num_steps = self._executor.repeat(max_steps, self._source.next_ns())
            if num_steps:
                self._scheduler.repeat(batch, num_steps)
                self._observer.repeated(batch, num_steps)
                self._report_transfers()  # the clock has moved where calls are ahead

    def _take_in(self) -> None:
        """Wait for the oldest batch, then hand in its tokens and ended transfers."""
        batch = self._in_flight.popleft()
        execution = self._executor.wait()
        done = self._scheduler.commit(batch)
        self._observer.committed(batch, execution, done)
        if execution.transfers_done:
            self._report(execution.transfers_done)
        for finished in done:
            self._source.on_finished(finished.request, execution.end_ns)

    def _report_transfers(self) -> None:
        if self._executor.has_transfers:
            self._report(self._executor.ended_transfers())

    def _report(self, transfers: Sequence[TransferId]) -> None:
        if transfers:
            self._scheduler.transfers_done(transfers)
            self._observer.transferred(transfers)

    def _wait_for_work(self) -> bool:
        """Let time pass to the next event; False if nothing will ever happen again."""
        is_blocked = self._scheduler.has_unfinished
        next_ns = self._source.next_ns()
        can_go_on = is_blocked and self._num_blocked_calls < self._stuck_after
        if next_ns is None and not self._executor.has_transfers and not can_go_on:
            return False
        self._report(self._executor.idle_until(next_ns, is_blocked=is_blocked))
        return True
