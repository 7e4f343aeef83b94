"""Tests for :mod:`results.waste`."""

from collections.abc import Callable
from dataclasses import asdict
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from results.columns import Columns
from results.record import RequestRecord, RequestStatus, StepRecord
from results.waste import TimeShares, head_of_line_s, time_shares

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

S = 1_000_000_000
BLOCK_SIZE = 16


def shares_of(*steps: StepRecord) -> TimeShares:
    """Return where the time of the steps went."""
    return time_shares(Columns.of(StepRecord, steps))


def blocked_s(requests: list[RequestRecord], steps: list[StepRecord]) -> list[float]:
    """Return how long each request waited behind one that did not fit."""
    found = head_of_line_s(
        Columns.of(RequestRecord, requests), Columns.of(StepRecord, steps), BLOCK_SIZE
    )
    return [float(seconds) for seconds in found]


# -- where the time went -------------------------------------------------------------


def test_a_step_is_split_by_its_tokens(make_step: MakeStep) -> None:
    """300 prompt tokens beside 100 decodes take three quarters of the step."""
    step = make_step(num_prefill_tokens=300, num_decode_seqs=100)

    assert shares_of(step) == TimeShares(prefill=0.75, decode=0.25)


def test_a_single_token_takes_the_whole_step(make_step: MakeStep) -> None:
    """A prefill of one token, the rest being cached, shares its step with nobody."""
    step = make_step(num_prefill_tokens=1, num_decode_seqs=0)

    assert shares_of(step) == TimeShares(prefill=1.0)


def test_recomputation_is_part_of_the_prefill(make_step: MakeStep) -> None:
    """Half of a prefill that takes 10 of 40 ns was there before: an eighth of all."""
    steps = [
        make_step(
            start_ns=0,
            end_ns=10,
            num_prefill_tokens=64,
            num_recomputed_tokens=32,
            num_decode_seqs=0,
        ),
        make_step(start_ns=10, end_ns=40),
    ]

    assert shares_of(*steps) == TimeShares(prefill=0.25, recompute=0.125, decode=0.75)


def test_a_swap_comes_before_the_rest_of_a_step(make_step: MakeStep) -> None:
    """Of 10 ns 4 wait for blocks; the 6 that are left are split by tokens."""
    step = make_step(
        swap_ns=4, num_prefill_tokens=4, num_recomputed_tokens=2, num_decode_seqs=2
    )

    shares = asdict(shares_of(step))

    expected = {"prefill": 0.4, "recompute": 0.2, "swap": 0.4, "decode": 0.2}
    assert shares == pytest.approx(expected)


def test_a_step_that_computes_nothing_counts_as_decode(make_step: MakeStep) -> None:
    """A step in which all that ran was preempted belongs to no prompt."""
    assert shares_of(make_step(num_decode_seqs=0)) == TimeShares(decode=1.0)


def test_time_without_a_step_counts_for_nothing(make_step: MakeStep) -> None:
    """Two equal steps share the time, however long the pause between them."""
    steps = [
        make_step(num_prefill_tokens=8, num_decode_seqs=0),
        make_step(start_ns=900, end_ns=910),
    ]

    assert shares_of(*steps) == TimeShares(prefill=0.5, decode=0.5)


def test_no_time_has_no_shares(make_step: MakeStep) -> None:
    """Without a step, or with steps that took no time, nothing was spent on anything."""
    assert shares_of() == TimeShares(prefill=0, recompute=0, swap=0, decode=0)
    assert shares_of(make_step(start_ns=5, end_ns=5)) == TimeShares()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(
        st.tuples(
            st.integers(1, 10**12),
            st.fractions(0, 1),
            st.integers(0, 4096),
            st.fractions(0, 1),
            st.integers(0, 300),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_shares_are_those_of_every_token(
    make_step: MakeStep, drawn: list[tuple[int, Fraction, int, Fraction, int]]
) -> None:
    """Handing out each step's time in exact fractions gives the same; all make 1."""
    steps, now = [], 0
    prefill = recompute = swap = decode = Fraction(0)
    for duration, swap_part, num_prefill, again_part, num_decode in drawn:
        swap_ns = int(duration * swap_part)
        num_again = int(num_prefill * again_part)
        step = make_step(
            start_ns=now,
            end_ns=now + duration,
            swap_ns=swap_ns,
            num_prefill_tokens=num_prefill,
            num_recomputed_tokens=num_again,
            num_decode_seqs=num_decode,
        )
        steps.append(step)
        now += duration
        swap += swap_ns
        computing, tokens = duration - swap_ns, num_prefill + num_decode
        prefill += Fraction(computing * num_prefill, max(tokens, 1))
        recompute += Fraction(computing * num_again, max(tokens, 1))
        decode += computing - Fraction(computing * num_prefill, max(tokens, 1))

    shares = shares_of(*steps)

    parts = (shares.prefill, shares.recompute, shares.swap, shares.decode)
    exact = [float(part / now) for part in (prefill, recompute, swap, decode)]
    assert parts == pytest.approx(exact, rel=1e-9, abs=1e-12)
    assert shares.prefill + shares.swap + shares.decode == pytest.approx(1, abs=1e-12)
    assert shares.recompute <= shares.prefill + 1e-12


# -- behind one that does not fit ----------------------------------------------------


@pytest.fixture
def blocked_steps(make_step: MakeStep) -> list[StepRecord]:
    """Return three steps of 2 s from 10 s on; in the first two, 5 blocks are too few."""
    blocked = {"num_head_blocks": 8, "num_room_blocks": 5}
    return [
        make_step(start_ns=10 * S, end_ns=12 * S, **blocked),
        make_step(start_ns=12 * S, end_ns=14 * S, **blocked),
        make_step(start_ns=14 * S, end_ns=16 * S),
    ]


@pytest.mark.parametrize(
    ("num_prompt_tokens", "seconds"), [(1, 4), (79, 4), (80, 4), (81, 0), (128, 0)]
)
def test_who_would_have_fitted_waits_for_the_head(
    make_request: MakeRequest,
    blocked_steps: list[StepRecord],
    num_prompt_tokens: int,
    seconds: float,
) -> None:
    """Up to 80 tokens fit into 5 blocks of 16, so they wait 4 s for nothing."""
    request = make_request(
        arrival_ns=9 * S,
        first_scheduled_ns=14 * S,
        num_prompt_tokens=num_prompt_tokens,
    )

    assert blocked_s([request], blocked_steps) == [seconds]


@pytest.mark.parametrize(
    ("queued_s", "scheduled_s", "seconds"),
    [(10, 14, 4), (11, 14, 2), (12, 14, 2), (13, 14, 0), (0, 10, 0), (9, 12, 2)],
)
def test_only_steps_in_which_a_request_waits_count(
    make_request: MakeRequest,
    blocked_steps: list[StepRecord],
    queued_s: int,
    scheduled_s: int,
    seconds: float,
) -> None:
    """From the first step that finds it in the queue to the one that admits it."""
    request = make_request(queued_ns=queued_s * S, first_scheduled_ns=scheduled_s * S)
    request.num_prompt_tokens = 80

    assert blocked_s([request], blocked_steps) == [seconds]


def test_who_was_never_admitted_waits_to_the_end(
    make_request: MakeRequest, blocked_steps: list[StepRecord]
) -> None:
    """A request left waiting counts all steps, a dismissed one those before it left."""
    waiting = {"num_prompt_tokens": 16, "first_scheduled_ns": None}
    requests = [
        make_request(finished_ns=None, status=RequestStatus.FAILED, **waiting),
        make_request(finished_ns=12 * S, status=RequestStatus.REJECTED, **waiting),
        make_request(finished_ns=0, status=RequestStatus.REJECTED, **waiting),
        make_request(arrival_ns=16 * S, finished_ns=None, **waiting),
    ]

    assert blocked_s(requests, blocked_steps) == [4, 2, 0, 0]


def test_room_is_what_is_left_at_the_end_of_a_stretch(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """A stretch that takes 2 of 5 blocks had room for 3 all the time."""
    step = make_step(
        num_steps=20,
        end_ns=6 * S,
        num_used_blocks=4,
        num_used_blocks_end=6,
        num_head_blocks=8,
        num_room_blocks=5,
    )
    requests = [
        make_request(num_prompt_tokens=n, first_scheduled_ns=6 * S) for n in (48, 49)
    ]

    assert blocked_s(requests, [step]) == [6, 0]


def test_without_a_refusal_nobody_is_blocked(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Where blocks were not what was missing, room alone says nothing."""
    step = make_step(end_ns=6 * S, num_room_blocks=5)
    request = make_request(num_prompt_tokens=16, first_scheduled_ns=6 * S)

    assert blocked_s([request], [step]) == [0]
    assert blocked_s([request], []) == [0]
    assert blocked_s([], [step]) == []


MAYBE_TIME = st.none() | st.integers(0, 60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stretches=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 9),
            st.integers(0, 3),
            st.integers(0, 9),
            st.integers(0, 3),
        ),
        max_size=15,
    ),
    drawn=st.lists(
        st.tuples(st.integers(0, 60), MAYBE_TIME, MAYBE_TIME, st.integers(1, 150)),
        max_size=15,
    ),
)
def test_waiting_is_that_of_a_loop_over_requests_and_steps(
    make_request: MakeRequest,
    make_step: MakeStep,
    stretches: list[tuple[int, int, int, int, int]],
    drawn: list[tuple[int, int | None, int | None, int]],
) -> None:
    """Looking at each request in each step finds the same seconds for each."""
    steps, now = [], 0
    for pause, duration, num_head, num_room, num_grown in stretches:
        now += pause
        step = make_step(
            start_ns=now,
            end_ns=now + duration,
            num_used_blocks_end=4 + num_grown,
            num_head_blocks=num_head,
            num_room_blocks=num_room,
        )
        steps.append(step)
        now = now + duration + (duration == 0)  # no two steps start at once
    requests = [
        make_request(
            arrival_ns=arrival,
            first_scheduled_ns=scheduled,
            finished_ns=finished,
            num_prompt_tokens=num_tokens,
        )
        for arrival, scheduled, finished, num_tokens in drawn
    ]

    naive = [sum(_waited_ns(r, step) for step in steps) / S for r in requests]

    assert blocked_s(requests, steps) == naive


def _waited_ns(request: RequestRecord, step: StepRecord) -> int:
    """The step's nanoseconds, if the request waits in it behind one that is larger."""
    left = request.first_scheduled_ns
    if left is None:
        left = request.finished_ns
    is_waiting = request.queued_ns <= step.start_ns
    is_waiting &= left is None or step.start_ns < left
    num_room = step.num_room_blocks - (step.num_used_blocks_end - step.num_used_blocks)
    fits = -(-request.num_prompt_tokens // BLOCK_SIZE) <= num_room
    is_blocked = step.num_head_blocks > 0 and is_waiting and fits
    return (step.end_ns - step.start_ns) * is_blocked
