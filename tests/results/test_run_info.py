"""Tests for :mod:`results.run_info`."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from results.run_info import Ending, Outcome, RunInfo

MakeInfo = Callable[..., RunInfo]


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("slo", [None, {}, {"ttft_s": 2.0, "itl_p99.9_s": 0.5}])
@pytest.mark.parametrize("wall_s", [None, 1.25])
def test_a_run_comes_back_from_its_document(
    make_info: MakeInfo,
    ending: Ending,
    slo: dict[str, float] | None,
    wall_s: float | None,
) -> None:
    """What run.json holds, as text, gives the same info, whatever else stands there."""
    outcome = Outcome(
        ending=ending, kind="no_swap", message="x", holders="y", num_lost_blocks=3
    )
    info = make_info(outcome=outcome, slo=slo, wall_s=wall_s)

    text = json.dumps(info.to_dict() | {"state": ending, "summary": None})

    assert RunInfo.from_dict(json.loads(text)) == info
    assert RunInfo.from_dict(json.loads(text)).outcome.ending is ending


FIELDS = ("source", "engine", "policy", "config", "trace", "slo", "outcome", "wall_s")


@pytest.mark.parametrize("name", FIELDS)
def test_a_document_that_lacks_something_is_refused(
    make_info: MakeInfo, name: str
) -> None:
    """Every field must be there; the error names the one that is not."""
    document = make_info().to_dict()
    assert set(document) == {*FIELDS, "measurement"}  # which older runs lack
    del document[name]

    with pytest.raises(KeyError, match=name):
        RunInfo.from_dict(document)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("outcome", {"ending": "exploded"}),
        ("outcome", {"ending": "complete", "mood": "fine"}),
        ("outcome", {"ending": None}),
        ("outcome", "complete"),
        ("outcome", None),
        ("config", None),
        ("config", "block_size"),
        ("trace", None),
        ("trace", 3),
        ("slo", 2.0),
        ("slo", "ttft"),
    ],
)
def test_a_document_of_another_kind_is_refused(
    make_info: MakeInfo, name: str, value: Any
) -> None:
    """A run that no version of blockbench wrote is noticed where it is read."""
    with pytest.raises((TypeError, ValueError)):
        RunInfo.from_dict(make_info().to_dict() | {name: value})


@pytest.mark.parametrize("ending", Ending)
def test_only_a_run_that_ended_by_itself_is_complete(
    make_info: MakeInfo, ending: Ending
) -> None:
    """Complete means that every request left in its own way, and needs no reason."""
    info = make_info(outcome=Outcome(ending=ending))

    assert info.complete is (ending is Ending.COMPLETE)
    assert (info.outcome.reason == "") is info.complete


def test_a_reason_says_what_the_engine_died_of() -> None:
    """The kind of death is part of why requests were left unfinished."""
    outcome = Outcome(ending=Ending.DIED, kind="vllm_assertion", message="long story")

    assert outcome.reason == "the engine died: vllm_assertion"


def test_a_run_is_under_way_until_it_is_said_to_have_ended(make_info: MakeInfo) -> None:
    """Info made before a run says neither that it ended nor how long it took."""
    made = make_info()
    info = RunInfo(
        source=made.source,
        engine=made.engine,
        policy=made.policy,
        config=made.config,
        trace=made.trace,
    )

    assert info.outcome.ending is Ending.RUNNING
    assert info.outcome.num_lost_blocks == 0
    assert (info.slo, info.wall_s, info.complete) == (None, None, False)


@pytest.mark.parametrize("knob", [False, True])
def test_caching_is_what_the_configuration_says(make_info: MakeInfo, knob: bool) -> None:
    """Prefix caching is on where the knob is."""
    assert make_info(config={"enable_prefix_caching": knob}).is_caching is knob


def test_a_limit_on_concurrency_closes_the_loop(make_info: MakeInfo) -> None:
    """Requests wait for others only where so many may be under way."""
    assert not make_info().is_closed_loop
    assert not make_info(config={"max_concurrency": None}).is_closed_loop
    assert make_info(config={"max_concurrency": 8}).is_closed_loop


@pytest.mark.parametrize("name", ["config", "trace", "slo"])
def test_what_json_cannot_hold_is_found_before_the_run(
    make_info: MakeInfo, name: str
) -> None:
    """Facts that strict JSON lacks fail where they are stated, not when saved."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        make_info(**{name: {"burstiness": float("inf")}})
