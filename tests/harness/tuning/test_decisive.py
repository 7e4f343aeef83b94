"""Tests for :mod:`harness.tuning.decisive`."""

from collections.abc import Callable

import pytest

from harness.tuning.choice import ObjectiveName
from harness.tuning.decisive import Decisive, decisive
from harness.tuning.objective import Objective
from harness.tuning.trial import Trial
from results.goodput import Slo

MakeTrial = Callable[..., Trial]

GOODPUT = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=1.0))
TTFT = Objective(name=ObjectiveName.TTFT)


def test_where_requests_are_inside_the_metric_decides(make_trial: MakeTrial) -> None:
    """Nothing goes before it."""
    base, other = (make_trial(ttft=[0.5] * 4, good=[1, 1, 1, each]) for each in (0, 1))

    assert decisive(GOODPUT, base, other) is None


def test_where_none_is_inside_the_median_request_decides(make_trial: MakeTrial) -> None:
    """By how many times it has its limits, where the shares are 0 % on either side."""
    base, other = (
        make_trial(ttft=ttft, good=[0, 0, 0])
        for ttft in ([8.0, 9.0, 10.0], [2.0, 3.0, 9.0])
    )

    found = decisive(GOODPUT, base, other)

    assert found == Decisive(name="over_limits", values=(9.0, 3.0))


@pytest.mark.parametrize("objective", [GOODPUT, TTFT])
def test_a_condition_goes_before_both(
    make_trial: MakeTrial, objective: Objective
) -> None:
    """Though fewer requests are inside with it; one missed as before does not."""
    base = make_trial(ttft=[1.0, 1.0], good=[1, 1], missed=[(6.0, 4.0)])
    other = make_trial(ttft=[1.0, 1.0], good=[1, 0], missed=[(3.0, 4.0)])

    found = decisive(objective, base, other)

    assert found == Decisive(name="ttft_p99", values=(1.5, 0.75))
    assert decisive(objective, base, base) is None


def test_more_that_finish_go_before_a_latency(make_trial: MakeTrial) -> None:
    """Those that do not have none."""
    base, other = (make_trial(ttft=[1.0] * 5, num_lost=lost) for lost in (3, 0))

    assert decisive(TTFT, base, other) == Decisive(name="finished", values=(2, 5))
    assert decisive(TTFT, base, make_trial(trouble="stuck")) is None
