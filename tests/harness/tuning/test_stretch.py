"""Tests for :mod:`harness.tuning.stretch`, and for searches that look at one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import optuna
import pytest

from harness.analysis.miss_ratio import hit_curve
from harness.parallel import ReplayPool
from harness.replay import findable_of
from harness.tuning import stretch as module
from harness.tuning.advice import Advice
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.fact import facts_of
from harness.tuning.headroom import keep_together
from harness.tuning.objective import Objective, RunningLoss
from harness.tuning.question import Question
from harness.tuning.replicas import SharedLoad
from harness.tuning.search import Budget, Search
from harness.tuning.space import Knobs, Space, key_of
from harness.tuning.stretch import is_like, stretch_like_whole
from harness.tuning.suggestion import Suggester
from harness.tuning.trial import Rival, Trial
from harness.tuning.tuner import tune
from harness.tuning.whole import Whole
from harness.workload import Workload
from results.goodput import Slo

MakeWorkload = Callable[..., Workload]
MakeEngine = Callable[..., TrialEngine]
MakeTrial = Callable[..., Trial]
MakeStudy = Callable[[], optuna.Study]

GOODPUT = Objective(name=ObjectiveName.GOODPUT, slo=Slo(ttft_s=0.3, tpot_s=0.03))
START = {"max_num_seqs": 2}
SPACE = Space({"max_num_seqs": (1, 2, 4, 64)})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the requests of a stretch, fewer than usual."""
    monkeypatch.setattr(module, "NUM_REQUESTS", 30)
    return 30


def found_in(workload: Workload, losses: Sequence[float] | None = None) -> slice | None:
    """The stretch of a trace whose requests added these losses, or one each."""
    added = np.ones(len(workload)) if losses is None else np.array(losses, dtype=float)
    return stretch_like_whole(workload, findable_of(workload, "v1"), added)


def test_a_trace_that_is_alike_all_along_has_one(
    make_workload: MakeWorkload, short: int
) -> None:
    found = found_in(make_workload(300))

    assert found is not None
    assert found.stop - found.start == short
    assert 0 <= found.start <= 300 - short


def test_a_short_trace_has_none(make_workload: MakeWorkload, short: int) -> None:
    assert found_in(make_workload(3 * short - 1)) is None
    assert found_in(make_workload(3 * short)) is not None


@pytest.mark.parametrize("what", ["prompts", "outputs", "gaps", "losses"])
def test_the_stretch_is_where_the_trace_is_like_its_mean(
    make_workload: MakeWorkload, short: int, what: str
) -> None:
    """With twice as much of something in the second half it is about the middle."""
    workload, losses = make_workload(600, prefix=0), np.ones(600)
    for name in ("prompts", "outputs"):
        alike = np.full(600, 50, dtype=np.int32)
        columns = replace(getattr(workload, name), lengths=alike)
        workload = replace(workload, **{name: columns})
    more = np.where(np.arange(600) < 300, 1, 3)
    if what == "prompts":
        lengths = (400 * more).astype(np.int32)
        prompts = replace(workload.prompts, lengths=lengths)
        workload = replace(workload, prompts=prompts)
    elif what == "outputs":
        outputs = replace(workload.outputs, lengths=(20 * more).astype(np.int32))
        workload = replace(workload, outputs=outputs)
    elif what == "gaps":
        arrival_ns = np.concatenate(([0], np.cumsum(10**7 * more)[:-1]))
        workload = replace(workload, arrival_ns=arrival_ns)
    else:
        losses = losses * more

    found = found_in(workload, losses.tolist())

    assert found is not None
    assert found.start < 300 < found.stop


def test_one_request_that_is_most_of_the_trace_is_in_no_stretch_like_it(
    make_workload: MakeWorkload, short: int
) -> None:
    workload = make_workload(300, prefix=0)
    lengths = workload.prompts.lengths.copy()
    lengths[150] = 10**6

    assert (
        found_in(replace(workload, prompts=replace(workload.prompts, lengths=lengths)))
        is None
    )


def test_requests_without_a_loss_leave_it_to_the_others(
    make_workload: MakeWorkload, short: int
) -> None:
    losses = np.ones(300)
    losses[::2] = np.nan

    assert found_in(make_workload(300), losses.tolist()) is not None
    assert found_in(make_workload(300), [float("nan")] * 300) is None


@pytest.mark.parametrize(
    ("loss", "whole", "wanted"),
    [
        (0.5, 0.5, True),
        (0.4, 0.5, True),
        (0.3, 0.5, False),
        (0, 0, True),
        (0.1, 0, False),
    ],
)
def test_a_stretch_is_like_the_whole_if_it_comes_to_as_much(
    loss: float, whole: float, wanted: bool
) -> None:
    assert is_like(loss, whole) is wanted


# -- being behind ----------------------------------------------------------------------


def test_how_far_a_run_is_behind_another_is_the_sum_over_those_that_left(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """After the last request it is the difference of the losses."""
    workload = make_workload(60, gap_s=0.02)
    engine = make_engine(workload, GOODPUT)
    slow, quick = engine.evaluate([{"max_num_seqs": 1}, {"max_num_seqs": 64}])
    assert slow is not None
    assert quick is not None
    assert slow.by_request is not None
    running = RunningLoss(GOODPUT, workload, quick.by_request)
    _replayed(engine, {"max_num_seqs": 1}, running)

    assert running.share_left == 1
    assert running.behind == pytest.approx(slow.loss - quick.loss)
    assert running.behind > 0
    assert slow.by_request.mean() == pytest.approx(slow.loss)


def _replayed(engine: TrialEngine, knobs: Knobs, running: RunningLoss) -> None:
    from harness.replay import replay

    config = engine.config(knobs)
    assert config is not None
    replay(engine.workload, config, on_left=running.add)


def test_what_is_behind_the_best_is_given_up_on_a_stretch_alone(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    """It has seen a fifth of the requests by then; its guess is near what it comes to."""
    whole = make_engine(make_workload(200, gap_s=0.02), GOODPUT)
    part = whole.on(slice(0, 200), "v1")
    good, bad = {"max_num_seqs": 64}, {"max_num_seqs": 1}
    for engine in (whole, part):
        (best,) = engine.evaluate([good])
        assert best is not None
        above = GOODPUT.no_tie_above(best.loss) + 0.2
        engine.evaluate([bad], above)
    (slow,) = whole.evaluate([bad])
    (early,) = part.evaluate([bad], above)

    assert slow is not None
    assert early is not None
    assert slow.is_complete
    assert early.is_given_up
    assert early.loss <= above + 0.01
    assert early.likely_loss == pytest.approx(slow.loss, abs=0.15)
    assert part.tally is whole.tally


def test_nothing_is_given_up_before_a_fifth_has_been_seen(
    make_engine: MakeEngine, make_workload: MakeWorkload
) -> None:
    workload = make_workload(50, gap_s=0.02)
    engine = make_engine(workload, GOODPUT)
    rival = Rival(loss=0.0, by_request=np.full(50, -9.0), most_behind=0.0)
    cases: list[tuple[Knobs, Workload, Objective]] = [({}, workload, GOODPUT)]
    (trial,) = engine.evaluate_under(cases, rival=rival)

    assert trial is not None
    assert trial.is_given_up
    assert trial.guess is not None
    assert trial.guess > 5


# -- whole searches --------------------------------------------------------------------


def question_of(workload: Workload, **more: Any) -> Question:
    asked = Question(
        space=SPACE,
        start=START,
        default=START,
        curve=hit_curve(workload, block_size=16),
        safest_utilization=0.95,
        step_time_error=0.1,
        budget=Budget(num_trials=8),
        shared=SharedLoad(workload=workload),
    )
    return replace(asked, **more)


def test_a_long_trace_is_searched_by_a_stretch_and_answered_on_the_whole(
    make_engine: MakeEngine,
    make_workload: MakeWorkload,
    make_study: MakeStudy,
    short: int,
) -> None:
    workload = make_workload(240, gap_s=0.02)
    counts: list[int] = []

    engine = make_engine(workload, GOODPUT)
    replay_all = engine.pool.map

    class Watched:
        def map(self, task: Any, arguments: Sequence[Any], **more: Any) -> list[Any]:
            counts.extend(len(each.workload) for each in arguments)
            return replay_all(task, arguments, **more)

    engine.pool = cast("ReplayPool", Watched())
    answer = tune(question_of(workload), engine, make_study())

    assert answer.stretch is not None
    assert answer.stretch.stop - answer.stretch.start == short
    assert answer.advice.knobs["max_num_seqs"] > 2
    for trial in (answer.start, answer.advice.trial):
        assert trial.run is not None
        assert trial.run.samples.num_requests == 240
    headroom = answer.headroom
    assert headroom is not None
    assert headroom.load > 0
    heavy = workload.retimed(speedup=headroom.load)
    knobs = answer.advice.knobs
    assert keep_together(engine.evaluate_under([(knobs, heavy, GOODPUT)]))
    # the start, what is advised, what did best, ten loads, and this here
    assert counts.count(240) <= 14
    assert engine.tally.num_replays == len(counts)


def test_a_search_of_a_stretch_that_is_stopped_gives_the_best_so_far(
    make_engine: MakeEngine,
    make_workload: MakeWorkload,
    make_study: MakeStudy,
    short: int,
) -> None:
    """Beside the present settings on the same requests, and nothing of the whole."""
    workload = make_workload(240, gap_s=0.02)
    engine = make_engine(workload, GOODPUT)
    seen: list[int] = []
    engine.is_stopped = lambda: bool(seen)

    def on_trial(search: Search) -> None:
        seen.append(len(search.trials))

    space = Space({**SPACE.choices, "kv_offloading_size": (0.0, 8.0)})
    start = {**START, "kv_offloading_size": 0.0}
    asked = question_of(workload, space=space, start=start, default=start)
    answer = tune(asked, engine, make_study(), on_trial)

    assert answer.was_stopped
    assert not answer.is_whole
    assert answer.default is None
    for trial in (answer.start, answer.advice.trial):
        assert trial.run is not None
        assert trial.run.samples.num_requests == short
    assert answer.advice.knobs["max_num_seqs"] > 2
    assert answer.over_start.difference is not None
    assert answer.over_start.difference > 0
    assert facts_of(answer, engine)["kv_offloading_size"]["stages"] is not None


def test_a_stretch_that_comes_to_something_else_is_not_used(
    make_engine: MakeEngine,
    make_workload: MakeWorkload,
    make_study: MakeStudy,
    short: int,
) -> None:
    """With one at a time the queue grows to the end: no part by itself has that."""
    workload = make_workload(150, gap_s=0.01, output=200)
    objective = Objective(name=ObjectiveName.TTFT)
    asked = question_of(workload, start={"max_num_seqs": 1}, default={"max_num_seqs": 1})

    answer = tune(asked, make_engine(workload, objective), make_study())

    assert answer.stretch is None
    assert not answer.is_kept


class Known:
    """An engine of the whole trace, on which settings come to known shares of goodput."""

    objective = GOODPUT

    def __init__(self, trial_of: Callable[[Knobs], Trial]) -> None:
        self.asked: list[Knobs] = []
        self._trial_of = trial_of
        self._ahead: list[tuple[Knobs, Callable[[Trial], None]]] = []

    def evaluate(self, settings: Sequence[Knobs]) -> list[Trial]:
        for knobs, keep in self._ahead:
            keep(self._trial_of(knobs))
        self.asked += [*(knobs for knobs, _ in self._ahead), *settings]
        self._ahead.clear()
        return [self._trial_of(knobs) for knobs in settings]

    def replay_ahead(self, knobs: Knobs, keep: Callable[[Trial], None]) -> None:
        self._ahead.append((knobs, keep))


MakeWhole = Callable[..., Whole]


@pytest.fixture
def make_whole(make_trial: MakeTrial, make_study: MakeStudy) -> MakeWhole:
    """Return a maker of whole traces beside a stretch on which more is always better."""

    def make(
        space: Space, start: Knobs, good: Callable[[Knobs], Sequence[bool]]
    ) -> Whole:
        def near_of(knobs: Knobs) -> Trial:
            share = 0.6 + sum(knobs.values()) / 1e4
            return make_trial(good=np.arange(1000) < 1000 * share, loss=1 - share)

        def trial_of(knobs: Knobs) -> Trial:
            found = np.asarray(good(knobs))
            return make_trial(good=found, loss=1 - float(found.mean()))

        search = Search(
            space=space,
            start=start,
            evaluate=lambda settings, above: [near_of(k) for k in settings],
            suggester=Suggester(space=space, study=make_study(), waiting=[]),
            no_tie_above=GOODPUT.no_tie_above,
            budget=Budget(),
        )
        search.try_out([start])
        engine: Any = Known(trial_of)
        return Whole(engine=engine, search=search, start=trial_of(start))

    return make


def chosen_of(
    whole: Whole, advised: Knobs, *others: Knobs, is_shared: bool = False
) -> dict[str, Any]:
    """What is chosen where one setting is advised, and others did best."""
    whole.search.try_out([advised, *others])
    advice = Advice(dict(advised), whole.search.trial_of(advised))
    for knobs in others:
        whole.replay_ahead(knobs)
    for _ in range(2):
        whole.replay_advised_ahead(advised)

    chosen = whole.chosen(advice, is_shared=is_shared)

    assert chosen.trial is whole.search.trial_of(chosen.knobs)
    assert key_of(chosen.knobs) in whole.trials
    return chosen.knobs


def asked_of(whole: Whole) -> list[Knobs]:
    """What was replayed with the whole trace, besides the start."""
    engine: Any = whole.engine
    engine.evaluate([])
    asked: list[Knobs] = engine.asked
    return asked


@pytest.mark.parametrize(
    ("shares", "wanted"),
    [
        ({2: 50, 4: 60, 64: 60.2}, 4),  # what is advised is as good as the best
        ({2: 50, 4: 60, 64: 70}, 64),  # the best is better on the whole
        ({2: 50, 4: 50, 64: 60}, 64),  # what is advised is no gain there
        ({2: 50, 4: 50.1, 64: 50.2}, 2),  # neither is
        ({2: 50, 4: 40, 64: 45}, 2),  # both are worse
    ],
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_what_is_advised_has_to_be_a_gain_on_the_whole(
    make_whole: MakeWhole, shares: dict[int, float], wanted: int, is_shared: bool
) -> None:
    """Of a GPU that is shared it may also be as good: less memory is the gain."""
    name = "max_num_seqs"
    whole = make_whole(
        SPACE, START, lambda knobs: np.arange(1000) < 10 * shares[knobs[name]]
    )

    chosen = chosen_of(whole, {name: 4}, {name: 64}, is_shared=is_shared)

    if is_shared and wanted == 2 and shares[4] >= 50:
        wanted = 4
    assert chosen == {name: wanted}
    assert asked_of(whole) == [{name: 64}, {name: 4}]


@pytest.mark.parametrize(
    ("start", "advised", "wanted"),
    [
        (90.2, 89.8, 0.9),  # a tie, and the SLO gone
        (90.4, 90.0, 0.5),
        (50.2, 50.1, 0.9),  # missed anyway, and a request more
        (50.2, 50.2, 0.5),
    ],
)
def test_memory_that_is_given_back_does_not_cost_the_slo_of_the_whole(
    make_whole: MakeWhole, start: float, advised: float, wanted: float
) -> None:
    """On a stretch that was so, and the whole may tell otherwise."""
    name = "gpu_memory_utilization"
    shares = {0.5: advised, 0.9: start}
    whole = make_whole(
        Space({name: (0.5, 0.9)}),
        {name: 0.9},
        lambda knobs: np.arange(1000) < round(10 * shares[knobs[name]]),
    )

    assert chosen_of(whole, {name: 0.5}, is_shared=True) == {name: wanted}


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (0, 0.0),
        (30 * (np.arange(1000) < 100), 0.0),  # three points, all in one tenth
        (3, 8.0),  # as many, in each tenth
    ],
)
def test_what_costs_has_to_be_worth_it_on_the_whole(
    make_whole: MakeWhole, more: Any, wanted: float
) -> None:
    """Beside the same without it, which is a gain, and costs nothing."""
    space = Space({"kv_offloading_size": (0.0, 8.0), "max_num_seqs": (2, 4)})
    start, advised = ({n: v[i] for n, v in space.choices.items()} for i in (0, -1))

    def good(knobs: Knobs) -> Any:
        percent = 20 + 10 * (knobs["max_num_seqs"] > 2)
        percent = percent + more * (knobs["kv_offloading_size"] > 0)
        return np.less(np.arange(1000) % 100, percent)

    whole = make_whole(space, start, good)

    free = {**advised, "kv_offloading_size": 0.0}
    assert chosen_of(whole, advised) == {**advised, "kv_offloading_size": wanted}
    assert asked_of(whole) == [advised, free]
