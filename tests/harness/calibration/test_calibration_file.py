"""Tests for calibrations as files: whole, readable, and used by name."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness.calibration.calibration_file import (
    calibration_path,
    check_name,
    doubts,
    gpu_table,
    toml_text,
    write_calibration,
)
from harness.calibration.fit import Fitted, fit
from harness.calibration.read import Measurements, read_measurements
from harness.config import resolve_config
from harness.errors import UsageError
from harness.timing import build_step_time
from profiles.errors import UnknownNameError
from profiles.gpu import calibration_names, load_gpu
from profiles.step_time import BatchShape

DECODES = "num_decode,context_tokens,step_ms\n1,500,9.5\n16,16000,10.9\n128,128000,24\n"
FLAGS = {
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100-80GB",
    "vllm_version": "0.32.0",
}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measurements:
    """Three decode steps, slower than the profile has them."""
    monkeypatch.chdir(tmp_path)
    Path("steps.csv").write_text(DECODES)
    return read_measurements(["steps.csv"], FLAGS)


@pytest.fixture
def fitted(measured: Measurements) -> Fitted:
    """What they say."""
    return fit(measured.observations)


def test_the_file_is_a_gpu_that_says_what_was_fitted(
    measured: Measurements, fitted: Fitted
) -> None:
    """Loaded by its name, step times are those of the fit."""
    path = calibration_path("mine", None, force=False)
    write_calibration(path, gpu_table("mine", measured, fitted))
    gpu = load_gpu("Mine")
    clock = build_step_time(resolve_config(**{**FLAGS, "gpu": "mine"}))

    assert gpu.name == "mine"
    assert gpu.memory_gib == load_gpu("H100-80GB").memory_gib
    for step, residual in zip(measured.observations, fitted.residuals, strict=True):
        predicted = clock.step_fs(step.shape) / 1e15  # type: ignore[attr-defined]
        expected = residual.measured_s * (1 + residual.fitted)
        assert predicted == pytest.approx(expected, rel=1e-3)
    assert "3 figures of meta-llama/Llama-3.1-8B on one GPU" in gpu.evidence


def test_the_file_keeps_what_a_person_wants_to_see(
    measured: Measurements, fitted: Fitted
) -> None:
    """Coefficients, residuals, cross-validation and sources are in it."""
    table = gpu_table("mine", measured, fitted)
    evidence = tomllib.loads(toml_text(table))["evidence"]

    assert evidence["measured_in"] == ["steps.csv"]
    assert [row["name"] for row in evidence["residuals"]] == [
        f"steps.csv:{line}" for line in (2, 3, 4)
    ]
    assert set(evidence["cross_validation"]["step"]) == {
        "uncalibrated",
        "fitted",
        "left_out",
    }
    assert not evidence["coefficients"]["compute"]["is_identified"]
    assert evidence["coefficients"]["memory"]["is_identified"]


def test_a_calibration_of_a_calibration_keeps_its_kernels(
    measured: Measurements, fitted: Fitted
) -> None:
    """What was fitted before stays unless it is fitted again."""
    path = calibration_path("mine", None, force=False)
    write_calibration(path, gpu_table("mine", measured, fitted))
    again = read_measurements(["steps.csv"], FLAGS | {"gpu": "mine"})
    second = fit(again.observations, ["memory"])
    write_calibration(
        calibration_path("mine-2", None, force=False), gpu_table("mine-2", again, second)
    )

    assert calibration_names() == ("mine", "mine-2")
    assert load_gpu("mine-2").known_rates.kernels == load_gpu("mine").known_rates.kernels
    first = load_gpu("mine").calibration
    assert first is not None
    assert load_gpu("mine-2").calibration.overhead == first.overhead  # type: ignore[union-attr]


def test_other_engines_are_told_that_nobody_measured_them(
    measured: Measurements, fitted: Fitted
) -> None:
    """A run of another model, number of GPUs or version has a note; the same has none."""
    path = calibration_path("mine", None, force=False)
    write_calibration(path, gpu_table("mine", measured, fitted))

    def notes(**changes: Any) -> list[str]:
        found = resolve_config(**{**FLAGS, "gpu": "mine", **changes}).notes
        return [note for note in found if "was calibrated for" in note]

    assert notes() == []
    for changes, words in (
        ({"model": "Qwen/Qwen3-8B"}, "model meta-llama/Llama-3.1-8B (here Qwen/"),
        ({"tensor_parallel_size": 2}, "tensor parallel size 1 (here 2)"),
        ({"vllm_version": "0.12.0"}, "vllm version 0.32.0 (here 0.12.0)"),
    ):
        assert words in notes(**changes)[0]


def test_unknown_names_list_calibrations(measured: Measurements, fitted: Fitted) -> None:
    """A typing error finds the calibration that was meant."""
    path = calibration_path("my-own-card", None, force=False)
    write_calibration(path, gpu_table("my-own-card", measured, fitted))

    with pytest.raises(UnknownNameError, match="did you mean my-own-card"):
        load_gpu("my-own-cart")


@pytest.mark.parametrize("name", ["", "../x", "a b", ".hidden", "x.toml", "a/b", "-x"])
def test_names_are_plain(name: str) -> None:
    """What is no file name is refused."""
    with pytest.raises(UsageError, match="cannot be called"):
        check_name(name)


@pytest.mark.parametrize("name", ["H100-80GB", "h200", "nvidia-l4", "cpu"])
def test_names_of_gpus_are_taken(name: str) -> None:
    """A calibration does not hide the GPU as it is published."""
    with pytest.raises(UsageError, match="choose another --name, such as my-"):
        check_name(name)


def test_a_calibration_is_not_replaced_unasked(
    measured: Measurements, fitted: Fitted
) -> None:
    """Nothing is overwritten without --force, whatever the case of its name."""
    path = calibration_path("mine", None, force=False)
    write_calibration(path, gpu_table("mine", measured, fitted))
    for name in ("mine", "MINE"):
        with pytest.raises(UsageError, match="--force"):
            calibration_path(name, None, force=False)

    assert calibration_path("mine", None, force=True) == path


def test_a_path_must_be_one_that_gpu_takes() -> None:
    """--gpu reads files that end in .toml."""
    with pytest.raises(UsageError, match=r"does not end in \.toml"):
        calibration_path("mine", Path("mine.json"), force=False)


def test_rates_that_moved_too_far_are_doubted(measured: Measurements) -> None:
    """Steps of a third of the time are another GPU's, or another model's."""
    Path("fast.csv").write_text("num_decode,context_tokens,step_ms\n1,500,2\n16,9000,2\n")
    fast = read_measurements(["fast.csv"], FLAGS)

    assert doubts(measured, fit(measured.observations)) == []
    assert "more than is likely" in doubts(fast, fit(fast.observations))[0]


def test_text_survives_toml() -> None:
    """Quotes, other letters, lists and nested tables come back as they were."""
    table = {
        "a": 'say "x"\\ \n µ\x7f',
        "b": [1, 2.5, True],
        "c": {"d e": {"f": -1e-12, "g": 1e20}},
        "rows": [{"n": 1, "left": 0.5}, {"n": 2}],
        "none": None,
    }
    table_without = {key: value for key, value in table.items() if value is not None}

    assert tomllib.loads(toml_text(table)) == table_without


def test_known_error_is_that_of_rows_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads give a run's step_time_error; timed steps give none."""
    monkeypatch.chdir(tmp_path)
    Path("loads.csv").write_text(
        "input_len,output_len,max_concurrency,num_requests,ttft_ms,tpot_ms\n"
        "500,50,1,4,60,8\n2000,50,4,12,90,9\n"
    )
    found = read_measurements(["loads.csv"], FLAGS)
    fitted = fit(found.observations)
    write_calibration(
        calibration_path("mine", None, force=False), gpu_table("mine", found, fitted)
    )
    error = resolve_config(**{**FLAGS, "gpu": "mine"}).step_time_error

    assert error is not None
    assert error.num_rows == 2
    assert error.fraction == pytest.approx(
        fitted.median_error("tpot", "left_out"), abs=1e-4
    )
    assert "loads.csv" in error.against


def test_steps_give_no_known_error(measured: Measurements, fitted: Fitted) -> None:
    """Timed steps say nothing of a run's TPOT."""
    assert "known_error" not in gpu_table("mine", measured, fitted)
    assert isinstance(measured.observations[0].shape, BatchShape)  # type: ignore[attr-defined]
