"""How far replayed latencies are from those of servers that somebody published.

``python benchmarks/fidelity.py latency`` prints it, docs/fidelity.md keeps it.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import NamedTuple

import numpy as np
from fidelity_copies import print_copies
from fidelity_gate import gate
from fidelity_knobs import print_knobs
from published_servers import Published
from tabulate import tabulate

from harness.calibration.fit import fit
from profiles.gpu import KnownError

CLOSED, RATE_8B, RATE_70B = "70B closed loop", "8B at a rate", "70B at a rate"
TRUSTED = (CLOSED, RATE_8B, RATE_70B, "32B closed loop", "8B at a rate, long prompts")
"""Groups whose load is known well enough to say how far step times are off."""

PAIRS_PER_GROUP = 3
SEED = 6


class Limits(NamedTuple):
    """The largest median errors of mean TPOT and mean TTFT that are good enough."""

    tpot: float
    ttft: float


UNCALIBRATED = Limits(tpot=0.12, ttft=0.25)
CALIBRATED = Limits(tpot=0.06, ttft=0.15)
MOST_SATURATION_ERROR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A published row beside its replay.

    Attributes:
        ttft_s: Mean of the replay.
        tpot_s: Mean of the replay.
        req_s: Requests finished in a second of the replay.
    """

    published: Published
    ttft_s: float
    tpot_s: float
    req_s: float

    @property
    def ttft_error(self) -> float:
        """Relative error of mean TTFT."""
        return self.ttft_s / self.published.served.measured_s[0] - 1

    @property
    def tpot_error(self) -> float:
        """Relative error of mean TPOT."""
        return self.tpot_s / self.published.served.measured_s[1] - 1


def compared(rows: Iterable[Published]) -> list[Compared]:
    """Each row replayed, with a count on a terminal."""
    found = []
    for number, row in enumerate(rows, start=1):
        if sys.stderr.isatty():
            print(f"\rreplaying row {number}", end="", file=sys.stderr)
        ttft_s, tpot_s, req_s = row.served.replayed()
        found.append(Compared(published=row, ttft_s=ttft_s, tpot_s=tpot_s, req_s=req_s))
    return found


def latency(rows: Sequence[Published]) -> list[bool]:
    """Print errors of servers, by source and calibrated, of knobs and of copies."""
    found = compared(rows)
    print_groups(found)
    print_known_errors(found)
    gates = [*closed_loop_gates(found), *rate_gates(found)]
    gates += calibrated(rows)
    gates += saturation(found)
    gates += print_knobs(found)
    print()
    gates.append(print_copies(has_rows=False))
    return gates


def print_groups(rows: Sequence[Compared]) -> None:
    """Print medians by source, GPU, types and use; saturated rows are a line apart."""

    def key(row: Compared) -> tuple[str, ...]:
        published = row.published
        load = "saturated" if published.is_saturated else "below"
        use = "fitted" if published.is_fitted else ""
        return published.group, published.gpu, published.types, load, use

    lines = []
    for names, group in groupby(sorted(rows, key=key), key):
        lines.append([*names, *errors(list(group))])
    headers = ["rows", "GPU", "types", "load", "used", "n"]
    headers += ["TPOT", "bias", "90 %", "TTFT", "bias", "90 %"]
    print(f"## Latency of published servers ({len(rows)} rows)\n")
    print(tabulate(lines, headers, "github", disable_numparse=True), end="\n\n")


def errors(rows: Sequence[Compared]) -> list[str]:
    """Number, then median, bias and 90 % point of the errors of TPOT and TTFT.

    TTFT is left out where the load that a source describes has another one.
    """
    line = [str(len(rows))]
    for name in ("tpot_error", "ttft_error"):
        if name == "ttft_error" and not rows[0].published.has_ttft:
            return [*line, "-", "-", "-"]
        found = np.array([getattr(row, name) for row in rows])
        line.append(f"{np.median(np.abs(found)):.1%}")
        line.append(f"{np.median(found):+.1%}")
        line.append(f"{np.quantile(np.abs(found), 0.9):.1%}")
    return line


def closed_loop_gates(rows: Sequence[Compared]) -> list[bool]:
    """Whether 70B fp8 on H100 and on H200 is met, on the rows that no fit has seen."""
    return [
        passed
        for gpu in ("H100-80GB", "H200")
        for passed in limits_met(
            f"70B fp8 closed loop, {gpu}",
            [
                row
                for row in rows
                if row.published.group == CLOSED and row.published.gpu == gpu
            ],
            UNCALIBRATED,
        )
    ]


def rate_gates(rows: Sequence[Compared]) -> list[bool]:
    """Whether rows at a rate below saturation are met."""
    return [
        passed
        for what, groups in (
            ("8B at a rate, H100-80GB", (RATE_8B,)),
            ("70B at a rate, A100-80GB", (RATE_70B,)),
        )
        for passed in limits_met(
            what, [row for row in rows if row.published.group in groups], UNCALIBRATED
        )
    ]


def limits_met(what: str, rows: Sequence[Compared], limits: Limits) -> list[bool]:
    """Print whether the medians of unsaturated rows that were not fitted are small."""
    held = [
        row for row in rows if not (row.published.is_saturated or row.published.is_fitted)
    ]
    if not held:
        return []
    tpot = median(abs(row.tpot_error) for row in held)
    ttft = median(abs(row.ttft_error) for row in held)
    said = f"{what}, {len(held)} rows not fitted"
    return [
        gate(f"{said}: TPOT", tpot, limits.tpot, is_most=True),
        gate(f"{said}: TTFT", ttft, limits.ttft, is_most=True),
    ]


def calibrated(rows: Sequence[Published]) -> list[bool]:
    """Calibrate on two rows of a model, GPU and TP; print the errors of the others."""
    print("\n## Calibrated on two rows\n")
    lines, gates = [], []
    for gpu in ("H100-80GB", "H200"):
        of_gpu: list[tuple[float, float]] = []
        for size, group in alike(rows, gpu):
            found = [errors for pair in pairs(group) for errors in after(pair, group)]
            of_gpu += found
            lines.append([gpu, size, len(group), len(found), *medians(found)])
        if of_gpu:
            tpot, ttft = (median(column) for column in zip(*of_gpu, strict=True))
            gates.append((f"{gpu}, {len(of_gpu)} rows left out", tpot, ttft))
    headers = ["GPU", "TP", "rows", "errors", "TPOT", "TTFT"]
    print(tabulate(lines, headers, "github", disable_numparse=True), end="\n\n")
    return [
        passed
        for said, tpot, ttft in gates
        for passed in (
            gate(f"calibrated, {said}: TPOT", tpot, CALIBRATED.tpot, is_most=True),
            gate(f"calibrated, {said}: TTFT", ttft, CALIBRATED.ttft, is_most=True),
        )
    ]


def alike(rows: Sequence[Published], gpu: str) -> Iterable[tuple[int, list[Published]]]:
    """Unsaturated closed-loop rows of a GPU, by TP, where there are three or more."""
    held = [r for r in rows if r.group == CLOSED and r.gpu == gpu and not r.is_saturated]
    for size in sorted({row.tensor_parallel_size for row in held}):
        group = [row for row in held if row.tensor_parallel_size == size]
        if len(group) > 2:
            yield size, group


def pairs(group: Sequence[Published]) -> list[tuple[Published, Published]]:
    """Some pairs of rows, the same in every run."""
    draw = np.random.default_rng(SEED)
    drawn = (draw.choice(len(group), 2, replace=False) for _ in range(PAIRS_PER_GROUP))
    return [(group[int(one)], group[int(other)]) for one, other in drawn]


def after(
    pair: tuple[Published, Published], group: Sequence[Published]
) -> list[tuple[float, float]]:
    """Absolute errors of TPOT and TTFT of the rows that a calibration had not seen."""
    moves = fit([row.served for row in pair]).moves
    found = []
    for row in group:
        if row not in pair:
            ttft_s, tpot_s = row.served.predicted_s(moves)
            measured = row.served.measured_s
            found.append((abs(tpot_s / measured[1] - 1), abs(ttft_s / measured[0] - 1)))
    return found


def medians(found: Sequence[tuple[float, float]]) -> list[str]:
    """The two medians, as text."""
    return [f"{median(column):.1%}" for column in zip(*found, strict=True)]


def saturation(rows: Sequence[Compared]) -> list[bool]:
    """The most requests a second of each server whose load was raised past it.

    Where hits of a prefix cache were not published it is printed and not judged.
    """
    print("\n## Saturation: most requests a second of one engine\n")
    lines, found = [], []
    for name, group in servers_at_a_rate(rows):
        published = max(row.published.req_s for row in group)
        ours = max(row.req_s for row in group)
        is_known = group[0].published.row["prefix_caching"] == "off"
        error = ours / published - 1
        lines.append([name, len(group), f"{published:.4g}", f"{ours:.4g}"])
        lines[-1] += [f"{error:+.1%}", "" if is_known else "hits not published"]
        if is_known:
            found.append(abs(error))
    headers = ["server", "saturated rows", "published", "ours", "error", ""]
    print(tabulate(lines, headers, "github", disable_numparse=True), end="\n\n")
    if not found:
        return []
    said = f"saturation, {len(found)} servers"
    return [gate(said, median(found), MOST_SATURATION_ERROR, is_most=True)]


def servers_at_a_rate(
    rows: Sequence[Compared],
) -> Iterable[tuple[str, list[Compared]]]:
    """Saturated rows of one server each; their sources name the stage."""

    def server(row: Compared) -> str:
        source = re.sub(r" stage .*|/LMBench.*", "", row.published.row["source"])
        return source.removeprefix("inference-perf demos/").replace(
            "kubecon-na-2025/", ""
        )

    held = [
        row
        for row in rows
        if row.published.is_saturated and row.published.row["request_rate"] != "inf"
    ]
    for name, group in groupby(sorted(held, key=server), server):
        yield name, list(group)


def print_known_errors(rows: Sequence[Compared]) -> None:
    """Print, by GPU, the errors of all rows that no fit has seen: those of gpus.toml."""
    lines = []
    for gpu in sorted({row.published.gpu for row in rows}):
        error = known_error(rows, gpu)
        if error is not None:
            of_both = f"{error.fraction:.1%}", f"{error.ttft_fraction or 0:.1%}"
            lines.append([gpu, error.num_rows, *of_both, "; ".join(error.types)])
    headers = ["GPU", "rows", "TPOT", "TTFT", "types"]
    print("\n## Known errors: rows below saturation that no fit has seen\n")
    print(tabulate(lines, headers, "github", disable_numparse=True), end="\n\n")


def known_error(rows: Sequence[Compared], gpu: str) -> KnownError | None:
    """Medians of a GPU's rows; of TTFT, those of loads that are known."""
    held = [
        row
        for row in rows
        if row.published.gpu == gpu
        and row.published.group in TRUSTED
        and not (row.published.is_saturated or row.published.is_fitted)
    ]
    if not held:
        return None
    with_ttft = [row for row in held if row.published.has_ttft]
    types = {row.published.served.config.model_profile().types for row in held}
    return KnownError(
        fraction=median(abs(row.tpot_error) for row in held),
        num_rows=len(held),
        against="e2e.csv",
        ttft_fraction=median(abs(row.ttft_error) for row in with_ttft),
        types=tuple(sorted(types)),
    )
