"""Tests for the fit: planted truth, what is not told, and what lies far off."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.calibration.coefficient import COEFFICIENTS, moved
from harness.calibration.fit import Fitted, fit
from harness.calibration.observation import Observation, Served, Step
from harness.calibration.served_rows import Load
from harness.config import EngineConfig, resolve_config
from harness.errors import UsageError
from harness.timing import config_overhead
from harness.traces.generation import GenerateOptions
from profiles.gpu import load_gpu
from profiles.step_time import BatchShape

ENGINE: Mapping[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100-80GB",
    "vllm_version": "0.32.0",
}
TRUTH = {"memory": 0.15, "compute": -0.25, "request_ns": 0.5, "seq_ns": 0.6}


def config(**flags: Any) -> EngineConfig:
    """The engine that is measured."""
    return resolve_config(**{**ENGINE, **flags})


def load(
    input_len: int,
    output_len: int,
    max_concurrency: int,
    truth: Mapping[str, float],
    figures: Sequence[str] = ("ttft", "tpot"),
) -> Served:
    """A load that an engine with moved coefficients served."""
    options = GenerateOptions(
        num_requests=4 * max_concurrency,
        input_len=input_len,
        output_len=output_len,
        range_ratio=0.2,
    )
    served = Load(
        options=options,
        max_concurrency=max_concurrency,
        measured_s=dict.fromkeys(figures, 1.0),
    ).served(f"{input_len}/{output_len} x {max_concurrency}", ENGINE)
    return replace(served, measured_s=served.predicted_s(truth))


def decode(num_seqs: int, context_len: int, truth: Mapping[str, float]) -> Step:
    """A decode step on a GPU with moved coefficients."""
    return timed(BatchShape(0, 0, 0, num_seqs, num_seqs * context_len), truth)


def prefill(num_tokens: int, truth: Mapping[str, float]) -> Step:
    """A step of one prompt."""
    pairs = num_tokens * (num_tokens + 1) // 2
    shape = BatchShape(num_tokens, pairs, 1, 0, 0, num_prefill_context_tokens=num_tokens)
    return timed(shape, truth)


def timed(shape: BatchShape, truth: Mapping[str, float]) -> Step:
    """A step, as long as it takes with moved coefficients."""
    step = Step(name=str(shape), measured_s=(1.0,), config=config(), shape=shape)
    return replace(step, measured_s=step.predicted_s(truth))


def steps(truth: Mapping[str, float]) -> list[Observation]:
    """Decodes and prefills of many sizes."""
    decodes = [
        decode(num_seqs, length, truth)
        for num_seqs in (1, 4, 16, 64, 128, 256)
        for length in (100, 1000, 4000, 8000)
    ]
    return [*decodes, *(prefill(n, truth) for n in (128, 512, 1024, 2048, 4096, 8192))]


def assert_within_spread(fitted: Fitted, truth: Mapping[str, float]) -> None:
    """What was told is within two standard deviations of the truth."""
    for name, move in fitted.moves.items():
        assert abs(move - truth.get(name, 0.0)) < 2 * fitted.spreads[name], name


def test_planted_moves_come_back_from_steps() -> None:
    """Timed steps of an engine with other coefficients give these back."""
    fitted = fit(steps(TRUTH))

    assert {"memory", "compute", "seq_ns"} <= fitted.moves.keys()
    assert_within_spread(fitted, TRUTH)
    for name in ("memory", "compute", "seq_ns"):
        assert fitted.moves[name] == pytest.approx(TRUTH[name], abs=0.06)
    assert fitted.median_error("step", "fitted") < 0.01  # type: ignore[operator]


def test_planted_moves_come_back_from_loads() -> None:
    """So do mean latencies of a few loads, as far as these tell them."""
    loads = [load(500, 50, 1, TRUTH), load(6000, 50, 4, TRUTH), load(1000, 60, 64, TRUTH)]
    fitted = fit(loads)

    assert {"memory", "compute", "request_ns"} <= fitted.moves.keys()
    assert_within_spread(fitted, TRUTH)
    assert fitted.median_error("tpot", "fitted") < 0.02  # type: ignore[operator]
    assert fitted.median_error("ttft", "fitted") < 0.04  # type: ignore[operator]
    assert fitted.median_error("ttft", "uncalibrated") > 0.1  # type: ignore[operator]


def test_nothing_moves_where_the_profile_is_right() -> None:
    """Figures that the profile meets leave every coefficient where it is."""
    fitted = fit(steps({}))

    assert all(abs(move) < 1e-3 for move in fitted.moves.values())


def test_decodes_do_not_tell_arithmetic() -> None:
    """TPOT of one load leaves compute open: it stays, or is refused when asked for."""
    one = [load(500, 50, 4, TRUTH, figures=("tpot",))]

    assert "compute" in fit(one).untold
    with pytest.raises(UsageError, match=r"do not tell compute .* leave it out of --fit"):
        fit(one, ["compute"])
    with pytest.raises(UsageError, match="request_ns"):
        fit(one, ["memory", "request_ns"])


def test_a_coefficient_that_nothing_depends_on_is_not_told() -> None:
    """One GPU says nothing of a further one; a step nothing of the API server."""
    fitted = fit(steps(TRUTH))

    assert fitted.untold["rank_ns"] == pytest.approx(1)
    assert fitted.untold["request_ns"] == pytest.approx(1)
    with pytest.raises(UsageError, match="tell no coefficient|do not tell rank_ns"):
        fit(steps(TRUTH), ["rank_ns"])


def test_only_named_coefficients_move() -> None:
    """Others stay where they are, whatever the figures say."""
    fitted = fit(steps(TRUTH), ["memory"])

    assert list(fitted.moves) == ["memory"]
    assert fitted.untold == {}


def test_an_outlier_moves_little() -> None:
    """One step in thirty that took ten times as long changes no coefficient much."""
    clean = steps(TRUTH)
    spoilt = [replace(clean[7], measured_s=(10 * clean[7].measured_s[0],)), *clean]  # type: ignore[type-var]
    before, after = fit(clean), fit(spoilt)

    for name, move in before.moves.items():
        assert after.moves[name] == pytest.approx(move, abs=0.5 * before.spreads[name])


def test_left_out_is_about_what_a_fit_without_it_says() -> None:
    """The corrected fit agrees with one that never saw the observation."""
    rng, truth = np.random.default_rng(1), {"memory": 0.15, "compute": -0.25}
    noisy = [
        replace(each, measured_s=(each.measured_s[0] * rng.lognormal(0, 0.05),))  # type: ignore[type-var]
        for each in steps(truth)[::3]
    ]
    whole = fit(noisy, ["memory", "compute"])
    for place, observation in enumerate(noisy):
        others = fit([*noisy[:place], *noisy[place + 1 :]], ["memory", "compute"])
        predicted = observation.predicted_s(others.moves)[0] / observation.measured_s[0]
        assert whole.residuals[place].left_out == pytest.approx(
            predicted - 1, abs=0.002, rel=0.15
        )


def test_one_observation_leaves_none_out() -> None:
    """There is no other that could foretell it."""
    fitted = fit([load(500, 50, 4, TRUTH)])

    assert all(residual.left_out is None for residual in fitted.residuals)
    assert fitted.median_error("tpot", "left_out") is None


def test_loads_that_nobody_can_serve_are_refused() -> None:
    """Prompts longer than the model takes have no latency."""
    served = replace(load(500, 50, 1, {}), config=config(max_model_len=256))

    with pytest.raises(UsageError, match=r"x 1 cannot be replayed: 4 of its 4 requests"):
        fit([served])


def test_loads_that_are_cut_are_refused() -> None:
    """Means over requests that end early are of another load; benchmarks see them."""
    engine = config(max_model_len=600)
    served = replace(load(500, 110, 4, {}), config=engine)
    asks = np.add(served.workload.input_tokens, served.workload.output_tokens)
    num_cut = int((asks > 600).sum())

    assert 0 < num_cut < 16
    words = f"{num_cut} of its 16 requests are refused or cut by this engine; check len"
    with pytest.raises(UsageError, match=words):
        served.predicted_s({})
    assert served.replayed().ttft_s > 0


def test_moves_are_of_time() -> None:
    """A move of memory lowers the bandwidth, and an overhead of 0 gets nanoseconds."""
    gpu, overhead = load_gpu("H100-80GB"), config_overhead(config())
    found = moved(gpu, overhead, {"memory": np.log(2), "step_ns": 0.5})
    before, after = gpu.known_rates, found.gpu.known_rates

    assert after.memory_bandwidth_gb_per_s * 2 == before.memory_bandwidth_gb_per_s
    assert overhead.step_ns == 0
    assert found.overhead.step_ns == COEFFICIENTS["step_ns"].unit_ns / 2
