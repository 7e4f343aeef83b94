"""Tests for calibrations as files: whole, readable, and used by name."""

import tomllib
from dataclasses import replace
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
from harness.calibration.coefficient import moved
from harness.calibration.fit import Fitted, Residual, fit
from harness.calibration.read import Measurements, read_measurements
from harness.config import resolve_config
from harness.errors import UsageError
from harness.timing import build_step_time, config_overhead
from profiles.errors import UnknownNameError
from profiles.gpu import calibration_names, load_gpu
from profiles.step_time import BatchShape

DECODES = "num_decode,context_tokens,step_ms\n1,500,9.5\n16,16000,10.9\n128,128000,24\n"
FLAGS: dict[str, Any] = {
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
        assert predicted == pytest.approx(expected, rel=1e-9)
        assert predicted == step.predicted_s(fitted.moves)[0]
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
    assert notes(dtype="auto", kv_cache_dtype="auto") == []
    for changes, words in (
        ({"model": "Qwen/Qwen3-8B"}, "model meta-llama/Llama-3.1-8B (here Qwen/"),
        ({"tensor_parallel_size": 2}, "tensor parallel size 1 (here 2)"),
        ({"vllm_version": "0.12.0"}, "vllm version 0.32.0 (here 0.12.0)"),
        ({"enforce_eager": True}, "enforce eager False (here True)"),
        ({"dtype": "float16"}, "dtype auto (here float16)"),
        ({"quantization": "fp8"}, "quantization auto (here fp8)"),
        ({"kv_cache_dtype": "fp8"}, "kv cache dtype auto (here fp8)"),
        ({"policy": "v0", "vllm_version": "0.8.5"}, "policy v1 (here v0)"),
    ):
        assert words in notes(**changes)[0]


def test_older_files_say_less(measured: Measurements, fitted: Fitted) -> None:
    """What a file does not say of its engine is not compared."""
    table = gpu_table("mine", measured, fitted)
    for name in ("policy", "enforce_eager", "dtype", "quantization", "kv_cache_dtype"):
        del table["calibration"]["for"][name]
    write_calibration(calibration_path("mine", None, force=False), table)
    notes = resolve_config(**{**FLAGS, "gpu": "mine", "enforce_eager": True}).notes

    assert not any("was calibrated for" in note for note in notes)


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
    """Both ways, in the words of the table: a rate, not its time."""
    name = "fast.csv"
    Path(name).write_text("num_decode,context_tokens,step_ms\n1,500,4\n16,9000,4.2\n")
    fast = read_measurements([name], FLAGS)

    assert doubts(measured, fit(measured.observations)) == []
    for move, words in (
        (-0.3, "memory comes out at 4,522 GB/s, 1.35 times the 3,350 of the datasheet"),
        (0.5, "memory comes out at 2,032 GB/s, 0.61 times the 3,350 of the datasheet"),
    ):
        found = replace(fit(fast.observations), moves={"memory": move}, residuals=())
        (doubt,) = doubts(fast, found)
        assert words in doubt
        assert ("more than the chip can do" in doubt) == (move < 0)
        assert ("less than is likely" in doubt) == (move > 0)
    assert any("memory comes out" in d for d in doubts(fast, fit(fast.observations)))


def test_rates_are_doubted_beside_the_datasheet(
    measured: Measurements, fitted: Fitted
) -> None:
    """Calibrations of calibrations do not creep beyond what the chip can do."""
    first = replace(fitted, moves={"memory": -0.1})
    path = calibration_path("mine", None, force=False)
    write_calibration(path, gpu_table("mine", measured, first))
    again = read_measurements(["steps.csv"], FLAGS | {"gpu": "mine"})

    assert doubts(measured, replace(first, residuals=())) == []
    (doubt,) = doubts(again, replace(first, residuals=()))
    assert "1.22 times the 3,350 of the datasheet" in doubt


@pytest.mark.parametrize(
    ("moves", "words"),
    [
        ({"memory": 1.0}, "the rate of memory 0.37 times that of H100-80GB"),
        ({"memory": -1.0}, "the rate of memory 2.7 times"),
        ({"compute": 1.7}, "the rate of compute 0.18 times"),
        ({"compute": -1.7}, "are the figures milliseconds"),
    ],
)
def test_wrong_units_are_refused(
    measured: Measurements, fitted: Fitted, moves: dict[str, float], words: str
) -> None:
    """No file is made of rates that no kernel has."""
    with pytest.raises(UsageError, match=words):
        gpu_table("mine", measured, replace(fitted, moves=moves))


def test_fits_that_are_worse_than_the_profile_are_noted(
    measured: Measurements, fitted: Fitted
) -> None:
    """After the fit, and of rows left out."""

    def notes(uncalibrated: float, after: float, left_out: float | None) -> list[str]:
        residual = Residual(
            name="mine.csv:2",
            figure="tpot",
            measured_s=0.01,
            uncalibrated=uncalibrated,
            fitted=after,
            left_out=left_out,
        )
        return doubts(measured, replace(fitted, residuals=(residual,)))

    assert notes(0.05, 0.02, 0.04) == notes(0.05, 0.02, None) == []
    assert notes(0.02, 0.01, -0.04) == [
        "TPOT: rows left out are met worse than by the profile as it was (4.0 % against"
        " 2.0 %): the figures contradict each other or are too few"
    ]
    first, second = notes(0.02, 0.03, 0.04)
    assert "TPOT: the rows are met worse after the fit" in first
    assert "left out" in second


def test_all_digits_are_kept(measured: Measurements, fitted: Fitted) -> None:
    """A rate comes back as it was fitted."""
    gpu = load_gpu("H100-80GB")
    expected = moved(gpu, config_overhead(measured.config), fitted.moves).gpu.known_rates
    path = calibration_path("mine", None, force=False)
    write_calibration(path, gpu_table("mine", measured, fitted))
    found = load_gpu("mine").known_rates

    assert found.memory_bandwidth_gb_per_s == expected.memory_bandwidth_gb_per_s
    assert found == expected


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
