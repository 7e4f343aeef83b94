"""A stored run, read back for analysis, whether it ended or not."""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.columns import Columns
from results.errors import RunFolderError
from results.journal import (
    REQUESTS_JOURNAL,
    STEPS_JOURNAL,
    is_under_way,
    last_of_each,
    read_journal,
)
from results.output import RUNS_FOLDER, where_run_lies
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, RunInfo
from results.store import RUN_SCHEMA
from results.table import read_frame, rows_frame

if TYPE_CHECKING:
    import pandas as pd

Kinds = dict[str, type | tuple[type, ...]]

KINDS: Kinds = {"name": str, "environment": dict, "history": list}
"""What run.json holds besides the fields of ``RunInfo``, and is read without asking."""

CONFIG_KINDS: Kinds = {
    "model": str,
    "gpu": str,
    "vllm_version": str,
    "num_gpu_blocks": int,
    "num_cpu_blocks": int,
    "block_size": int,
    "block_bytes": int,
    "gpu_memory_gib": (int, float),
    "watermark": (int, float),
    "max_model_len": int,
    "max_num_batched_tokens": int,
    "enable_prefix_caching": bool,
    "enable_chunked_prefill": bool,
    "notes": list,
}
TRACE_KINDS: Kinds = {
    "name": str,
    "format": str,
    "num_requests": int,
    "num_skipped": int,
    "duration_s": (int, float),
    "has_sharing": bool,
    "notes": list,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRun:
    """What a run folder holds, or held so far.

    Attributes:
        folder: Where it lies.
        run: The run.json: configuration, environment, trace, outcome, summary.
        info: What is known of it besides its rows; how it ended included.
        requests: One row a request; columns are those of ``RequestRecord``.
        steps: One row a stretch of equal steps; columns are those of ``StepRecord``.

    Columns that nobody measured are empty, whatever their rows said.
    """

    folder: Path
    run: dict[str, Any]
    info: RunInfo
    requests: "pd.DataFrame"
    steps: "pd.DataFrame"

    @property
    def state(self) -> Ending:
        """How it ended, or that it has not."""
        return self.info.outcome.ending

    @property
    def request_columns(self) -> Columns:
        """The requests as statistics read them."""
        hidden = self.info.unmeasured_in("requests")
        return Columns(self.requests, len(self.requests), hidden)

    @property
    def step_columns(self) -> Columns:
        """The steps as statistics read them."""
        return Columns(self.steps, len(self.steps), self.info.unmeasured_in("steps"))


def load_run(folder: Path) -> StoredRun:
    """Read a run folder; times that never came are NaN in the frames.

    Nothing is changed there. A run that is under way, or was killed, has the rows that
    it had recorded.

    Raises:
        RunFolderError: The folder holds no run, or part of it cannot be read.
    """
    while True:
        place = where_run_lies(folder)
        run, state = read_run(place)
        try:
            stored = _load(place, run, state)
        except RunFolderError:
            if not _has_changed(place, run):
                raise
        else:
            if not _has_changed(place, run):
                return stored
        # It ended, or another one took its place, while it was read.


@contextmanager
def names_missing_key(folder: Path) -> Iterator[None]:
    """Say of a key that is missing in what a run's figures need that it is the run's.

    Raises:
        RunFolderError: Instead of a KeyError.
    """
    try:
        yield
    except KeyError as error:
        raise RunFolderError(
            f"{folder}: run.json has no {error}: it is damaged, or another version of"
            " blockbench wrote it; repeat the run, or show it with that version"
        ) from error


def _load(folder: Path, run: dict[str, Any], state: Ending) -> StoredRun:
    info = RunInfo.from_dict(run)
    info = replace(info, outcome=replace(info.outcome, ending=state))
    if state in (Ending.RUNNING, Ending.KILLED):
        requests, steps = _read_journals(folder, info)
        if state is Ending.KILLED:
            requests.loc[requests["finished_ns"].isna(), "reason"] = info.outcome.reason
    else:
        requests = read_frame(folder / "requests.parquet", RequestRecord)
        steps = read_frame(folder / "steps.parquet", StepRecord)
    return StoredRun(folder=folder, run=run, info=info, requests=requests, steps=steps)


def _read_journals(folder: Path, info: RunInfo) -> tuple["pd.DataFrame", "pd.DataFrame"]:
    requests, steps = info.unmeasured_in("requests"), info.unmeasured_in("steps")
    return (
        _journal_frame(folder / REQUESTS_JOURNAL, RequestRecord, last_of_each, requests),
        _journal_frame(folder / STEPS_JOURNAL, StepRecord, list, steps),
    )


def _journal_frame(
    path: Path,
    record_type: type[Any],
    choose: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    unmeasured: Collection[str],
) -> "pd.DataFrame":
    rows = read_journal(path, record_type)
    try:
        return rows_frame(record_type, choose(rows), unmeasured)
    except (ValueError, TypeError, OverflowError) as error:
        raise RunFolderError(
            f"{path} is damaged: {error}; repeat the run that wrote it"
        ) from error


def read_run(folder: Path) -> tuple[dict[str, Any], Ending]:
    """The run.json of a folder, and how the run ended or that it has not.

    Raises:
        RunFolderError: There is none, or this version cannot read it.
    """
    run = _read_document(folder)
    if run["state"] != Ending.RUNNING:
        return run, Ending(run["state"])
    if is_under_way(folder):
        return run, Ending.RUNNING
    run = _read_document(folder)  # it may have ended in between
    state = Ending(run["state"])
    return run, Ending.KILLED if state is Ending.RUNNING else state


def _has_changed(folder: Path, run: dict[str, Any]) -> bool:
    try:
        return _read_document(folder) != run
    except RunFolderError:
        return True


def _read_document(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        text = path.read_text(encoding="utf-8")
        run: dict[str, Any] = json.loads(text, parse_constant=_refuse_constant)
    except OSError as error:
        raise RunFolderError(
            f"{folder} holds no run: run.json: {error.strerror or error};"
            f" runs lie in {RUNS_FOLDER}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{path} is damaged: {error}; repeat the run that wrote it"
        ) from error
    found = run.get("schema_version") if isinstance(run, dict) else None
    if found != RUN_SCHEMA:
        raise RunFolderError(
            f"{path} has schema version {found}, this blockbench reads"
            f" {RUN_SCHEMA}; update blockbench or repeat the run"
        )
    _check_document(path, run)
    return run


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _check_document(path: Path, run: dict[str, Any]) -> None:
    """Refuse a document without what every reader may rely on."""
    try:
        RunInfo.from_dict(run)
        Ending(run["state"])
        datetime.fromisoformat(run["created_at"]).astimezone()
        if missing := KINDS.keys() - run.keys():
            raise KeyError(min(missing))
        _check_kinds(run, KINDS)
        _check_kinds(_known(run["config"], run["source"]), CONFIG_KINDS)
        _check_kinds(run["trace"], TRACE_KINDS)
        if not isinstance(run["summary"], dict | None):
            raise TypeError("summary is of another kind")
    except KeyError as error:
        raise RunFolderError(
            f"{path} has no {error}: another version of blockbench wrote it;"
            " repeat the run, or read it with that version"
        ) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise RunFolderError(
            f"{path} is damaged: {error}; repeat the run that wrote it"
        ) from error


def _known(config: dict[str, Any], source: str) -> dict[str, Any]:
    """The knobs that must be of their kind: a real engine need not tell all of them."""
    if source != "measured":
        return config
    return {name: value for name, value in config.items() if value is not None}


def _check_kinds(known: dict[str, Any], kinds: Kinds) -> None:
    for key, kind in kinds.items():
        if key in known and not isinstance(known[key], kind):
            raise TypeError(f"{key} is of another kind")
