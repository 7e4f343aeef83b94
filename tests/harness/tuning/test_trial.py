"""Tests for :mod:`harness.tuning.trial`: replays that end early, and what runs need."""

import time
from collections.abc import Callable

import pytest

from harness.tuning.advice import is_worse
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.objective import Objective
from harness.tuning.trial import Needs, run_trial
from harness.workload import Workload
from results.goodput import Slo

MakeWorkload = Callable[..., Workload]
MakeEngine = Callable[..., TrialEngine]

SETTINGS = [
    {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, "enable_prefix_caching": on}
    for seqs in (2, 4, 8, 16)
    for tokens in (256, 512, 4096)
    for on in (False, True)
]


@pytest.mark.parametrize("name", ObjectiveName)
def test_what_is_given_up_is_worse_than_the_best(
    make_workload: MakeWorkload, make_engine: MakeEngine, name: ObjectiveName
) -> None:
    """By a change that counts: it could not have tied."""
    slo = Slo(ttft_s=0.4, tpot_s=0.02)
    objective = Objective(name=name, slo=slo)
    engine = make_engine(
        make_workload(gap_s=0.01), objective, num_gpu_blocks_override=500
    )
    full = [trial for trial in engine.evaluate(SETTINGS) if trial]
    best = min(full, key=lambda trial: trial.loss)

    early = engine.evaluate(SETTINGS, objective.no_tie_above(best.loss))

    for trial, whole in zip(early, full, strict=True):
        assert trial is not None
        assert trial.loss <= whole.loss
        assert trial.is_complete or is_worse(objective, best, whole)
    num_given_up = sum(trial.is_given_up for trial in early if trial)
    assert num_given_up >= (1 if name is ObjectiveName.THROUGHPUT else 6)


def test_a_trial_that_is_stopped_is_none(make_engine: MakeEngine) -> None:
    """What it had come to says nothing of the setting: it is not taken for a loss."""
    engine = make_engine()
    config = engine.config({})
    assert config is not None
    task = engine._task(engine.workload, config, engine.objective)
    done: list[int] = []

    stopped = run_trial(task, lambda n, _: done.append(n), lambda: len(done) > 5)

    assert stopped is None
    assert 0 < done[-1] < len(engine.workload)


def test_a_trial_that_came_to_its_end_counts_though_stopped(
    make_workload: MakeWorkload, make_engine: MakeEngine
) -> None:
    """A stop after the last request has left takes nothing back."""
    engine = make_engine(make_workload(10))
    config = engine.config({})
    assert config is not None
    task = engine._task(engine.workload, config, engine.objective)
    whole = run_trial(task, lambda *_: None, lambda: False)

    assert whole is not None
    assert whole.is_complete


def test_a_setting_that_cannot_start_is_no_replay(make_engine: MakeEngine) -> None:
    """It has the worst loss, and is not counted among replays."""
    engine = make_engine()

    trials = engine.evaluate([{"gpu_memory_utilization": 0.1}, {}])

    assert [trial and trial.can_start for trial in trials] == [False, True]
    assert [trial and trial.is_given_up for trial in trials] == [False, False]
    assert engine.tally.num_replays == 1
    assert "0.1" in engine.why_not({"gpu_memory_utilization": 0.1})


def test_nothing_is_begun_after_a_deadline(make_engine: MakeEngine) -> None:
    """Nor gone on with; before it, all is."""
    engine = make_engine()
    engine.deadline_s = time.monotonic() - 1
    assert engine.evaluate([{}, {"max_num_seqs": 2}]) == [None, None]

    engine.deadline_s = time.monotonic() + 3600
    assert None not in engine.evaluate([{}, {"max_num_seqs": 2}])


def test_a_tier_of_0_gib_is_none(make_engine: MakeEngine) -> None:
    """It is the engine that nobody gave one, with prefix caching or without."""
    engine = make_engine()
    for caching in (False, True):
        knobs = {"enable_prefix_caching": caching}
        assert engine.config({**knobs, "kv_offloading_size": 0.0}) == engine.config(knobs)
        assert engine.config(knobs) is not None


def needs(engine: TrialEngine) -> Needs:
    """Those of the engine as it is."""
    (trial,) = engine.evaluate([{}])
    assert trial is not None
    assert trial.needs is not None
    return trial.needs


@pytest.mark.parametrize("knob", ["max_num_seqs", "max_num_batched_tokens"])
def test_a_limit_as_large_as_needed_changes_nothing(
    make_workload: MakeWorkload, make_engine: MakeEngine, knob: str
) -> None:
    """The run with it is the very run; with a limit below, it is another one."""
    workload = make_workload(gap_s=0.01)
    large = needs(make_engine(workload, num_gpu_blocks_override=2000))
    enough = large.seqs if knob == "max_num_seqs" else large.batched_tokens
    engine = make_engine(workload, num_gpu_blocks_override=2000)

    whole, same, less = engine.evaluate([{}, {knob: enough}, {knob: enough - 1}])

    assert whole is not None
    assert same is not None
    assert less is not None
    assert same.loss == whole.loss != less.loss


def test_samples_count_one_by_one_in_v0(
    make_workload: MakeWorkload, make_engine: MakeEngine
) -> None:
    """A group of 8 that found no room below a limit of 12 shows that 12 was too few."""
    workload = make_workload(10, gap_s=0.0, n=8)
    fixed = {"vllm_version": "0.5.5", "max_model_len": 2048}

    found = needs(make_engine(workload, **fixed, max_num_seqs=12))

    assert found.seqs >= 12


def test_prompts_that_are_not_split_need_room_for_one_more(
    make_workload: MakeWorkload, make_engine: MakeEngine
) -> None:
    """A batch below its limit may have been all that fitted."""
    workload = make_workload(10, gap_s=0.0)
    fixed = {"vllm_version": "0.5.5", "max_model_len": 2048}
    engine = make_engine(
        workload, **fixed, enable_chunked_prefill=False, max_num_batched_tokens=2048
    )

    assert needs(engine).batched_tokens >= 2048


def test_requests_that_wait_count_as_if_they_ran(
    make_workload: MakeWorkload, make_engine: MakeEngine
) -> None:
    """Two at a time use little of a pool that all of them would not fit into."""
    workload = make_workload(40, gap_s=0.0)
    engine = make_engine(workload, max_num_seqs=2, num_gpu_blocks_override=800)
    (trial,) = engine.evaluate([{}])

    assert trial is not None
    assert trial.run is not None
    assert trial.needs is not None
    assert trial.run.summary["kv_cache"]["peak_usage"] < 0.3
    assert trial.needs.share_of_blocks > 1
