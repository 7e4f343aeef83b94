"""Facts about GPUs: those that are bundled, and those a user wrote down."""

import os
import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from profiles.errors import ProfileError, UnknownNameError
from profiles.gpu_entry import Entry, gpu_in_file
from profiles.gpu_profile import HOST, GpuProfile, KnownError, Rates

__all__ = [
    "CALIBRATIONS_FOLDER",
    "GpuProfile",
    "KnownError",
    "Rates",
    "calibration_names",
    "gpu_names",
    "is_bundled",
    "known_gpus",
    "load_gpu",
]

GIB = 2**30

CALIBRATIONS_FOLDER = Path(".blockbench", "calibrations")
"""Where ``blockbench calibrate`` leaves what it found, below the folder one is in."""


def load_gpu(name: str) -> GpuProfile:
    """Return the profile that a name or alias means, or that a ``.toml`` file holds.

    A name that is not bundled may be that of a calibration in ``CALIBRATIONS_FOLDER``.
    Case, separators and the vendor's name do not matter. A file has the keys of an entry
    of the bundled ``gpus.toml``, at its top or as its one ``[[gpu]]``.

    Raises:
        UnknownNameError: No profile has this name.
        ProfileError: The file cannot be read, or an entry of it cannot be used.
    """
    if name.strip().lower().endswith(".toml"):
        return gpu_in_file(Path(name.strip()), _named)
    return _named(name)


def gpu_names() -> tuple[str, ...]:
    """Names of all profiles, in the order of the data file, the CPU last."""
    return (*dict.fromkeys(gpu.name for gpu in _by_alias().values()), HOST)


def is_bundled(name: str) -> bool:
    """Whether a bundled profile has this name, or alias."""
    return _key(name) == _key(HOST) or _key(name) in _by_alias()


def calibration_names() -> tuple[str, ...]:
    """Names of the calibrations in ``CALIBRATIONS_FOLDER``."""
    return tuple(path.stem for path in _calibrations())


def known_gpus() -> tuple[str, ...]:
    """Names of the GPUs whose step times were compared with published ones."""
    compared = (gpu for gpu in _by_alias().values() if gpu.known_error is not None)
    return tuple(dict.fromkeys(gpu.name for gpu in compared))


def _named(name: str) -> GpuProfile:
    key = _key(name)
    if key == _key(HOST):
        return _host()
    if key in _by_alias():
        return _by_alias()[key]
    for path in _calibrations():
        if _key(path.stem) == key:
            return gpu_in_file(path, _named)
    remedy = f"give a .toml file, or go to the folder whose {CALIBRATIONS_FOLDER} has it"
    known = (*gpu_names(), *calibration_names())
    raise UnknownNameError("GPU", name, known, remedy)


def _calibrations() -> list[Path]:
    """Files of calibrations, by name; where the folder cannot be read there are none."""
    try:
        return sorted(CALIBRATIONS_FOLDER.glob("*.toml"), key=lambda path: path.stem)
    except OSError:
        return []


def _key(name: str) -> str:
    """Fold case, separators and the vendor, so that aliases need not repeat them."""
    folded = re.sub(r"[\s_-]+", "-", name.strip().lower())
    return re.sub(r"^((nvidia|tesla|geforce|amd|instinct)-)+", "", folded)


@cache
def _by_alias() -> dict[str, GpuProfile]:
    """The bundled profiles; entries lend only to those below them."""
    kernels = _bundled("kernels.toml")
    found: dict[str, GpuProfile] = {}

    def lend(name: str) -> GpuProfile:
        return found[_key(name)]

    for table in _bundled("gpus.toml")["gpu"]:
        own = kernels.get(table["name"])
        has_own = {} if own is None else {"kernels": own}
        gpu = Entry("gpus.toml", {**table, **has_own}).profile(lend)
        found.update((_key(name), gpu) for name in (gpu.name, *gpu.aliases))
    return found


def _bundled(name: str) -> dict[str, Any]:
    text = (files("profiles") / "data" / name).read_text(encoding="utf-8")
    return tomllib.loads(text)


def _host() -> GpuProfile:
    """The machine as vLLM's CPU backend sees it.

    Source: vLLM 0.32.0 ``v1/worker/cpu_worker.py``: a share of the memory of one NUMA
    node, less what the process holds; here all nodes are taken together.
    """
    try:
        num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError) as error:
        raise ProfileError(
            "this system does not tell how much memory it has; the CPU backend shares it"
            " out; give a .toml file with memory_gib as --gpu"
        ) from error
    return GpuProfile(
        name=HOST,
        aliases=(),
        memory_gib=num_bytes / GIB,
        compute_capability=None,
        rates=None,
        known_error=None,
        sources={"memory_gib": "os.sysconf of this machine"},
    )
