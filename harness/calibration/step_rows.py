"""Steps that somebody timed: rows of a CSV, or of a stored run."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.calibration.observation import Step
from harness.calibration.table import MeasuredRow
from harness.config import EngineConfig
from harness.errors import UsageError
from profiles.gpu import KnownError
from profiles.step_time import BatchShape
from results.statistics import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from results.stored_run import StoredRun

COLUMNS = {
    "num_prefill_tokens": ("num_prefill_tokens",),
    "num_prefill_seqs": ("num_prefill_seqs",),
    "prefill_context_tokens": ("prefill_context_tokens",),
    "num_decode_seqs": ("num_decode_seqs", "num_decode"),
    "num_context_tokens": ("num_context_tokens", "context_tokens"),
    "step_ms": ("step_ms",),
}

MOST_STEPS = 2000
"""Steps of a run that a fit looks at; more would tell little more."""

SHAPE = (
    "num_prefill_tokens",
    "num_prefill_attention",
    "num_prefill_seqs",
    "num_prefill_context_tokens",
    "num_decode_seqs",
    "num_context_tokens",
)
"""Columns of steps that their duration depends on."""

NOT_COMPUTING = (
    "swap_ns",
    "num_swap_in_blocks",
    "num_swap_out_blocks",
    "num_copy_on_write",
)
"""Columns of steps that are 0 where a step did nothing but compute."""


def step_of(row: MeasuredRow, config: EngineConfig) -> Step:
    """The timed step of a row.

    Raises:
        TraceError: It lacks a figure, or computes nothing.
    """
    measured_s = row.seconds("step_ms")
    if measured_s is None:
        raise row.missing("step_ms is missing", "fill it in", "step_ms")
    return Step(
        name=row.name,
        measured_s=(measured_s,),
        config=config,
        shape=_shape(row),
    )


def _shape(row: MeasuredRow) -> BatchShape:
    num_tokens = row.whole("num_prefill_tokens", least=0) or 0
    num_decodes = row.whole("num_decode_seqs", least=0) or 0
    if num_tokens + num_decodes == 0:
        raise row.missing(
            "the step computes nothing",
            "fill in num_prefill_tokens or num_decode_seqs",
            "num_decode_seqs",
        )
    given = row.whole("num_prefill_seqs", least=0)
    num_prefills = 1 if given is None or not num_tokens else given
    if num_tokens and not 1 <= num_prefills <= num_tokens:
        raise row.error(
            f"{num_tokens} tokens of {num_prefills} prompts", "correct one of them"
        )
    num_context = row.whole("num_context_tokens", least=0) or 0
    if num_context < num_decodes:
        raise row.missing(
            f"{num_decodes} sequences decode over {num_context} context_tokens",
            "context_tokens are the sum of their lengths: correct it",
            "num_context_tokens",
        )
    num_cached = row.whole("prefill_context_tokens", least=0) or 0
    return BatchShape(
        num_prefill_tokens=num_tokens,
        prefill_attention=_attention(num_tokens, num_cached, num_prefills),
        num_prefill_seqs=num_prefills if num_tokens else 0,
        num_decode_seqs=num_decodes,
        num_context_tokens=num_context if num_decodes else 0,
        num_prefill_context_tokens=num_tokens + num_cached if num_tokens else 0,
    )


def _attention(num_tokens: int, num_cached: int, num_seqs: int) -> int:
    """Pairs of tokens of prompts alike: a token attends to all before it and itself."""
    each, before = num_tokens / num_seqs, num_cached / num_seqs
    return round(num_seqs * (each * before + each * (each + 1) / 2))


def config_of(stored: "StoredRun") -> EngineConfig:
    """The engine of a stored run.

    Raises:
        UsageError: Another version of blockbench wrote it.
    """
    found = dict(stored.info.config)
    known = {field.name for field in fields(EngineConfig)}
    optional = {"step_time_error", "notes", "dtype", "quantization", "kv_cache_dtype"}
    missing = sorted(known - optional - found.keys())
    if missing:
        raise UsageError(
            f"{stored.folder}: run.json has no {missing[0]}: another version of"
            " blockbench wrote it; repeat the run"
        )
    values: dict[str, Any] = {name: found.get(name) for name in known}
    error = values["step_time_error"]
    if error is not None:
        error = KnownError(**{**error, "types": tuple(error["types"])})
    return EngineConfig(
        **{**values, "notes": tuple(values["notes"] or ()), "step_time_error": error}
    )


def stored_steps(
    stored: "StoredRun", config: EngineConfig, most: int = MOST_STEPS
) -> tuple[list[Step], list[str]]:
    """A sample of a run's steps, and what to know of it.

    Steps of the same shape are one, with the median of their durations; of more shapes
    than ``most`` those at equal distances are taken, in the order of the shapes.

    Raises:
        UsageError: No step of it can be used.
    """
    steps, notes = stored.steps, []
    computing = steps[(steps[list(NOT_COMPUTING)] == 0).all(axis=1)]
    is_prefill = computing["num_prefill_tokens"] > 0
    has_work = computing["num_prefill_context_tokens"] > 0
    if (is_prefill & ~has_work).any():
        notes.append(
            f"{stored.folder} does not say what prefills attend to: an older version"
            " recorded it, and only its decode steps are used"
        )
    usable = computing[~is_prefill | has_work]
    by_shape = usable.groupby(list(SHAPE), sort=True)["first_step_ns"].median()
    if not len(by_shape):
        raise UsageError(
            f"{stored.folder} has no step that only computes; calibrate from a run that"
            " did something"
        )
    found = by_shape.reset_index()
    if len(found) > most:
        notes.append(
            f"{most:,} of the {len(found):,} different steps of {stored.folder} are used"
        )
        found = found.iloc[np.linspace(0, len(found) - 1, most).round().astype(int)]
    return _steps(found, config, str(stored.folder)), notes


def _steps(frame: "pd.DataFrame", config: EngineConfig, name: str) -> list[Step]:
    rows: Sequence[Any] = frame[[*SHAPE, "first_step_ns"]].to_numpy().tolist()
    return [
        Step(
            name=f"{name}: {_words(*map(int, values))}",
            measured_s=(duration_ns / NS_PER_S,),
            config=config,
            shape=BatchShape(
                num_prefill_tokens=int(values[0]),
                prefill_attention=int(values[1]),
                num_prefill_seqs=int(values[2]),
                num_decode_seqs=int(values[4]),
                num_context_tokens=int(values[5]),
                num_prefill_context_tokens=int(values[3]),
            ),
        )
        for *values, duration_ns in rows
        if duration_ns > 0
    ]


def _words(
    num_tokens: int, _pairs: int, _seqs: int, _context: int, decodes: int, context: int
) -> str:
    """A step for people."""
    parts = []
    if num_tokens:
        parts.append(f"{num_tokens:,} prompt tokens")
    if decodes:
        parts.append(f"{decodes:,} decodes over {context:,}")
    return " and ".join(parts)
