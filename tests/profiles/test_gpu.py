"""Tests for :mod:`profiles.gpu`."""

import dataclasses

import pytest

from profiles.errors import UnknownNameError
from profiles.gpu import GpuProfile, known_gpus, load_gpu

NOT_FIGURES = {"name", "aliases", "known_error", "sources"}


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "H100-80GB"),
        ("H100-SXM", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("a100-80gb", "A100-80GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("h200", "H200"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_one_gpu_has_many_names(alias: str, name: str) -> None:
    """What drivers, clouds and people call a GPU leads to the same profile."""
    assert load_gpu(alias).name == name


@pytest.mark.parametrize("name", ["A100-40GB", "H100-PCIe", "H100-NVL"])
def test_a_sibling_is_not_taken_for_the_gpu(name: str) -> None:
    """Another memory or another board is another GPU, and refused until it is known."""
    with pytest.raises(UnknownNameError, match="80GB"):
        load_gpu(name)


@pytest.mark.parametrize("name", known_gpus())
def test_every_figure_has_a_source(name: str) -> None:
    """A profile holds no number that its sources do not name, and none idle."""
    gpu = load_gpu(name)
    figures = {field.name for field in dataclasses.fields(GpuProfile)} - NOT_FIGURES

    assert set(gpu.sources) == figures
    assert all(gpu.sources.values())


@pytest.mark.parametrize("name", known_gpus())
def test_no_efficiency_exceeds_the_hardware(name: str) -> None:
    """No kernel is credited with more than the datasheet's rate."""
    gpu = load_gpu(name)
    shares = [
        gpu.memory_efficiency,
        gpu.compute_efficiency,
        gpu.attention_memory_efficiency,
        gpu.attention_compute_efficiency,
        gpu.nvlink_efficiency,
    ]

    assert all(0.3 < share < 1 for share in shares)
