"""Tests for :mod:`results.findings.fit`."""

from collections.abc import Callable
from typing import Any

import pytest

from results.findings.fit import (
    fewer_or_more,
    fewer_seqs,
    fitting_seqs,
    larger_pool,
    more_blocks,
    num_blocks_for_all,
)
from results.findings.run_view import RunView
from results.record import RequestRecord

MakeRequest = Callable[..., RequestRecord]
MakeView = Callable[..., RunView]
MakeRows = Callable[..., list[RequestRecord]]

S = 1_000_000_000
HARDWARE = "--tensor-parallel-size or a larger GPU"
LARGER = f"a larger pool ({HARDWARE})"
FORTY = f"40 blocks, 15.0 GiB more on each GPU ({HARDWARE})"
OVERRIDE: dict[str, Any] = {"source_of_num_gpu_blocks": "override"}
GIVEN_GIB: dict[str, Any] = {
    "source_of_num_gpu_blocks": "kv_cache_gib",
    "block_bytes": 207 * 2**19,
}
"""Blocks of 0.101 GiB."""


@pytest.fixture
def rows(make_request: MakeRequest) -> MakeRows:
    """Return a maker of requests of (blocks, output tokens, n), all there at once."""

    def make(*shapes: tuple[int, int, int]) -> list[RequestRecord]:
        return [
            make_request(
                request_id=i, num_demand_blocks=demand, num_requested_tokens=output, n=n
            )
            for i, (demand, output, n) in enumerate(shapes)
        ]

    return make


@pytest.mark.parametrize(
    ("shapes", "part", "fitting"),
    [
        ([(4, 32, 1)], 1, 2),  # 9 / 4
        ([(4, 32, 1)], 0.5, 3),  # 9 / 3
        ([(8, 64, 4)], 1, 3),  # 6 / (8 / 4): each of the four has a block to grow by
        ([(6, 90, 1), (2, 10, 1)], 1, 1),  # 9 / 5.6: the long one runs nine times longer
        ([(4, 400, 4), (6, 100, 1)], 1, 3),  # 6 / (10 / 5): both run as long
        ([(30, 10, 1)], 1, 0),
        ([(0, 0, 1)], 1, 0),
    ],
)
def test_sequences_that_fit(
    shapes: list[tuple[int, int, int]],
    part: float,
    fitting: int,
    rows: MakeRows,
    make_view: MakeView,
) -> None:
    """The ten blocks of the pool hold so many, weighed by how long they run."""
    assert fitting_seqs(make_view(rows(*shapes), []), part) == fitting


def test_blocks_for_all_are_those_at_the_fullest_moment(
    make_request: MakeRequest, make_view: MakeView
) -> None:
    """A request that is queued as another leaves is not there with it."""
    times = [(0, 4), (1, 3), (3, 5), (5, None)]
    requests = [
        make_request(
            request_id=i,
            queued_ns=begin * S,
            finished_ns=None if end is None else end * S,
            num_demand_blocks=10 + i,
        )
        for i, (begin, end) in enumerate(times)
    ]

    # 10 and 12 together, and the block by which one of them grows
    assert num_blocks_for_all(make_view(requests, [], config={"watermark": 0})) == 23


@pytest.mark.parametrize(
    ("knobs", "num_blocks"),
    [
        ({"watermark": 0}, 16),  # 2 + 4 + 8, and 2 samples grow
        ({"watermark": 0.2}, 20),
        ({"watermark": 0, "max_num_seqs": 3}, 14),  # 8 and 4, in three sequences
        ({"watermark": 0, "max_num_seqs": 1}, 10),  # the largest alone
        ({"watermark": 0, "max_num_seqs": None}, 16),
    ],
)
def test_blocks_for_all_that_may_run(
    knobs: dict[str, Any], num_blocks: int, rows: MakeRows, make_view: MakeView
) -> None:
    """No more than ``max_num_seqs`` lets run, and what the watermark adds."""
    requests = rows((2, 8, 1), (8, 8, 2), (4, 8, 1))

    assert num_blocks_for_all(make_view(requests, [], config=knobs)) == num_blocks


def test_largest_are_those_whose_sequences_are(
    rows: MakeRows, make_view: MakeView
) -> None:
    """Two single sequences of 4 and 3 blocks hold more than the group of 6 in three."""
    requests = rows((6, 9, 3), (4, 9, 1), (3, 9, 1))
    knobs = {"watermark": 0, "max_num_seqs": 2}

    assert num_blocks_for_all(make_view(requests, [], config=knobs)) == 4 + 3 + 3


def test_requests_that_never_ran_need_no_room(
    make_request: MakeRequest, make_view: MakeView
) -> None:
    """They neither count nor are anything to size a pool by."""
    run = make_view([make_request(first_scheduled_ns=None, num_demand_blocks=99)], [])

    assert num_blocks_for_all(run) == 0
    assert fitting_seqs(run, 1) == 0


def test_pool_for_all_has_a_size_up_to_eight_times(
    rows: MakeRows, make_view: MakeView
) -> None:
    """Beyond, a number of blocks would be no remedy."""
    knobs = {"watermark": 0, "block_bytes": 2**29}
    eight = make_view(rows((79, 8, 1)), [], config=knobs)
    beyond = make_view(rows((80, 8, 1)), [], config=knobs)

    assert more_blocks(eight) == (
        "80 blocks, 35.0 GiB more on each GPU (--tensor-parallel-size or a larger GPU),"
        " enough for all that could have run at once"
    )
    assert more_blocks(beyond) == LARGER


@pytest.mark.parametrize(("num_blocks", "is_named"), [(100, True), (101, False)])
def test_pool_that_fits_has_a_size_whatever_the_growth(
    num_blocks: int, is_named: bool, rows: MakeRows, make_view: MakeView
) -> None:
    """Ten times the blocks are one flag away where the GPU has room for them."""
    knobs = {"watermark": 0, "num_fitting_gpu_blocks": 100} | OVERRIDE
    run = make_view(rows((num_blocks - 1, 8, 1)), [], config=knobs)

    all_that_fits = "--num-gpu-blocks-override 100 (about all that fits)"
    for_all = "--num-gpu-blocks-override 100 (about 100 blocks fit on this GPU), enough"
    advice = more_blocks(run)
    assert advice.startswith(for_all) if is_named else advice == all_that_fits


def test_pool_that_was_large_enough_is_given_no_smaller_size(
    rows: MakeRows, make_view: MakeView
) -> None:
    """Where those that ran need but 10 blocks, who waited needs more than there are."""
    run = make_view(rows((9, 8, 1)), [], config={"watermark": 0})

    assert num_blocks_for_all(run) == run.num_gpu_blocks
    assert more_blocks(run) == LARGER


ESTIMATED = {"source_of_num_gpu_blocks": "estimated", "block_bytes": 2**29}


@pytest.mark.parametrize(
    ("knobs", "num_blocks", "advice"),
    [
        (
            OVERRIDE | {"num_fitting_gpu_blocks": 9000},
            9000,
            "--num-gpu-blocks-override 9000 (about 9,000 blocks fit on this GPU)",
        ),
        (OVERRIDE | {"num_fitting_gpu_blocks": 39}, 40, FORTY),
        (OVERRIDE | {"num_fitting_gpu_blocks": None}, 40, FORTY),
        (
            GIVEN_GIB | {"num_fitting_gpu_blocks": 50},
            41,
            "--kv-cache-gib 4.2 (about 50 blocks fit on this GPU)",  # 4.1 and a bit
        ),
        (
            GIVEN_GIB | {"num_fitting_gpu_blocks": 40},
            41,
            f"41 blocks, 3.1 GiB more on each GPU ({HARDWARE})",
        ),
        (ESTIMATED, 18, "--gpu-memory-utilization 0.95 (18 blocks)"),  # 4 of 80 GiB
        (
            ESTIMATED,
            19,  # 4.5 of 80 GiB would be 0.96
            f"19 blocks, 4.5 GiB more on each GPU ({HARDWARE})",
        ),
        (
            ESTIMATED | {"gpu_memory_gib": None},
            18,
            f"18 blocks, 4.0 GiB more on each GPU ({HARDWARE})",
        ),
        ({}, 40, FORTY),
    ],
)
def test_larger_pool_is_had_by_what_set_it(
    knobs: dict[str, Any], num_blocks: int, advice: str, make_view: MakeView
) -> None:
    """By the flag that gave its size, or the utilization; by hardware where none can."""
    run = make_view([], [], config={"block_bytes": 2**29} | knobs)

    assert larger_pool(run, num_blocks) == advice


@pytest.mark.parametrize(
    ("knobs", "advice"),
    [
        (
            OVERRIDE | {"num_fitting_gpu_blocks": 11},
            "--num-gpu-blocks-override 11 (about all that fits)",
        ),
        (
            GIVEN_GIB | {"num_fitting_gpu_blocks": 41},
            "--kv-cache-gib 4.1 (about all that fits)",  # and a bit, which is left
        ),
        (OVERRIDE | {"num_fitting_gpu_blocks": 10}, LARGER),
        (GIVEN_GIB | {"num_fitting_gpu_blocks": None}, LARGER),
        (ESTIMATED, LARGER),
        ({}, LARGER),
    ],
)
def test_larger_pool_of_no_size_is_all_that_fits(
    knobs: dict[str, Any], advice: str, make_view: MakeView
) -> None:
    """A given pool grows to what the GPU holds; one that fills it, by hardware."""
    assert larger_pool(make_view([], [], config=knobs)) == advice


@pytest.mark.parametrize(
    ("shape", "max_num_seqs", "fewer"),
    [
        ((4, 32, 1), 3, "--max-num-seqs 2, as many as the pool holds at full length"),
        ((4, 32, 1), 2, ""),  # no more may run as it is
        ((8, 64, 4), 256, ""),  # a group of four would never run
    ],
)
def test_fewer_sequences_are_a_remedy_where_they_limit_and_run(
    shape: tuple[int, int, int],
    max_num_seqs: int,
    fewer: str,
    rows: MakeRows,
    make_view: MakeView,
) -> None:
    """Else only more blocks are."""
    run = make_view(rows(shape), [], config={"max_num_seqs": max_num_seqs})

    assert fewer_seqs(run, 1) == fewer
    both = f"; or {fewer}, at the price of a longer queue" if fewer else ""
    assert fewer_or_more(run, 1) == more_blocks(run) + both
