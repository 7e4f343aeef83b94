"""Tests for :mod:`profiles.default_engine` and :mod:`profiles.option_range`."""

import csv
from pathlib import Path
from typing import Any

import pytest

from profiles.default_engine import has_both_engines, refuses_bf16, why_v0
from profiles.gpu import load_gpu
from profiles.option_range import why_lacking
from profiles.serve_option import OPTIONS

PUBLISHED = Path(__file__).parents[1] / "data" / "published"


def test_two_engines_from_0_8_to_0_10() -> None:
    """And neither before nor after."""
    versions = ["0.7.3", "0.8.0", "0.10.2", "0.11.0"]

    assert [has_both_engines(version) for version in versions] == [
        *(False, True, True, False)
    ]


@pytest.mark.parametrize(
    ("first", "last_v0", "first_v1", "gpu", "options"),
    [
        ("0.8.0", "0.10.1.1", "0.10.2", "T4", {}),
        ("0.8.0", "0.10.1.1", "0.10.2", "V100-32GB", {}),
        ("0.8.0", "0.9.1", "0.9.2", "MI300X", {}),
        ("0.8.0", "0.10.2", "0.11.0", "H100-80GB", {"preemption_mode": "swap"}),
        ("0.8.0", "0.10.0", "0.10.1", "H100-80GB", {"num_scheduler_steps": "8"}),
        ("0.8.0", "0.9.1", "0.9.2", "H100-80GB", {"scheduling_policy": "priority"}),
        ("0.8.0", "0.8.2", "0.8.3", "A10", {"long_prefill_token_threshold": 64}),
        ("0.8.0", "0.8.1", "0.8.2", "H100-80GB", {"kv_cache_dtype": "fp8"}),
        ("0.8.0", "0.10.2", "0.11.0", "A100-80GB", {"kv_cache_dtype": "fp8"}),
        ("0.8.0", "0.10.2", "0.11.0", "L40S", {"kv_cache_dtype": "fp8_e5m2"}),
        ("0.8.0", "0.9.2", "0.10.0", "B200", {"kv_cache_dtype": "fp8"}),
        ("0.8.0", "0.9.1", "0.9.2", "H100-80GB", {"dtype": "float32"}),
    ],
)
def test_v0_runs_up_to_a_version(
    first: str, last_v0: str, first_v1: str, gpu: str, options: dict[str, Any]
) -> None:
    """What ``_is_v1_supported_oracle`` of each release says, at both ends."""
    found = [
        why_v0(version, gpu=load_gpu(gpu), options=options) is not None
        for version in (first, last_v0, first_v1)
    ]

    assert found == [True, True, False]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_scheduler_steps": "1", "scheduling_policy": "fcfs"},
        {"kv_cache_dtype": "auto", "preemption_mode": None, "dtype": "bfloat16"},
        {"swap_space": 16.0, "enable_prefix_caching": False, "speculative_config": None},
    ],
)
def test_what_is_as_by_itself_runs_v1(options: dict[str, Any]) -> None:
    """Defaults that somebody wrote out, and options of no matter, change nothing."""
    assert why_v0("0.8.0", gpu=load_gpu("A100-80GB"), options=options) is None


def test_the_reason_can_be_overruled_or_not() -> None:
    """AMD's v1 only was not the default; a T4 has none. The firm reason comes first."""
    amd = why_v0("0.9.0", gpu=load_gpu("MI300X"), options={})
    firm = why_v0("0.9.0", gpu=load_gpu("MI300X"), options={"num_scheduler_steps": "8"})
    old = why_v0("0.9.0", gpu=load_gpu("T4"), options={})

    assert amd is not None
    assert amd.is_optional
    assert (firm and firm.what, firm and firm.is_optional) == (
        "--num-scheduler-steps 8",
        False,
    )
    assert (old and old.what, old and old.is_optional) == (
        "compute capability 7.5, below 8.0",
        False,
    )


@pytest.mark.parametrize(
    ("version", "gpu", "is_refused"),
    [("0.8.5", "T4", True), ("0.9.0", "T4", False), ("0.8.5", "A10", False)],
)
def test_bf16_is_refused_up_to_0_8(version: str, gpu: str, is_refused: bool) -> None:
    """From 0.9 on vLLM takes float16 by itself."""
    assert refuses_bf16(version, load_gpu(gpu)) is is_refused


def test_ranges_are_those_of_the_parsers() -> None:
    """Every option of a knob, in every release that the table has."""
    with (PUBLISHED / "vllm_serve_options.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert len(rows) > 40
    for row in rows:
        for option in OPTIONS.values():
            is_lacking = bool(why_lacking(option.vllm_name, row["vllm"]))
            assert is_lacking == (row[option.key] == "no"), (row["vllm"], option.key)


@pytest.mark.parametrize(
    ("flag", "version", "why"),
    [
        ("--num-scheduler-steps", "0.10.0", ""),
        ("--num-scheduler-steps", "0.10.1", "0.10.1 no longer has it"),
        ("--swap-space", "0.17.1", ""),
        ("--swap-space", "0.19.1", "0.18.0 no longer has it"),
        ("--watermark", "0.16", "it came with 0.24.0"),
        ("--no-async-scheduling", "0.9.2", "it came with 0.10.0"),
        ("--nobody-knows-this", "0.32.0", ""),
    ],
)
def test_it_says_when_an_option_came_or_went(flag: str, version: str, why: str) -> None:
    """Also of options that no knob has; of what is not known it says nothing."""
    assert why_lacking(flag, version) == why
