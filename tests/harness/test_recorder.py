"""Tests for :mod:`harness.recorder`: what happens in the loop, as records."""

from typing import Any

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


class StillScheduler:
    """Has the same state at all times, unless a test changes it."""

    def __init__(self) -> None:
        self.num_used_blocks = 5
        self.num_cached_blocks = 0
        self.num_evictions = self.num_regretted_evictions = 0
        self.lengths = {0: (0,), 1: (0,)}

    def sample_lengths(self, request_id: int) -> tuple[int, ...]:
        return self.lengths[request_id]

    def state(self) -> CacheState:
        return CacheState(0, 1, 0, self.num_used_blocks, 70, self.num_cached_blocks)


def recorder(scheduler: StillScheduler | None = None, entry_ns: int = 0) -> Recorder:
    """Return a recorder of a scheduler that stands still."""
    still: Any = scheduler or StillScheduler()
    return Recorder(still, block_size=16, entry_ns=entry_ns)


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
    return Batch([entry], shape=BatchShape(0, 0, 0, num_seqs, 50))


def prefill(made: Request, num_tokens: int, num_cached: int, *, samples: bool) -> Batch:
    """Return a batch with a chunk of the request's prompt."""
    entry = Scheduled(made, num_tokens, 1, is_prefill=True, samples=samples)
    entry.num_cached_tokens = num_cached
    return Batch([entry], shape=BatchShape(num_tokens - num_cached, 1, 1, 0, 0))


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


def test_a_request_is_queued_its_entry_after_it_arrived() -> None:
    """The scheduler has it later than the server; without an entry at once."""
    queued_ns = []
    for entry_ns in (0, 7):
        ours = recorder(entry_ns=entry_ns)
        ours.arrived(request())
        queued_ns.append(ours.requests[0].queued_ns)
        assert ours.requests[0].arrival_ns == 10

    assert queued_ns == [10, 17]


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
    """A request that is not let in is rejected where the others are queued."""
    made, ours = request(), recorder(entry_ns=4)

    ours.refused(made)

    record = ours.requests[0]
    assert (record.arrival_ns, record.queued_ns) == (10, 14)
    assert (record.status, record.finished_ns) == (RequestStatus.REJECTED, 14)
    assert record.reason == "prompt_too_long"


@pytest.mark.parametrize(("end_ns", "arrival_ns"), [(9, 10), (11, 11)])
def test_request_that_never_came_comes_after_the_end(
    end_ns: int, arrival_ns: int
) -> None:
    """As planned, but not while the run went on: it waited for another one's end."""
    made, late, ours = request(), request(1), recorder(entry_ns=4)
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 5, [end_ns])

    ours.never_arrived(late, "interrupted before it arrived")

    record = ours.requests[1]
    assert (record.arrival_ns, record.status) == (arrival_ns, RequestStatus.FAILED)
    assert record.queued_ns == arrival_ns + 4
    assert record.reason == "interrupted before it arrived"


def test_request_that_never_came_to_a_run_without_steps() -> None:
    """It has the arrival that was planned."""
    ours = recorder()

    ours.never_arrived(request(), "interrupted before it arrived")

    assert ours.requests[0].arrival_ns == 10


# -- sequences that are counted, not listed ----------------------------------------------


def steady(num_seqs: int, unsteady: list[tuple[int, int]] | None = None) -> Batch:
    """Return a batch in which so many decode as they did in the one before."""
    shape = BatchShape(0, 0, 0, num_seqs, 50)
    return Batch(num_steady_seqs=num_seqs, unsteady=unsteady or [], shape=shape)


def execution(start_ns: int, end_ns: int) -> Execution:
    """Return what became of a batch of one step."""
    return Execution(start_ns, end_ns, start_ns, end_ns)


def test_gap_of_steady_sequences_reaches_back_to_the_step_before() -> None:
    """Three of them give three gaps, each as long as the step and what lay before it."""
    made, ours = request(n=3), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 20, [30])

    step(ours, steady(3), 31, [38, 45])

    assert (ours.steps[1].gap_ns, ours.steps[1].gap_count) == ([8], [3])


def test_gap_of_one_that_was_steady_reaches_back_to_its_last_step() -> None:
    """It decoded until 37, paused for a step and got its next token at 50."""
    made, ours = request(), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 20, [30])
    step(ours, steady(2), 30, [37])
    step(ours, steady(1, unsteady=[(0, 0)]), 37, [40])

    step(ours, decode(made, 1), 40, [50])

    assert (ours.steps[3].gap_ns, ours.steps[3].gap_count) == ([13], [1])


def test_gap_of_one_that_was_steady_and_goes_on() -> None:
    """Listed again in the very next step, it has a gap of that step."""
    made, ours = request(), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 20, [30])
    step(ours, steady(1), 30, [37])
    batch = decode(made, 1)
    batch.unsteady = [(0, 0)]

    step(ours, batch, 37, [41])

    assert ours.steps[2].gap_ns == [4]


def test_one_may_be_listed_again_while_its_first_token_is_in_flight() -> None:
    """With calls ahead it has a gap only from the step that brings its first token."""
    made, ours = request(), recorder()
    ours.arrived(made)
    first, second = prefill(made, 50, 0, samples=True), decode(made, 1)
    second.unsteady = [(0, 0)]
    ours.scheduled(first, 20)
    ours.scheduled(second, 20)

    ours.committed(first, execution(20, 30), [])
    ours.committed(second, execution(30, 37), [])

    assert ours.requests[0].first_token_ns == 30
    assert [s.gap_ns for s in ours.steps] == [[], [7]]


def test_lengths_are_not_asked_of_one_that_has_left() -> None:
    """With calls ahead it may finish before the batch that lists it has run."""
    scheduler = StillScheduler()
    made, ours = request(), recorder(scheduler)
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 20, [30])
    last, after = steady(1), steady(0, unsteady=[(0, 0)])
    after.preempted_recompute = [Preempted(made, 50)]
    ours.scheduled(last, 30)
    ours.scheduled(after, 30)
    scheduler.lengths.clear()

    ours.committed(last, execution(30, 37), [Finished(made, (2,))])
    ours.committed(after, execution(37, 38), [])

    requests, steps = ours.take_changes()
    assert [record.num_output_tokens for record in requests] == [2]
    assert len(steps) == 3


def test_each_batch_in_flight_has_its_own_evictions_and_blocks() -> None:
    """With calls ahead what the second call takes is not the first one's."""
    scheduler = StillScheduler()
    made, ours = request(), recorder(scheduler)
    ours.arrived(made)
    first, second = prefill(made, 50, 0, samples=True), steady(1)
    ours.scheduled(first, 20)
    scheduler.num_evictions, scheduler.num_regretted_evictions = 3, 1
    scheduler.num_used_blocks, scheduler.num_cached_blocks = 6, 2
    ours.scheduled(second, 20)

    ours.committed(first, execution(20, 30), [])
    scheduler.num_evictions, scheduler.num_used_blocks = 7, 9
    ours.repeated(second, 4)
    ours.committed(second, execution(30, 60), [])

    one, two = ours.steps
    assert (one.num_evictions, one.num_regretted_evictions) == (0, 0)
    assert (one.num_used_blocks, one.num_used_blocks_end) == (5, 5)
    assert (two.num_evictions, two.num_regretted_evictions) == (7, 1)
    assert (two.num_used_blocks, two.num_used_blocks_end) == (6, 9)
    assert (two.num_cached_blocks, two.num_cached_blocks_end) == (2, 2)


def test_samples_lose_tokens_each_on_its_own() -> None:
    """What the second sample lost is not computed again by the first one's prefill."""
    made, ours = request(n=2), recorder()
    ours.arrived(made)
    step(ours, prefill(made, 50, 0, samples=True), 20, [30])
    lost = Batch(preempted_recompute=[Preempted(made, 40, sample=1)])
    step(ours, lost, 30, [31])
    step(ours, prefill(made, 50, 0, samples=True), 31, [40])
    assert ours.requests[0].num_recomputed_tokens == 0
    again = prefill(made, 50, 16, samples=True)
    again.scheduled[0].sample = 1

    step(ours, again, 40, [50])

    record = ours.requests[0]
    assert (record.num_recomputed_tokens, ours.steps[3].num_recomputed_tokens) == (24, 24)
    assert record.num_recompute_cached_tokens == 16


def test_hits_of_a_request_are_those_of_its_first_sample() -> None:
    """The other samples hit the prompt that the first one has just brought."""
    made, ours = request(n=2), recorder()
    ours.arrived(made)
    batch = prefill(made, 50, 16, samples=True)
    batch.scheduled += prefill(made, 50, 48, samples=True).scheduled
    batch.scheduled[1].sample = 1

    step(ours, batch, 20, [30])

    assert ours.requests[0].num_cached_tokens == 16
    assert ours.steps[0].num_cached_tokens == 64
