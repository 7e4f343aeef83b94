"""Tests for :mod:`profiles.gpu`."""

import dataclasses
import os
import tomllib
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ProfileError, UnknownNameError
from profiles.gpu import GpuProfile, Rates, gpu_names, known_gpus, load_gpu

BUNDLED = gpu_names()[:-1]
SHARES = [field.name for field in dataclasses.fields(Rates) if "efficiency" in field.name]
MINE = """
name = "my-gpu"
memory_gib = 47.5
memory_bandwidth_gb_per_s = 900
bf16_tflop_per_s = 200
pcie_gb_per_s = 24.5
efficiencies_of = "a100"
"""


@pytest.fixture
def in_file(tmp_path: Path) -> Any:
    """Loads the GPU of a file with this text."""

    def load(text: str) -> GpuProfile:
        path = tmp_path / "my.toml"
        path.write_text(text, encoding="utf-8")
        return load_gpu(str(path))

    return load


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "H100-80GB"),
        ("H100-SXM", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("a100-80gb", "A100-80GB"),
        ("A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("h200", "H200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("nvidia b200", "B200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("rtx_4090", "RTX-4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("cpu", "CPU"),
    ],
)
def test_one_gpu_has_many_names(alias: str, name: str) -> None:
    """What drivers, clouds and people call a GPU leads to the same profile."""
    assert load_gpu(alias).name == name


def test_no_name_means_two_gpus() -> None:
    """Names and aliases are unique once case, separators and vendor are folded."""
    text = (files("profiles") / "data" / "gpus.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)["gpu"]
    names = [name for gpu in tables for name in (gpu["name"], *gpu["aliases"])]

    assert {load_gpu(name).name for name in names} == set(BUNDLED)
    folded = Counter(name.lower().replace("_", "-").replace(" ", "-") for name in names)
    assert max(folded.values()) == 1
    for gpu in tables:
        assert {load_gpu(name).name for name in gpu["aliases"]} == {gpu["name"]}


@pytest.mark.parametrize("name", ["A100-PCIe", "L40", "RTX-3090-Ti", "V100", "MI300A"])
def test_a_sibling_is_not_taken_for_the_gpu(name: str) -> None:
    """Another memory or another board is another GPU, and refused until it is known."""
    with pytest.raises(UnknownNameError, match="did you mean"):
        load_gpu(name)


@pytest.mark.parametrize("name", BUNDLED)
def test_every_figure_has_a_source(name: str) -> None:
    """A profile holds no number that its sources do not name, and none idle."""
    gpu = load_gpu(name)
    assert gpu.rates is not None
    figures = {"memory_gib": gpu.memory_gib} | dataclasses.asdict(gpu.rates)
    figures["compute_capability"] = gpu.compute_capability

    assert set(gpu.sources) == {key for key, figure in figures.items() if figure}
    assert not any(text.startswith("given in") for text in gpu.sources.values())


@pytest.mark.parametrize("name", BUNDLED)
def test_no_efficiency_exceeds_the_hardware(name: str) -> None:
    """No kernel is credited with more than the datasheet's rate."""
    rates = load_gpu(name).known_rates

    assert len(SHARES) == 5
    assert all(0.3 < getattr(rates, share) < 1 for share in SHARES)


@pytest.mark.parametrize("name", BUNDLED)
def test_figures_are_those_of_a_gpu(name: str) -> None:
    """A slip of a digit or a unit leaves the range in which GPUs of today are."""
    gpu = load_gpu(name)

    assert 14 < gpu.memory_gib < 200
    assert 250 < gpu.memory_bandwidth_gb_per_s <= 8000
    assert 60 < gpu.bf16_tflop_per_s < 2500
    assert 12 < gpu.pcie_gb_per_s < 64
    assert gpu.pcie_gb_per_s <= gpu.nvlink_gb_per_s <= 900
    if (fp8 := gpu.known_rates.fp8_tflop_per_s) is not None:
        assert fp8 == pytest.approx(2 * gpu.bf16_tflop_per_s, rel=0.02)


@pytest.mark.parametrize("name", BUNDLED)
def test_a_gpu_has_less_memory_than_its_box_says(name: str) -> None:
    """Of a name's GB between 0 and 13 % are missing in the GiB that torch prints."""
    sizes = [word[:-2] for word in name.lower().split("-") if word.endswith("gb")]

    for gb in sizes:
        assert 0.87 * int(gb) < load_gpu(name).memory_gib < int(gb)


@pytest.mark.parametrize("name", BUNDLED)
def test_fp8_has_a_rate_from_ada_on(name: str) -> None:
    """A rate of fp8 is given exactly for GPUs of compute capability 8.9 and more.

    Source: vLLM docs 0.32.0, FP8 W8A8: Ada, Hopper, Blackwell; MI300X multiplies it, too.
    """
    gpu = load_gpu(name)
    multiplies_fp8 = gpu.compute_capability is None or gpu.compute_capability >= (8, 9)

    assert multiplies_fp8 == (gpu.known_rates.fp8_tflop_per_s is not None)


def test_old_gpus_lack_dtypes() -> None:
    """T4 and V100 have neither bf16 nor attention that reads a cache of fp8."""
    gpus = [load_gpu(name) for name in BUNDLED]

    without_bf16 = {gpu.name for gpu in gpus if not gpu.has_bf16}
    assert without_bf16 == {"T4", "V100-32GB", "V100-16GB"}
    assert without_bf16 == {gpu.name for gpu in gpus if not gpu.takes_fp8_cache}


@pytest.mark.parametrize("name", ["L4", "L40S", "A10G", "T4", "RTX-4090", "H100-PCIe"])
def test_gpus_without_nvlink_reach_each_other_over_pcie(name: str) -> None:
    """Their link is as fast as PCIe, and its source says so."""
    gpu = load_gpu(name)

    assert gpu.nvlink_gb_per_s == gpu.pcie_gb_per_s
    assert "PCIe" in gpu.sources["nvlink_gb_per_s"]


@pytest.mark.parametrize("name", sorted(set(BUNDLED) - set(known_gpus())))
def test_lent_efficiencies_say_so(name: str) -> None:
    """What nobody measured is that of a GPU that was, without its known error."""
    gpu = load_gpu(name)

    assert gpu.known_error is None
    assert "no published row was compared" in gpu.evidence
    for share in SHARES:
        assert "nobody measured it" in gpu.sources[share]
        lenders = [load_gpu(known) for known in known_gpus()]
        assert getattr(gpu, share) in [getattr(lender, share) for lender in lenders]


def test_evidence_of_a_compared_gpu_names_its_rows() -> None:
    """Rows and median error are told in one sentence."""
    assert known_gpus() == ("A100-80GB", "H100-80GB", "H200")
    assert load_gpu("h100").evidence.startswith(
        "step times checked against 225 published rows, median error 5.7 %"
    )


def test_cpu_has_the_memory_of_this_machine_and_no_rates() -> None:
    """Blocks of the CPU backend can be counted; a step time of it is refused."""
    cpu = load_gpu("CPU")

    num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert cpu.memory_gib == num_bytes / 2**30
    assert cpu.is_host
    assert cpu.has_bf16
    assert cpu.evidence == "step times of CPU are not known"
    with pytest.raises(
        ProfileError, match="step times of CPU are not known; .*calibrate"
    ):
        _ = cpu.memory_bandwidth_gb_per_s


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Rates)])
def test_rates_can_be_read_from_the_profile(name: str) -> None:
    """Each rate but that of fp8 is an attribute of the profile too."""
    gpu = load_gpu("h100")

    if name != "fp8_tflop_per_s":
        assert getattr(gpu, name) == getattr(gpu.rates, name)


@pytest.mark.parametrize("head", ["", "[[gpu]]", "[gpu]"])
def test_a_file_describes_a_gpu(in_file: Any, head: str) -> None:
    """Keys stand at the top or in a table; what is not given is lent or that of PCIe."""
    gpu = in_file(head + MINE)

    assert (gpu.name, gpu.memory_gib, gpu.nvlink_gb_per_s) == ("my-gpu", 47.5, 24.5)
    assert gpu.memory_efficiency == load_gpu("A100-80GB").memory_efficiency
    assert gpu.known_error is None
    assert gpu.sources["memory_gib"].endswith("my.toml")
    assert "A100-80GB" in gpu.sources["memory_efficiency"]


def test_a_bundled_entry_is_a_users_file(in_file: Any) -> None:
    """The data file's own first entry, alone in a file, is the same GPU."""
    text = (files("profiles") / "data" / "gpus.toml").read_text(encoding="utf-8")
    first = "[[gpu]]" + text.split("[[gpu]]")[1]

    assert in_file(first) == load_gpu("A100-80GB")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (MINE.replace("memory_gib = 47.5\n", ""), "memory_gib is missing; add it"),
        (MINE.replace("47.5", "-1"), "memory_gib is -1; give a number above 0"),
        (MINE.replace("47.5", "nan"), "memory_gib is nan; give a number above 0"),
        (MINE.replace("47.5", "inf"), "memory_gib is inf; give a number above 0"),
        (MINE.replace("47.5", "true"), "memory_gib is True; give a number above 0"),
        (MINE.replace("47.5", "'48'"), "memory_gib is '48'; give a number above 0"),
        (MINE.replace('"my-gpu"', "7"), "name is 7; give a text in quotes"),
        (MINE + "aliases = 'x'", "aliases is 'x'; give a list of texts in quotes"),
        (MINE + "memory_gb = 48", "memory_gb is not known; the keys are aliases,"),
        (MINE.replace("a100", "a1000"), "efficiencies_of is 'a1000'; no GPU is called"),
        (MINE.replace("a100", "cpu"), "efficiencies_of is 'cpu'; step times of CPU"),
        (MINE.replace("a100", "my.toml"), "efficiencies_of is 'my.toml'; no GPU"),
        (
            MINE.replace('efficiencies_of = "a100"', ""),
            "copy_overhead_ns is missing; add it, or efficiencies_of",
        ),
        (MINE + "compute_efficiency = 1.5", "compute_efficiency is 1.5; it is a share"),
        (MINE + "copy_overhead_ns = 1.5", "copy_overhead_ns is 1.5; give a whole number"),
        (MINE + "compute_capability = 9.0", "compute_capability is 9.0; give one as"),
        (MINE + "known_error = 0.1", "known_error is 0.1; give {"),
        (MINE + "sources = 'x'", "sources is 'x'; give a table of texts"),
        ("gpu = 7", "gpu is 7, not a table"),
        (2 * ("[[gpu]]" + MINE), "is there 2 times; a file holds one GPU"),
        ("name =", "is no TOML"),
    ],
)
def test_a_wrong_file_is_told_where_and_what_to_do(
    in_file: Any, text: str, what: str
) -> None:
    """The message names the file, the key, what is there and what should be."""
    with pytest.raises(ProfileError) as caught:
        in_file(text)

    assert "my.toml" in str(caught.value)
    assert what in str(caught.value)


def test_a_file_that_is_not_there_is_no_unknown_gpu(tmp_path: Path) -> None:
    """A path is told from a name by its ending."""
    with pytest.raises(ProfileError, match=r"no\.toml cannot be read: No such file"):
        load_gpu(str(tmp_path / "no.toml"))
