"""Records of requests, from what an engine's scheduler does with them."""

from dataclasses import dataclass, field

from harness.request import Request
from results.record import RequestRecord, RequestStatus

Sample = tuple[int, int]
"""A request and one of its samples."""


@dataclass(slots=True)
class _UnderWay:
    """A request in the engine.

    Attributes:
        lengths: Tokens that each sample has.
        num_left: Samples that go on.
        lost: Tokens that a preemption took from a sample and that are not back yet.
    """

    request: Request
    record: RequestRecord
    lengths: list[int]
    num_left: int
    lost: dict[int, int] = field(default_factory=dict)


class Book:
    """Keeps one record a request.

    Attributes:
        done: Requests that have left since this was last emptied, and when.

    Args:
        block_size: Tokens in a block.
    """

    def __init__(self, block_size: int) -> None:
        self.done: list[tuple[Request, int]] = []
        self._block_size = block_size
        self._under_way: dict[int, _UnderWay] = {}
        self._changed: dict[int, RequestRecord] = {}
        self._last_token_ns: dict[Sample, int] = {}

    def arrived(self, request: Request, queued_ns: int) -> None:
        """Begin a record: the engine has the request since ``queued_ns``."""
        record = RequestRecord(
            request_id=request.request_id,
            arrival_ns=request.arrival_ns,
            queued_ns=queued_ns,
            num_prompt_tokens=request.num_prompt_tokens,
            n=request.n,
            num_requested_tokens=request.num_requested_tokens,
            num_demand_blocks=request.num_demand_blocks(self._block_size),
        )
        self._under_way[request.request_id] = _UnderWay(
            request, record, [0] * request.n, request.n
        )
        self._changed[request.request_id] = record

    def has(self, request_id: int) -> bool:
        """Whether the request is under way."""
        return request_id in self._under_way

    def forget(self, request_id: int) -> None:
        """Let a request that has arrived not have arrived."""
        del self._under_way[request_id], self._changed[request_id]

    def refused(self, request: Request, now_ns: int, reason: str) -> None:
        """Note a request that the engine did not take."""
        self.arrived(request, now_ns)
        self._leave(request.request_id, now_ns, RequestStatus.REJECTED, reason)

    def admitted(
        self, sample: Sample, num_cached_tokens: int, num_loaded_tokens: int, now_ns: int
    ) -> bool:
        """Note that a sample begins to run, or does so again.

        Returns:
            Whether it had run before.
        """
        entry = self._entry(sample)
        record = entry.record
        if record.first_scheduled_ns is None:
            record.first_scheduled_ns = now_ns
        if sample[1] in entry.lost:
            record.num_recompute_cached_tokens += num_cached_tokens
            return True
        if sample[1] == 0:
            record.num_cached_tokens += num_cached_tokens
            record.num_offload_cached_tokens += num_loaded_tokens
        return False

    def computed(self, sample: Sample, num_tokens: int, num_cached_tokens: int) -> int:
        """Note tokens that a prefill computes or found; how many it computes again."""
        entry = self._entry(sample)
        num_lost = entry.lost.get(sample[1], 0)
        if not num_lost:
            return 0
        num_regained = min(num_tokens + num_cached_tokens, num_lost)
        num_again = num_regained - min(num_cached_tokens, num_regained)
        entry.lost[sample[1]] = num_lost - num_regained
        entry.record.num_recomputed_tokens += num_again
        return num_again

    def preempted(self, sample: Sample, num_lost_tokens: int) -> None:
        """Note a preemption, and how many computed tokens it cost."""
        entry = self._entry(sample)
        entry.record.num_preemptions += 1
        entry.lost[sample[1]] = num_lost_tokens

    def got_tokens(self, sample: Sample, num_tokens: int, now_ns: int) -> int | None:
        """Note tokens of a sample.

        Returns:
            Nanoseconds since the token before; None if it is the first.
        """
        entry = self._entry(sample)
        entry.lengths[sample[1]] += num_tokens
        entry.record.num_output_tokens += num_tokens
        entry.record.max_sample_tokens = max(entry.lengths)
        before_ns = self._last_token_ns.get(sample)
        self._last_token_ns[sample] = now_ns
        if before_ns is not None:
            return now_ns - before_ns
        if entry.record.first_token_ns is None:
            entry.record.first_token_ns = now_ns
        return None

    def finished(self, sample: Sample, now_ns: int, reason: str = "") -> None:
        """Note that a sample has ended; the request leaves with the last of them.

        Args:
            sample: Which.
            now_ns: When.
            reason: Why it was dismissed; empty where it has all its tokens.
        """
        entry = self._entry(sample)
        self._last_token_ns.pop(sample, None)
        entry.num_left -= 1
        if entry.num_left == 0:
            status = RequestStatus.ABORTED if reason else RequestStatus.FINISHED
            self._leave(sample[0], now_ns, status, reason)

    def take_changes(self) -> list[RequestRecord]:
        """Records that are new, or other than when last taken."""
        changed = list(self._changed.values())
        self._changed.clear()
        return changed

    def _entry(self, sample: Sample) -> _UnderWay:
        entry = self._under_way[sample[0]]
        self._changed[sample[0]] = entry.record
        return entry

    def _leave(
        self, request_id: int, now_ns: int, status: RequestStatus, reason: str
    ) -> None:
        entry = self._under_way.pop(request_id)
        entry.record.finished_ns = now_ns
        entry.record.status, entry.record.reason = status, reason
        self.done.append((entry.request, now_ns))
