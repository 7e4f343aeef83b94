"""Measured latencies of kernels, a table for each kind and type on each GPU.

Reads what NVIDIA's aiconfigurator measured (Apache-2.0; not shipped here) from
``$BLOCKBENCH_DATA/measured/ops``.
"""

import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiles.kernels import ARITHMETIC, Chip

Array = npt.NDArray[np.float64]
REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("BLOCKBENCH_DATA") or REPOSITORY.parent / "shared")
GPUS = REPOSITORY / "profiles" / "data" / "gpus.toml"


class Measured(NamedTuple):
    """Where a GPU's tables are, the vLLM version read, and the size of its L2 cache."""

    folder: str
    version: str
    l2_bytes: float


MEASURED = {
    "A100-80GB": Measured("a100_sxm", "0.14.0", 40e6),
    "H100-80GB": Measured("h100_sxm", "0.19.0", 50e6),
    "H200": Measured("h200_sxm", "0.18.0", 50e6),
    "B200": Measured("b200_sxm", "0.19.0", 126e6),
    "L40S": Measured("l40s", "0.14.0", 96e6),
}
# int4 experts: 0.18 and 0.19 ran a Triton kernel 2 to 5 times slower than Marlin.
# fp8_block GEMMs: 0.18 on H200 ran twice as long as 0.19 there and on H100.
VERSION_OF = {
    ("H100-80GB", "experts_int4"): "0.14.0",
    ("H200", "experts_int4"): "0.14.0",
    ("B200", "experts_int4"): "0.24.0",
    ("H200", "gemm_fp8_block"): "0.19.0",
}
# One byte of scale for 16 (nvfp4) weights; 2 bytes for 64 (int4).
WEIGHT_BYTES = {
    "bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "int4": 0.53125,
}  # fmt: skip
KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}


@dataclass(frozen=True)
class Table:
    """Measured rows of one kind of kernel in one type of weights or KV cache."""

    rows: pd.DataFrame
    chip: Chip
    dtype: str

    def __getitem__(self, name: str) -> Array:
        """A column as floats."""
        return self.rows[name].to_numpy(float)

    def where(self, is_kept: "pd.Series[bool] | npt.NDArray[np.bool_]") -> "Table":
        """The same table with some of its rows."""
        return Table(self.rows[is_kept], self.chip, self.dtype)


@dataclass(frozen=True)
class Gpu:
    """One GPU's tables; each has ``seconds``, and a ``shape`` by which rows are held out.

    Rows that no such chip could have reached are marked ``is_impossible``, those of
    shapes that models in use have ``is_served``.
    """

    name: str
    chip: Chip

    def tables(self) -> Iterator[tuple[str, str, Table]]:
        """Kind, key in kernels.toml and rows of each usable table."""
        for dtype in WEIGHT_BYTES:
            yield "gemm", f"gemm_{dtype}", self.gemm(dtype)
            yield "experts", f"experts_{dtype}", self.experts(dtype)
        for dtype in KV_BYTES:
            yield "generation", f"generation_{dtype}", self.generation(dtype)
            yield "context", f"context_{dtype}", self.context(dtype)
        if self.name != "L40S":  # over PCIe it depends on the host: no form fits
            yield "all_reduce", "all_reduce", self.all_reduce()

    def read(self, folder: str, name: str, key: str = "") -> pd.DataFrame:
        """Rows of one file; windowed attention left out."""
        at, version, _ = MEASURED[self.name]
        version = VERSION_OF.get((self.name, key), version)
        path = DATA / "measured" / "ops" / at / folder / "vllm" / version
        table = pd.read_parquet(path / f"{name}_perf.parquet")
        table["seconds"] = table["latency"] / 1e3
        return table[table["window_size"] == 0] if "window_size" in table else table

    def table(self, rows: pd.DataFrame, dtype: str, shape: list[str]) -> Table:
        """The rows with the names of their shapes."""
        names = ["|".join(map(str, row)) for row in rows[shape].to_numpy()]
        return Table(rows.assign(shape=names), self.chip, dtype)

    def peak(self, dtype: str) -> float:
        """Operations in a second, by the datasheet."""
        return self.chip.bf16_flop_per_s * ARITHMETIC[dtype]

    def gemm(self, dtype: str) -> Table:
        """Served sizes; m as batches are padded for CUDA graphs (1, 2, 4, 8n)."""
        rows = self.read("gemm", "gemm", f"gemm_{dtype}")
        m, n, k = rows["m"], rows["n"], rows["k"]
        kept = (m <= 8192) & (m.isin([1, 2, 4]) | (m % 8 == 0))
        kept &= (n >= 1024) & (k >= 512) & ((n <= 16384) | (k <= 16384))
        flop_rate = 2 * m * n * k / rows["seconds"]
        read_rate = n * k * WEIGHT_BYTES[dtype] / rows["seconds"]
        rows["is_impossible"] = flop_rate > self.peak(dtype)
        rows["is_impossible"] |= read_rate > self.chip.bytes_per_s
        rows["is_served"] = (n <= 28672) & (k <= 28672)
        kept &= rows["gemm_dtype"] == ("int4_wo" if dtype == "int4" else dtype)
        return self.table(rows[kept], dtype, ["n", "k"])

    def experts(self, dtype: str) -> Table:
        """Tensor-parallel experts under the mildest skew measured (power law 1.01)."""
        rows = self.read("moe", "moe", f"experts_{dtype}")
        kept = (rows["moe_ep_size"] == 1) & (rows["moe_tp_size"] <= 8)
        kept &= (rows["num_tokens"] <= 8192) & (rows["distribution"] == "power_law_1.01")
        kept &= rows["moe_dtype"] == ("int4_wo" if dtype == "int4" else dtype)
        rows = rows[kept].rename(columns={"hidden_size": "hidden"})
        rows["inter"] = rows["inter_size"] / rows["moe_tp_size"]
        flop = 6 * rows["hidden"] * rows["inter"] * rows["num_tokens"] * rows["topk"]
        rows["is_impossible"] = flop / rows["seconds"] > self.peak(dtype)
        sizes = rows["hidden"].astype(str) + "x" + rows["inter_size"].astype(str)
        rows["is_served"] = sizes.isin(["4096x14336", "2048x768", "7168x2048"])
        shape = ["hidden", "inter_size", "topk", "num_experts", "moe_tp_size"]
        return self.table(rows, dtype, shape)

    def attention(self, dtype: str, name: str) -> pd.DataFrame:
        """Grouped queries with heads of 128; ``step`` counts the tokens before."""
        rows = self.read("attention", name)
        kept = (rows["head_dim"] == 128) & (rows["kv_cache_dtype"] == dtype)
        rows = rows[kept & (rows["batch_size"] <= 512)]
        batch, heads, kv_heads = (
            rows[column] for column in ("batch_size", "num_heads", "num_key_value_heads")
        )
        longest = rows["isl"] + rows["step"]
        return rows.assign(
            batch=batch, tokens=batch * longest, longest=longest, heads=heads,
            kv_heads=kv_heads, is_served=(heads / kv_heads).between(4, 8),
        )  # fmt: skip

    def generation(self, dtype: str) -> Table:
        """Decodes; KV that the L2 cache kept between repetitions is left out."""
        rows = self.attention(dtype, "generation_attention")
        kv = rows["tokens"] * rows["kv_heads"] * rows["head_dim"] * 2 * KV_BYTES[dtype]
        is_cached = (kv > 4e6) & (kv < 1.3 * MEASURED[self.name].l2_bytes)
        is_impossible = kv / rows["seconds"] > self.chip.bytes_per_s
        rows = rows.assign(kv=kv, is_impossible=is_impossible)
        kept = rows[(rows["longest"] >= 128) & ~is_cached]
        return self.table(kept, dtype, ["batch", "heads", "kv_heads"])

    def context(self, dtype: str) -> Table:
        """Prefills of at most 65,536 tokens a step."""
        rows = self.attention(dtype, "context_attention")
        pairs = rows["tokens"] * (rows["longest"] + 1) / 2
        rows["flop"] = pairs * 4 * rows["heads"] * rows["head_dim"]
        rows["is_impossible"] = rows["flop"] / rows["seconds"] > self.peak("bfloat16")
        kept = rows[(rows["isl"] >= 16) & (rows["tokens"] <= 65536)]
        return self.table(kept, dtype, ["batch", "heads", "kv_heads"])

    def all_reduce(self) -> Table:
        """All-reduces in CUDA graphs; the file counts bf16 elements, not bytes."""
        rows = self.read("comm", "custom_allreduce")
        size, is_graph = rows["message_size"], rows["backend"] == "vllm_graph"
        rows = rows.assign(gpus=rows["num_gpus"], bytes=size * 2.0, is_impossible=False)
        rows["is_served"] = rows["bytes"] <= 2**27
        return self.table(rows[is_graph & (size >= 1024)], "bfloat16", ["gpus", "bytes"])


def chips() -> dict[str, Chip]:
    """Datasheet rates of the GPUs measured.

    Not by ``load_gpu``: it needs kernels.toml, which the shell empties before it starts
    the script whose output goes there.
    """
    tables = tomllib.loads(GPUS.read_text(encoding="utf-8"))["gpu"]
    gpus: dict[str, Any] = {gpu["name"]: gpu for gpu in tables}
    return {
        name: Chip(
            bytes_per_s=gpus[name]["memory_bandwidth_gb_per_s"] * 1e9,
            bf16_flop_per_s=gpus[name]["bf16_tflop_per_s"] * 1e12,
            link_bytes_per_s=gpus[name].get("nvlink_gb_per_s", 0) * 1e9,
        )
        for name in MEASURED
    }
