"""Tables of GPUs in TOML, bundled or a user's: read, checked, and what to do if wrong."""

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from profiles.engine_overhead import EngineOverhead
from profiles.errors import ProfileError
from profiles.gpu_profile import Calibration, GpuProfile, KnownError, Rates
from profiles.kernels import Kernels, read_kernels

Lender = Callable[[str], GpuProfile]
"""Finds the profile that another entry borrows from."""

RATES = (
    "memory_bandwidth_gb_per_s",
    "bf16_tflop_per_s",
    "pcie_gb_per_s",
)
"""Rates that each entry has of its own."""

MADE_FOR = (
    "model",
    "tensor_parallel_size",
    "policy",
    "vllm_version",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "async_scheduling",
    "enforce_eager",
)
"""What a calibration says of the engine that was measured; older files say less."""

OVERHEAD = {field.name for field in fields(EngineOverhead)} - {"source"}

KEYS = {
    "name",
    "aliases",
    "memory_gib",
    "compute_capability",
    "is_unified",
    *RATES,
    "fp8_tflop_per_s",
    "nvlink_gb_per_s",
    "kernels",
    "kernels_of",
    "calibration",
    "evidence",
    "known_error",
    "sources",
}


def gpu_in_file(path: Path, lend: Lender) -> GpuProfile:
    """The GPU of a user's file, its keys at the top or in its one ``[[gpu]]``.

    Raises:
        ProfileError: It cannot be read, or a key of it cannot be used.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(
            f"{path} cannot be read: {error.strerror}; --gpu takes a name or a .toml file"
        ) from error
    except ValueError as error:
        raise ProfileError(f"{path} is no TOML: {error}; correct it there") from error
    return Entry(str(path), _table_in(path, data)).profile(lend)


def _table_in(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    if set(data) != {"gpu"}:
        return data
    found = data["gpu"]
    tables = found if isinstance(found, list) else [found]
    if len(tables) != 1:
        raise ProfileError(
            f"{path}: [[gpu]] is there {len(tables)} times; a file holds one GPU;"
            " give each a file of its own"
        )
    table = tables[0]
    if not isinstance(table, dict):
        raise ProfileError(f"{path}: gpu is {table!r}, not a table; write [[gpu]]")
    return table


@dataclass(frozen=True, slots=True)
class Entry:
    """The table of one GPU, and the file it is in, so that messages lead there."""

    file: str
    table: Mapping[str, Any]

    def profile(self, lend: Lender) -> GpuProfile:
        """The profile that the table describes.

        Raises:
            ProfileError: A key is missing, not known, or has no usable value.
        """
        self._check_keys()
        rates, notes = self._rates(lend)
        return GpuProfile(
            name=self._text("name"),
            aliases=tuple(self._texts("aliases")),
            memory_gib=self._positive("memory_gib"),
            compute_capability=self._compute_capability(),
            rates=rates,
            known_error=self._known_error(),
            sources=self._sources(notes),
            is_unified=self._is_unified(),
            calibration=self._calibration(),
        )

    def _check_keys(self) -> None:
        for key in self.table:
            if key not in KEYS:
                known = ", ".join(sorted(KEYS))
                raise self._error(key, "is not known", f"the keys are {known}")

    def _rates(self, lend: Lender) -> tuple[Rates, dict[str, str]]:
        """The rates, and where those came from that the table does not hold."""
        kernels, notes = self._kernels(lend)
        figures = {key: self._positive(key) for key in RATES}
        if "nvlink_gb_per_s" in self.table:
            figures["nvlink_gb_per_s"] = self._positive("nvlink_gb_per_s")
        else:
            figures["nvlink_gb_per_s"] = figures["pcie_gb_per_s"]
            notes["nvlink_gb_per_s"] = "no NVLink is given: the rate of PCIe"
        if "fp8_tflop_per_s" in self.table:
            figures["fp8_tflop_per_s"] = self._positive("fp8_tflop_per_s")
        return Rates(**figures, kernels=kernels), notes

    def _kernels(self, lend: Lender) -> tuple[Kernels, dict[str, str]]:
        """Its own kernels, and of another GPU what these lack."""
        own = self.table.get("kernels")
        if own is not None and not isinstance(own, dict):
            raise self._error("kernels", f"is {own!r}", "give a table of kernels")
        if own is None and "kernels_of" not in self.table:
            raise self._error(
                "kernels",
                "is missing",
                'add kernels_of = "H100-80GB" to take those of that GPU',
            )
        try:
            if "kernels_of" not in self.table:
                kernels = read_kernels(own or {})
                return kernels, {"kernels": kernels.source or f"given in {self.file}"}
            name, lent = self._lending(lend)
            kernels = lent if own is None else read_kernels(own, lent)
        except ProfileError as error:
            raise ProfileError(f"{self.file}: {error}") from error
        note = f"of {name}, the nearest architecture, for those that nobody measured here"
        source = own.get("source", f"given in {self.file}") if own else None
        return kernels, {"kernels": f"{source}; {note}" if source else note}

    def _lending(self, lend: Lender) -> tuple[str, Kernels]:
        name = self._text("kernels_of")
        try:
            other = lend(name)
            return other.name, other.known_rates.kernels
        except ProfileError as error:
            raise self._error("kernels_of", f"is {name!r}", str(error)) from error

    def _positive(self, key: str) -> float:
        value = self._value(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise self._error(key, f"is {value!r}", "give a number above 0")
        return float(value)

    def _whole(self, key: str) -> int:
        value = self._value(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._error(key, f"is {value!r}", "give a whole number, 0 or more")
        return value

    def _text(self, key: str) -> str:
        value = self._value(key)
        if not isinstance(value, str) or not value.strip():
            raise self._error(key, f"is {value!r}", "give a text in quotes")
        return value

    def _texts(self, key: str) -> list[str]:
        values = self.table.get(key, [])
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise self._error(key, f"is {values!r}", "give a list of texts in quotes")
        return values

    def _compute_capability(self) -> tuple[int, int] | None:
        value = self.table.get("compute_capability")
        match value:
            case None:
                return None
            case [int(major), int(minor)]:
                return major, minor
        raise self._error("compute_capability", f"is {value!r}", "give one as [9, 0]")

    def _is_unified(self) -> bool:
        value = self.table.get("is_unified", False)
        if not isinstance(value, bool):
            raise self._error("is_unified", f"is {value!r}", "give true or false")
        return value

    def _known_error(self) -> KnownError | None:
        value = self.table.get("known_error")
        match value:
            case None:
                return None
            case {
                "fraction": float(fraction),
                "num_rows": int(rows),
                "against": str(who),
                **others,
            } if not set(others) - {"ttft_fraction", "types"}:
                ttft = others.get("ttft_fraction")
                types = others.get("types", ["bfloat16, KV bfloat16"])
                if isinstance(ttft, float | None) and isinstance(types, list):
                    return KnownError(fraction, rows, who, ttft, tuple(types))
        raise self._error(
            "known_error",
            f"is {value!r}",
            'give { fraction = 0.07, num_rows = 20, against = "which rows" }',
        )

    def _calibration(self) -> Calibration | None:
        """What ``blockbench calibrate`` wrote; ``evidence`` is for people."""
        value = self.table.get("calibration")
        if value is None:
            return None
        overhead: Any = value.get("overhead", {}) if isinstance(value, dict) else None
        is_usable = isinstance(overhead, dict) and all(
            name in OVERHEAD and isinstance(number, int) and number >= 0
            for name, number in overhead.items()
        )
        made_for: Any = value.get("for", {}) if is_usable else None
        is_usable = isinstance(made_for, dict) and set(made_for) <= set(MADE_FOR)
        if not is_usable or not isinstance(value.get("source"), str):
            raise self._error(
                "calibration",
                f"is {value!r}",
                "it needs a source and a table overhead of whole nanoseconds among"
                f" {', '.join(sorted(OVERHEAD))}; blockbench calibrate writes such files",
            )
        return Calibration(
            source=value["source"], overhead=dict(overhead), made_for=dict(made_for)
        )

    def _sources(self, notes: Mapping[str, str]) -> dict[str, str]:
        """Where each figure is from; those of a user's file, from there."""
        sources = self.table.get("sources", {})
        if not isinstance(sources, dict):
            raise self._error("sources", f"is {sources!r}", "give a table of texts")
        figures = KEYS - {"name", "aliases", "kernels", "kernels_of", "sources"}
        figures -= {"known_error", "calibration", "evidence"}
        given = {key: f"given in {self.file}" for key in self.table if key in figures}
        return {**notes, **given, **{key: str(text) for key, text in sources.items()}}

    def _value(self, key: str) -> Any:
        if key not in self.table:
            raise self._error(key, "is missing", "add it")
        return self.table[key]

    def _error(self, key: str, what_is: str, remedy: str) -> ProfileError:
        return ProfileError(f"{self.file}: {key} {what_is}; {remedy}")
