"""Tests for :mod:`harness.tuning.settle`: no more than it takes, or is worth it."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import optuna
import pytest

from harness.tuning.advice import (
    BEYOND_CHANCE,
    ON_A_STRETCH,
    Advice,
    Enough,
    advise,
)
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.evidence import Row
from harness.tuning.objective import Objective
from harness.tuning.question import Question
from harness.tuning.search import Budget, Search
from harness.tuning.settle import settle
from harness.tuning.space import Knobs, Space
from harness.tuning.suggestion import Suggester
from harness.tuning.trial import Trial
from harness.workload import Workload
from results.columns import BoolArray
from results.goodput import Slo

MakeTrial = Callable[..., Trial]
MakeStudy = Callable[[], optuna.Study]
MakeEngine = Callable[..., TrialEngine]
MakeWorkload = Callable[..., Workload]
Good = Callable[[Knobs], BoolArray]

GOODPUT = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=1.0))
SPACE = Space({"kv_offloading_size": (0.0, 8.0, 64.0), "max_num_seqs": (1, 4)})
START = {"kv_offloading_size": 0.0, "max_num_seqs": 1}
PLACE = np.arange(1000)


def good_of(percent: float, lucky: float = 0.0) -> BoolArray:
    """Requests inside: so many of each tenth, and of the first tenth some more."""
    most = percent + lucky * (PLACE < 100)
    good: BoolArray = np.less(PLACE % 100, most)
    return good


def settled(
    make_trial: MakeTrial,
    make_engine: MakeEngine,
    study: optuna.Study,
    good: Good,
    *,
    enough: Enough = BEYOND_CHANCE,
    space: Space = SPACE,
    start: Knobs = START,
    is_shared: bool = False,
    step: float | None = None,
    default: Knobs | None = None,
    engine: TrialEngine | None = None,
) -> tuple[Advice, dict[str, list[Row]]]:
    """What is advised of all settings of a space, and rows around it."""

    def evaluate(settings: Sequence[Knobs], _: float) -> list[Trial]:
        return [
            make_trial(good=good(knobs), loss=1 - float(good(knobs).mean()))
            for knobs in settings
        ]

    search = Search(
        space=space,
        start=start,
        evaluate=evaluate,
        suggester=Suggester(space=space, study=study, waiting=[]),
        no_tie_above=GOODPUT.no_tie_above,
        budget=Budget(),
    )
    last = {name: values[-1] for name, values in space.choices.items()}
    search.try_out([start, last])
    question = SimpleNamespace(
        is_shared=is_shared, utilization_step=step, default=default or start
    )
    advice = advise(search, GOODPUT, enough)
    engine = engine or make_engine(objective=GOODPUT)
    return settle(search, engine, advice, cast("Question", question), enough)


@pytest.mark.parametrize(
    ("good", "tier", "seqs"),
    [
        # seven points, all in a tenth of the trace: no memory for that
        (lambda k: good_of(30, 70 * (k["kv_offloading_size"] > 0)), 0, 1),
        # what costs nothing stays
        (
            lambda k: good_of(
                20 + 10 * (k["max_num_seqs"] > 1), 70 * (k["kv_offloading_size"] > 0)
            ),
            0,
            4,
        ),
        # a gain all along is worth it; more of it for a point more, by luck, is not
        (
            lambda k: good_of(
                20 + 10 * (k["kv_offloading_size"] > 0),
                10 * (k["kv_offloading_size"] > 8),
            ),
            8,
            1,
        ),
        # but for more than five times what counts it is
        (
            lambda k: good_of(
                20 + 10 * (k["kv_offloading_size"] > 0),
                35 * (k["kv_offloading_size"] > 8),
            ),
            64,
            1,
        ),
        (lambda k: good_of(20 + k["kv_offloading_size"]), 64, 1),
        # neither is what is left a gain by itself, nor all together beyond chance
        (
            lambda k: good_of(
                30, 70 * (k["kv_offloading_size"] > 0) * (k["max_num_seqs"] > 1)
            ),
            0,
            1,
        ),
    ],
)
def test_memory_of_the_host_is_taken_for_a_gain_beyond_chance(
    make_trial: MakeTrial,
    make_engine: MakeEngine,
    make_study: MakeStudy,
    good: Good,
    tier: float,
    seqs: int,
) -> None:
    """As much as each further part is worth, in spite of better rows around."""
    advice, rows = settled(make_trial, make_engine, make_study(), good)

    found = advice.knobs
    assert found == {"kv_offloading_size": tier, "max_num_seqs": seqs}
    assert [row.value for row in rows["kv_offloading_size"] if row.is_advised] == [tier]
    assert (advice.trial.run is not None) == advice.trial.is_complete


def test_on_a_stretch_all_that_is_better_goes_on_to_the_whole_trace(
    make_trial: MakeTrial, make_engine: MakeEngine, make_study: MakeStudy
) -> None:
    """A tenth of a thousand requests may be more of many."""

    def good(knobs: Knobs) -> BoolArray:
        return good_of(30, 70 * (knobs["kv_offloading_size"] > 0))

    study = make_study()
    advice, _ = settled(make_trial, make_engine, study, good, enough=ON_A_STRETCH)

    assert advice.knobs == {**START, "kv_offloading_size": 8.0}


@pytest.mark.parametrize(
    ("inside", "wanted"),
    [
        ({0.5: 90.2, 0.7: 90.3, 0.9: 90.3}, 0.5),
        ({0.5: 89.9, 0.7: 90.0, 0.9: 90.3}, 0.7),  # 0.4 points less, and no SLO
        ({0.5: 89.9, 0.7: 89.9, 0.9: 90.0}, 0.9),
        ({0.5: 49.9, 0.7: 50.0, 0.9: 50.0}, 0.7),  # missed anyway: no request more
        ({0.5: 49.9, 0.7: 49.8, 0.9: 50.0}, 0.9),
        ({0.5: 90.0, 0.7: 95.0, 0.9: 95.3}, 0.7),
    ],
)
def test_a_shared_gpu_does_not_cost_the_slo(
    make_trial: MakeTrial,
    make_engine: MakeEngine,
    make_study: MakeStudy,
    inside: dict[float, float],
    wanted: float,
) -> None:
    """Though half a point is a tie; where it is missed, it is not missed by more."""
    name = "gpu_memory_utilization"
    order = np.random.default_rng(0).permutation(1000)

    advice, _ = settled(
        make_trial,
        make_engine,
        make_study(),
        lambda knobs: order < round(10 * inside[knobs[name]]),
        space=Space({name: tuple(inside)}),
        start={name: 0.9},
        is_shared=True,
    )

    assert advice.knobs == {name: wanted}


@pytest.mark.parametrize("least", [0.3, 0.41, 0.45, 0.5, 0.59, 0.7, 0.83, 0.9])
@pytest.mark.parametrize("enough", [BEYOND_CHANCE, ON_A_STRETCH])
def test_the_least_of_a_shared_gpu_is_found_to_a_hundredth(
    make_trial: MakeTrial,
    make_engine: MakeEngine,
    make_study: MakeStudy,
    least: float,
    enough: Enough,
) -> None:
    """Not where only a stretch was replayed: there it is one of the space's."""
    name, space = "gpu_memory_utilization", (0.3, 0.4, 0.5, 0.7, 0.9)

    advice, rows = settled(
        make_trial,
        make_engine,
        make_study(),
        lambda knobs: np.less(PLACE, 990 * (knobs[name] >= least)),
        enough=enough,
        space=Space({name: space}),
        start={name: 0.9},
        is_shared=True,
        step=0.01,
    )

    wanted = least if enough is BEYOND_CHANCE else min(u for u in space if u >= least)
    assert advice.knobs == {name: wanted}
    assert [row.value for row in rows[name] if row.is_advised] == [wanted]


@pytest.mark.parametrize(("enough", "wanted"), [(256, 256), (300, 384)])
def test_of_equals_the_versions_own_value_is_taken(
    make_trial: MakeTrial,
    make_engine: MakeEngine,
    make_study: MakeStudy,
    enough: int,
    wanted: int,
) -> None:
    """Then the line has no option for it; where it is worse, it has."""
    name = "max_num_seqs"

    advice, _ = settled(
        make_trial,
        make_engine,
        make_study(),
        lambda knobs: good_of(80 if knobs[name] >= enough else 30),
        space=Space({name: (8, 256, 384)}),
        start={name: 8},
        default={name: 256},
    )

    assert advice.knobs == {name: wanted}


@pytest.mark.parametrize(
    ("num_samples", "good", "wanted"),
    [
        (2, lambda _: 80, (False, 4.0)),
        (1, lambda _: 80, (True, 0.0)),
        (2, lambda k: 80 - 9 * (not k["enable_chunked_prefill"]), (False, 4.0)),
        (2, lambda k: 80 - 9 * (k["swap_space"] > 0), (False, 0.0)),
    ],
)
def test_samples_in_v0_get_what_ends_its_engine_least(
    make_trial: MakeTrial,
    make_engine: MakeEngine,
    make_workload: MakeWorkload,
    make_study: MakeStudy,
    num_samples: int,
    good: Callable[[Knobs], float],
    wanted: tuple[bool, float],
) -> None:
    """No prompts in parts, and a swap space unless that does worse."""
    engine = make_engine(
        make_workload(n=num_samples), GOODPUT, policy="v0", vllm_version="0.6.3"
    )
    start = {"enable_chunked_prefill": True, "swap_space": 0.0, "block_size": 16}

    advice, _ = settled(
        make_trial,
        make_engine,
        make_study(),
        lambda knobs: good_of(good(knobs) if knobs["block_size"] > 16 else 30),
        space=Space(
            {
                "enable_chunked_prefill": (False, True),
                "swap_space": (0.0, 4.0, 8.0),
                "block_size": (16, 32),
            }
        ),
        start=start,
        engine=engine,
    )

    found = advice.knobs
    assert (found["enable_chunked_prefill"], found["swap_space"]) == wanted


def test_a_tier_that_pays_only_from_a_size_on_is_found(
    make_trial: MakeTrial, make_engine: MakeEngine, make_study: MakeStudy
) -> None:
    """Where the size before it is better, though not by what it takes."""
    name = "kv_offloading_size"
    inside = {0.0: (20, 0), 8.0: (20, 20), 16.0: (60, 0), 32.0: (60, 0)}

    def good(knobs: Knobs) -> BoolArray:
        if knobs["max_num_seqs"] == 8:  # where the search looked for a tier
            return good_of(0)
        percent, lucky = inside[knobs[name]]
        return good_of(percent + 20 * (knobs["max_num_seqs"] == 4), lucky)

    advice, _ = settled(
        make_trial,
        make_engine,
        make_study(),
        good,
        space=Space({name: tuple(inside), "max_num_seqs": (1, 4, 8)}),
        start=START,
    )

    assert advice.knobs == {name: 16.0, "max_num_seqs": 4}
