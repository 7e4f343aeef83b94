"""Which policy and which vLLM version are in force."""

from dataclasses import dataclass

from harness.errors import UsageError
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


def in_force(policy: str | None, version: str | None) -> InForce:
    """The policy and version meant; what was not given follows from the other.

    Versions from 0.11 on run v1 and older ones v0, unless a policy says otherwise.

    Raises:
        UsageError: There is no such policy, or it does not cover the version.
        ProfileError: The text is no version.
    """
    if policy not in (None, "v0", "v1"):
        raise UsageError(f"unknown policy {policy}; v0 and v1 are there")
    if version is None:
        return InForce("v0", DEFAULT_V0_VERSION) if policy == "v0" else _assumed_v1()
    if policy is None:
        policy = "v1" if v0_support(version) == "none" else "v0"
    return _given_v1(version) if policy == "v1" else _given_v0(version)


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
