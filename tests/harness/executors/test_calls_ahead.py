"""Tests for :mod:`harness.executors`: clocks whose calls are a step ahead, or are not."""

import pytest

from harness.executors.scripted import ScriptedExecutor
from harness.executors.simulated import SimulatedExecutor
from harness.schedulers.batch import Batch, Transfer
from profiles.step_time import FS_PER_NS, BatchShape

STEP_NS = 100
DECODE = Batch(num_steady_seqs=1, shape=BatchShape(0, 0, 0, 1, 0))


class EvenStepTime:
    """Every step takes 100 ns."""

    def step_fs(self, shape: BatchShape) -> int:
        return STEP_NS * FS_PER_NS

    def growth_fs(self, shape: BatchShape) -> int:
        return 0

    def swap_fs(self, shape: BatchShape) -> int:
        return 0


def _nanosecond_a_block(num_blocks: int, *, is_load: bool) -> int:
    return num_blocks * FS_PER_NS


def simulated(*, is_ahead: bool) -> SimulatedExecutor:
    """A simulated clock with a batch in flight."""
    executor = SimulatedExecutor(
        EvenStepTime(), transfer_fs=_nanosecond_a_block, is_ahead=is_ahead
    )
    executor.submit(DECODE)
    return executor


@pytest.mark.parametrize(
    ("until_ns", "behind", "ahead"),
    [
        (-5, 0, 0),
        (0, 0, 0),
        (1, 0, 1),
        (100, 0, 1),
        (101, 1, 2),
        (250, 2, 3),
        (None, 9, 9),
    ],
)
def test_a_step_is_decided_when_the_one_before_begins_or_ends(
    until_ns: int | None, behind: int, ahead: int
) -> None:
    """Before 250 ns steps are decided at 100 and 200, with calls ahead at 0 as well."""
    assert simulated(is_ahead=False).repeat(9, until_ns) == behind
    assert simulated(is_ahead=True).repeat(9, until_ns) == ahead


def test_the_end_of_a_transfer_ends_a_stretch() -> None:
    """A copy of 150 ns is seen by the call at 200, or the one at 150 at the earliest."""
    counts = []
    for is_ahead in (False, True):
        executor = SimulatedExecutor(
            EvenStepTime(), transfer_fs=_nanosecond_a_block, is_ahead=is_ahead
        )
        executor.submit(Batch(transfers=[Transfer(1, 150)]))
        counts.append(executor.repeat(9, 1000))

    assert counts == [1, 2]


@pytest.mark.parametrize(("is_ahead", "now_ns"), [(False, 0), (True, 300)])
def test_the_next_call_comes_when_the_last_step_begins(
    is_ahead: bool, now_ns: int
) -> None:
    """With calls ahead repeating moves the clock to the beginning of the fourth step."""
    executor = simulated(is_ahead=is_ahead)

    executor.repeat(3, None)

    assert executor.now_ns == now_ns
    executor.submit(DECODE)
    first, second = executor.wait(), executor.wait()
    assert (first.start_ns, first.end_ns, first.num_steps) == (0, 400, 4)
    assert (first.first_step_end_ns, first.last_step_start_ns) == (100, 300)
    assert (second.start_ns, second.end_ns) == (400, 500)
    assert executor.now_ns == 500


# -- the step clock ----------------------------------------------------------------------


@pytest.mark.parametrize(("is_ahead", "ticks"), [(False, [0, 1]), (True, [1, 2])])
def test_a_tick_is_over_when_its_step_is_submitted_or_has_ended(
    is_ahead: bool, ticks: list[int]
) -> None:
    """With calls ahead the next call has the next number at once."""
    executor = ScriptedExecutor(is_ahead=is_ahead)
    executor.submit(Batch())
    seen = [executor.now_ns]

    executor.wait()

    assert [*seen, executor.now_ns] == ticks


def test_tokens_are_handed_in_at_the_tick_of_the_next_call() -> None:
    """The second of two batches in flight keeps the clock while the first ends."""
    executor = ScriptedExecutor(is_ahead=True)
    executor.submit(Batch())
    executor.submit(Batch())
    assert executor.now_ns == 2

    first = executor.wait()
    assert (first.start_ns, first.end_ns, executor.now_ns) == (0, 1, 2)
    second = executor.wait()
    assert (second.start_ns, second.end_ns, executor.now_ns) == (1, 2, 3)


@pytest.mark.parametrize(("is_ahead", "num_steps"), [(False, 3), (True, 3)])
def test_repeated_ticks_end_at_the_next_arrival(is_ahead: bool, num_steps: int) -> None:
    """The steps of ticks 1 to 3 are decided before what arrives at tick 4."""
    executor = ScriptedExecutor(is_ahead=is_ahead)
    executor.submit(Batch())

    assert executor.repeat(50, 4) == num_steps
    assert executor.repeat(50, 4) == 0
    assert executor.now_ns == (4 if is_ahead else 0)
    assert executor.wait().num_steps == 4


def test_no_tick_repeats_past_its_limit() -> None:
    """At most the steps asked for, and none when the arrival is due already."""
    executor = ScriptedExecutor()
    executor.submit(Batch())

    assert executor.repeat(2, None) == 2
    assert executor.repeat(2, 1) == 0


@pytest.mark.parametrize(("is_store", "num_steps"), [(False, 2), (True, 3)])
def test_a_transfer_is_reported_so_many_ticks_after_its_step(
    is_store: bool, num_steps: int
) -> None:
    """Begun with step 0 and two ticks long, a load ends with step 2, a store with 3."""
    executor = ScriptedExecutor(transfer_steps=2)
    executor.submit(Batch(transfers=[Transfer(7, 3, is_store=is_store)]))
    for _ in range(num_steps):
        assert executor.wait().transfers_done == []
        assert executor.has_transfers
        executor.submit(Batch())

    assert executor.wait().transfers_done == [7]
    assert not executor.has_transfers


def test_a_flushed_transfer_ends_with_the_step_that_needs_it() -> None:
    """Whatever it has left, it is over when the step that waits for it is."""
    executor = ScriptedExecutor(transfer_steps=9)
    executor.submit(Batch(transfers=[Transfer(7, 3, is_store=True), Transfer(8, 3)]))
    assert executor.wait().transfers_done == []

    executor.submit(Batch(flushed=[7]))

    assert executor.wait().transfers_done == [7]
    assert executor.has_transfers
