"""How far the effects of single knobs are from published ones: sign and size.

Rows are those of ``tests/data/published/knobs.csv``. An effect is a ratio of throughputs
less one; ours is off by a factor, the one effect over the other.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from fidelity_gate import gate
from offload_replay import prefill_tok_s
from published_servers import PUBLISHED, Published, Row
from tabulate import tabulate

from profiles.engine_overhead import engine_overhead
from profiles.gpu import load_gpu
from profiles.model import load_model
from profiles.step_time import FS_PER_S, BatchShape, RooflineStepTime, stretch_fs

MAX_NUM_SEQS, BLOCK_SIZE, OFFLOADING = "max-num-seqs", "block size", "offloading"
PREFIX_CACHING = "prefix caching"
GATED = (MAX_NUM_SEQS, BLOCK_SIZE, OFFLOADING)

MOST_FACTOR = 2.0
LEAST_RIGHT = 0.75
"""Share of a knob's effects whose sign is right and whose size is within the factor."""

NOISE = 0.005
"""Effects of block sizes below are not judged: such runs do not repeat more closely.

Source: knobs.csv, argonne, Llama-2-7B. At a batch of 1, where blocks hardly matter, sizes
differ by up to 0.15 %; at a batch of 64 sizes 32, 64 and 128 go down and up by 0.37 %.
"""

FITTED = "fitted"
FITTED_BLOCKS = ("meta-llama/Meta-Llama-3-8B", 64, (8, 128))
"""Model, batch and block sizes that ``READ_AGAIN`` and ``PAGE_BYTES`` were fitted to."""

BASE_SIZE = 16
STATIC_TOKENS = 1024
"""Of each prompt and each output of argonne's static batches."""

UNUSED = "on, and nothing comes back"
NO_COST = "not modelled: stores run beside the steps"

LEFT_OUT = {
    "llm-d guide, InferenceX 256 users (offloading gains 21 and 24 %)": "no lengths",
    "vLLM blog of 2026-01-08 figure 6": "no row without offloading; a patched kernel",
    "vLLM blog of 2025-01-27, hits of 25 to 75 %": "load not described",
    "other rows": "no ratio, or of a version or a way of sampling that is not replayed",
}


class Replayed(Protocol):
    """A published row beside its replay."""

    @property
    def published(self) -> Published: ...  # noqa: D102
    @property
    def req_s(self) -> float: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a setting does to throughput.

    Attributes:
        knob: Its name.
        setting: Against which baseline, and where.
        measured: Published ratio of throughput to that of the baseline.
        ours: The same of ours.
        use: Why it is not judged; empty if it is.
    """

    knob: str
    setting: str
    measured: float
    ours: float
    use: str = ""

    @property
    def has_right_sign(self) -> bool:
        """Whether both raise, or both lower throughput."""
        return (self.ours - 1) * (self.measured - 1) > 0

    @property
    def factor(self) -> float:
        """Our effect over the published one."""
        return (self.ours - 1) / (self.measured - 1)

    @property
    def is_right(self) -> bool:
        """Whether the sign is right, and the size within ``MOST_FACTOR``."""
        return 1 / MOST_FACTOR <= self.factor <= MOST_FACTOR


def compared(servers: Sequence[Replayed] = ()) -> list[Effect]:
    """All effects, those of servers from replays that are there already."""
    with (PUBLISHED / "knobs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    effects = [*server_effects(servers), *block_size_effects(rows)]
    return [*effects, *offloading_effects(rows), *prefix_caching_effects(rows)]


# -- servers whose rate was raised until they fell behind --------------------------------


def server_effects(servers: Sequence[Replayed]) -> Iterator[Effect]:
    """Most output tokens a second with 192 sequences against 128, and with a cache."""
    base = most_tok_s(servers, "vllm")
    if base is None:
        return
    others = (
        (MAX_NUM_SEQS, "192 against 128, 8B, H100", "vllm+batch_size", ""),
        (
            PREFIX_CACHING,
            "on against off, shared prompts, 8B, H100",
            "vllm+chunking_and_prefix_caching",
            "hits not published",
        ),
    )
    for knob, setting, name, use in others:
        found = most_tok_s(servers, name)
        if found is not None:
            measured, ours = found[0] / base[0], found[1] / base[1]
            yield Effect(
                knob=knob, setting=setting, measured=measured, ours=ours, use=use
            )


def most_tok_s(servers: Sequence[Replayed], name: str) -> tuple[float, float] | None:
    """Most output tokens a second of a server's saturated rows, published and ours."""
    rows = [
        row
        for row in servers
        if f"/{name} stage" in row.published.row["source"] and row.published.is_saturated
    ]
    if not rows:
        return None
    published = max(float(row.published.row["output_tok_s"]) for row in rows)
    return published, max(tok_s(row) for row in rows)


def tok_s(row: Replayed) -> float:
    """Output tokens a second of a replay."""
    return row.req_s * float(row.published.served.workload.output_tokens.mean())


# -- block sizes, by static batches ------------------------------------------------------


def block_size_effects(rows: Sequence[Row]) -> Iterator[Effect]:
    """Each size against 16, for each model and batch that has a ratio."""
    for row in rows:
        size, name = row["setting"], row["model"]
        if row["knob"] != "block_size" or int(size) == BASE_SIZE:
            continue
        batch, tp = (
            _number(word, row["notes"]) for word in (r"batch (\d+)", r"(\d+) GPU")
        )
        latency_s = static_batch_s(name, tp, batch, int(size))
        measured = float(row["rel_to_baseline"])
        yield Effect(
            knob=BLOCK_SIZE,
            setting=f"{size} against 16, {name.split('/')[1]}, batch {batch}",
            measured=measured,
            ours=static_batch_s(name, tp, batch, BASE_SIZE) / latency_s,
            use=_use_of_size(name, batch, int(size), measured),
        )


def _use_of_size(name: str, batch: int, size: int, measured: float) -> str:
    model, fitted_batch, sizes = FITTED_BLOCKS
    if (name, batch) == (model, fitted_batch) and size in sizes:
        return FITTED
    return "below noise" if abs(measured - 1) < NOISE else ""


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, text
    return int(found[1])


def static_batch_s(name: str, tp: int, batch: int, block_size: int) -> float:
    """Seconds of a batch on A100-40GB, prefilled at once, that decodes to its end."""
    step_time = _step_time(name, tp, block_size)
    tokens = batch * STATIC_TOKENS
    prefill = BatchShape(
        num_prefill_tokens=tokens,
        prefill_attention=tokens * (STATIC_TOKENS + 1) // 2,
        num_prefill_seqs=batch,
        num_decode_seqs=0,
        num_context_tokens=0,
        num_prefill_context_tokens=tokens,
    )
    decode = BatchShape(0, 0, 0, batch, tokens + batch)
    decode_fs = stretch_fs(
        step_time.step_fs(decode), step_time.growth_fs(decode), STATIC_TOKENS - 1
    )
    return (step_time.step_fs(prefill) + decode_fs) / FS_PER_S


@cache
def _step_time(name: str, tp: int, block_size: int) -> RooflineStepTime:
    return RooflineStepTime(
        load_model(name),
        load_gpu("A100-40GB"),
        tensor_parallel_size=tp,
        block_size=block_size,
        overhead=engine_overhead("v0", "0.5.0"),
    )


# -- offloading and caching --------------------------------------------------------------


def offloading_effects(rows: Sequence[Row]) -> Iterator[Effect]:
    """Hits in the tier against no tier, then what a tier costs that nothing hits."""
    off = prefill_tok_s(None)
    for row in rows:
        hit = re.fullmatch(r"on, (\d+)% CPU hit", row["setting"])
        is_unused = row["setting"] in (
            "on, KV fits in HBM",
            "on, 32 users",
            "on, 128 users",
        )
        if not row["knob"].startswith("kv_offload") or not (hit or is_unused):
            continue
        share = int(hit[1]) / 100 if hit else 0.0
        where = row["setting"].removeprefix("on, ")
        setting = f"{hit[1]} % hits, 8B, H100" if hit else f"{UNUSED}: {where}"
        yield Effect(
            knob=OFFLOADING,
            setting=setting,
            measured=float(row["rel_to_baseline"]),
            ours=prefill_tok_s(share) / off,
            use="" if hit else NO_COST,
        )


def prefix_caching_effects(rows: Sequence[Row]) -> Iterator[Effect]:
    """A cache that nothing hits: published as less than 1 % of the throughput."""
    for row in rows:
        if row["knob"] == "prefix_caching" and row["setting"] == "on, 0% hit":
            measured = float(row["rel_to_baseline"].removeprefix(">"))
            ours = prefill_tok_s(None) / prefill_tok_s(None, is_cached=False)
            setting = "on, 0 % hits (published: less than 1 % lost)"
            yield Effect(
                knob=PREFIX_CACHING, setting=setting, measured=measured, ours=ours,
                use="a bound",
            )  # fmt: skip


# -- the report --------------------------------------------------------------------------


def print_knobs(servers: Sequence[Replayed] = ()) -> list[bool]:
    """Print all effects; whether enough of each knob's are right."""
    effects = compared(servers)
    print(f"\n## Effects of knobs ({len(effects)} rows)\n")
    lines = [
        [
            effect.knob,
            effect.setting,
            f"{effect.measured - 1:+.2%}",
            f"{effect.ours - 1:+.2%}",
            "right" if effect.has_right_sign else "wrong" if effect.ours != 1 else "none",
            f"{effect.factor:.2f}" if effect.has_right_sign else "-",
            effect.use or ("" if effect.is_right else "MISSED"),
        ]
        for effect in effects
    ]
    headers = ["knob", "setting", "measured", "ours", "sign", "factor", ""]
    print(tabulate(lines, headers, "github", disable_numparse=True), end="\n\n")
    for what, reason in LEFT_OUT.items():
        print(f"Left out: {what}: {reason}.")
    print()
    return [met for knob in GATED for met in knob_gate(effects, knob)]


def knob_gate(effects: Sequence[Effect], knob: str) -> list[bool]:
    """Print whether enough effects of a knob that set no constant are right, if any."""
    judged = [effect for effect in effects if effect.knob == knob and not effect.use]
    if not judged:
        return []
    share = sum(effect.is_right for effect in judged) / len(judged)
    said = f"{knob}, {len(judged)} effects not fitted: right sign, within a factor of two"
    return [gate(said, share, LEAST_RIGHT)]
