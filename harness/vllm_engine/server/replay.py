"""A workload through a server that runs already, measured from outside."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

from harness.analysis.sharing import findable_tokens
from harness.arrivals import ArrivalSource, MaxConcurrency, OpenLoop
from harness.vllm_engine.measured_run import MeasuredRun
from harness.vllm_engine.server.bodies import Bodies
from harness.vllm_engine.server.client import ServerClient
from harness.vllm_engine.server.cold import CacheState, reset_cache
from harness.vllm_engine.server.completion import Completion
from harness.vllm_engine.server.detect import Server, detect, look
from harness.vllm_engine.server.fault import (
    Fault,
    RequestRefusedError,
    ServerFaultError,
)
from harness.vllm_engine.server.load import TICK_S, OpenLoad, ended
from harness.vllm_engine.server.metrics import Difference, Snapshot
from harness.vllm_engine.server.options import ServerOptions
from harness.vllm_engine.server.priority import PriorityState, try_priority
from harness.vllm_engine.server.report import Observed, measurement, unmeasured_of
from harness.vllm_engine.server.rows import RequestRows, StepRows
from harness.workload import Workload
from results.journal import Journal
from results.measured import Measurement
from results.run_info import Ending, Outcome

OnProgress = Callable[[int, int], None]

JOURNAL_PERIOD_S = 0.5
"""Between two entries in the journal; what is lost when a run is killed."""

SETTLE_S = 3.0
"""Longest wait, after the last answer, for the server's counters to have it too."""

GLANCE_S = 5.0
"""Longest wait for the metrics of a server under load."""

_NS_PER_S = 1_000_000_000


def replay_on_server(
    workload: Workload,
    options: ServerOptions,
    *,
    on_progress: OnProgress | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    journal: Journal | None = None,
) -> MeasuredRun:
    """Send the whole workload to a server in real time and record what comes back.

    What goes wrong with the server ends the run and stands in its outcome; the rows so
    far are there.

    Args:
        workload: Its requests, at the times at which they are to be sent.
        options: Where the server is.
        on_progress: Called with requests done and requests in all.
        is_stopped: Asked ten times a second; the run ends early once it says so.
        journal: Gets the rows recorded so far every ``JOURNAL_PERIOD_S``, and the last of
            them when the run ends, whatever ended it.
    """
    return asyncio.run(_Replay(workload, options, on_progress, is_stopped, journal).run())


def measurement_at_start(options: ServerOptions) -> Measurement:
    """What is known before the server is spoken to: which columns may say nothing."""
    return Measurement(
        unmeasured=unmeasured_of(None, None), warmup_requests=options.warmup_requests
    )


class _Replay:
    """One replay; its parts in the order in which they happen."""

    def __init__(
        self,
        workload: Workload,
        options: ServerOptions,
        on_progress: OnProgress | None,
        is_stopped: Callable[[], bool],
        journal: Journal | None,
    ) -> None:
        self._workload = workload
        self._options = options
        self._on_progress = on_progress
        self._is_stopped = is_stopped
        self._journal = journal
        self._start_ns = time.perf_counter_ns()
        self._server: Server | None = None
        self._cache, self._priority = CacheState(), PriorityState()
        self._before: Snapshot | None = None
        self._after: Snapshot | None = None
        self._is_over = asyncio.Event()
        self._num_cut = self._num_missed_looks = self._num_unlearned = 0
        self._make_rows(options.block_size)

    def _make_rows(self, block_size: int) -> None:
        server = self._server
        keeps_outputs = server is not None and server.policy == "v1"
        findable = findable_tokens(self._workload, with_outputs=keeps_outputs)
        self._requests = RequestRows(self._clock, block_size, findable)
        num_blocks = None if server is None else server.num_usable_blocks
        self._steps = StepRows(self._clock, num_blocks)

    def _clock(self, perf_ns: int) -> int:
        return max(perf_ns - self._start_ns, 0)

    async def run(self) -> MeasuredRun:
        """The whole replay."""
        async with ServerClient(self._options) as client:
            outcome = await self._outcome(client)
            has_died = outcome.ending is Ending.DIED
            await self._look_last(client, settle_s=0 if has_died else SETTLE_S)
        end_ns = time.perf_counter_ns()
        self._requests.never_sent(self._workload, self._clock(end_ns), outcome.reason)
        self._keep()
        return MeasuredRun(
            requests=self._requests.rows,
            steps=self._steps.rows,
            outcome=outcome,
            wall_s=(end_ns - self._start_ns) / _NS_PER_S,
            measurement=measurement(self._observed(client)),
        )

    async def _outcome(self, client: ServerClient) -> Outcome:
        try:
            self._server = server = await detect(client, self._options)
            return await self._replay(client, server)
        except ServerFaultError as fault:
            return Outcome(ending=Ending.DIED, kind=fault.kind.value, message=str(fault))

    async def _replay(self, client: ServerClient, server: Server) -> Outcome:
        bodies = Bodies(self._workload, server, self._options.vocab_size)
        try:
            first = await look(client)
            await self._warm_up(client, bodies)
            if self._is_stopped():
                return Outcome(ending=Ending.INTERRUPTED)
            self._cache = await reset_cache(client, server, first)
            return await self._measure(client, server, bodies)
        finally:
            bodies.close()

    async def _warm_up(self, client: ServerClient, bodies: Bodies) -> None:
        """Send requests like the workload's first, which share nothing with it."""
        lengths = self._workload.input_tokens[: self._options.warmup_requests]
        for number in range(self._options.warmup_requests):
            if self._is_stopped():
                return
            body = bodies.warm_up(number, int(lengths[number % len(lengths)]))
            with suppress(RequestRefusedError):  # the run will say it of its own
                await self._answered(client.complete(body, Completion()))
        if (self._workload.priority != 0).any() and not self._is_stopped():
            await self._answered(self._try_priority(client, bodies))

    async def _try_priority(self, client: ServerClient, bodies: Bodies) -> None:
        number = self._options.warmup_requests
        self._priority = await try_priority(client, bodies, number)
        bodies.sends_priority = self._priority.is_sent

    async def _answered(self, answer: Coroutine[None, None, None]) -> None:
        """Wait for an answer, as long as nobody stops that and it is not too long.

        Raises:
            ServerFaultError: It is too long.
        """
        task = asyncio.create_task(answer)
        hang_after_s = self._options.hang_after_s
        give_up_s = time.monotonic() + hang_after_s
        try:
            while not task.done() and not self._is_stopped():
                if time.monotonic() > give_up_s:
                    raise ServerFaultError(
                        Fault.UNRESPONSIVE,
                        "a request of the warm-up was not answered within"
                        f" {hang_after_s:g} s (--hang-after)",
                    )
                await asyncio.wait([task], timeout=TICK_S)
            if task.done():
                await task
        finally:
            await ended([task])

    async def _measure(
        self, client: ServerClient, server: Server, bodies: Bodies
    ) -> Outcome:
        self._make_rows(server.block_size or self._options.block_size)
        self._before = await look(client)
        client.last_sign_ns = self._start_ns = time.perf_counter_ns()
        self._steps.look(0, self._before)
        load = OpenLoad(
            self._source(),
            client,
            bodies,
            self._requests,
            self._steps,
            start_ns=self._start_ns,
            max_model_len=server.max_model_len,
            hang_after_s=self._options.hang_after_s,
            is_stopped=self._is_stopped,
        )
        watchers = [
            asyncio.create_task(self._sample(client)),
            asyncio.create_task(self._tell()),
        ]
        try:
            is_complete = await load.run()
        finally:
            self._num_cut = load.num_cut
            self._num_unlearned = bodies.num_unlearned
            self._is_over.set()
            await ended(watchers)
        return Outcome(ending=Ending.COMPLETE if is_complete else Ending.INTERRUPTED)

    def _source(self) -> ArrivalSource:
        limit = self._options.max_concurrency
        source = OpenLoop(self._workload)
        return source if limit is None else MaxConcurrency(source, limit)

    async def _sample(self, client: ServerClient) -> None:
        """Look at the metrics every period, and more often while the run is young."""
        period_ns = round(self._options.sample_period_s * _NS_PER_S)
        due_ns = 0
        while not self._is_over.is_set():
            due_ns += min(period_ns, max(period_ns, due_ns) // 10)
            now_ns = self._clock(time.perf_counter_ns())
            if await self._is_over_within(max(due_ns - now_ns, 0) / _NS_PER_S):
                return
            snapshot = await self._glance(client)
            now_ns = self._clock(time.perf_counter_ns())
            self._steps.look(now_ns, snapshot)
            due_ns = max(due_ns, now_ns - period_ns)  # what was missed is not made up for

    async def _is_over_within(self, wait_s: float) -> bool:
        """Wait so long; whether all requests have left meanwhile."""
        try:
            async with asyncio.timeout(wait_s):
                await self._is_over.wait()
        except TimeoutError:
            return False
        return True

    async def _glance(self, client: ServerClient) -> Snapshot | None:
        if self._before is None:
            return None
        try:
            return await look(client, brief=True, timeout_s=GLANCE_S)
        except ServerFaultError:
            self._num_missed_looks += 1
            return None

    async def _tell(self) -> None:
        """Keep the journal and the bar up to date."""
        while not await self._is_over_within(JOURNAL_PERIOD_S):
            self._keep()
            if self._on_progress is not None:
                self._on_progress(self._requests.num_done, len(self._workload))

    def _keep(self) -> None:
        if self._journal is not None:
            changed = self._requests.take_changes()
            self._journal.append(changed, self._steps.take_new())

    async def _look_last(self, client: ServerClient, *, settle_s: float) -> None:
        """End the last row, and see how far the counters have come."""
        if self._before is None:
            return
        give_up_s = time.monotonic() + settle_s
        with suppress(ServerFaultError):
            while True:
                self._after = await look(client, timeout_s=SETTLE_S)
                if time.monotonic() > give_up_s or _is_idle(self._after):
                    break
                await asyncio.sleep(0.1)
        self._steps.look(self._clock(time.perf_counter_ns()), self._after)

    def _observed(self, client: ServerClient) -> Observed:
        difference = None
        if self._before is not None and self._after is not None:
            difference = Difference(self._before, self._after)
        return Observed(
            workload=self._workload,
            options=self._options,
            server=self._server,
            requests=self._requests,
            before=self._before,
            difference=difference,
            cache=self._cache,
            priority=self._priority,
            num_cut=self._num_cut,
            num_unlearned=self._num_unlearned,
            num_missed_looks=self._num_missed_looks,
            num_retries=client.num_retries,
        )


def _is_idle(snapshot: Snapshot | None) -> bool:
    return snapshot is None or not snapshot.gauge("num_running")
