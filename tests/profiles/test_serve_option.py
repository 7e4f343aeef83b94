"""Tests for :mod:`profiles.serve_option`."""

import csv
from pathlib import Path

import pytest

from profiles.gpu import load_gpu
from profiles.serve_option import (
    CONFIG_SINCE,
    OPTIONS,
    SERVE_SINCE,
    needs_offloading_backend,
    switch_form,
    why_not,
)
from profiles.vllm_v1 import FIRST_V1, offered_block_sizes
from profiles.vllm_version import parse_version, v0_support

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "published"
H100 = load_gpu("H100-80GB")
SETTINGS = {
    "whole": 16,
    "size": 4096,
    "number": 0.5,
    "switch": True,
}
TEXTS = {
    "dtype": "float16",
    "quantization": "fp8",
    "kv_cache_dtype": "auto",
    "preemption_mode": "swap",
    "scheduling_policy": "priority",
}


def rows(name: str) -> list[dict[str, str]]:
    """Rows of a published table."""
    with (PUBLISHED / name).open(newline="") as file:
        return list(csv.DictReader(file))


def offered(version: str, policy: str) -> set[str]:
    """Knobs that a version can be given some value of."""
    return {
        knob
        for knob, option in OPTIONS.items()
        if not why_not(
            option, TEXTS.get(knob, SETTINGS.get(option.kind)), version, policy
        )
    }


def policies(version: str) -> list[str]:
    """Engines that a version has and that are replayed."""
    has_v1 = parse_version(version) >= FIRST_V1
    return ["v0"] * (v0_support(version) != "none") + ["v1"] * has_v1


@pytest.mark.parametrize(
    "row", rows("vllm_serve_options.csv"), ids=lambda r: str(r["vllm"])
)
def test_nothing_is_offered_that_the_parser_lacks(row: dict[str, str]) -> None:
    """Each option that a version can be given is one that its parser declares."""
    for policy in policies(row["vllm"]):
        for knob in offered(row["vllm"], policy):
            assert row[OPTIONS[knob].key] != "no", knob


@pytest.mark.parametrize(
    "row", rows("vllm_serve_options.csv"), ids=lambda r: str(r["vllm"])
)
def test_all_that_the_parser_has_is_offered_to_some_engine(row: dict[str, str]) -> None:
    """An option is left out only where the engines of that version do not heed it."""
    version = row["vllm"]
    known = {knob for policy in policies(version) for knob in offered(version, policy)}
    unheeded = (
        {"swap_space"} if parse_version(version) >= parse_version("0.11") else set()
    )
    if parse_version(version) < parse_version("0.8.3"):
        unheeded = {"long_prefill_token_threshold"}

    declared = {k for k, option in OPTIONS.items() if row[option.key] != "no"}
    assert declared - known <= unheeded


@pytest.mark.parametrize(
    "row", rows("vllm_serve_options.csv"), ids=lambda r: str(r["vllm"])
)
def test_switches_have_the_form_that_the_parser_declares(row: dict[str, str]) -> None:
    """On only, ``=False`` or ``--no-``, as each version has it; so has the command."""
    release = parse_version(row["vllm"])
    for option in OPTIONS.values():
        if option.kind == "switch" and row[option.key] != "no":
            assert switch_form(option, row["vllm"]) == row[option.key], option.knob
    assert (release >= SERVE_SINCE) == (row["serve"] == "yes")
    assert (release >= CONFIG_SINCE) == (row["config"] == "yes")


@pytest.mark.parametrize("row", rows("vllm_knobs.csv"), ids=lambda row: str(row["vllm"]))
def test_what_is_offered_agrees_with_the_table_of_knobs(row: dict[str, str]) -> None:
    """Swap space, offloading and the rest are there where that table says so."""
    version = row["vllm"]
    for policy in policies(version):
        known = offered(version, policy)

        assert ("swap_space" in known) == (policy == "v0")
        assert policy == "v1" or row["swap_space"] == "works in v0"
        for name in ("kv_offloading_size", "watermark", "scheduler_reserve_full_isl"):
            assert (name in known) == (policy == "v1" and row[name].startswith("yes"))
        is_async = policy == "v1" and row["async_scheduling"] != "no"
        assert ("async_scheduling" in known) == is_async
        assert ("kv_cache_gib" in known) == (row["kv_cache_memory_bytes"] == "yes")


@pytest.mark.parametrize("row", rows("vllm_knobs.csv"), ids=lambda row: str(row["vllm"]))
def test_block_sizes_are_those_of_the_table_of_knobs(row: dict[str, str]) -> None:
    """From 0.6.6 on the choices are listed; of 0.4.3 they are the oldest ones."""
    sizes = offered_block_sizes(row["vllm"])

    listed = "any the attention backend accepts" if sizes is None else ""
    assert row["block_size_choices"] == (listed or " ".join(map(str, sizes or ())))


@pytest.mark.parametrize(
    ("knob", "value", "version", "policy", "reason"),
    [
        ("swap_space", 4, "0.16", "v1", "--swap-space belongs to policy v0"),
        ("watermark", 0.1, "0.6.3", "v0", "--watermark belongs to policy v1"),
        ("watermark", 0.1, "0.19", "v1", "with vLLM 0.24.0, after 0.19"),
        ("block_size", 64, "0.6.3", "v0", "no --block-size 64; it has 8, 16, 32"),
        ("kv_cache_dtype", "bfloat16", "0.10.2", "v1", "it has auto, fp8"),
        ("enable_chunked_prefill", False, "0.10.2", "v1", "0.11.1 is the first"),
        ("scheduling_policy", "priority", "0.9.1", "v1", "with vLLM 0.9.2"),
    ],
)
def test_the_reason_names_what_is_missing(
    knob: str, value: object, version: str, policy: str, reason: str
) -> None:
    """A refusal says which option or value, and what there is instead."""
    assert reason in why_not(OPTIONS[knob], value, version, policy)


@pytest.mark.parametrize(("version", "needs"), [("0.11.1", True), ("0.14", False)])
def test_offloading_needs_its_backend_named_at_first(version: str, needs: bool) -> None:
    """Up to 0.13 a size alone does nothing."""
    assert needs_offloading_backend(version) == needs
