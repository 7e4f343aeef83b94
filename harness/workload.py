"""Every request of a trace, held as columns of numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.errors import UsageError
from harness.request import Request
from harness.run_columns import IntArray, RunColumns

ExtraKeys = tuple[int | str, ...]

_NS_PER_S = 1_000_000_000
_MAX_NS = 10**18  # about 30 years


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Requests in file order, or in time order where the file was not sorted.

    The earliest arrival is 0. A turn comes after the turn it follows:
    ``parent[i] < i``.

    Attributes:
        name: The trace's name, for people.
        format: Name of the trace format.
        content_hash: SHA-256 of the trace file's bytes, in hex.
        arrival_ns: When each request arrives, ``(num_requests,)``; an estimate for a
            turn that waits for another.
        prompts: The content of each prompt.
        outputs: The outputs of each request, one run a sample.
        parent: The request whose end releases this one, or -1, ``(num_requests,)``.
        delay_ns: Time between that end and this arrival, ``(num_requests,)``.
        priority: vLLM's request priority, ``(num_requests,)``.
        extra_keys: Adapter and salt of the requests that have any, by position.
        has_sharing: Whether the trace says which prompts begin alike.
        is_generated: Whether it was made up rather than recorded.
        skipped_by_reason: How many rows of the file were left out, and why.
        notes: What a reader of results should know about this workload.
    """

    name: str
    format: str
    content_hash: str
    arrival_ns: IntArray
    prompts: RunColumns
    outputs: RunColumns
    parent: IntArray
    delay_ns: IntArray
    priority: IntArray
    extra_keys: Mapping[int, ExtraKeys] = field(default_factory=dict)
    has_sharing: bool = True
    is_generated: bool = False
    skipped_by_reason: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def from_requests(
        cls,
        requests: Sequence[Request],
        *,
        name: str = "requests",
        parent: Sequence[int] | None = None,
        delay_ns: Sequence[int] | None = None,
    ) -> "Workload":
        """A workload of requests made in memory; their ids become their positions."""
        count = len(requests)
        keys = {i: r.extra_keys for i, r in enumerate(requests) if r.extra_keys}
        arrival = np.array([r.arrival_ns for r in requests], dtype=np.int64)
        return cls(
            name=name,
            format="memory",
            content_hash="",
            arrival_ns=arrival - arrival.min(initial=arrival[0] if count else 0),
            prompts=RunColumns.from_runs(r.prompt for r in requests),
            outputs=RunColumns.from_runs(r.outputs for r in requests),
            parent=np.array([-1] * count if parent is None else parent, np.int64),
            delay_ns=np.array([0] * count if delay_ns is None else delay_ns, np.int64),
            priority=np.array([r.priority for r in requests], dtype=np.int64),
            extra_keys=keys,
        )

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def num_skipped(self) -> int:
        """Rows of the file that were left out."""
        return sum(self.skipped_by_reason.values())

    @property
    def input_tokens(self) -> IntArray:
        """Prompt tokens of each request."""
        return self.prompts.totals()

    @property
    def output_tokens(self) -> IntArray:
        """Tokens that each request generates, all samples together."""
        return self.outputs.totals()

    @property
    def max_samples(self) -> int:
        """Samples of the request that asks for most of them; 1 without any requests."""
        return int(np.diff(self.outputs.offsets).max(initial=1))

    @property
    def duration_s(self) -> float:
        """Seconds between the first and the last arrival."""
        return float(np.ptp(self.arrival_ns)) / _NS_PER_S if len(self) else 0.0

    def request(self, index: int, *, arrival_ns: int | None = None) -> Request:
        """The request at a position, built anew; ``arrival_ns`` replaces the trace's."""
        prompt = self.prompts.runs(index)
        if arrival_ns is None:
            arrival_ns = int(self.arrival_ns[index])
        return Request(
            request_id=index,
            arrival_ns=arrival_ns,
            prompt=prompt,
            num_prompt_tokens=sum(length for _, length in prompt),
            outputs=self.outputs.runs(index),
            priority=int(self.priority[index]),
            extra_keys=self.extra_keys.get(index, ()),
        )

    def select(self, part: slice) -> "Workload":
        """The requests of a slice, their times counted from the earliest of them.

        A turn whose earlier turn is cut off arrives at its own recorded time.

        Raises:
            UsageError: The slice runs backwards or selects nothing.
        """
        rows = np.arange(len(self))[part]
        if not len(rows) or (part.step or 1) < 0:
            raise UsageError(
                f"slice {part.start}:{part.stop}:{part.step} must select, in order, some"
                f" of the {len(self):,} requests"
            )
        kept = self.take(rows)
        return replace(kept, notes=(*kept.notes, *_selection_notes(self, kept, rows)))

    def take(self, rows: IntArray) -> "Workload":
        """The requests at the given positions, in that order, earliest at 0."""
        position = np.full(len(self) + 1, -1, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        parent = position[self.parent[rows]]  # a parent of -1 reads the spare last -1
        keys = {int(position[i]): k for i, k in self.extra_keys.items()}
        keys.pop(-1, None)
        arrival = self.arrival_ns[rows]
        return replace(
            self,
            arrival_ns=arrival - arrival.min(),
            prompts=self.prompts.take(rows),
            outputs=self.outputs.take(rows),
            parent=parent,
            delay_ns=np.where(parent >= 0, self.delay_ns[rows], 0),
            priority=self.priority[rows],
            extra_keys=keys,
        )

    def retimed(
        self,
        *,
        speedup: float | None = None,
        request_rate: float | None = None,
        burstiness: float = 1.0,
        seed: int = 0,
    ) -> "Workload":
        """The same requests at other times.

        ``speedup`` divides every time, delays within conversations included.
        ``request_rate`` (requests per second, later turns counted) draws new arrivals
        as :func:`draw_arrivals_ns` does; a conversation moves as a whole and keeps
        its delays.

        Raises:
            UsageError: Both are given, or a value is not above 0.
        """
        if request_rate is None:
            return self._sped_up(1.0 if speedup is None else speedup)
        if speedup not in (None, 1.0):
            raise UsageError("give speedup or request_rate, not both")
        roots = np.flatnonzero(self.parent < 0)
        share = len(roots) / max(len(self), 1)
        drawn = draw_arrivals_ns(
            len(roots), request_rate * share, burstiness, np.random.default_rng(seed)
        )
        moved = np.zeros(len(self), dtype=np.int64)
        moved[roots] = drawn - self.arrival_ns[roots]
        return replace(self, arrival_ns=self.arrival_ns + moved[_roots(self.parent)])

    def _sped_up(self, speedup: float) -> "Workload":
        if not 0 < speedup < math.inf:
            raise UsageError(f"speedup is {speedup}, must be a number above 0")
        longest_ns = max(self.arrival_ns.max(initial=0), self.delay_ns.max(initial=0))
        if longest_ns > _MAX_NS * speedup:
            raise UsageError(f"speedup is {speedup}, too small to ever finish")
        return replace(
            self,
            arrival_ns=np.rint(self.arrival_ns / speedup).astype(np.int64),
            delay_ns=np.rint(self.delay_ns / speedup).astype(np.int64),
        )


def draw_arrivals_ns(
    num_requests: int,
    request_rate: float,
    burstiness: float,
    rng: np.random.Generator,
) -> IntArray:
    """Arrival times at a mean rate, ascending, the first at 0.

    The gaps follow a gamma distribution of shape ``burstiness``: 1 is a Poisson
    process, infinity gives equal gaps. An infinite rate puts all at 0.

    Source: vLLM, vllm/benchmarks/serve.py, ``get_request``.

    Raises:
        UsageError: The rate or the burstiness is not above 0.
    """
    if not request_rate > 0:
        raise UsageError(f"request rate is {request_rate:g}, must be above 0")
    if not burstiness > 0:
        raise UsageError(
            f"burstiness is {burstiness:g}, must be above 0; 1 is a Poisson process"
        )
    if math.isinf(request_rate) or not num_requests:
        return np.zeros(num_requests, dtype=np.int64)
    mean_gap_ns = _NS_PER_S / request_rate
    if math.isinf(burstiness):
        times = np.arange(num_requests) * mean_gap_ns
    else:
        gaps = rng.gamma(burstiness, mean_gap_ns / burstiness, num_requests - 1)
        times = np.concatenate(([0.0], np.cumsum(gaps)))
    if not times[-1] <= _MAX_NS:
        raise UsageError(
            f"request rate {request_rate} with burstiness {burstiness} never finishes;"
            " raise the one or the other"
        )
    arrival_ns: IntArray = np.rint(times).astype(np.int64)
    return arrival_ns


def _roots(parent: IntArray) -> IntArray:
    """The first turn of each request's conversation, ``(num_requests,)``."""
    root: IntArray = np.where(parent < 0, np.arange(len(parent)), parent)
    while (root[root] != root).any():
        root[:] = root[root]
    return root


def _selection_notes(whole: Workload, kept: Workload, rows: IntArray) -> list[str]:
    if len(kept) == len(whole):
        return []
    notes = [
        f"{len(kept):,} of {len(whole):,} requests: a part of a trace shows fewer"
        " prefix hits than the whole"
    ]
    num_orphans = int(((whole.parent[rows] >= 0) & (kept.parent < 0)).sum())
    if num_orphans:
        notes.append(
            f"{num_orphans:,} of the turns start on their own: the turn before is cut off"
        )
    return notes
