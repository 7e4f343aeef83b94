"""Tables of GPUs in TOML, bundled or a user's: read, checked, and what to do if wrong."""

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import ProfileError
from profiles.gpu_profile import GpuProfile, KnownError, Rates

Lender = Callable[[str], GpuProfile]
"""Finds the profile that another entry borrows from."""

LENT = (
    "copy_overhead_ns",
    "memory_efficiency",
    "compute_efficiency",
    "attention_memory_efficiency",
    "attention_compute_efficiency",
    "attention_latency_ns",
    "nvlink_efficiency",
    "all_reduce_latency_ns",
)
"""What ``efficiencies_of`` takes from another GPU."""

MEASURED = ("memory_bandwidth_gb_per_s", "bf16_tflop_per_s", "pcie_gb_per_s")
"""Rates that each entry has of its own."""

KEYS = {
    "name",
    "aliases",
    "memory_gib",
    "compute_capability",
    "is_unified",
    *MEASURED,
    "fp8_tflop_per_s",
    "nvlink_gb_per_s",
    *LENT,
    "efficiencies_of",
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
        )

    def _check_keys(self) -> None:
        for key in self.table:
            if key not in KEYS:
                known = ", ".join(sorted(KEYS))
                raise self._error(key, "is not known", f"the keys are {known}")

    def _rates(self, lend: Lender) -> tuple[Rates, dict[str, str]]:
        """The rates, and where those came from that the table does not hold."""
        notes: dict[str, str] = {}
        lent: dict[str, Any] = {}
        if "efficiencies_of" in self.table:
            name, rates = self._lending(lend)
            lent = {key: getattr(rates, key) for key in LENT if key not in self.table}
            note = f"nobody measured it: that of {name}, the nearest architecture"
            notes = dict.fromkeys(lent, note)
        figures: dict[str, Any] = {
            key: self._rate(key) for key in (*MEASURED, *LENT) if key not in lent
        }
        if "nvlink_gb_per_s" in self.table:
            figures["nvlink_gb_per_s"] = self._positive("nvlink_gb_per_s")
        else:
            figures["nvlink_gb_per_s"] = figures["pcie_gb_per_s"]
            notes["nvlink_gb_per_s"] = "no NVLink is given: the rate of PCIe"
        if "fp8_tflop_per_s" in self.table:
            figures["fp8_tflop_per_s"] = self._positive("fp8_tflop_per_s")
        return Rates(**figures, **lent), notes

    def _lending(self, lend: Lender) -> tuple[str, Rates]:
        name = self._text("efficiencies_of")
        try:
            other = lend(name)
            return other.name, other.known_rates
        except ProfileError as error:
            raise self._error("efficiencies_of", f"is {name!r}", str(error)) from error

    def _rate(self, key: str) -> float | int:
        if key.endswith("_ns"):
            return self._whole(key)
        value = self._positive(key)
        if key.endswith("_efficiency") and value > 1:
            raise self._error(
                key, f"is {value:g}", "it is a share of the rate beside it: at most 1"
            )
        return value

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
            }:
                return KnownError(fraction, rows, who)
        raise self._error(
            "known_error",
            f"is {value!r}",
            'give { fraction = 0.07, num_rows = 20, against = "which rows" }',
        )

    def _sources(self, notes: Mapping[str, str]) -> dict[str, str]:
        """Where each figure is from; those of a user's file, from there."""
        sources = self.table.get("sources", {})
        if not isinstance(sources, dict):
            raise self._error("sources", f"is {sources!r}", "give a table of texts")
        figures = KEYS - {"name", "aliases", "efficiencies_of", "known_error", "sources"}
        given = {key: f"given in {self.file}" for key in self.table if key in figures}
        return {**notes, **given, **{key: str(text) for key, text in sources.items()}}

    def _value(self, key: str) -> Any:
        if key not in self.table:
            remedy = "add it"
            if key in LENT:
                remedy += ', or efficiencies_of = "H100-80GB" to take those of that GPU'
            raise self._error(key, "is missing", remedy)
        return self.table[key]

    def _error(self, key: str, what_is: str, remedy: str) -> ProfileError:
        return ProfileError(f"{self.file}: {key} {what_is}; {remedy}")
