"""Small traces, engines that replay them in this process, and runs made up by figures."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import optuna
import pytest

from harness.config import EngineConfig, resolve_config
from harness.parallel import ReplayPool
from harness.replay import findable_of
from harness.request import Request
from harness.tuning.choice import ObjectiveName
from harness.tuning.engine import TrialEngine
from harness.tuning.objective import Objective
from harness.tuning.trial import Needs, Trial
from harness.workload import Workload
from results.comparison.arm import ArmRun
from results.comparison.samples import RequestSamples
from results.run_info import Outcome, RunInfo

MODEL: dict[str, Any] = {
    "model": "Llama-3.1-8B",
    "gpu": "H100-80GB",
    "max_model_len": 4096,
}
TRACE_KEYS = (
    "name",
    "format",
    "num_requests",
    "num_skipped",
    "duration_s",
    "has_sharing",
)

MakeWorkload = Callable[..., Workload]
MakeEngine = Callable[..., TrialEngine]
MakeTrial = Callable[..., Trial]


class SerialPool:
    """A pool without processes: one task after the other."""

    def map(
        self,
        task: Callable[..., Any],
        arguments: Sequence[Any],
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        **_: object,
    ) -> list[Any]:
        found = []
        for argument in arguments:
            stopped = is_stopped()
            found.append(None if stopped else task(argument, _nothing, is_stopped))
        return found


def _nothing(*_: object) -> None:
    """Take no note of progress."""


def info_of(workload: Workload, config: EngineConfig, objective: Objective) -> RunInfo:
    """What is known of a run before it begins."""
    trace = {name: getattr(workload, name, len(workload)) for name in TRACE_KEYS}
    return RunInfo(
        source="simulated",
        engine="sim",
        policy=config.policy,
        config=config.to_dict(),
        trace=trace | {"content_hash": "", "is_generated": True, "notes": []},
        slo=None if objective.slo is None else objective.slo.to_dict(),
    )


@pytest.fixture(scope="session")
def make_workload() -> MakeWorkload:
    """Return a maker of requests that begin alike in groups."""

    def make(
        num_requests: int = 40,
        *,
        gap_s: float = 0.05,
        prefix: int = 512,
        num_groups: int = 4,
        prompt: int = 300,
        output: int = 30,
        n: int = 1,
    ) -> Workload:
        rng = np.random.default_rng(0)
        requests = []
        for i in range(num_requests):
            own, length = (
                int(rng.integers(1, 2 * prompt)),
                int(rng.integers(1, 2 * output)),
            )
            shared = ((i % num_groups, prefix),) if prefix else ()
            requests.append(
                Request(
                    request_id=i,
                    arrival_ns=int(i * gap_s * 1e9),
                    prompt=(*shared, (1000 + i, own)),
                    num_prompt_tokens=prefix + own,
                    outputs=tuple((10_000 + 10 * i + k, length) for k in range(n)),
                )
            )
        return Workload.from_requests(requests)

    return make


@pytest.fixture(scope="session")
def make_engine(make_workload: MakeWorkload) -> MakeEngine:
    """Return a maker of engines that replay in this process, unless given a pool."""

    def make(
        workload: Workload | None = None,
        objective: Objective | None = None,
        *,
        pool: ReplayPool | None = None,
        **fixed: Any,
    ) -> TrialEngine:
        workload = make_workload() if workload is None else workload
        given = {**MODEL, "vllm_version": "0.32.0", **fixed}
        return TrialEngine(
            workload=workload,
            findable=findable_of(workload, resolve_config(**given).policy),
            fixed=given,
            objective=objective or Objective(name=ObjectiveName.TTFT),
            make_info=info_of,
            pool=pool or cast("ReplayPool", SerialPool()),
        )

    return make


@pytest.fixture(scope="session")
def make_trial() -> MakeTrial:
    """Return a maker of trials that came to given figures, without a replay."""

    def make(
        *,
        ttft: Sequence[float] = (1.0,),
        good: Sequence[float] | None = None,
        tpot: Sequence[float] | None = None,
        loss: float = 0.5,
        missed: Sequence[tuple[float, float]] = (),
        num_lost: int = 0,
        trouble: str = "",
        counts: dict[str, int] | None = None,
        waste: dict[str, float] | None = None,
        needs: Needs | None = None,
        num_lifetimes: float = 100.0,
        steady: bool | None = True,
        **config: Any,
    ) -> Trial:
        values = {"ttft": np.array(ttft, dtype=float)}
        values["tpot"] = values["ttft"] * 0 if tpot is None else np.array(tpot)
        share = None
        if good is not None:
            values["good"] = np.array(good, dtype=float)
            share = float(values["good"].mean())
        num = len(values["ttft"] if good is None else values["good"])
        values["finished"] = np.ones(num)
        conditions = [
            {
                "name": "ttft_p99",
                "limit_s": limit,
                "value_s": value,
                "met": value <= limit,
            }
            for value, limit in missed
        ]
        code = {"code": "no_progress", "message": trouble}
        summary = {
            "trace": {"num_requests": num},
            "counts": {"finished": num - num_lost, "preemptions": 0} | (counts or {}),
            "waste": {"head_of_line_s": 0.0, "regretted_evictions": 0} | (waste or {}),
            "goodput": {"fraction": share, "conditions": conditions},
            "throughput": {"output_token_per_s": 1 / loss},
            "findings": [code] if trouble else [],
            "steady": steady,
        }
        info = RunInfo(
            source="simulated",
            engine="sim",
            policy="v1",
            config=resolve_config(**MODEL).to_dict() | config,
            trace={"num_requests": num, "num_skipped": 0, "duration_s": 1.0},
            outcome=Outcome(),
        )
        samples = RequestSamples(values=values, num_requests=num)
        run = ArmRun(info=info, summary=summary, samples=samples)
        roomy = Needs(seqs=1, batched_tokens=1, share_of_blocks=0.1)
        return Trial(
            loss=loss,
            run=run,
            wall_s=0.1,
            needs=needs or roomy,
            num_lifetimes=num_lifetimes,
        )

    return make


@pytest.fixture(scope="session")
def make_study() -> Callable[[], optuna.Study]:
    """Return a maker of studies in memory, with the sampler that the command uses."""

    def make() -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(
            seed=0, multivariate=True, constant_liar=True, n_startup_trials=8
        )
        return optuna.create_study(sampler=sampler)

    return make
