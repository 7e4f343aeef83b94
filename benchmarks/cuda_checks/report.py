"""What a person can send: one JSON document of the machine and all checks."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cuda_checks.plan import Result, Verdict

SCHEMA_VERSION = 1
KIND = "cuda_check"
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


def document(
    results: Sequence[Result],
    *,
    device: str,
    machine: dict[str, Any],
    wall_s: float,
    limit_s: float,
) -> dict[str, Any]:
    """The report; ``vllm_version`` and copies over PCIe are those of ``machine``."""
    by_name = {result.name: result.figures for result in results}
    seen = by_name.get("machine", {})
    rates = ("to_gpu_bytes_per_s", "from_gpu_bytes_per_s")
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "ok": not any(result.is_bad for result in results),
        "blockbench_version": _version(),
        "vllm_version": seen.get("vllm_version") or _version_in(by_name),
        "device": device,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "pcie": {name: seen.get(name) for name in rates},
        "wall_s": wall_s,
        "limit_s": limit_s,
        "checks": [asdict(result) for result in results],
    }


def _version_in(figures: dict[str, Any]) -> str | None:
    found = figures.get("start", {}).get("facts", {}).get("vllm_version")
    return None if found is None else str(found)


def _version() -> str | None:
    try:
        return version("blockbench")
    except PackageNotFoundError:
        return None


def write_report(path: Path, report: dict[str, Any], clean: Callable[[str], str]) -> None:
    """Write the report without names of folders or addresses.

    Raises:
        OSError: It cannot be written.
    """
    whole = json.dumps(_cleaned(report, clean), indent=1, allow_nan=False, default=str)
    path.write_text(whole + "\n", encoding="utf-8")


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    """The same with every text cleaned, and figures that JSON does not have as null."""
    if isinstance(value, str):
        return _ADDRESS.sub("ADDRESS", clean(value))
    if isinstance(value, dict):
        return {str(name): _cleaned(part, clean) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(part, clean) for part in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value


MARKS = {
    Verdict.PASSED: "ok     ",
    Verdict.FAILED: "FAILED ",
    Verdict.TIMED_OUT: "TIMEOUT",
    Verdict.SKIPPED: "skipped",
}


def line_of(result: Result) -> str:
    """A result for people."""
    what = result.reason or result.title
    return f"{MARKS[result.verdict]} {result.name:<9} {result.seconds:5.0f} s  {what}"


_PARTS: dict[str, tuple[type, ...]] = {
    "schema_version": (int,),
    "kind": (str,),
    "ok": (bool,),
    "blockbench_version": (str, type(None)),
    "vllm_version": (str, type(None)),
    "device": (str,),
    "created_at": (str,),
    "machine": (dict,),
    "pcie": (dict,),
    "wall_s": (float,),
    "limit_s": (float,),
    "checks": (list,),
}
_OF_A_CHECK: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "title": (str,),
    "verdict": (str,),
    "reason": (str,),
    "seconds": (float,),
    "limit_s": (float,),
    "figures": (dict,),
    "traceback": (str,),
}


def problems_of(report: Any) -> list[str]:
    """What is wrong with a report that somebody sent; nothing where it can be read."""
    found = _problems(report, _PARTS, "the report")
    if found:
        return found
    if (report["kind"], report["schema_version"]) != (KIND, SCHEMA_VERSION):
        return [f"{report['kind']} {report['schema_version']} is no {KIND}"]
    for number, check in enumerate(report["checks"]):
        found += _problems(check, _OF_A_CHECK, f"check {number}")
        if not found and check["verdict"] not in {verdict.value for verdict in Verdict}:
            found.append(f"check {number}: verdict {check['verdict']!r}")
    return found


def _problems(value: Any, parts: dict[str, tuple[type, ...]], what: str) -> list[str]:
    if not isinstance(value, dict) or set(value) != set(parts):
        return [f"{what} has not these parts: {', '.join(parts)}"]
    return [
        f"{what}: {name} is {value[name]!r}"
        for name, types in parts.items()
        if type(value[name]) not in types
    ]
