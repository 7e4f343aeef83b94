"""Tests for :mod:`results.comparison.comparable`."""

from collections.abc import Callable
from typing import Any

import pytest

from results.comparison.arm import Arm, ArmRun
from results.comparison.comparable import (
    Hindrance,
    drift_note,
    hindrances,
    version_note,
)
from results.run_info import Ending, Outcome

MakeArm = Callable[..., Arm]
MakeRun = Callable[..., ArmRun]

MADE: dict[str, Any] = {
    "config": {"model": "Llama", "gpu": "H100"},
    "trace": {"num_requests": 1000, "content_hash": "a"},
}


def refusals(base: Arm, arm: Arm) -> list[tuple[Hindrance, str]]:
    """Each hindrance with its message."""
    return [(refusal.hindrance, refusal.message) for refusal in hindrances(base, arm)]


def changed(section: str, **changes: Any) -> dict[str, Any]:
    """What runs are made of, with changes in one section."""
    return MADE | {section: MADE[section] | changes}


def test_other_knobs_hinder_nothing(make_arm: MakeArm) -> None:
    """Pools, limits and the pace of a trace are what is compared."""
    base = make_arm("base", **MADE)
    arm = make_arm("arm", **changed("config", num_gpu_blocks=99, speedup=2.0))

    assert hindrances(base, arm) == []


def test_a_knob_not_known_is_that_of_one_gpu(make_arm: MakeArm) -> None:
    """A run that does not say how many GPUs it had is no other than one on one GPU."""
    base = make_arm("base", **MADE)
    one = make_arm("arm", **changed("config", tensor_parallel_size=1))

    assert hindrances(base, one) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            changed("trace", content_hash="b"),
            (Hindrance.TRACE, "base and arm replayed files of other content"),
        ),
        (
            changed("trace", num_requests=2500, content_hash="b", name="code.jsonl"),
            (
                Hindrance.TRACE,
                "base replayed 1,000 requests of chat.jsonl,"
                " arm 2,500 requests of code.jsonl",
            ),
        ),
        (
            changed("config", slice="0:1000"),
            (
                Hindrance.TRACE,
                "base replayed 1,000 requests of chat.jsonl,"
                " arm 1,000 requests of chat.jsonl (0:1000)",
            ),
        ),
        (
            changed("config", gpu="A100", tensor_parallel_size=2),
            (
                Hindrance.HARDWARE,
                "gpu is H100 in base, A100 in arm;"
                " tensor_parallel_size is 1 in base, 2 in arm",
            ),
        ),
        (
            changed("config", pipeline_parallel_size=4),
            (Hindrance.HARDWARE, "pipeline_parallel_size is 1 in base, 4 in arm"),
        ),
        (
            changed("config", model="Qwen"),
            (Hindrance.MODEL, "model is Llama in base, Qwen in arm"),
        ),
        (
            MADE | {"outcome": Outcome(ending=Ending.INTERRUPTED)},
            (Hindrance.UNFINISHED, "arm was interrupted"),
        ),
    ],
    ids=["content", "trace", "slice", "gpu", "pipeline", "model", "unfinished"],
)
def test_each_hindrance_says_what_differs(
    make_arm: MakeArm, change: dict[str, Any], expected: tuple[Hindrance, str]
) -> None:
    """One of a kind, in words, with what is on either side."""
    base = make_arm("base", **MADE)

    assert refusals(base, make_arm("arm", **change)) == [expected]


def test_hindrances_come_together(make_run: MakeRun, make_arm: MakeArm) -> None:
    """All that differ are told at once, and every repeat that did not end."""
    killed = MADE | {"outcome": Outcome(ending=Ending.KILLED)}
    base = make_arm("base", runs=[make_run(**killed), make_run(**MADE)])
    arm = make_arm(
        "arm", trace={"num_requests": 5}, config={"model": "Qwen", "gpu": "A100"}
    )

    assert [kind for kind, _ in refusals(base, arm)] == list(Hindrance)


# -- what should be known besides --------------------------------------------------------


@pytest.fixture
def at_times(make_run: MakeRun, make_arm: MakeArm) -> Callable[..., Arm]:
    """Return a maker of arms of runs that began at these times of a day."""

    def make(name: str, *times: str) -> Arm:
        days = [f"2025-11-29T{time}" if time else "" for time in times]
        return make_arm(name, runs=[make_run(created_at=day) for day in days])

    return make


AtTimes = Callable[..., Arm]


def test_repeats_that_did_not_alternate_may_have_drifted(at_times: AtTimes) -> None:
    """All of one side before all of the other is told, whichever came first."""
    early = at_times("early", "12:00:00+00:00", "12:10:00+00:00")
    late = at_times("late", "12:20:00+00:00", "12:30:00+00:00")

    assert drift_note(early, late).startswith("all runs of early and of late were made")
    assert drift_note(late, early).endswith("alternate them")


def test_repeats_that_alternate_share_what_drifts(at_times: AtTimes) -> None:
    """One run of the other side in between is enough to say nothing."""
    first = at_times("first", "12:00:00+00:00", "12:20:00+00:00")
    second = at_times("second", "12:10:00+00:00", "12:30:00+00:00")

    assert drift_note(first, second) == ""
    assert drift_note(second, first) == ""


def test_single_runs_and_unknown_times_are_not_told_of(at_times: AtTimes) -> None:
    """One run a side cannot alternate; without times nothing can be said."""
    early = at_times("early", "12:00:00+00:00", "12:10:00+00:00")

    assert drift_note(early, at_times("late", "13:00:00+00:00")) == ""
    assert drift_note(early, at_times("late", "13:00:00+00:00", "")) == ""


def test_drift_is_told_across_time_zones(at_times: AtTimes) -> None:
    """What counts is when a run began, not what the clock on the wall said."""
    early = at_times("early", "12:00:00+02:00", "12:10:00+02:00")
    late = at_times("late", "11:00:00+00:00", "12:05:00+00:00")

    assert drift_note(early, late)


def test_times_without_a_zone_are_those_of_this_place(
    make_run: MakeRun, make_arm: MakeArm, at_times: AtTimes
) -> None:
    """They stand beside others: two days around a run lie on both sides of it."""
    days = "2025-11-27T12:00:00", "2025-12-01T12:00:00"
    around = make_arm("around", runs=[make_run(created_at=day) for day in days])
    between = at_times("between", "12:00:00+00:00", "12:10:00+00:00")

    assert drift_note(around, between) == ""


def test_runs_of_two_versions_are_noted(make_run: MakeRun, make_arm: MakeArm) -> None:
    """Each version is named once; one that is not known is none."""
    old = make_arm("old", runs=[make_run(blockbench=v) for v in ("0.1.0", "")])
    new = make_arm("new", blockbench="0.2.0")

    note = version_note([new, old, old])

    assert note.startswith("the runs are of blockbench 0.1.0, 0.2.0:")
    assert version_note([old, old]) == ""
    assert version_note([make_arm("unknown"), new]) == ""
