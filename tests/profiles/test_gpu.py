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
from profiles.gpu import GpuProfile, KnownError, gpu_names, known_gpus, load_gpu
from profiles.kernels import ARITHMETIC, Experts, Gemm

BUNDLED = gpu_names()[:-1]
OWN_KERNELS = {"A100-80GB", "H100-80GB", "H200", "B200", "L40S"}
MINE = """
name = "my-gpu"
memory_gib = 47.5
memory_bandwidth_gb_per_s = 900
bf16_tflop_per_s = 200
pcie_gb_per_s = 24.5
kernels_of = "a100"
"""


def _data_text(name: str) -> str:
    return (files("profiles") / "data" / name).read_text(encoding="utf-8")


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
    tables = tomllib.loads(_data_text("gpus.toml"))["gpu"]
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
    rates = {field.name for field in dataclasses.fields(gpu.rates)}
    if gpu.rates.fp8_tflop_per_s is None:
        rates.remove("fp8_tflop_per_s")
    if gpu.compute_capability is not None:
        rates.add("compute_capability")

    assert set(gpu.sources) == rates | {"memory_gib"}
    assert not any(text.startswith("given in") for text in gpu.sources.values())


@pytest.mark.parametrize("name", BUNDLED)
def test_no_kernel_of_bf16_exceeds_the_hardware(name: str) -> None:
    """GEMMs and attention are credited with less than the datasheet's rates."""
    kernels = load_gpu(name).known_rates.kernels
    gemm, decode = kernels.gemm["bfloat16"], kernels.generation["bfloat16"]

    assert 0.7 < gemm.memory_efficiency < 1
    assert 0.7 < gemm.compute_efficiency < 1
    assert 0.7 < decode.memory_efficiency < 1
    assert 0.5 < kernels.context["bfloat16"].compute_efficiency < 1


@pytest.mark.parametrize("name", BUNDLED)
def test_kernels_of_any_type_are_plausible(name: str) -> None:
    """Weights pass at no more than 1.2 times the bandwidth, and start within 60 us.

    Above 1 is what the caches hold of them, and experts that skewed routing leaves out.
    """
    kernels = load_gpu(name).known_rates.kernels
    forms: list[Gemm | Experts] = [*kernels.gemm.values(), *kernels.experts.values()]

    assert len(forms) >= 2
    assert all(0.5 < form.memory_efficiency < 1.2 for form in forms)
    assert all(0.1 < form.compute_efficiency < 1 for form in forms)
    assert all(form.latency_s < 60e-6 for form in forms)
    latencies_s = [form.latency_s for form in kernels.generation.values()]
    latencies_s += [form.latency_s for form in kernels.context.values()]
    assert all(5e-6 < latency_s < 20e-6 for latency_s in latencies_s)


@pytest.mark.parametrize("name", BUNDLED)
def test_figures_are_those_of_a_gpu(name: str) -> None:
    """A slip of a digit or a unit leaves the range in which GPUs of today are."""
    gpu = load_gpu(name)

    assert 14 < gpu.memory_gib < 200
    rates = gpu.known_rates
    assert 250 < rates.memory_bandwidth_gb_per_s <= 8000
    assert 60 < rates.bf16_tflop_per_s < 2500
    assert 12 < rates.pcie_gb_per_s < 64
    assert rates.pcie_gb_per_s <= rates.nvlink_gb_per_s <= 900
    if (fp8 := rates.fp8_tflop_per_s) is not None:
        assert fp8 == pytest.approx(2 * rates.bf16_tflop_per_s, rel=0.02)


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

    assert gpu.known_rates.nvlink_gb_per_s == gpu.known_rates.pcie_gb_per_s
    assert "PCIe" in gpu.sources["nvlink_gb_per_s"]


@pytest.mark.parametrize("name", sorted(set(BUNDLED) - OWN_KERNELS))
def test_lent_kernels_say_so(name: str) -> None:
    """What nobody measured is that of a GPU that was, without its known error."""
    gpu = load_gpu(name)

    assert gpu.known_error is None
    assert "no published row was compared" in gpu.evidence
    assert "nobody measured" in gpu.sources["kernels"]
    lenders = [load_gpu(lender) for lender in OWN_KERNELS]
    assert gpu.known_rates.kernels in [lender.known_rates.kernels for lender in lenders]


@pytest.mark.parametrize("name", sorted(OWN_KERNELS))
def test_own_kernels_differ_and_name_their_source(name: str) -> None:
    """Five GPUs have latencies of their own; L40S borrows what it lacks."""
    gpu = load_gpu(name)
    others = [load_gpu(other) for other in OWN_KERNELS - {name}]

    own = gpu.known_rates.kernels
    assert all(own.gemm != other.known_rates.kernels.gemm for other in others)
    assert gpu.sources["kernels"].startswith("NVIDIA aiconfigurator, kernels of vLLM 0.1")
    assert ("nobody measured" in gpu.sources["kernels"]) == (name == "L40S")


def test_evidence_of_a_compared_gpu_names_its_rows() -> None:
    """Errors of TPOT and TTFT, rows and whose they are, in one sentence."""
    assert known_gpus() == ("A100-80GB", "H100-80GB", "H200", "B200")
    error = KnownError(0.031, 12, "servers of X", ttft_fraction=0.104)
    compared = dataclasses.replace(load_gpu("h100"), known_error=error)

    assert compared.evidence == (
        "known error 3 % of TPOT, of TTFT 10 %, median over 12 rows: servers of X"
    )
    assert str(dataclasses.replace(error, ttft_fraction=None)) == (
        "3 % of TPOT, median over 12 rows: servers of X"
    )


@pytest.mark.parametrize("name", known_gpus())
def test_a_known_error_is_a_number_with_rows_behind_it(name: str) -> None:
    """Each is told with rows that can be counted and the types of weights they had."""
    error = load_gpu(name).known_error

    assert error is not None
    assert 0 < error.fraction < 0.25
    assert error.ttft_fraction is not None
    assert error.fraction < error.ttft_fraction < 0.25
    assert error.num_rows >= 8
    assert set(error.types) <= {
        f"{weights}, KV {cache}"
        for weights in ARITHMETIC
        for cache in ("bfloat16", "fp8")
    }
    assert "vLLM" in error.against


def test_cpu_has_the_memory_of_this_machine_and_no_rates() -> None:
    """Blocks of the CPU backend can be counted; a step time of it is refused."""
    cpu = load_gpu("CPU")

    num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert cpu.memory_gib == num_bytes / 2**30
    assert cpu.is_host
    assert cpu.has_bf16
    assert cpu.evidence == "step times of CPU are not known"
    with pytest.raises(
        ProfileError, match="step times of CPU are not known; .*name the GPU"
    ):
        _ = cpu.known_rates


@pytest.mark.parametrize("head", ["", "[[gpu]]", "[gpu]"])
def test_a_file_describes_a_gpu(in_file: Any, head: str) -> None:
    """Keys stand at the top or in a table; what is not given is lent or that of PCIe."""
    gpu = in_file(head + MINE)

    assert (gpu.name, gpu.memory_gib) == ("my-gpu", 47.5)
    assert gpu.known_rates.nvlink_gb_per_s == 24.5
    assert gpu.known_rates.kernels == load_gpu("A100-80GB").known_rates.kernels
    assert gpu.known_error is None
    assert gpu.sources["memory_gib"].endswith("my.toml")
    assert "A100-80GB" in gpu.sources["kernels"]


def test_a_bundled_entry_is_a_users_file(in_file: Any) -> None:
    """The data file's own entry, alone in a file, is the same GPU once it has kernels."""
    entry = "[[gpu]]" + _data_text("gpus.toml").split("[[gpu]]")[1]
    lent = entry.replace("memory_gib", 'kernels_of = "A100-80GB"\nmemory_gib', 1)
    gpu, bundled = in_file(lent), load_gpu("A100-80GB")

    assert gpu.sources.pop("kernels") != bundled.sources["kernels"]
    sources = {key: text for key, text in bundled.sources.items() if key != "kernels"}
    assert gpu == dataclasses.replace(bundled, sources=sources)


def test_a_file_may_hold_its_own_kernels(in_file: Any) -> None:
    """A table of kernels is read as that of the data file, with or without a lender."""
    table = _data_text("kernels.toml").split('["H100-80GB"]')[1].split("[")[0]
    kernels = f"[kernels]{table}"
    own = load_gpu("H100-80GB").known_rates.kernels

    alone = in_file(MINE.replace('kernels_of = "a100"', "") + kernels)
    assert alone.known_rates.kernels == own
    assert alone.sources["kernels"] == own.source
    bf16 = "\n".join(line for line in kernels.splitlines() if "gemm_fp8 =" not in line)
    assert "fp8" not in in_file(MINE + bf16).known_rates.kernels.gemm
    lent = in_file(MINE.replace("a100", "h200") + bf16).known_rates.kernels.gemm
    assert lent["fp8"] == load_gpu("H200").known_rates.kernels.gemm["fp8"]
    assert lent["bfloat16"] == own.gemm["bfloat16"]


def test_kernels_without_a_source_are_the_files(in_file: Any) -> None:
    """They are told to be from there, not from nowhere."""
    gpu = in_file(MINE + "kernels = {}")
    table = tomllib.loads(_data_text("kernels.toml"))["H200"]["gemm_fp8"]
    form = ", ".join(f"{key} = {value}" for key, value in table.items())
    own = in_file(MINE + f"kernels.gemm_fp8 = {{ {form} }}")

    assert "of A100-80GB" in gpu.sources["kernels"]
    assert own.sources["kernels"].startswith("given in ")
    assert "my.toml; of A100-80GB" in own.sources["kernels"]


def test_a_file_may_hold_a_calibration(in_file: Any) -> None:
    """Fitted figures of the overhead, whose they are, and the engine they are of."""
    gpu = in_file(
        MINE
        + """[calibration]
source = "12 rows of mine"
overhead = { layer_ns = 12_000 }
for = { model = "Llama-3.1-8B", tensor_parallel_size = 1 }
"""
    )

    assert gpu.evidence == "calibrated: 12 rows of mine"
    assert gpu.calibration.overhead == {"layer_ns": 12_000}
    assert gpu.calibration.made_for["model"] == "Llama-3.1-8B"


def test_a_file_may_hold_a_known_error(in_file: Any) -> None:
    """That of TTFT and the types of weights may be left out."""
    text = 'known_error = { fraction = 0.1, num_rows = 3, against = "mine"'

    assert in_file(MINE + text + "}").known_error == KnownError(0.1, 3, "mine")
    more = ', ttft_fraction = 0.2, types = ["fp8, KV fp8"] }'
    known = KnownError(0.1, 3, "mine", ttft_fraction=0.2, types=("fp8, KV fp8",))
    assert in_file(MINE + text + more).known_error == known


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
        (MINE.replace("a100", "a1000"), "kernels_of is 'a1000'; no GPU is called"),
        (MINE.replace("a100", "cpu"), "kernels_of is 'cpu'; step times of CPU"),
        (MINE.replace("a100", "my.toml"), "kernels_of is 'my.toml'; no GPU"),
        (
            MINE.replace('kernels_of = "a100"', ""),
            'kernels is missing; add kernels_of = "H100-80GB"',
        ),
        (MINE + "compute_efficiency = 0.8", "compute_efficiency is not known; the keys"),
        (MINE + "kernels.gemm_fp3 = {}", "kernels: gemm_fp3 is not known"),
        (MINE + "kernels.gemm_fp8 = 0.7", "kernels: gemm_fp8 needs activation_eff"),
        (MINE + "kernels = 7", "kernels is 7; give a table"),
        (MINE + "kernels.source = 7", "kernels: source is 7; give a text in quotes"),
        (MINE + "calibration = 7", "calibration is 7; it needs a source"),
        (MINE + "calibration = { source = 7 }", "calibration is {'source': 7}; it needs"),
        (
            MINE + "calibration = { source = 'x', overhead = { speed_ns = 1 } }",
            "a table overhead of whole nanoseconds among launch_ns, layer_ns,",
        ),
        (
            MINE + "calibration = { source = 'x', overhead = { seq_ns = 1.5 } }",
            "a table overhead of whole nanoseconds among launch_ns, layer_ns,",
        ),
        (
            MINE + "calibration = { source = 'x', for = { gpu = 'x' } }",
            "calibration is {'source': 'x', 'for': {'gpu': 'x'}}; it needs",
        ),
        (MINE + "compute_capability = 9.0", "compute_capability is 9.0; give one as"),
        (MINE + "known_error = 0.1", "known_error is 0.1; give {"),
        (
            MINE + "known_error = { fraction = 0.1, num_rows = 3, against = 'x', x = 1 }",
            "'x': 1}; give { fraction",
        ),
        (
            MINE + "known_error = { fraction = 0.1, num_rows = 3, against = 'x',"
            " types = 7 }",
            "'types': 7}; give { fraction",
        ),
        (
            MINE + "known_error = { fraction = 0.1, num_rows = 3, against = 'x',"
            " ttft_fraction = '5 %' }",
            "'ttft_fraction': '5 %'}; give { fraction",
        ),
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
