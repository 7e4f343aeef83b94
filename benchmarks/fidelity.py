"""How far our figures are from published ones, row by row.

Run from the repository root::

    .venv/bin/python benchmarks/fidelity.py capacity

Rows are those of ``tests/data/published``. Exits with 1 if a gate fails. Nothing is
fitted here: docs/fidelity.md keeps what it prints, docs/capacity.md says what the
formulas rest on.
"""

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from fidelity_gate import gate
from fidelity_latency import latency
from published_servers import bundled, published_rows, replayable
from tabulate import tabulate

from harness.errors import ConfigError, UsageError
from harness.sizing import Sizer
from profiles.capacity import ESTIMATE_ERROR_GIB, blocks_in
from profiles.errors import ProfileError
from profiles.gpu import load_gpu
from profiles.kv_layout import KvLayout, kv_layout
from profiles.model import ModelProfile, load_model

PUBLISHED = Path(__file__).resolve().parents[1] / "tests" / "data" / "published"

LEAST_IN_INTERVAL = 0.95
LEAST_CPU_EXACT = 0.95
MOST_MEDIAN_ERROR = 0.05

Row = dict[str, str]

BYTES_PER_KV = {"fp8": 1}
"""Of an element; 2 for what is not named."""

NOT_LAYERS_TIMES_HEADS = {
    "vllm-project/vllm#761": "this version stored all 48 attention heads",
}
"""Rows whose cache does not follow from the geometry in them, and why."""

OF_TWO_RANKS = {
    "vllm-project/vllm#13061": "8.69 GiB is one rank's, the tokens are another's",
}
"""Rows whose GiB and blocks are not of the same GPU: left out, and named."""

MODELS = {
    "Llama-3.1-8B class (weights 14.9889 GiB)": "meta-llama/Llama-3.1-8B",
    "8B Llama-3.1 class (weights 14.99 GiB)": "meta-llama/Llama-3.1-8B",
    "facebook/opt-125m (inferred)": "facebook/opt-125m",
    "Granite 3.x 3B-A800M MoE (E=40,N=512)": "ibm-granite/granite-3.1-3b-a800m-instruct",
    "Llama-2-7b-chat": "meta-llama/Llama-2-7b-hf",
    "Llama-2-70B": "meta-llama/Llama-2-70b-hf",
    "TheBloke/CodeLlama-13B-Instruct-fp16": "codellama/CodeLlama-13b-hf",
    "codellama/CodeLlama-13b-Instruct-hf": "codellama/CodeLlama-13b-hf",
}
"""Profiles of models that rows name in their own words."""

GPUS = {
    "H100": "H100-80GB",
    "H100-80G": "H100-80GB",
    "H100 80GB": "H100-80GB",
    "A100 (80 GB by arithmetic)": "A100-80GB",
    "A100 40GB": "A100-40GB",
    "A100-80GB": "A100-80GB",
    "80 GB class": "A100-80GB",
    "A10 24GB": "A10G",
    "L4 24GB": "L4",
    "RTX 4090 24GB": "RTX-4090",
    "B200 (inferred)": "B200",
}

OLDEST_KNOWN = "0.4.3"
"""The oldest version whose options are known; it stands in for those before it."""

FIRST_TRUSTED = (0, 5)
"""Before, a profiling run counted other things (issue 2136: 13 times fewer blocks)."""

FLAGS: dict[str, dict[str, Any]] = {
    "vllm-project/vllm#12126": {"max_num_seqs": 128, "enforce_eager": True},
    "vllm-project/vllm#2509 (mnbt=50000)": {"max_num_batched_tokens": 50_000},
    "vllm-project/vllm#2509 (mnbt=20480)": {"max_num_batched_tokens": 20_480},
    "vllm-project/vllm#33263": {"max_num_seqs": 1},
    "vllm-project/vllm#19996": {"num_draft_layers": 1},
}
"""Flags that stand in a row's notes."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure that was printed, and ours.

    Attributes:
        source: Where the row is from.
        what: Model and GPU, in the row's words.
        printed: Blocks or GiB.
        ours: The same; None where our command gives no figure.
        is_inside: Ours agrees within what the printed digits allow.
        reason: Why the row is outside, where that is known.
        is_old: It is of a version whose memory profiling we do not know.
    """

    source: str
    what: str
    printed: float
    ours: float | None
    is_inside: bool
    reason: str = ""
    is_old: bool = False

    @property
    def error(self) -> float | None:
        """Relative error of ours."""
        return None if self.ours is None else self.ours / self.printed - 1


def read_rows(name: str) -> list[Row]:
    """The rows of a published table."""
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# -- arithmetic: from a given size to blocks ---------------------------------------------


def layout_of(row: Row) -> KvLayout | None:
    """How the cache of a row is cut; None where the row lacks its geometry."""
    if not all(row[name] for name in ("num_layers", "num_kv_heads", "head_dim", "tp")):
        return None
    num_layers, num_kv_heads = int(row["num_layers"]), int(row["num_kv_heads"])
    head_dim, tp = int(row["head_dim"]), int(row["tp"])
    if head_dim == 576:  # an MLA latent
        return None
    any_model = load_model("meta-llama/Llama-3.1-8B")
    model = replace(
        any_model,
        num_layers=num_layers,
        num_attention_heads=max(num_kv_heads, tp),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        bytes_per_kv=BYTES_PER_KV.get(row["kv_dtype"], 2),
        layer_windows=(None,) * num_layers,
    )
    return kv_layout(
        model, block_size=int(row["block_size"] or 16), tensor_parallel_size=tp
    )


def compare_gpu_blocks(rows: Sequence[Row]) -> Iterator[Compared]:
    """Printed KV GiB to blocks, inside what its digits allow."""
    for row in rows:
        layout, gib = layout_of(row), row["kv_gib"]
        tokens = float(row["kv_tokens"] or 0)
        if layout is None or not gib or not (row["num_gpu_blocks"] or tokens):
            continue
        if row["source"] in OF_TWO_RANKS:
            continue
        printed = float(row["num_gpu_blocks"] or tokens / layout.block_size)
        half_digit = 0.5 * 10.0 ** -len(gib.partition(".")[2])
        fewest, ours, most = (
            blocks_in(float(gib) + play, layout.block_bytes)
            for play in (-half_digit, 0.0, half_digit)
        )
        yield Compared(
            row["source"],
            f"{row['model']}, {gib} GiB",
            printed,
            ours,
            fewest <= printed <= most,
            NOT_LAYERS_TIMES_HEADS.get(row["source"], ""),
        )


def compare_cpu_blocks(rows: Sequence[Row]) -> Iterator[Compared]:
    """Swap GiB to CPU blocks, exactly."""
    for row in rows:
        layout = layout_of(row)
        if layout is None or not row["swap_space_gib"] or not row["num_cpu_blocks"]:
            continue
        printed = int(row["num_cpu_blocks"])
        ours = blocks_in(float(row["swap_space_gib"]), layout.block_bytes)
        reason = NOT_LAYERS_TIMES_HEADS.get(row["source"], "")
        what = f"{row['model']}, {row['swap_space_gib']} GiB"
        yield Compared(row["source"], what, printed, ours, ours == printed, reason)


# -- physics: from flags alone to the KV cache -------------------------------------------


def compare_kv_cache(rows: Sequence[Row]) -> Iterator[Compared]:
    """Flags alone to KV GiB, for rows that name model, GPU, utilization and version."""
    for row in rows:
        model, gpu = model_of(row), gpu_of(row)
        if model is None or gpu is None or not row["gpu_memory_utilization"]:
            continue
        printed = printed_gib(row, model)
        if printed is None:
            continue
        try:
            ours = size(row, model.name, gpu)
            reason = ""
        except (ProfileError, ConfigError, UsageError) as error:
            ours, reason = None, str(error)
        what = f"{row['model']}, {row['gpu']}, {row['vllm_version']}"
        is_old = version_in(row["vllm_version"]) < FIRST_TRUSTED
        yield Compared(row["source"], what, printed, ours, True, reason, is_old)


def model_of(row: Row) -> ModelProfile | None:
    """The profile of a row's model, if there is one."""
    try:
        return load_model(MODELS.get(row["model"], row["model"]))
    except ProfileError:
        return None


def gpu_of(row: Row) -> str | None:
    """The name of a row's GPU, if there is a profile of it."""
    name = GPUS.get(row["gpu"], row["gpu"])
    try:
        return load_gpu(name).name
    except ProfileError:
        return None


def printed_gib(row: Row, model: ModelProfile) -> float | None:
    """KV GiB of a rank as printed, or as its blocks or tokens say."""
    if row["kv_gib"]:
        return float(row["kv_gib"])
    layout = kv_layout(
        model,
        block_size=int(row["block_size"] or 16),
        tensor_parallel_size=int(row["tp"] or 1),
        num_draft_layers=FLAGS.get(row["source"], {}).get("num_draft_layers", 0),
    )
    num_blocks = float(row["num_gpu_blocks"] or 0)
    num_blocks = num_blocks or float(row["kv_tokens"] or 0) / layout.block_size
    return num_blocks * layout.block_bytes / 2**30 if num_blocks > 0 else None


def size(row: Row, model: str, gpu: str) -> float:
    """KV GiB of a rank by our estimate."""
    policy, version = engine_of(row["vllm_version"])
    sizer = Sizer(model=model, gpu=gpu, policy=policy, vllm_version=version)
    memory = row["gpu_mem_gib"]
    if "." in memory:  # as printed, not as sold
        sizer.gpu = replace(sizer.gpu, memory_gib=float(memory))
    knobs: dict[str, Any] = {
        "tensor_parallel_size": int(row["tp"] or 1),
        "gpu_memory_utilization": float(row["gpu_memory_utilization"]),
        "block_size": int(row["block_size"] or 16),
        "max_model_len": int(row["max_model_len"]) if row["max_model_len"] else None,
    }
    return sizer.size(**(knobs | FLAGS.get(row["source"], {}))).plan.kv_cache_gib


def engine_of(text: str) -> tuple[str, str]:
    """Policy and version that a row's words mean."""
    found = re.search(r"0\.\d+(\.\d+(\.post\d)?)?", text)
    minor = version_in(text)[1]
    version = found.group() if found and minor >= 5 else OLDEST_KNOWN
    is_v1 = "V1" in text or minor >= 11
    if is_v1 and version_in(version) < (0, 8):
        version = "0.8.0"  # the first that policy v1 covers
    return ("v1" if is_v1 else "v0"), version


def version_in(text: str) -> tuple[int, int]:
    """Major and minor version in a row's words; V1 without a number is of 2025."""
    found = re.search(r"0\.(\d+)", text)
    if found is None:
        return (0, 8) if "V1" in text else (0, 4)
    return 0, int(found[1])


def memory_rows() -> list[Row]:
    """The rows of memory.csv in the columns of kv_ground_truth.csv."""
    columns = read_rows("kv_ground_truth.csv")[0].keys()
    rows = []
    for row in read_rows("memory.csv"):
        renamed = {
            "source": f"{row['source'][:32]} {row['model'].split('/')[-1]}",
            "gpu_memory_utilization": row["gpu_mem_util"],
            "gpu_mem_gib": row["gpu_total_gib"],
            "vllm_version": row["engine"],
            "kv_gib": row["kv_cache_gib"],
        }
        rows.append({name: renamed.get(name, row.get(name, "")) for name in columns})
    return rows


# -- the report --------------------------------------------------------------------------


def capacity() -> bool:
    """Print the three tables; whether every gate is met."""
    rows = read_rows("kv_ground_truth.csv")
    gpu_blocks = list(compare_gpu_blocks(rows))
    cpu_blocks = list(compare_cpu_blocks(rows))
    kv_cache = list(compare_kv_cache([*memory_rows(), *rows]))
    print_table("KV GiB given: GPU blocks", "blocks", gpu_blocks)
    for source, reason in OF_TWO_RANKS.items():
        print(f"Left out: {source}: {reason}.\n")
    print_table("Swap GiB given: CPU blocks", "blocks", cpu_blocks)
    print_table("Flags alone: KV GiB of a GPU", "GiB", kv_cache)
    errors = [abs(row.error) for row in kv_cache if row.error is not None]
    gates = [
        gate("GPU blocks inside", share_inside(gpu_blocks), LEAST_IN_INTERVAL),
        gate("CPU blocks exact", share_inside(cpu_blocks), LEAST_CPU_EXACT),
        gate("median error of KV GiB", median(errors), MOST_MEDIAN_ERROR, is_most=True),
    ]
    print_unfitted(kv_cache)
    return all(gates)


def print_unfitted(rows: Sequence[Compared]) -> None:
    """Print the error on rows that set no constant, and how many the interval covers."""
    others = [row for row in rows if row.error is not None and not is_fitted(row)]
    error = median(abs(row.error or 0.0) for row in others)
    print(f"\nwithout the rows that set a constant: {error:.1%} in {len(others)} rows")
    recent = [row for row in rows if row.ours is not None and not row.is_old]
    low, high = ESTIMATE_ERROR_GIB
    num_inside = sum(low <= row.printed - (row.ours or 0.0) <= high for row in recent)
    print(
        f"inside the interval of the estimate: {num_inside} of {len(recent)} rows of"
        f" vLLM {FIRST_TRUSTED[0]}.{FIRST_TRUSTED[1]} and later"
    )


def is_fitted(row: Compared) -> bool:
    """Whether the row set a constant: those of llm-d-benchmark on H100."""
    return row.source.startswith("llm-d/")


def share_inside(rows: Sequence[Compared]) -> float:
    """Share of the rows that agree."""
    return sum(row.is_inside for row in rows) / len(rows)


def print_table(title: str, unit: str, rows: Sequence[Compared]) -> None:
    """Print all rows of a comparison, in Markdown."""
    cells = [
        [
            row.source.removeprefix("vllm-project/"),
            row.what,
            f"{row.printed:,.6g}",
            "-" if row.ours is None else f"{row.ours:,.6g}",
            "-" if row.error is None else f"{row.error:+.1%}",
            row.reason or ("" if row.is_inside else "outside"),
        ]
        for row in rows
    ]
    headers = ["source", "what", f"printed {unit}", "ours", "error", ""]
    print(f"## {title} ({len(rows)} rows)\n")
    print(tabulate(cells, headers, tablefmt="github", disable_numparse=True), end="\n\n")


def main() -> int:
    """Run the comparison that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["capacity", "latency"])
    parser.add_argument(
        "--rows",
        type=Path,
        help="latency of other rows, in a file with the columns of e2e.csv",
    )
    flags = parser.parse_args()
    if flags.part == "capacity":
        return 0 if capacity() else 1
    rows = bundled() if flags.rows is None else replayable(published_rows(flags.rows))
    return 0 if all(latency(list(rows))) else 1


if __name__ == "__main__":
    sys.exit(main())
