"""Requests sent in real time, whatever the server does: an open loop."""

import asyncio
import time
from collections.abc import Callable, Sequence

from harness.arrivals import ArrivalSource
from harness.request import Request
from harness.vllm_engine.server.bodies import Bodies
from harness.vllm_engine.server.client import ServerClient
from harness.vllm_engine.server.completion import Completion
from harness.vllm_engine.server.fault import (
    Fault,
    RequestRefusedError,
    ServerFaultError,
)
from harness.vllm_engine.server.rows import RequestRows, StepRows
from results.naming import number_of

TICK_S = 0.1
"""Between two looks at whether somebody wants to stop, or the server has stopped."""

GRACE_S = 0.1
"""For tasks to end by themselves before they are cancelled."""

_NS_PER_S = 1_000_000_000


class OpenLoad:
    """Sends what arrives, each request in a task of its own, until all have left.

    The first fault of the server ends everything: what is under way is dropped.

    Args:
        source: Hands out requests as they are due; turns wait for the one before.
        client: Sends them.
        bodies: What is sent.
        requests: Take note of what comes back.
        steps: Get the times between tokens.
        start_ns: When the run began, by ``perf_counter``.
        max_model_len: Longest prompt plus output; None where nobody knows.
        hang_after_s: Without a token for so long, the server has stopped.
        is_stopped: Somebody wants the run to end.
    """

    def __init__(
        self,
        source: ArrivalSource,
        client: ServerClient,
        bodies: Bodies,
        requests: RequestRows,
        steps: StepRows,
        *,
        start_ns: int,
        max_model_len: int | None,
        hang_after_s: float,
        is_stopped: Callable[[], bool],
    ) -> None:
        self.num_cut = 0
        self._source = source
        self._client = client
        self._bodies = bodies
        self._requests = requests
        self._steps = steps
        self._start_ns = start_ns
        self._max_model_len = max_model_len
        self._hang_after_ns = round(hang_after_s * _NS_PER_S)
        self._is_stopped = is_stopped
        self._under_way: dict[int, _UnderWay] = {}
        self._changed = asyncio.Event()
        self._fault: BaseException | None = None

    async def run(self) -> bool:
        """Send everything; False where somebody stopped it.

        Raises:
            ServerFaultError: The server cannot go on.
        """
        reason = "interrupted"
        try:
            while not self._is_stopped():
                self._send_due()
                if not self._under_way and self._source.next_ns() is None:
                    return True
                await self._wait()
                self._check()
            return False
        except ServerFaultError as fault:
            reason = f"the engine died: {fault.kind}"
            raise
        finally:
            await self._drop_all(reason)

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return time.perf_counter_ns() - self._start_ns

    def _send_due(self) -> None:
        for request in self._source.pop_due(self.now_ns):
            self._requests.due(request)
            num_tokens = self._num_to_ask_for(request)
            if num_tokens < 1:
                self._leave_out(request)
                continue
            task = asyncio.create_task(self._one(request, num_tokens))
            self._under_way[request.request_id] = _UnderWay(request, task, num_tokens)

    def _num_to_ask_for(self, request: Request) -> int:
        """Output tokens a sample: the longest one's, cut where the model ends."""
        longest = max(length for _, length in request.outputs)
        if self._max_model_len is None:
            return longest
        room = self._max_model_len - request.num_prompt_tokens
        self.num_cut += 0 < room < longest
        return min(longest, room)

    def _leave_out(self, request: Request) -> None:
        """Refuse what is longer than the server says that it takes."""
        self._bodies.drop(request)
        self._requests.refused(request, self.now_ns, "prompt_too_long")
        self._source.on_finished(request, self.now_ns)
        self._changed.set()

    async def _one(self, request: Request, num_tokens: int) -> None:
        under_way = self._under_way[request.request_id]
        try:
            body = self._bodies.body(request, num_tokens)
            under_way.sent_ns = time.perf_counter_ns()
            self._requests.sent(request, self.now_ns)
            await self._client.complete(body, under_way.seen)
            self._finish(request, under_way.seen, num_tokens)
        except RequestRefusedError as refusal:
            self._requests.refused(request, self.now_ns, refusal.reason)
            self._requests.refusals[str(refusal)] += 1
            self._source.on_finished(request, self.now_ns)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fault = self._fault or error
            self._changed.set()
            return  # stays under way, to be recorded as broken off
        del self._under_way[request.request_id]
        self._changed.set()

    def _finish(self, request: Request, seen: Completion, num_tokens: int) -> None:
        if seen.last_token_ns is None:
            raise ServerFaultError(
                Fault.ERROR, "an answer ended without a token; is it a vLLM server?"
            )
        end_ns = self._requests.finished(request, seen, num_tokens * request.n)
        self._steps.add_gaps(seen.gaps)
        self._bodies.learn(request, seen.token_ids)
        self._source.on_finished(request, end_ns)

    async def _wait(self) -> None:
        """Until the next request is due, or one leaves; a tick at most."""
        next_ns = self._source.next_ns()
        wait_s = TICK_S
        if next_ns is not None:
            wait_s = min(max(next_ns - self.now_ns, 0) / _NS_PER_S, TICK_S)
        if wait_s == 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault
        waiting = [u.sent_ns for u in self._under_way.values() if u.sent_ns is not None]
        if not waiting:
            return
        since_ns = max(min(waiting), self._client.last_sign_ns)
        if time.perf_counter_ns() - since_ns > self._hang_after_ns:
            raise ServerFaultError(
                Fault.UNRESPONSIVE,
                f"no token came from it for {self._hang_after_ns / _NS_PER_S:g} s on any"
                f" of {number_of(len(waiting), 'request')} under way (--hang-after)",
            )

    async def _drop_all(self, reason: str) -> None:
        """Give up what is under way; what came of it is recorded."""
        await ended([under_way.task for under_way in self._under_way.values()])
        for under_way in self._under_way.values():
            self._requests.broken_off(under_way.request, under_way.seen, reason)
            self._steps.add_gaps(under_way.seen.gaps)


async def ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End tasks, after a moment for those that are about to end by themselves.

    A task that is cancelled while httpx closes connections for it leaves some open.
    """
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _UnderWay:
    """A request that was sent and has not left."""

    def __init__(
        self, request: Request, task: asyncio.Task[None], num_tokens: int
    ) -> None:
        self.request = request
        self.task = task
        self.seen = Completion(num_asked_tokens=num_tokens * request.n)
        self.sent_ns: int | None = None
