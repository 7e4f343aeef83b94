"""Servers whose latency was published, as engines and workloads to replay.

Rows are those of ``tests/data/published/e2e.csv``, or of a file with its columns. What a
row does not say, such as the spread of lengths, is what its source says of itself
(``SERVERS``, from notes in the file and trust.csv).
"""

import csv
import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.calibration.observation import Served
from harness.config import EngineConfig, resolve_config
from harness.traces import open_trace
from harness.traces.generation import GenerateOptions, generate_trace
from harness.workload import Workload

PUBLISHED = Path(__file__).resolve().parents[1] / "tests" / "data" / "published"

Row = dict[str, str]

FP8_70B = "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8"
FP4_70B = "nvidia/Llama-3.3-70B-Instruct-FP4"

MODELS = {
    "nvidia/Llama-3.3-70B-Instruct-FP8 (source labels it Llama-3.1-70B)": FP8_70B,
    "nvidia/Llama-3.3-70B-Instruct-FP4 (source labels it Llama-3.1-70B)": FP4_70B,
    "nvidia/Llama-3.1-8B-Instruct-FP8": "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8",
    "meta-llama/Meta-Llama-3-8B-Instruct": "meta-llama/Meta-Llama-3-8B",
}
"""Profiles of models that rows name otherwise."""

GPUS = {
    "H100-SXM-80GB": "H100-80GB",
    "H100-80GB (GKE a3)": "H100-80GB",
    "H200-SXM-141GB": "H200",
    "B200-SXM-180GB": "B200",
    "A100-SXM4-80GB": "A100-80GB",
    "A100-80GB": "A100-80GB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a source says of all its rows.

    Attributes:
        group: What its rows are called in tables.
        vllm_version: In force, where the rows do not say it in words that parse.
        policy: Of the scheduler.
        range_ratio: Of the lengths, uniform around their means.
        burstiness: Of the arrivals at a rate; infinity for equal gaps.
        prefix_len: Tokens that prompts of one of ``num_prefixes`` kinds begin with.
        has_ttft: TTFT is that of a load as it is described. That of equal lengths, which
            end together and queue together, is not.
        knobs: Flags of all rows.
    """

    group: str
    vllm_version: str | None = None
    policy: str = "v1"
    range_ratio: float = 0.0
    burstiness: float = 1.0
    prefix_len: int = 0
    num_prefixes: int = 1
    has_ttft: bool = True
    knobs: dict[str, Any] = field(default_factory=dict)


KUBECON = Server(
    group="8B at a rate",
    burstiness=math.inf,
    prefix_len=128,
    num_prefixes=10,
    knobs={"max_model_len": 512},
)

SERVERS = {
    r"InferenceX\(": Server(
        group="70B closed loop", range_ratio=1 / 9, knobs={"async_scheduling": True}
    ),
    "NVIDIA aic-auto-gap-analysis.*qwen": Server(
        group="32B closed loop", has_ttft=False
    ),
    "NVIDIA aic-auto-gap-analysis.*llama": Server(group="8B fp8, slots not stated"),
    r"inference-perf.*v0_engine": replace(
        KUBECON, group="8B at a rate, v0", policy="v0"
    ),
    "inference-perf": KUBECON,
    "llm-d-benchmark exp-7": Server(
        group="8B at a rate, long prompts", vllm_version="0.8.5", burstiness=2
    ),
    "llm-d-benchmark exp-(0|2).*sharegpt": Server(
        group="70B at a rate", vllm_version="0.8.5", range_ratio=0.9,
        knobs={"max_model_len": 20_000},
    ),
    "llm-d-benchmark exp-2.*short": Server(
        group="70B at a rate", vllm_version="0.8.5", burstiness=math.inf,
        knobs={"max_model_len": 20_000},
    ),
}  # fmt: skip
"""By a pattern of the source's name; others are not replayed.

Not stated by their sources, and assumed: ShareGPT's lengths uniform around their mean,
equal gaps of the short prompts, and gaps with a coefficient of variation of 0.7 where a
service picks one of several replicas.
"""

FITTED = {
    ("70B closed loop", "H100-80GB"),
    ("70B closed loop", "H200"),
    ("32B closed loop", "H100-80GB"),
    ("8B at a rate", "H100-80GB"),
    ("70B at a rate", "A100-80GB"),
}
"""Groups below saturation of which benchmarks/fit_overhead.py takes every other row."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A row that can be replayed.

    Attributes:
        row: As published.
        group: Of its source.
        served: The replay, and what was measured.
        has_ttft: Its TTFT can be compared.
        is_fitted: It is one of those that the engine's overhead was fitted to.
    """

    row: Row
    group: str
    served: Served
    has_ttft: bool = True
    is_fitted: bool = False

    @property
    def types(self) -> str:
        """Types of weights and KV cache."""
        weights = self.row["quant"] or "bf16"
        return f"{weights}, KV {self.row['kv_dtype'] or 'bf16'}"

    @property
    def gpu(self) -> str:
        """Name of its profile."""
        return self.served.config.gpu

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs of one engine."""
        return self.served.config.tensor_parallel_size

    @property
    def req_s(self) -> float:
        """Requests finished in a second by one engine."""
        num_engines = float(self.row["gpu_count"]) / float(self.row["tp"])
        return float(self.row["req_s"]) / num_engines

    @property
    def is_saturated(self) -> bool:
        """Requests queued for seconds: latency is the queue's, not the engine's.

        More than two seconds, or three times what prompts of that length take elsewhere.
        """
        ttft_ms = float(self.row["ttft_ms_mean"] or 0)
        return ttft_ms > 1500 and ttft_ms > 0.45 * float(self.row["isl_mean"])


def published_rows(path: Path = PUBLISHED / "e2e.csv") -> list[Row]:
    """The rows of a file with the columns of ``e2e.csv``."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def bundled() -> list[Published]:
    """The rows of ``e2e.csv``, every other of those in ``FITTED`` marked as fitted."""
    num_seen: Counter[tuple[str, str]] = Counter()
    found = []
    for published in replayable(published_rows()):
        key = published.group, published.gpu
        if key in FITTED and not published.is_saturated:
            num_seen[key] += 1
            published = replace(published, is_fitted=num_seen[key] % 2 == 1)
        found.append(published)
    return found


def replayable(rows: list[Row]) -> Iterator[Published]:
    """Those of known servers whose rows have what a replay needs."""
    for row in rows:
        server = _server(row)
        has_load = row["concurrency"] or row["request_rate"] not in ("", "inf")
        if server is None or not has_load or not row["tpot_ms_mean"] or not row["tp"]:
            continue
        if row["gpu"] not in GPUS or "bitsandbytes" in row["quant"]:
            continue
        yield Published(
            row=row,
            group=server.group,
            served=_served(row, server),
            has_ttft=server.has_ttft,
        )


def _server(row: Row) -> Server | None:
    for pattern, server in SERVERS.items():
        if re.search(pattern, row["source"]):
            return server
    return None


def _served(row: Row, server: Server) -> Served:
    return Served(
        name=row["source"],
        figures=("ttft", "tpot"),
        measured_s=(float(row["ttft_ms_mean"]) / 1e3, float(row["tpot_ms_mean"]) / 1e3),
        config=_config(row, server),
        workload=_workload(row, server),
        max_concurrency=_whole(row["concurrency"]),
    )


def _config(row: Row, server: Server) -> EngineConfig:
    knobs = dict(server.knobs)
    if row["prefix_caching"] in ("on", "off"):
        knobs["enable_prefix_caching"] = row["prefix_caching"] == "on"
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        knobs[name] = _whole(row[name])
    if row["gpu_mem_util"]:
        knobs["gpu_memory_utilization"] = float(row["gpu_mem_util"])
    return resolve_config(
        model=MODELS.get(row["model"], row["model"]),
        gpu=GPUS[row["gpu"]],
        policy=server.policy,
        vllm_version=server.vllm_version or row["vllm_version"],
        tensor_parallel_size=int(float(row["tp"])),
        kv_cache_dtype=row["kv_dtype"] or None,
        **knobs,
    )


def _workload(row: Row, server: Server) -> Workload:
    """The lengths and arrivals of one engine of the row."""
    num_engines = 1.0
    if row["request_rate"] not in ("", "inf") and row["gpu_count"]:
        num_engines = float(row["gpu_count"]) / float(row["tp"])
    concurrency = _whole(row["concurrency"])
    num_requests = _whole(row["num_requests"]) or 10 * (concurrency or 1)
    return _generated(
        GenerateOptions(
            num_requests=max(1, round(num_requests / num_engines)),
            input_len=round(float(row["isl_mean"])) - server.prefix_len,
            output_len=round(float(row["osl_mean"])),
            range_ratio=server.range_ratio,
            prefix_len=server.prefix_len,
            num_prefixes=server.num_prefixes,
            request_rate=(
                math.inf if concurrency else float(row["request_rate"]) / num_engines
            ),
            burstiness=server.burstiness,
        )
    )


def _generated(options: GenerateOptions) -> Workload:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        generate_trace(path, options)
        return open_trace(path)


def _whole(text: str) -> int | None:
    return int(float(text)) if text else None
