"""Which policy and which vLLM version are in force."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError
from profiles.default_engine import has_both_engines, why_v0
from profiles.gpu import GpuProfile
from profiles.vllm_v1 import (
    DEFAULT_V1_VERSION,
    FIRST_V1,
    LAST_KNOWN,
    is_newer_than_known,
    v1_support,
)
from profiles.vllm_version import DEFAULT_V0_VERSION, installed_version, v0_support


@dataclass(frozen=True, slots=True)
class InForce:
    """A policy, a version that it covers, and what the user should know of the choice."""

    policy: str
    vllm_version: str
    notes: tuple[str, ...] = ()


def in_force(
    policy: str | None,
    version: str | None,
    *,
    gpu: GpuProfile | None = None,
    options: Mapping[str, Any] | None = None,
) -> InForce:
    """The policy and version meant; what was not given follows from the other.

    Versions from 0.11 on have v1 alone, and those before 0.8 run v0. Between, a version
    runs v1 unless the GPU or an option keeps it from it, as a policy that is given does.

    Args:
        policy: Given, or None.
        version: Likewise.
        gpu: What the engine runs on; None for one that keeps no version from v1.
        options: Of ``vllm serve``, by name, with their values.

    Raises:
        UsageError: There is no such policy, or it does not cover the version.
        ProfileError: The text is no version.
    """
    if policy not in (None, "v0", "v1"):
        raise UsageError(f"unknown policy {policy}; v0 and v1 are there")
    if version is None:
        if policy == "v0":
            return InForce("v0", DEFAULT_V0_VERSION)
        assumed = _assumed_v1()
        if policy is None and has_both_engines(assumed.vllm_version):
            found = _by_itself(assumed.vllm_version, gpu, options or {})
            return InForce(
                found.policy, found.vllm_version, (*assumed.notes, *found.notes)
            )
        return assumed
    if policy is None:
        return _by_itself(version, gpu, options or {})
    if policy == "v0":
        return _given_v0(version)
    _refuse_forced_v1(version, gpu, options or {})
    return _given_v1(version)


def _by_itself(
    version: str, gpu: GpuProfile | None, options: Mapping[str, Any]
) -> InForce:
    """What a version runs that nobody told."""
    if reason := why_v0(version, gpu=gpu, options=options):
        note = f"vLLM {version} runs v0 with {reason.what}, and not its v1"
        return InForce("v0", version, (note,))
    has_v1 = has_both_engines(version) or v0_support(version) == "none"
    return _given_v1(version) if has_v1 else _given_v0(version)


def _refuse_forced_v1(
    version: str, gpu: GpuProfile | None, options: Mapping[str, Any]
) -> None:
    """Refuse what vLLM does with ``VLLM_USE_V1=1``."""
    reason = why_v0(version, gpu=gpu, options=options)
    if reason is not None and not reason.is_optional:
        raise UsageError(
            f"vLLM {version} does not run v1 with {reason.what}: told to by VLLM_USE_V1=1"
            " it does not start, and else it runs v0; use --policy v0 or leave it out"
        )


def _given_v0(version: str) -> InForce:
    if v0_support(version) == "none":
        raise UsageError(
            f"vLLM {version} has no v0 engine; policy v0 covers versions up to 0.10"
            f" (exactly up to {DEFAULT_V0_VERSION})"
        )
    return InForce("v0", version)


def _given_v1(version: str) -> InForce:
    if v1_support(version) == "none":
        raise UsageError(
            f"vLLM {version} does not run v1 by itself; policy v1 covers versions from"
            f" {FIRST_V1} on (exactly {DEFAULT_V1_VERSION}); use --policy v0"
        )
    if is_newer_than_known(version):
        note = (
            f"vLLM {version} is newer than any that blockbench knows, and"
            f" {DEFAULT_V1_VERSION} stands in for it"
        )
        return InForce("v1", DEFAULT_V1_VERSION, (note,))
    return InForce("v1", version)


def _assumed_v1() -> InForce:
    """The version that is installed here, or the one that policy v1 is exact for."""
    found = installed_version()
    if found is None:
        why = f"no vLLM is installed here: {DEFAULT_V1_VERSION} is assumed"
    elif v1_support(found) == "none":
        why = f"vLLM {found}, installed here, is too old for policy v1:"
        why += f" {DEFAULT_V1_VERSION} is assumed"
    elif is_newer_than_known(found):
        why = f"vLLM {found}, installed here, is newer than {LAST_KNOWN.major}."
        why += f"{LAST_KNOWN.minor}, the last that blockbench knows:"
        why += f" {DEFAULT_V1_VERSION} is assumed"
    else:
        why = f"vLLM {found} is assumed, which is installed here"
        return InForce("v1", found, (f"{why}; --vllm-version names another",))
    return InForce("v1", DEFAULT_V1_VERSION, (f"{why}; --vllm-version names another",))
