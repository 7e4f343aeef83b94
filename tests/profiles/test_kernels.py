"""Tests for :mod:`profiles.kernels`."""

import math
import tomllib
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import ProfileError
from profiles.kernels import (
    AllReduce,
    Chip,
    Experts,
    Kernels,
    joined,
    read_kernels,
)

BUNDLED: dict[str, Any] = tomllib.loads(
    (files("profiles") / "data" / "kernels.toml").read_text(encoding="utf-8")
)
H100_TABLE: dict[str, Any] = BUNDLED["H100-80GB"]
H100 = read_kernels(H100_TABLE)
CHIP = Chip(bytes_per_s=3350e9, bf16_flop_per_s=989.4e12, link_bytes_per_s=450e9)
KIB, MIB = 2**10, 2**20


def _gemm_s(m: Any) -> Any:
    gemm = H100.gemm["fp8"]
    return gemm.seconds(CHIP, m=m, n=6144, k=4096, weight_bytes=1, arithmetic=2)


def _experts_s(num_tokens: Any) -> Any:
    return H100.experts["bfloat16"].seconds(
        CHIP,
        num_tokens=num_tokens,
        hidden=4096,
        inter=14336,
        num_experts=8,
        topk=2,
        weight_bytes=2,
        arithmetic=1,
    )


def _decode_s(num_seqs: Any) -> Any:
    form, pairs = H100.generation["bfloat16"], num_seqs * 8
    return form.fixed_s(pairs) + num_seqs * 1e6 * form.seconds_per_byte(CHIP, pairs)


def _prefill_s(num_tokens: Any) -> Any:
    form = H100.context["bfloat16"]
    flop_s = form.arithmetic_s(CHIP, 4 * 4096 * num_tokens**2)
    return form.latency_s + flop_s + form.moving_s(CHIP, 20_480 * num_tokens)


FORMS = [_gemm_s, _experts_s, _decode_s, _prefill_s]


@pytest.mark.parametrize("form", FORMS)
def test_arrays_take_what_their_numbers_take(form: Callable[[Any], Any]) -> None:
    """A form of an array is the array of the form, element for element."""
    sizes = np.array([1.0, 2.0, 17.0, 512.0, 8192.0])

    together = form(sizes)

    assert together.shape == sizes.shape
    assert list(together) == pytest.approx([form(float(size)) for size in sizes])


@pytest.mark.parametrize("form", FORMS)
@given(size=st.integers(1, 20_000), more=st.integers(1, 20_000))
def test_more_work_takes_no_less_time(
    form: Callable[[Any], Any], size: int, more: int
) -> None:
    """Seconds grow with tokens and sequences, up to rounding, from a latency above 0."""
    assert 0 < form(size) <= form(size + more) * (1 + 1e-12)


@given(
    one_s=st.floats(1e-9, 1),
    other_s=st.floats(1e-9, 1),
    sharpness=st.floats(1, 8),
)
def test_joined_demands_overlap(one_s: float, other_s: float, sharpness: float) -> None:
    """Two demands take at least the longer, at most both in turn, in any order."""
    both_s = joined(one_s, other_s, sharpness)

    assert max(one_s, other_s) <= both_s * (1 + 1e-12)
    assert both_s <= (one_s + other_s) * (1 + 1e-12)
    assert both_s == pytest.approx(joined(other_s, one_s, sharpness))


def test_sharpness_is_between_taking_turns_and_the_longer() -> None:
    """At 1 demands take turns; the sharper, the nearer to the longer alone."""
    assert joined(2.0, 1.0, 1) == 3.0
    assert 2.0 < joined(2.0, 1.0, 8) < joined(2.0, 1.0, 2) < 3.0


@pytest.mark.parametrize(
    ("num_tokens", "num_touched"), [(1, 8), (2, 8 + 8 * 120 / 128), (100_000, 128)]
)
def test_experts_that_are_touched_are_read(num_tokens: int, num_touched: float) -> None:
    """One token reads those it takes, many tokens read all."""
    reading = Experts(
        latency_s=1e-12,
        memory_efficiency=0.5,
        compute_efficiency=1e12,
        activation_efficiency=1e12,
        sharpness=8,
    )

    seconds = reading.seconds(
        CHIP,
        num_tokens=num_tokens,
        hidden=2048,
        inter=768,
        num_experts=128,
        topk=8,
        weight_bytes=1,
        arithmetic=2,
    )

    num_bytes = num_touched * 3 * 2048 * 768
    assert seconds == pytest.approx(num_bytes / (0.5 * 3350e9), rel=1e-5)


@pytest.mark.parametrize(
    ("num_gpus", "num_bytes", "seconds"),
    [
        (2, 8 * MIB - 1, 1.2),
        (2, 8 * MIB, 100.0),
        (4, 512 * KIB - 1, 1.4),
        (4, 512 * KIB, 11.4),
        (4, 8 * MIB, 100.0),
        (6, 256 * KIB - 1, 1.6),
        (6, 256 * KIB, 11.6),
        (8, 256 * KIB - 1, 1.8),
        (8, 256 * KIB, 11.8),
        (8, 8 * MIB - 1, 11.8),
        (8, 8 * MIB, 100.0),
        (3, 2, 100.0),
        (16, 2, 100.0),
    ],
)
def test_all_reduce_changes_its_way_where_vllm_does(
    num_gpus: int, num_bytes: int, seconds: float
) -> None:
    """One shot, two shots or NCCL, by the limits of vLLM; one message, one latency."""
    form = AllReduce(
        latency_s=1,
        latency_per_gpu_s=0.1,
        one_shot_efficiency=1,
        two_shot_latency_s=10,
        two_shot_efficiency=1,
        nccl_latency_s=100,
        nccl_efficiency=1,
    )
    chip = Chip(bytes_per_s=1, bf16_flop_per_s=1, link_bytes_per_s=1e30)

    assert form.seconds(chip, num_gpus, num_bytes) == pytest.approx(seconds)


def test_gpus_without_links_leave_sums_to_nccl() -> None:
    """Two of them have vLLM's kernel all the same; more do not."""
    form = H100.all_reduce
    two, four = (
        [form.seconds(CHIP, n, 4096.0, has_links=linked) for linked in (True, False)]
        for n in (2, 4)
    )

    assert two[0] == two[1]
    assert four[0] < form.nccl_latency_s < four[1]


@pytest.mark.parametrize(
    ("num_bytes", "times"), [(2 * KIB, 7 / 0.5), (MIB, 1.75 / 0.25), (32 * MIB, 1.75 / 2)]
)
def test_all_reduce_moves_what_its_way_needs(num_bytes: int, times: float) -> None:
    """One shot reads the messages of all others; two shots and NCCL go round a ring."""
    form = AllReduce(
        latency_s=1e-30,
        latency_per_gpu_s=1e-30,
        one_shot_efficiency=0.5,
        two_shot_latency_s=1e-30,
        two_shot_efficiency=0.25,
        nccl_latency_s=1e-30,
        nccl_efficiency=2,
    )

    assert form.seconds(CHIP, 8, num_bytes) == pytest.approx(num_bytes * times / 450e9)


def test_bundled_kernels_name_their_source() -> None:
    """Each table of the data file is read, on its own or on top of another's."""
    assert set(BUNDLED) == {"A100-80GB", "H100-80GB", "H200", "B200", "L40S"}
    for table in BUNDLED.values():
        assert "aiconfigurator" in read_kernels(table, H100).source


def _with(key: str, **coefficients: Any) -> dict[str, Any]:
    return H100_TABLE | {key: H100_TABLE["gemm_bfloat16"] | coefficients}


def _without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in H100_TABLE.items() if key not in keys}


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (_with("gemm_fp3"), "gemm_fp3 is not known; it is all_reduce or one of gemm,"),
        (_with("bfloat16"), "bfloat16 is not known"),
        (_with("gemm"), "gemm is not known"),
        (_with("all_reduce_bfloat16"), "all_reduce_bfloat16 is not known"),
        (_with("gemm_fp8", speed=1), "gemm_fp8 needs activation_efficiency, compute_eff"),
        (_with("experts_fp8"), "experts_fp8 needs activation_efficiency, compute_eff"),
        (H100_TABLE | {"gemm_fp8": 0.7}, "gemm_fp8 needs activation_efficiency"),
        (_with("gemm_fp8", latency_s=0), "latency_s of gemm_fp8 is 0; give a number"),
        (_with("gemm_fp8", latency_s=-1e-6), "latency_s of gemm_fp8 is -1e-06; give"),
        (_with("gemm_fp8", latency_s=math.nan), "latency_s of gemm_fp8 is nan; give"),
        (_with("gemm_fp8", latency_s=math.inf), "latency_s of gemm_fp8 is inf; give"),
        (_with("gemm_fp8", latency_s=True), "latency_s of gemm_fp8 is True; give"),
        (_with("gemm_fp8", latency_s="1"), "latency_s of gemm_fp8 is '1'; give"),
        (_without("gemm_bfloat16"), "gemm_bfloat16 is missing; add it"),
        (_without("experts_bfloat16"), "experts_bfloat16 is missing; add it"),
        (_without("generation_bfloat16"), "generation_bfloat16 is missing; add it"),
        (_without("context_bfloat16"), "context_bfloat16 is missing; add it"),
        (_without("all_reduce"), "all_reduce is missing; add it"),
    ],
)
def test_wrong_kernels_are_refused(table: dict[str, Any], what: str) -> None:
    """The message names the key, what is there, and what should be."""
    with pytest.raises(ProfileError) as caught:
        read_kernels(table)

    assert what in str(caught.value)


def test_a_coefficient_may_not_be_missing() -> None:
    """A form without one of its coefficients is refused, even where another lends."""
    table = {"gemm_fp8": dict(H100_TABLE["gemm_fp8"])}
    del table["gemm_fp8"]["sharpness"]

    with pytest.raises(ProfileError, match="gemm_fp8 needs .*sharpness"):
        read_kernels(table, H100)


def test_types_do_not_need_kernels_of_their_own() -> None:
    """bf16 alone is enough; a type that is left out is simply not there."""
    keys = [key for key in H100_TABLE if "fp8" in key or "int4" in key]
    kernels = read_kernels(_without(*keys))

    assert len(keys) == 7
    assert [set(forms) for forms in _typed(kernels)] == 4 * [{"bfloat16"}]
    assert set(H100.experts) == {"bfloat16", "fp8", "fp8_block", "int4"}


def _typed(kernels: Kernels) -> tuple[Any, ...]:
    return kernels.gemm, kernels.experts, kernels.generation, kernels.context


def test_another_gpu_lends_what_is_missing() -> None:
    """What a table has is its own; kinds and types that it lacks are the lender's."""
    own = BUNDLED["L40S"]
    kernels = read_kernels(own, H100)

    assert kernels.gemm["bfloat16"].latency_s == own["gemm_bfloat16"]["latency_s"]
    assert kernels.gemm["bfloat16"] != H100.gemm["bfloat16"]
    assert kernels.experts["int4"] == H100.experts["int4"]
    assert kernels.context["fp8"] == H100.context["fp8"]
    assert kernels.all_reduce == H100.all_reduce
    assert kernels.source == own["source"]


def test_lending_leaves_the_lender_as_it_was() -> None:
    """Kernels that are read on top of others do not change these."""
    before = {key: dict(forms) for key, forms in enumerate(_typed(H100))}

    read_kernels(BUNDLED["L40S"], H100)

    assert before == dict(enumerate(_typed(H100)))
