"""Cases that operators met, as decisions of the v0 scheduler."""

from collections.abc import Sequence
from typing import Any

import pytest

from allocators.block_space_manager import BlockSpaceManager
from harness.request import Request
from harness.schedulers.batch import Batch, Dismissal, PreemptionMode
from harness.schedulers.errors import SchedulerDiedError
from harness.schedulers.scheduler_v0 import SchedulerV0

BS = 16


def scheduler_of(
    num_gpu_blocks: int,
    num_cpu_blocks: int = 0,
    *,
    block_size: int = BS,
    watermark: float = 0.0,
    caching: bool = False,
    **knobs: Any,
) -> SchedulerV0:
    """Make a scheduler with roomy limits."""
    manager = BlockSpaceManager(
        block_size, num_gpu_blocks, num_cpu_blocks, watermark, caching
    )
    defaults = {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 4096}
    return SchedulerV0(manager, **(defaults | knobs))


def request(
    request_id: int, num_tokens: int, outputs: Sequence[int] = (8,), segment: int = -1
) -> Request:
    """Make a request with a prompt of one segment, its own unless one is named."""
    segment = segment if segment >= 0 else 100 + request_id
    return Request(
        request_id=request_id,
        arrival_ns=0,
        prompt=((segment, num_tokens),),
        num_prompt_tokens=num_tokens,
        outputs=tuple((1000 + 10 * request_id + k, n) for k, n in enumerate(outputs)),
    )


def play(scheduler: SchedulerV0, num_calls: int = 400) -> list[Batch]:
    """Schedule and commit until all is done, or for so many calls."""
    batches = []
    while scheduler.has_unfinished and len(batches) < num_calls:
        batches.append(scheduler.schedule())
        scheduler.commit(batches[-1])
        scheduler.check_invariants()
    return batches


def ids(requests: Sequence[Request]) -> list[int]:
    """Their ids."""
    return [r.request_id for r in requests]


def reasons(batches: list[Batch]) -> dict[int, Dismissal]:
    """Who was dismissed, and why."""
    return {d.request.request_id: d.reason for batch in batches for d in batch.dismissed}


def total(batches: list[Batch], name: str) -> int:
    """Entries of one kind in all batches."""
    return sum(len(getattr(batch, name)) for batch in batches)


def test_watermark_guards_admission_not_growth() -> None:
    """With two blocks kept back a new prompt waits, and a running one takes them."""
    scheduler = scheduler_of(200, watermark=0.01, max_num_batched_tokens=8192)
    scheduler.add(request(0, BS * 198, outputs=[BS * 2 + 2]))
    scheduler.commit(scheduler.schedule())
    scheduler.add(request(1, BS))

    growing = scheduler.schedule()
    scheduler.commit(growing)

    assert ids([e.request for e in growing.scheduled]) == [0]
    assert len(scheduler.queues.waiting) == 1
    assert scheduler.block_manager.num_free_gpu_blocks == 1


def test_request_larger_than_the_pool_is_refused_at_once() -> None:
    """A prompt of 11 blocks in a pool of 10 is rejected, and the next one runs."""
    scheduler = scheduler_of(10)
    scheduler.add(request(0, 176))
    scheduler.add(request(1, BS))

    batches = play(scheduler)

    assert reasons(batches) == {0: Dismissal.EXCEEDS_KV_CAPACITY}
    assert ids([e.request for e in batches[0].scheduled]) == [1]
    assert scheduler.close() == 0


def test_prompt_over_the_token_limit_is_refused() -> None:
    """Without chunked prefill a prompt beyond max_num_batched_tokens never runs."""
    scheduler = scheduler_of(100, max_num_batched_tokens=64)
    scheduler.add(request(0, 65))
    scheduler.add(request(1, 64))

    assert reasons(play(scheduler)) == {0: Dismissal.TOO_LONG_FOR_A_STEP}


@pytest.mark.parametrize(("n", "is_swapped"), [(1, False), (2, True)])
def test_single_samples_are_recomputed_and_groups_swapped(
    n: int, is_swapped: bool
) -> None:
    """Under the same overload n = 1 never touches the CPU blocks and n = 2 does."""
    scheduler = scheduler_of(20, 200)
    for request_id in range(4):
        scheduler.add(request(request_id, 30, outputs=[60] * n))

    batches = play(scheduler, 2000)

    assert (total(batches, "preempted_swap") > 0) == is_swapped
    assert (total(batches, "preempted_recompute") > 0) != is_swapped
    assert (total(batches, "swap_out") > 0) == is_swapped
    assert total(batches, "swap_out") == total(batches, "swap_in")
    assert scheduler.close() == 0


@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_preemption_mode_forces_one(mode: PreemptionMode) -> None:
    """A forced mode decides, whatever the number of samples."""
    scheduler = scheduler_of(20, 200, preemption_mode=mode)
    for request_id in range(4):
        scheduler.add(request(request_id, 30, outputs=[60]))

    batches = play(scheduler, 2000)

    is_swap = mode is PreemptionMode.SWAP
    assert (total(batches, "preempted_swap") > 0) == is_swap
    assert (total(batches, "preempted_recompute") > 0) != is_swap


def test_no_cpu_blocks_gives_up_the_group_and_no_other() -> None:
    """Without swap space the group that must make room is aborted; the rest finish."""
    scheduler = scheduler_of(20, 0)
    for request_id in range(4):
        scheduler.add(request(request_id, 30, outputs=[60, 60]))

    batches = play(scheduler, 2000)

    dismissed = reasons(batches)
    assert dismissed
    assert set(dismissed.values()) == {Dismissal.NO_CPU_BLOCKS}
    assert len(dismissed) < 4
    assert scheduler.close() == 0


def test_engine_that_dies_like_vllm_dies_without_cpu_blocks() -> None:
    """Asked to, the scheduler ends where vLLM's engine ends, and names the kind."""
    scheduler = scheduler_of(20, 0, dies_like_vllm=True)
    for request_id in range(4):
        scheduler.add(request(request_id, 30, outputs=[60, 60]))

    with pytest.raises(SchedulerDiedError) as died:
        play(scheduler, 2000)

    assert died.value.kind == "no_cpu_swap_space"


def test_group_too_large_to_come_back_is_ended() -> None:
    """A group whose swap-in can never fit is dismissed, and nothing hangs."""
    scheduler = scheduler_of(9, 64, block_size=4)
    scheduler.add(request(0, 8, outputs=[12, 12, 12, 12]))
    scheduler.add(request(1, 4, outputs=[4]))

    batches = play(scheduler)

    assert reasons(batches) == {0: Dismissal.SWAP_IN_NEVER}
    assert total(batches, "swap_out") > 0
    assert total(batches, "swap_in") == 0
    assert scheduler.close() > 0


def test_recompute_of_several_samples_is_given_up() -> None:
    """Recompute forced on a group of several running samples ends that group."""
    scheduler = scheduler_of(20, 200, preemption_mode=PreemptionMode.RECOMPUTE)
    for request_id in range(4):
        scheduler.add(request(request_id, 30, outputs=[60, 60]))

    dismissed = reasons(play(scheduler, 2000))

    assert set(dismissed.values()) == {Dismissal.RECOMPUTE_SEVERAL}


def test_nothing_is_admitted_while_something_is_swapped() -> None:
    """In default mode no waiting request runs before the swapped ones are back."""
    scheduler = scheduler_of(20, 200)
    for request_id in range(16):
        scheduler.add(request(request_id, 30, outputs=[40, 40]))
    num_calls_with_both = 0
    for _ in range(2000):
        if not scheduler.has_unfinished:
            break
        is_swapped, is_waiting = (
            bool(scheduler.queues.swapped),
            bool(scheduler.queues.waiting),
        )
        batch = scheduler.schedule()
        admitted = any(entry.is_admission for entry in batch.scheduled)
        scheduler.commit(batch)
        num_calls_with_both += is_swapped and is_waiting

        assert not (admitted and is_swapped)
    assert num_calls_with_both > 0


def test_chunked_prefill_mixes_decodes_with_parts_of_prompts() -> None:
    """A long prompt is cut to the budget, and once begun goes before the decodes."""
    scheduler = scheduler_of(100, enable_chunked_prefill=True, max_num_batched_tokens=32)
    scheduler.add(request(0, 10, outputs=[20]))
    scheduler.commit(scheduler.schedule())
    scheduler.add(request(1, 70))

    chunks = []
    for _ in range(3):
        batch = scheduler.schedule()
        chunks.append([(e.request.request_id, e.num_tokens) for e in batch.scheduled])
        scheduler.commit(batch)

    assert chunks == [[(1, 31), (0, 1)], [(1, 32)], [(1, 7), (0, 1)]]


def test_group_counts_all_its_samples_before_it_has_them() -> None:
    """With max_num_seqs 4 a prompt with n = 3 leaves room for one more sequence."""
    scheduler = scheduler_of(100, max_num_seqs=4)
    scheduler.add(request(0, 10, outputs=[5, 5, 5]))
    scheduler.add(request(1, 10, outputs=[5, 5]))

    assert ids([e.request for e in scheduler.schedule().scheduled]) == [0]


def test_hits_are_known_at_admission() -> None:
    """A prompt seen before skips its computed blocks, and its tokens still count."""
    scheduler = scheduler_of(100, caching=True)
    scheduler.add(request(0, 100, outputs=[1], segment=5))
    scheduler.commit(scheduler.schedule())
    scheduler.add(request(1, 100, outputs=[1], segment=5))

    (entry,) = scheduler.schedule().scheduled

    assert entry.num_cached_tokens == 5 * BS
    assert entry.num_tokens == 100


def test_preempted_request_longer_than_the_token_limit_is_refused() -> None:
    """Recomputed with its output it exceeds a step's tokens, and vLLM ends it there."""
    scheduler = scheduler_of(9, max_num_batched_tokens=64, max_model_len=200)
    scheduler.add(request(0, 60, outputs=[30]))
    scheduler.add(request(1, 60, outputs=[30]))

    batches = play(scheduler)

    assert total(batches, "preempted_recompute") == 1
    assert reasons(batches) == {1: Dismissal.TOO_LONG_FOR_A_STEP}
    assert not scheduler.has_unfinished


def test_outputs_end_at_max_model_len() -> None:
    """A sequence stops when prompt and output reach the model's length."""
    scheduler = scheduler_of(100, max_model_len=64)
    scheduler.add(request(0, 60, outputs=[30]))

    assert len(play(scheduler)) == 4


def test_one_more_token_than_the_budget_ends_the_engine() -> None:
    """Groups of several sequences are not cut; a step over budget is vLLM's end."""
    scheduler = scheduler_of(
        100, enable_chunked_prefill=True, max_num_batched_tokens=8, max_num_seqs=12
    )
    for request_id in range(2):
        scheduler.add(request(request_id, 4, outputs=[30] * 5))

    with pytest.raises(SchedulerDiedError, match="more than max_num_batched_tokens=8"):
        play(scheduler)


def test_closing_takes_every_block_back() -> None:
    """Requests in every queue can be dropped, and no block is lost by it."""
    scheduler = scheduler_of(20, 200)
    for request_id in range(12):
        scheduler.add(request(request_id, 30, outputs=[40, 40]))
    for _ in range(40):
        scheduler.commit(scheduler.schedule())
        if (
            scheduler.queues.running
            and scheduler.queues.swapped
            and scheduler.queues.waiting
        ):
            break
    else:
        pytest.fail("never all three queues at once")

    assert scheduler.close() == 0
    assert not scheduler.has_unfinished


@pytest.mark.parametrize(("max_num_seqs", "is_refused"), [(1, False), (2, True)])
def test_blocks_are_to_blame_only_where_nothing_else_is(
    max_num_seqs: int, is_refused: bool
) -> None:
    """A candidate for which no place is left was not refused for want of blocks."""
    scheduler = scheduler_of(30, max_num_seqs=max_num_seqs)
    for request_id in range(2):
        scheduler.add(request(request_id, 320, (40,)))
    scheduler.commit(scheduler.schedule())

    refused = scheduler.schedule().refused

    assert (refused is not None) == is_refused
    if refused:
        assert (refused.num_needed_blocks, refused.num_room_blocks) == (20, 10)
