"""Tests for :mod:`results.comparison.chain`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from results.comparison.arm import Arm, ArmRun
from results.comparison.chain import CHAINS, chains, is_cause_known, split_of_e2e
from results.comparison.metric import metric_named
from results.comparison.verdict import MetricResult, Verdict
from results.record import RequestRecord
from results.run_info import Ending, Outcome

MakeArm = Callable[..., Arm]
MakeRun = Callable[..., ArmRun]
MakeResult = Callable[..., MetricResult]
Serve = Callable[..., list[RequestRecord]]
Found = list[tuple[list[str], str | None]]

HITS = {
    "hit_tokens": (0, 500),
    "prefill_tokens": (1000, 500),
    "queue_mean": (2.0, 1.0),
    "ttft_mean": (3.0, 2.0),
}


@pytest.fixture
def found(make_result: MakeResult) -> Callable[..., Found]:
    """Return the names in each chain of metrics with these values, and what broke it."""

    def names(**values: Any) -> Found:
        results = [make_result(name, *each) for name, each in values.items()]
        return [
            (
                [link.metric.name for link in chain.links],
                chain.broken_by.metric.name if chain.broken_by else None,
            )
            for chain in chains(results)
        ]

    return names


Chains = Callable[..., Found]


def test_links_are_metrics() -> None:
    """Every name in a chain is one that is compared."""
    assert all(metric_named(name) for names in CHAINS for name in names)


def test_what_all_moves_to_the_better_holds(found: Chains) -> None:
    """From more hits to less TTFT, whichever way each figure goes."""
    assert found(**HITS) == [(list(HITS), None)]


def test_what_all_moves_to_the_worse_holds(found: Chains) -> None:
    """Lost hits are followed as won ones are."""
    lost = {name: (value, base) for name, (base, value) in HITS.items()}

    assert found(**lost) == [(list(HITS), None)]


@pytest.mark.parametrize("queue_mean", [(2.0, 2.0), (2.0, 3.0)])
def test_a_chain_breaks_at_the_first_that_does_not_follow(
    found: Chains, queue_mean: tuple[float, float]
) -> None:
    """One that stays or goes the other way ends it; what comes after is left out."""
    values = HITS | {"queue_mean": queue_mean}

    assert found(**values) == [(["hit_tokens", "prefill_tokens"], "queue_mean")]


def test_one_link_is_no_chain(found: Chains) -> None:
    """A cause that nothing follows, or effects without a cause, are not told."""
    assert found(**(HITS | {"prefill_tokens": (1000, 1000)})) == []
    assert found(**(HITS | {"hit_tokens": (500, 500)})) == []
    assert found(**(HITS | {"hit_tokens": (500, 900, Verdict.NOT_TESTED)})) == []


def test_a_chain_without_one_of_its_metrics_is_left_out(found: Chains) -> None:
    """What neither arm has makes no chain: not even of those before it."""
    values = dict(HITS)
    del values["ttft_mean"]

    assert found(**values) == []


def test_chains_share_links(found: Chains) -> None:
    """Prefill tokens act on the queue and on decodes: both are told, in their order."""
    values = HITS | {"tpot_mean": (0.05, 0.04), "e2e_mean": (9.0, 9.0)}

    assert found(**values) == [
        (list(HITS), None),
        (["prefill_tokens", "tpot_mean"], "e2e_mean"),
    ]


def test_a_cause_is_known_where_only_memory_differs() -> None:
    """Another block size or load acts on each link by itself; no knob is no cause."""
    assert is_cause_known(["enable_prefix_caching"])
    assert is_cause_known(["gpu_memory_utilization", "watermark"])
    assert not is_cause_known(["enable_prefix_caching", "block_size"])
    assert not is_cause_known(["speedup"])
    assert not is_cause_known([])


# -- where the difference lies -----------------------------------------------------------


def test_parts_add_up_to_the_difference_of_e2e(serve: Serve, make_arm: MakeArm) -> None:
    """Queue, prefill and decode are each what changed there, and together all of it."""
    rng = np.random.default_rng(2)
    ttft_s = rng.uniform(1, 2, (2, 40))
    base = make_arm(requests=serve(ttft_s[0], decode_s=2.0))
    arm = make_arm(requests=serve(ttft_s[1], decode_s=2.5))

    split = split_of_e2e(base, arm)

    assert split is not None
    e2e_s = [float(side.run.samples.values["e2e"].mean()) for side in (base, arm)]
    parts = split.queue_s, split.prefill_s, split.decode_s
    assert sum(parts) == pytest.approx(e2e_s[1] - e2e_s[0])
    half = float(ttft_s[1].mean() - ttft_s[0].mean()) / 2
    assert parts == pytest.approx((half, half, 0.5))


def test_only_requests_that_finished_in_both_are_split(
    serve: Serve, make_arm: MakeArm
) -> None:
    """A slow one that the other arm lost makes no difference."""
    base = make_arm(requests=serve([1.0, 9.0, None, 1.0]))
    arm = make_arm(requests=serve([1.4, None, 9.0, 1.4]))

    split = split_of_e2e(base, arm)

    assert split is not None
    assert (split.queue_s, split.prefill_s) == pytest.approx((0.2, 0.2))
    assert split.decode_s == pytest.approx(0.0)


@pytest.mark.parametrize(
    "other",
    [
        {"trace": {"content_hash": "b"}},
        {"source": "measured"},
        {"outcome": Outcome(ending=Ending.DIED, message="assert False")},
    ],
    ids=["trace", "measured", "died"],
)
def test_there_is_no_split_of_what_is_not_the_same(
    serve: Serve, make_arm: MakeArm, other: dict[str, Any]
) -> None:
    """Other requests, a measured run, or one that does not last, on either side."""
    base = make_arm(requests=serve([1.0, 2.0]))
    arm = make_arm(requests=serve([1.0, 3.0]), **other)

    assert split_of_e2e(base, arm) is None
    assert split_of_e2e(arm, base) is None
    assert split_of_e2e(base, base) is not None


def test_there_is_no_split_where_none_finished_in_both(
    serve: Serve, make_arm: MakeArm
) -> None:
    """Means over no request are not 0."""
    base = make_arm(requests=serve([1.0, None]))

    assert split_of_e2e(base, make_arm(requests=serve([None, 1.0]))) is None
