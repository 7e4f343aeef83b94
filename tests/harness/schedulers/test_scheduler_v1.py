"""Tests for :mod:`harness.schedulers.scheduler_v1`: one decision a test.

Numbers are worked out by hand; blocks hold 4 tokens unless said otherwise.
"""

from collections import deque
from typing import Any

import pytest

from harness.executors.executor import Execution
from harness.request import Request
from harness.schedulers.batch import Batch, Dismissal, Finished, Refused
from harness.schedulers.build import build_scheduler_v1
from harness.verify.rows_v1 import Row, RowRecorderV1


class Driven:
    """A scheduler that is called as the engine calls it, one row a call."""

    def __init__(self, num_usable: int = 100, **knobs: Any) -> None:
        defaults: dict[str, Any] = {
            "block_size": 4,
            "num_gpu_blocks": num_usable + 1,
            "enable_prefix_caching": False,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 64,
            "max_model_len": 64,
        }
        self.scheduler = build_scheduler_v1(**(defaults | knobs))
        self.is_async = knobs.get("async_scheduling", False)
        self.rows = RowRecorderV1(self.scheduler)
        self.in_flight: deque[Batch] = deque()
        self.done: list[Finished] = []
        self.batch = Batch()

    def add(self, request_id: int, num_prompt: int, *outputs: int, **more: Any) -> None:
        """A request arrives; its content is its own unless ``prompt`` is given."""
        prompt = more.pop("prompt", ((request_id, num_prompt),))
        outputs = outputs or (40,)
        self.scheduler.add(
            Request(
                request_id=request_id,
                arrival_ns=more.pop("arrival_ns", 0),
                prompt=prompt,
                num_prompt_tokens=num_prompt,
                outputs=tuple(
                    (100 + 10 * request_id + k, n) for k, n in enumerate(outputs)
                ),
                **more,
            )
        )

    def call(self) -> Row:
        """One call, and the tokens of the batch that ends with it."""
        self.batch = batch = self.scheduler.schedule()
        self.rows.scheduled(batch, len(self.rows.rows))
        self.scheduler.check_invariants()
        if not batch.is_idle:
            self.in_flight.append(batch)
        self.done = []
        if self.in_flight and (batch.is_idle or len(self.in_flight) > self.is_async):
            ended = self.in_flight.popleft()
            self.done = self.scheduler.commit(ended)
            self.rows.committed(ended, Execution(0, 1, 0, 1), self.done)
            self.scheduler.check_invariants()
        return self.rows.rows[-1]

    def calls(self, count: int) -> list[Row]:
        """So many calls."""
        return [self.call() for _ in range(count)]

    def all_calls(self) -> list[Row]:
        """Calls until nobody is left."""
        rows = []
        while self.scheduler.has_unfinished:
            rows.append(self.call())
            assert len(rows) < 300
        return rows


def scheduled(rows: list[Row]) -> list[list[list[Any]]]:
    """Who computed how many tokens, call by call."""
    return [row["scheduled"] for row in rows]


# -- the budget --------------------------------------------------------------------------


def test_the_last_prefill_is_cut_to_the_budget() -> None:
    """Of two prompts of 6 the second gets the 4 tokens left of 10, then its last 2."""
    made = Driven(max_num_batched_tokens=10)
    made.add(0, 6)
    made.add(1, 6)

    assert scheduled(made.calls(3)) == [
        [[0, 6], [1, 4]],
        [[0, 1], [1, 2]],
        [[0, 1], [1, 1]],
    ]


def test_running_requests_come_before_waiting_ones() -> None:
    """A prefill under way takes the budget, and who waits has what it leaves."""
    made = Driven(max_num_batched_tokens=8)
    made.add(0, 15)
    made.call()
    made.add(1, 5)

    assert scheduled(made.calls(2)) == [[[0, 7], [1, 1]], [[0, 1], [1, 4]]]


def test_requests_beyond_the_limit_wait() -> None:
    """Two may run; the third is admitted in the call after the first has finished."""
    made = Driven(max_num_seqs=2)
    made.add(0, 4, 2)
    made.add(1, 4)
    made.add(2, 4)

    rows = made.calls(3)

    assert [row["running"] for row in rows] == [2, 2, 2]
    assert [row["waiting"] for row in rows] == [1, 1, 0]
    assert rows[1]["finished"] == [0]
    assert rows[2]["new"] == [[2, 0]]


def test_no_budget_for_decodes_disbands_the_lockstep() -> None:
    """Three decode and two tokens may be computed: the first two of them go on."""
    made = Driven(max_num_batched_tokens=12)
    for request_id in range(3):
        made.add(request_id, 4)
    made.calls(2)
    made.scheduler.limits.max_num_batched_tokens = 2

    assert scheduled(made.calls(2)) == [[[0, 1], [1, 1]], [[0, 1], [1, 1]]]
    made.scheduler.limits.max_num_batched_tokens = 3
    assert scheduled([made.call()]) == [[[0, 1], [1, 1], [2, 1]]]


def test_threshold_cuts_prefills_only_beside_others() -> None:
    """A prompt of 12 alone is computed at once; two are cut to 5 tokens each."""
    alone = Driven(long_prefill_token_threshold=5)
    alone.add(0, 12)
    crowded = Driven(long_prefill_token_threshold=5)
    crowded.add(0, 12)
    crowded.add(1, 12)

    assert scheduled(alone.calls(1)) == [[[0, 12]]]
    assert scheduled(crowded.calls(3)) == [
        [[0, 5], [1, 5]],
        [[0, 5], [1, 5]],
        [[0, 2], [1, 2]],
    ]


def test_threshold_cuts_a_running_prefill_when_another_comes() -> None:
    """With 12 of 20 tokens left it gets 5, although the budget has 8."""
    made = Driven(long_prefill_token_threshold=5, max_num_batched_tokens=8)
    made.add(0, 20)
    assert scheduled([made.call()]) == [[[0, 8]]]
    made.add(1, 5)

    assert scheduled([made.call()]) == [[[0, 5], [1, 3]]]


def test_unchunked_prefill_fits_whole_or_stops_the_queue() -> None:
    """A prompt of 6 does not fit the 4 tokens left, and the short one behind it waits."""
    made = Driven(max_num_batched_tokens=10, enable_chunked_prefill=False)
    made.add(0, 6)
    made.add(1, 6)
    made.add(2, 2)

    assert scheduled(made.calls(2)) == [[[0, 6]], [[0, 1], [1, 6], [2, 2]]]


def test_threshold_makes_unchunked_prefills_fit() -> None:
    """Cut to the threshold, a prompt of 12 fits a step of 8; what is left of it, too."""
    made = Driven(
        max_num_batched_tokens=8,
        enable_chunked_prefill=False,
        long_prefill_token_threshold=5,
    )
    made.add(0, 12)
    made.add(1, 2)

    assert scheduled(made.calls(3)) == [
        [[0, 5], [1, 2]],
        [[0, 5], [1, 1]],
        [[0, 2], [1, 1]],
    ]
    assert not made.batch.dismissed


# -- preemption --------------------------------------------------------------------------


def test_the_last_admitted_makes_room() -> None:
    """Two of 8 tokens hold 4 of 5 blocks: the first gets the fifth, the second goes."""
    made = Driven(5)
    made.add(0, 8)
    made.add(1, 8)

    first, second, third = made.calls(3)

    assert first["free"] == 1
    assert (second["preempted"], second["scheduled"]) == ([1], [[0, 1]])
    assert (second["waiting"], second["running"], second["free"]) == (1, 1, 2)
    assert (third["preempted"], third["resumed"]) == ([], [])
    assert made.batch.refused == Refused(num_needed_blocks=3, num_room_blocks=2)


def test_nobody_is_admitted_in_a_call_that_preempts() -> None:
    """A short request that would fit waits; in the next call the victim is before it."""
    made = Driven(6)
    made.add(0, 8, 3)
    made.add(1, 12)
    made.call()
    made.add(2, 1)

    rows = made.calls(3)

    assert [row["preempted"] for row in rows] == [[1], [], []]
    assert [row["new"] for row in rows] == [[], [], [[2, 0]]]
    assert [row["resumed"] for row in rows] == [[], [], [[1, 0]]]
    assert rows[1]["finished"] == [0]
    assert rows[2]["scheduled"] == [[1, 13], [2, 1]]


def test_preempted_request_computes_prompt_and_output_again() -> None:
    """Its lost tokens are told, and nothing that it computes again is sampled again."""
    made = Driven(6)
    made.add(0, 8, 6)
    made.add(1, 8, 30)

    rows = made.all_calls()

    preempted = next(i for i, row in enumerate(rows) if row["preempted"])
    resumed = next(i for i, row in enumerate(rows) if row["resumed"])
    # Both have 3 blocks, 12 tokens, after 5 calls; the sixth call needs two blocks.
    assert preempted == 5
    # The first one's last token is sampled in call 5: in call 6 there is room.
    assert resumed == 6
    assert rows[6]["scheduled"] == [[1, 13]]


@pytest.mark.parametrize(("num_prompt", "num_lost"), [(8, 10), (20, 12)])
def test_least_urgent_makes_room_and_gives_its_part_back(
    num_prompt: int, num_lost: int
) -> None:
    """It was scheduled already in this call: it is taken out again, with its tokens.

    Once it decodes in lockstep, once it is being prefilled.
    """
    made = Driven(
        5,
        max_num_batched_tokens=8,
        scheduling_policy="priority",
        long_prefill_token_threshold=4,
        scheduler_reserve_full_isl=False,
    )
    made.add(0, num_prompt, priority=5)
    first = made.call()
    assert first["scheduled"] == [[0, 8]]
    made.add(1, 20, priority=1)

    row = made.call()
    while not row["preempted"]:
        row = made.call()

    assert (row["preempted"], row["scheduled"]) == ([0], [[1, 4]])
    assert made.scheduler.latest_call.num_tokens_left == 4
    (preempted,) = made.batch.preempted_recompute
    assert preempted.num_lost_tokens == num_lost


def test_resumed_request_is_prefilled_to_its_end() -> None:
    """Its 13 tokens are computed again in two steps, and both are prefills."""
    made = Driven(6)
    made.add(0, 8, 6)
    made.add(1, 8, 30)
    made.calls(6)
    made.scheduler.limits.max_num_batched_tokens = 8
    prefilled = []
    for _ in range(3):
        made.call()
        shape = made.batch.shape
        prefilled.append((shape.num_prefill_tokens, shape.num_decode_seqs))

    assert prefilled == [(8, 0), (5, 0), (0, 1)]


def test_of_equally_urgent_ones_the_first_admitted_makes_room() -> None:
    """Where priority and arrival are the same the first in running order goes."""
    made = Driven(7, scheduling_policy="priority")
    made.add(0, 8, priority=1)
    made.add(1, 8, priority=5)
    made.add(2, 8, priority=5)

    first, second = made.calls(2)

    assert first["running"] == 3
    assert second["preempted"] == [1]
    assert second["scheduled"] == [[0, 1]]


def test_later_arrival_makes_room_among_equal_priorities() -> None:
    """The request that came later is the victim, wherever it runs."""
    made = Driven(7, scheduling_policy="priority")
    made.add(0, 8, priority=1)
    made.add(1, 8, priority=5, arrival_ns=10)
    made.add(2, 8, priority=5, arrival_ns=20)

    assert made.calls(2)[1]["preempted"] == [2]


# -- admission ---------------------------------------------------------------------------


def test_watermark_is_kept_only_beside_running_requests() -> None:
    """A quarter of 9 blocks is 2: who is alone gets all 8, and others up to 5 of 7."""
    alone = Driven(8, watermark=0.25)
    alone.add(0, 32)
    beside = Driven(8, watermark=0.25)
    beside.add(0, 4)
    beside.add(1, 24)

    assert scheduled([alone.call()]) == [[[0, 32]]]
    assert scheduled([beside.call()]) == [[[0, 4]]]
    assert beside.batch.refused == Refused(num_needed_blocks=6, num_room_blocks=5)


@pytest.mark.parametrize("reserves", [True, False])
def test_first_chunk_is_admitted_if_the_whole_prompt_fits(reserves: bool) -> None:
    """Unless told otherwise, who finds room for a chunk only waits."""
    made = Driven(8, max_num_batched_tokens=20, scheduler_reserve_full_isl=reserves)
    made.add(0, 16)
    made.add(1, 20)

    expected = [[0, 16]] if reserves else [[0, 16], [1, 4]]
    assert scheduled([made.call()]) == [expected]


def test_twins_share_blocks_in_the_call_that_admits_them() -> None:
    """The second of two equal prompts of 9 hits both full blocks of the first."""
    made = Driven(enable_prefix_caching=True)
    for request_id in range(2):
        made.add(request_id, 9, prompt=((7, 9),))

    row = made.call()

    assert row["new"] == [[0, 0], [1, 8]]
    assert row["scheduled"] == [[0, 9], [1, 1]]
    assert row["blocks"] == [[0, [1, 2, 3]], [1, [1, 2, 4]]]


def test_resumed_request_hits_what_is_left_of_its_own_blocks() -> None:
    """Three blocks are freed, tail first; one is taken since, two are hit again."""
    made = Driven(6, enable_prefix_caching=True)
    made.add(0, 8, 6)
    made.add(1, 8, 30)

    rows = made.all_calls()

    (resumed,) = [row for row in rows if row["resumed"]]
    assert resumed["resumed"] == [[1, 8]]
    assert resumed["scheduled"] == [[1, 5]]


def test_hits_do_not_count_against_the_budget() -> None:
    """A prompt of 20 with 16 cached tokens takes 4 of the step's 8."""
    made = Driven(enable_prefix_caching=True, max_num_batched_tokens=32)
    made.add(0, 20, 1, prompt=((7, 20),))
    made.call()
    made.scheduler.limits.max_num_batched_tokens = 8
    made.add(1, 20, prompt=((7, 20),))
    made.add(2, 20)

    row = made.call()

    assert row["scheduled"] == [[1, 4], [2, 4]]
    assert row["new"] == [[1, 16], [2, 0]]


# -- lengths and ends --------------------------------------------------------------------


@pytest.mark.parametrize(("num_prompt", "lengths"), [(6, (4,)), (9, (1,)), (10, (1,))])
def test_the_models_length_ends_a_request(
    num_prompt: int, lengths: tuple[int, ...]
) -> None:
    """A prompt of 6 has 4 tokens more in a model of 10; a prompt of 10 has one."""
    made = Driven(max_model_len=10)
    made.add(0, num_prompt, 50)
    done = []
    while made.scheduler.has_unfinished:
        made.call()
        done += made.done

    assert [finished.sample_lengths for finished in done] == [lengths]


def test_one_call_more_follows_the_last_finish() -> None:
    """As vLLM, which has yet to hear that the request is gone."""
    made = Driven()
    made.add(0, 4, 2)

    rows = made.all_calls()

    assert scheduled(rows) == [[[0, 4]], [[0, 1]], []]
    assert rows[1]["finished"] == [0]
    assert made.scheduler.close() == 0


def test_request_is_finished_when_its_last_sample_is() -> None:
    """Samples of 1, 3 and 2 tokens end in calls of their own and are told together."""
    made = Driven()
    made.add(0, 4, 1, 3, 2)

    first, second = made.calls(2)
    assert first["finished"] == ["0_0"]
    assert second["finished"] == ["2_0"]
    assert made.done == []
    assert made.scheduler.sample_lengths(0) == (1, 2, 2)

    third = made.call()
    assert third["finished"] == ["1_0"]
    assert [finished.sample_lengths for finished in made.done] == [(1, 3, 2)]


def test_samples_are_requests_of_their_own() -> None:
    """Each computes the prompt, or hits it where it is cached."""
    plain = Driven()
    plain.add(0, 9, 5, 5)
    cached = Driven(enable_prefix_caching=True)
    cached.add(0, 9, 5, 5)

    assert scheduled([plain.call()]) == [[["0_0", 9], ["1_0", 9]]]
    assert scheduled([cached.call()]) == [[["0_0", 9], ["1_0", 1]]]


# -- requests that can never run ---------------------------------------------------------


@pytest.mark.parametrize(("num_prompt", "is_dismissed"), [(16, False), (17, True)])
def test_prompt_larger_than_the_pool_is_dismissed(
    num_prompt: int, is_dismissed: bool
) -> None:
    """Four blocks hold 16 tokens; who has 17 leaves at once and lets the others in."""
    made = Driven(4)
    made.add(0, num_prompt)
    made.add(1, 4, 1)

    made.call()

    reasons = [(d.request.request_id, d.reason) for d in made.batch.dismissed]
    expected = [(0, Dismissal.EXCEEDS_KV_CAPACITY)] if is_dismissed else []
    assert reasons == expected
    assert len(made.batch.scheduled) == 1


def test_request_that_outgrows_the_pool_is_dismissed_with_its_tokens() -> None:
    """It preempts itself at 17 tokens, and is told to have had one of output."""
    made = Driven(4)
    made.add(0, 16)

    rows = made.calls(3)

    assert rows[1]["preempted"] == [0]
    (dismissed,) = made.batch.dismissed
    assert (dismissed.num_tokens, dismissed.num_output_tokens) == (17, 1)
    assert made.scheduler.close() == 0


def test_request_longer_than_a_step_is_dismissed_where_it_is_not_cut() -> None:
    """Without chunks and threshold no step computes 11 tokens where 10 is the most."""
    made = Driven(max_num_batched_tokens=10, enable_chunked_prefill=False)
    made.add(0, 11)
    made.add(1, 10)

    made.call()

    (dismissed,) = made.batch.dismissed
    assert dismissed.reason is Dismissal.TOO_LONG_FOR_A_STEP
    assert made.rows.rows[-1]["scheduled"] == [[1, 10]]


def test_vllm_lets_them_wait_for_ever() -> None:
    """Asked to do as vLLM does, the scheduler keeps them, and who comes behind them."""
    made = Driven(4, waits_like_vllm=True)
    made.add(0, 17)
    made.add(1, 4)

    rows = made.calls(3)

    assert scheduled(rows) == [[], [], []]
    assert not made.batch.dismissed
    assert [row["waiting"] for row in rows] == [2, 2, 2]


def test_dismissed_request_is_told_when_its_last_sample_has_left() -> None:
    """A sample is dismissed while the other runs on; with its end the request is gone.

    Both have 3 blocks, of 6, when the second is preempted with 13 tokens, too long for a
    step of 12. The first goes on to its 12 tokens of output.
    """
    made = Driven(6, max_num_batched_tokens=12, enable_chunked_prefill=False)
    made.add(0, 4, 12, 30)
    told: list[tuple[int, Any]] = []
    while made.scheduler.has_unfinished:
        made.call()
        assert made.done == []
        told += [(len(made.rows.rows), dismissed) for dismissed in made.batch.dismissed]

    ((call, dismissed),) = told
    assert made.rows.rows[call - 2]["finished"] == ["0_0"]
    assert dismissed.reason is Dismissal.TOO_LONG_FOR_A_STEP
    assert (dismissed.num_tokens, dismissed.num_output_tokens) == (16, 21)


# -- calls ahead of tokens ---------------------------------------------------------------


def test_who_is_certain_to_end_is_not_scheduled_again() -> None:
    """Of two tokens the second is in flight in call 2: blocks are kept, nothing runs."""
    made = Driven(async_scheduling=True)
    made.add(0, 8, 2)

    rows = made.all_calls()

    assert scheduled(rows[:3]) == [[[0, 8]], [[0, 1]], []]
    assert [row["finished"] for row in rows[:3]] == [[], [], [0]]
    assert (rows[2]["free"], rows[2]["free_end"]) == (97, 100)
    assert rows[2]["running"] == 1


def test_tokens_in_flight_are_asked_for() -> None:
    """A request decodes in the very next call, before its first token is known."""
    made = Driven(async_scheduling=True)
    made.add(0, 8)

    assert scheduled(made.calls(3)) == [[[0, 8]], [[0, 1]], [[0, 1]]]
    assert made.scheduler.sample_lengths(0) == (2,)


def test_preempted_request_finishes_while_it_waits() -> None:
    """Its last token is in flight when its blocks are taken; it never runs again."""
    made = Driven(4, async_scheduling=True)
    made.add(0, 8, 3)
    made.add(1, 8, 1)

    rows = made.all_calls()

    assert rows[1]["preempted"] == [1]
    assert rows[1]["waiting"] == 1
    assert rows[1]["finished"] == [1]
    assert rows[2]["waiting"] == 0
    assert all(row["resumed"] == [] for row in rows)
    assert made.scheduler.close() == 0


def test_token_in_flight_reaches_a_preempted_request() -> None:
    """It is resumed with the token that was on its way when it lost its blocks."""
    made = Driven(5, async_scheduling=True)
    made.add(0, 8, 2)
    made.add(1, 8, 30)

    rows = made.calls(5)

    assert rows[1]["preempted"] == [1]
    resumed = next(row for row in rows if row["resumed"])
    assert resumed["scheduled"] == [[1, 9]]


@pytest.mark.parametrize(("is_async", "num_calls"), [(False, 2), (True, 3)])
def test_block_is_cached_when_its_last_token_is_known(
    is_async: bool, num_calls: int
) -> None:
    """With calls ahead that is one call later: the token that fills it is in flight."""
    made = Driven(enable_prefix_caching=True, async_scheduling=is_async)
    made.add(0, 3)
    num_cached = []
    for _ in range(4):
        made.call()
        num_cached.append(int((made.scheduler.manager.block_pool._content_of >= 0).sum()))

    assert num_cached.index(1) + 1 == num_calls


# -- repeating ---------------------------------------------------------------------------


def steady(made: Driven, num_calls: int = 2) -> Batch:
    """The batch of the latest call, before its tokens are in."""
    made.calls(num_calls - 1)
    made.batch = made.scheduler.schedule()
    return made.batch


def test_steps_to_the_first_end_can_repeat() -> None:
    """6 of 25 tokens are computed with the second call, 24 when the last step has run."""
    made = Driven()
    made.add(0, 5, 20)

    assert made.scheduler.max_repeat(steady(made)) == 18


def test_steps_until_blocks_run_out_can_repeat() -> None:
    """Two blocks hold 8 tokens, and 6 are computed with the second call."""
    made = Driven(2)
    made.add(0, 5, 20)

    assert made.scheduler.max_repeat(steady(made)) == 2


def test_prefills_do_not_repeat() -> None:
    """A call that computes a prompt, in whole or in part, is one of a kind."""
    made = Driven(max_num_batched_tokens=4)
    made.add(0, 6)

    assert made.scheduler.max_repeat(steady(made, 1)) == 0
    made.scheduler.commit(made.batch)
    assert made.scheduler.max_repeat(steady(made, 1)) == 0


def test_waiting_request_that_was_refused_does_not_stop_a_stretch() -> None:
    """While blocks only become fewer it is refused again; a new one is looked at."""
    made = Driven(8)
    made.add(0, 5, 20)
    made.add(1, 28)
    batch = steady(made)
    assert batch.refused is not None
    assert made.scheduler.max_repeat(batch) == 18

    made.add(2, 1)

    assert made.scheduler.max_repeat(batch) == 0


def test_twins_that_write_the_same_do_not_repeat() -> None:
    """What one of them writes may be what another waits for."""
    made = Driven(enable_prefix_caching=True)
    made.add(0, 5, 20, prompt=((7, 5),))
    made.scheduler.add(
        Request(
            request_id=1,
            arrival_ns=0,
            prompt=((7, 5), (100, 9)),
            num_prompt_tokens=14,
            outputs=((300, 20),),
        )
    )

    assert made.scheduler.max_repeat(steady(made)) == 0


def test_steady_requests_are_counted_not_listed() -> None:
    """From its second step on a decoding request is a number; who left it is named."""
    made = Driven(5)
    made.add(0, 7)
    made.add(1, 7)
    made.call()
    assert (len(made.batch.scheduled), made.batch.num_steady_seqs) == (2, 0)

    made.call()
    assert (len(made.batch.scheduled), made.batch.num_steady_seqs) == (0, 2)
    assert not made.batch.unsteady
    assert made.batch.shape.num_decode_seqs == 2
    assert made.batch.shape.num_context_tokens == 16

    made.call()  # both need a third block, and one is left
    assert [entry.request.request_id for entry in made.batch.scheduled] == [0]
    assert made.batch.num_steady_seqs == 0
    assert made.batch.shape.num_context_tokens == 9
    assert sorted(made.batch.unsteady) == [(0, 0), (1, 0)]


def test_prefill_shape_counts_what_each_token_attends_to() -> None:
    """Tokens 5 to 8 of a prompt attend to 5 + 6 + 7 + 8 tokens."""
    made = Driven(max_num_batched_tokens=4)
    made.add(0, 8)
    made.calls(2)

    shape = made.batch.shape
    assert (shape.num_prefill_tokens, shape.num_prefill_seqs) == (4, 1)
    assert shape.prefill_attention == 26
    assert shape.num_decode_seqs == 0


# -- what there is to know ---------------------------------------------------------------


def test_state_counts_blocks_and_the_tokens_in_them() -> None:
    """A prompt of 5 in two blocks, then a token a step; a block shared counts once."""
    made = Driven(enable_prefix_caching=True)
    made.add(0, 9, prompt=((7, 9),))
    made.add(1, 9, prompt=((7, 9),))
    made.add(2, 4)
    made.scheduler.limits.max_num_seqs = 2
    made.call()
    state = made.scheduler.state()
    assert (state.num_running, state.num_waiting, state.num_swapped) == (2, 1, 0)
    assert (state.num_used_blocks, state.num_used_tokens) == (4, 10)

    made.call()
    assert made.scheduler.state().num_used_tokens == 12


def test_a_window_gives_blocks_back_while_a_request_decodes() -> None:
    """With a window of 8, 40 tokens never hold more than 3 blocks after a call."""
    made = Driven(sliding_window=8, max_model_len=64)
    made.add(0, 8, 32)

    rows = made.all_calls()

    used = [100 - row["free"] for row in rows if row["scheduled"]]
    assert max(used) == 3
    assert used[-1] >= 2


def test_holders_name_queues_and_free_blocks() -> None:
    """People are told who runs, who waits and how many blocks are free."""
    made = Driven(4)
    made.add(0, 8)
    made.add(1, 12)
    made.call()

    assert made.scheduler.holders() == (
        "1 running (#0), 1 waiting (#1), 2 of 4 blocks free"
    )


def test_closing_takes_every_block_back() -> None:
    """Unfinished requests are dropped, and no block is lost."""
    made = Driven()
    made.add(0, 8)
    made.add(1, 12)
    made.call()

    assert made.scheduler.close() == 0
    assert made.scheduler.num_used_blocks == 0
