"""What a transformer's kernels cost, condensed to a few coefficients for each GPU.

Fits the forms of ``profiles.kernels`` to half of the shapes in kernel_table.py, prints
the coefficients, and to stderr the errors on the other half:
``python benchmarks/condense_ops.py > profiles/data/kernels.toml``.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from kernel_table import MEASURED, WEIGHT_BYTES, Array, Gpu, Table, chips
from scipy.optimize import least_squares  # type: ignore[import-untyped]
from tabulate import tabulate

from profiles.kernels import (
    ARITHMETIC,
    AllReduce,
    DecodeAttention,
    Experts,
    Gemm,
    PrefillAttention,
)

HEADER = """\
# Coefficients of kernels on GPUs, as benchmarks/condense_ops.py prints them. Latencies of
# kernels: NVIDIA's aiconfigurator (Apache-2.0). Half of the shapes were fitted;
# docs/step_time.md has the errors on the other half. Latencies in seconds, efficiencies
# over datasheet rates."""
SOURCE = "NVIDIA aiconfigurator, kernels of vLLM"
ERRORS = "median", "90 %", "bias"
MOST_IMPOSSIBLE = 0.2
"""A table with a larger share of rows above the datasheet's peak is not used."""


def gemm_s(form: Gemm, table: Table) -> Array:
    """Seconds of each row."""
    dtype = table.dtype
    return np.asarray(
        form.seconds(
            table.chip, m=table["m"], n=table["n"], k=table["k"],
            weight_bytes=WEIGHT_BYTES[dtype], arithmetic=ARITHMETIC[dtype],
        )
    )  # fmt: skip


def experts_s(form: Experts, table: Table) -> Array:
    """Seconds of each row."""
    return np.asarray(
        form.seconds(
            table.chip, num_tokens=table["num_tokens"], hidden=table["hidden"],
            inter=table["inter"], num_experts=table["num_experts"], topk=table["topk"],
            weight_bytes=WEIGHT_BYTES[table.dtype], arithmetic=ARITHMETIC[table.dtype],
        )
    )  # fmt: skip


def generation_s(form: DecodeAttention, table: Table) -> Array:
    """Seconds of each row, of one layer."""
    pairs = table["batch"] * table["kv_heads"]
    read_s = table["kv"] * form.seconds_per_byte(table.chip, pairs)
    return np.asarray(form.fixed_s(pairs) + read_s)


def context_s(form: PrefillAttention, table: Table) -> Array:
    """Seconds of each row, of one layer."""
    vectors = 2 * table["heads"] + 2 * table["kv_heads"]
    moved = table["tokens"] * vectors * table["head_dim"] * 2
    moving_s = form.moving_s(table.chip, moved)
    serial_s = form.serial_s_per_token * table["longest"]
    arithmetic_s = form.arithmetic_s(table.chip, table["flop"])
    return np.asarray(form.latency_s + arithmetic_s + moving_s + serial_s)


def all_reduce_s(form: AllReduce, table: Table) -> Array:
    """Seconds of each row."""
    rows = zip(table["gpus"], table["bytes"], strict=True)
    return np.array([form.seconds(table.chip, int(n), size) for n, size in rows])


class Kind(NamedTuple):
    """A kind of kernel: its form, its seconds, and start and bounds of coefficients."""

    form: type[Any]
    seconds: Callable[[Any, Table], Array]
    bounds: dict[str, tuple[float, float, float]]


LATENCY = (1e-5, 1e-7, 3e-4)
SHARE = (0.7, 0.03, 1.3)
BLEND = (2.0, 1.0, 8.0)
KINDS = {
    "gemm": Kind(Gemm, gemm_s, {
        "latency_s": LATENCY, "wave_s_per_k": (1e-10, 1e-13, 1e-8),
        "memory_efficiency": SHARE, "compute_efficiency": SHARE,
        "activation_efficiency": (0.7, 0.03, 100.0), "sharpness": BLEND,
    }),
    "experts": Kind(Experts, experts_s, {
        "latency_s": LATENCY, "memory_efficiency": SHARE, "compute_efficiency": SHARE,
        "activation_efficiency": (0.7, 0.03, 100.0), "sharpness": BLEND,
    }),
    "generation": Kind(DecodeAttention, generation_s, {
        "latency_s": LATENCY, "pair_s": (1e-8, 1e-12, 1e-6),
        "memory_efficiency": SHARE, "split": (1.0, 1e-3, 500.0),
    }),
    "context": Kind(PrefillAttention, context_s, {
        "latency_s": LATENCY, "compute_efficiency": SHARE,
        "memory_efficiency": SHARE, "serial_s_per_token": (1e-9, 1e-12, 1e-7),
    }),
    "all_reduce": Kind(AllReduce, all_reduce_s, {
        "latency_s": (4e-6, 1e-7, 1e-4), "latency_per_gpu_s": (1e-7, 1e-9, 5e-6),
        "one_shot_efficiency": SHARE, "two_shot_latency_s": (4e-6, 1e-8, 1e-4),
        "two_shot_efficiency": SHARE, "nccl_latency_s": (2e-5, 1e-7, 2e-4),
        "nccl_efficiency": SHARE,
    }),
}  # fmt: skip


def fit(kind: Kind, table: Table) -> dict[str, float]:
    """Coefficients with the least soft-L1 error of log seconds."""
    names, wanted = list(kind.bounds), np.log(table["seconds"])
    start, low, high = np.log(np.array(list(kind.bounds.values()))).T

    def residuals(logs: Array) -> Array:
        form = kind.form(**dict(zip(names, np.exp(logs), strict=True)))
        return np.asarray(np.log(kind.seconds(form, table)) - wanted)

    best = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1
    )
    values = (float(f"{value:.4g}") for value in np.exp(best.x))
    return dict(zip(names, values, strict=True))


def errors(seconds: Array, wanted: Array) -> list[str]:
    """Median and 90 % point of the absolute relative error, and the median error."""
    if not len(wanted):
        return ["-"] * len(ERRORS)
    error = seconds / wanted - 1
    median, most = np.quantile(np.abs(error), [0.5, 0.9])
    return [f"{median:.1%}", f"{most:.1%}", f"{np.median(error):+.1%}"]


def condense(kind: Kind, table: Table) -> tuple[dict[str, float], list[str]]:
    """Coefficients of half of the shapes, and counts and errors of the other half."""
    is_impossible = table.rows["is_impossible"]
    kept = table.where(~is_impossible)
    is_fitted = pd.util.hash_array(kept.rows["shape"].to_numpy()) % 2 == 0
    found = fit(kind, kept.where(is_fitted))
    line = [f"{len(kept.rows):,}", f"{is_impossible.sum():,}"]
    held = kept.where(~is_fitted)
    for part in (held, held.where(held.rows["is_served"])):
        line += errors(kind.seconds(kind.form(**found), part), part["seconds"])
    return found, line


def is_usable(table: Table) -> bool:
    """Whether there are rows enough, and few that no chip could have reached."""
    rows = table.rows
    return len(rows) > 20 and float(rows["is_impossible"].mean()) < MOST_IMPOSSIBLE


def main() -> None:
    """Fit every GPU; print coefficients, and held-out errors to stderr."""
    lines = []
    print(HEADER)
    for name, chip in chips().items():
        print(f'\n["{name}"]\nsource = "{SOURCE} {MEASURED[name].version}"')
        for kind, key, table in Gpu(name, chip).tables():
            if is_usable(table):
                found, line = condense(KINDS[kind], table)
                values = ", ".join(f"{key} = {value:g}" for key, value in found.items())
                print(f"{key} = {{ {values} }}")
                lines.append([name, key, *line])
    headers = ["GPU", "kernels", "rows", "impossible", *ERRORS]
    headers += [f"served: {error}" for error in ERRORS]
    print(tabulate(lines, headers, "pipe", disable_numparse=True), file=sys.stderr)


if __name__ == "__main__":
    main()
