"""Tests for :mod:`harness.recorder`: what happens in the loop, as records."""

import pytest

from harness.executors.executor import Execution
from harness.recorder import Recorder
from harness.request import Request
from harness.schedulers.batch import (
    Batch,
    CacheState,
    Finished,
    Preempted,
    Scheduled,
)
from profiles.step_time import BatchShape
from results.record import RequestStatus

STATE = CacheState(0, 1, 0, 5, 70, 0)


class StillScheduler:
    """Has the same state at all times."""

    num_used_blocks = 5
    num_cached_blocks = 0
    num_evictions = num_regretted_evictions = 0

    def sample_lengths(self, request_id: int) -> tuple[int, ...]:
        return (0,)

    def state(self) -> CacheState:
        return STATE


def recorder() -> Recorder:
    """Return a recorder of a scheduler that stands still."""
    return Recorder(StillScheduler(), block_size=16)  # type: ignore[arg-type]


def request(request_id: int = 0, n: int = 1) -> Request:
    """Make a request of 50 tokens."""
    return Request(
        request_id=request_id,
        arrival_ns=10,
        prompt=((request_id, 50),),
        num_prompt_tokens=50,
        outputs=tuple((100 + k, 9) for k in range(n)),
    )


def step(made: Recorder, batch: Batch, start_ns: int, ends_ns: list[int]) -> None:
    """Schedule a batch and let it run for one step an end."""
    made.scheduled(batch, start_ns)
    if len(ends_ns) > 1:
        made.repeated(batch, len(ends_ns) - 1)
    last_start_ns = ends_ns[-2] if len(ends_ns) > 1 else start_ns
    execution = Execution(
        start_ns, ends_ns[0], last_start_ns, ends_ns[-1], num_steps=len(ends_ns)
    )
    made.committed(batch, execution, [])


def decode(made: Request, num_seqs: int) -> Batch:
    """Return a batch in which the request decodes."""
    entry = Scheduled(made, 1, num_seqs, is_prefill=False)
    return Batch([entry], BatchShape(0, 0, 0, num_seqs, 50))


def prefill(made: Request, num_tokens: int, num_cached: int, *, samples: bool) -> Batch:
    """Return a batch with a chunk of the request's prompt."""
    entry = Scheduled(made, num_tokens, 1, is_prefill=True, samples=samples)
    entry.num_cached_tokens = num_cached
    return Batch([entry], BatchShape(num_tokens - num_cached, 1, 1, 0, 0))


def test_gap_counts_once_for_each_sample() -> None:
    """Three samples that get a token together give three gaps."""
    made, ours = request(n=3), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 20, [30])

    step(ours, decode(made, 3), 30, [37])

    assert (ours.steps[1].gap_ns, ours.steps[1].gap_count) == ([7], [3])


def test_first_gap_of_a_stretch_reaches_back_to_the_last_token() -> None:
    """A sequence that waited has a longer first gap; later gaps are the steps' own."""
    made, ours = request(), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 20, [30])
    step(ours, decode(made, 1), 30, [36, 43, 51])

    step(ours, decode(made, 1), 100, [106])

    stretch, late = ours.steps[1:]
    assert (stretch.gap_ns, stretch.first_step_ns, stretch.last_step_ns) == ([6], 6, 8)
    assert late.gap_ns == [55]


def test_first_token_comes_with_the_chunk_that_completes_the_prompt() -> None:
    """Chunks before bring no token and no time to first token."""
    made, ours = request(), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 30, 0, samples=False), 20, [30])
    assert ours.requests[0].first_token_ns is None

    step(ours, prefill(made, 20, 0, samples=True), 30, [44])

    assert ours.requests[0].first_token_ns == 44
    assert ours.requests[0].first_scheduled_ns == 20


def test_hits_of_all_chunks_count_at_the_first_admission() -> None:
    """A hit that spans chunks is the sum of what each chunk skips."""
    made, ours = request(), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 30, 29, samples=False), 20, [30])
    step(ours, prefill(made, 20, 3, samples=True), 30, [44])

    assert ours.requests[0].num_cached_tokens == 32
    assert ours.requests[0].num_recompute_cached_tokens == 0


def test_what_is_found_again_after_a_preemption_is_not_lost() -> None:
    """Tokens computed twice are those lost less those found in the cache."""
    made, ours = request(), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 50, 16, samples=True), 20, [30])
    lost = Batch(preempted_recompute=[Preempted(made, 50)])
    lost.scheduled = []
    step(ours, lost, 30, [31])

    step(ours, prefill(made, 51, 32, samples=True), 31, [60])

    record = ours.requests[0]
    assert (record.num_preemptions, record.num_recomputed_tokens) == (1, 18)
    assert (record.num_cached_tokens, record.num_recompute_cached_tokens) == (16, 32)


def test_finished_request_has_the_tokens_of_its_samples() -> None:
    """Output tokens are the sum over samples, the longest is kept for TPOT."""
    made, ours = request(n=2), recorder()
    ours.arrived(made)
    batch = prefill(made, 50, 0, samples=True)
    ours.scheduled(batch, 20)

    ours.committed(batch, Execution(20, 30, 20, 30), [Finished(made, (4, 9))])

    record = ours.requests[0]
    assert (record.num_output_tokens, record.max_sample_tokens) == (13, 9)
    assert (record.status, record.finished_ns) == (RequestStatus.FINISHED, 30)
    assert ours.num_done == 1


def test_refused_request_leaves_when_it_comes() -> None:
    """A request that is not let in is rejected at its arrival."""
    made, ours = request(), recorder()

    ours.refused(made)

    record = ours.requests[0]
    assert (record.status, record.finished_ns) == (RequestStatus.REJECTED, 10)
    assert record.reason == "prompt_too_long"


@pytest.mark.parametrize(("end_ns", "arrival_ns"), [(9, 10), (11, 11)])
def test_request_that_never_came_comes_after_the_end(
    end_ns: int, arrival_ns: int
) -> None:
    """As planned, but not while the run went on: it waited for another one's end."""
    made, late, ours = request(), request(1), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 5, [end_ns])

    ours.never_arrived(late, "interrupted before it arrived")

    record = ours.requests[1]
    assert (record.arrival_ns, record.status) == (arrival_ns, RequestStatus.FAILED)
    assert record.reason == "interrupted before it arrived"


def test_request_that_never_came_to_a_run_without_steps() -> None:
    """It has the arrival that was planned."""
    ours = recorder()

    ours.never_arrived(request(), "interrupted before it arrived")

    assert ours.requests[0].arrival_ns == 10
