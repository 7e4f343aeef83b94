"""Tests for :mod:`results.stored_run` and :func:`results.load`."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pandas.testing import assert_frame_equal

import results
import results.stored_run
from results.errors import RunFolderError
from results.record import (
    RequestRecord,
    RequestStatus,
    StepRecord,
    add_later_columns,
)
from results.run_info import Ending, RunInfo
from results.store import RunStore

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeInfo = Callable[..., RunInfo]
Save = Callable[..., Path]

SUMMARY: dict[str, Any] = {"kind": "run", "config": {"a": 1}, "wall_s": 1.0}
NOON = datetime(2025, 11, 29, 12, 0)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def save(make_info: MakeInfo) -> Save:
    """Return a function that stores a run without rows."""

    def save_run(name: str = "chat", **settings: Any) -> Path:
        with RunStore(name, make_info(), created_at=NOON, **settings) as store:
            return store.save(make_info(), [], [], SUMMARY)

    return save_run


@pytest.fixture
def kill(
    make_info: MakeInfo, make_request: MakeRequest, make_step: MakeStep
) -> Callable[..., Path]:
    """Return a function that leaves a run as a kill does, with one request and step."""

    def leave(**settings: Any) -> Path:
        store = RunStore("chat", make_info(), created_at=NOON, **settings)
        row = make_request(finished_ns=None, status=RequestStatus.FAILED)
        store.journal.append([row], [make_step()])
        store.journal.close()
        return store.folder

    return leave


def run_json(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return document


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_run_loads_as_frames(
    make_info: MakeInfo, make_request: MakeRequest, make_step: MakeStep
) -> None:
    """What was saved comes back, a time that never came as NaN."""
    rows = [make_request(), make_request(request_id=1, first_token_ns=None)]
    with RunStore("a", make_info()) as store:
        steps = [make_step(gap_ns=[3], gap_count=[2])]
        folder = store.save(make_info(), rows, steps, SUMMARY)

    loaded = results.load(folder)

    assert (loaded.folder, loaded.state) == (folder, Ending.COMPLETE)
    assert loaded.info == make_info()
    assert loaded.run["summary"] == SUMMARY
    assert loaded.requests["request_id"].tolist() == [0, 1]
    assert loaded.requests["status"].tolist() == ["finished", "finished"]
    assert loaded.requests["first_token_ns"].isna().tolist() == [False, True]
    assert loaded.steps["gap_ns"][0].tolist() == [3]
    assert loaded.request_columns["first_token_ns"][0] == 2e9
    assert loaded.step_columns.flat("gap_count").tolist() == [2.0]


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_journals_load_like_tables(
    make_info: MakeInfo, make_request: MakeRequest, make_step: MakeStep, num_rows: int
) -> None:
    """A run that is under way has the columns and types that it has when it is saved."""
    times = [None, 5, 7]
    rows = [
        make_request(request_id=n, first_token_ns=times[n], num_shared_tokens=times[n])
        for n in range(num_rows)
    ]
    steps = [make_step(gap_ns=[3] * n, gap_count=[1] * n) for n in range(num_rows)]
    with RunStore("a", make_info()) as store:
        store.journal.append(rows[::-1], steps)
        during = results.load(store.folder)
        after = results.load(store.save(make_info(), rows, steps, SUMMARY))

    assert (during.state, after.state) == (Ending.RUNNING, Ending.COMPLETE)
    assert during.info.outcome.ending is Ending.RUNNING
    assert_frame_equal(during.requests, after.requests)
    assert_frame_equal(during.steps, after.steps)
    kinds = [[type(row) for row in run.steps["gap_ns"]] for run in (during, after)]
    assert kinds[0] == kinds[1]


def test_a_killed_run_says_so(
    make_info: MakeInfo, make_request: MakeRequest, make_step: MakeStep
) -> None:
    """What had not finished when the run was killed has that as its reason."""
    left = {"finished_ns": None, "status": RequestStatus.FAILED}
    refused = make_request(status=RequestStatus.REJECTED, reason="too_long")
    with RunStore("a", make_info()) as store:
        store.journal.append([make_request(request_id=1, **left)], [make_step()])
        store.journal.append([make_request(request_id=2, **left), refused], [])
        running = results.load(store.folder)

    killed = results.load(store.folder)

    assert running.requests["reason"].tolist() == ["too_long", "", ""]
    assert killed.requests["reason"].tolist() == ["too_long", *["the run was killed"] * 2]
    assert killed.info.outcome.ending is killed.state is Ending.KILLED
    assert killed.run["state"] == "running"
    assert killed.run["summary"] is None


def test_reading_changes_nothing(kill: Callable[..., Path], save: Save) -> None:
    """A reader leaves every file of a folder as it was."""
    for folder in (kill(), save()):
        before = contents(Path())
        results.load(folder)

        assert contents(Path()) == before


@pytest.mark.parametrize("moment", ["is_under_way", "read_journal", "read_frame"])
def test_a_run_may_end_while_it_is_read(
    make_info: MakeInfo,
    make_step: MakeStep,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """A run that ends, or is replaced, while it is read is read as what it became."""
    is_replaced, out = moment == "read_frame", Path("out")
    original = getattr(results.stored_run, moment)
    with RunStore("old", make_info(), output=out) as old:
        old.journal.append([], [make_step()])
        if is_replaced:
            old.save(make_info(), [], [make_step()], SUMMARY)
        store = (
            RunStore("new", make_info(), output=out, force=True) if is_replaced else old
        )

        def meanwhile(*args: Any) -> Any:
            monkeypatch.setattr(results.stored_run, moment, original)
            store.save(make_info(), [], [make_step()] * 2, SUMMARY)
            return original(*args)

        monkeypatch.setattr(results.stored_run, moment, meanwhile)
        loaded = results.load(out)

    assert loaded.run["name"] == ("new" if is_replaced else "old")
    assert loaded.state is Ending.COMPLETE
    assert len(loaded.steps) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ("[" * 99999, "damaged"),
        ("[]", "schema version None"),
        ('{"schema_version": 99}', "update blockbench"),
        ('{"schema_version": 1}', "no '.*another version.*repeat the run"),
    ],
)
def test_a_folder_that_cannot_be_read_says_why(
    tmp_path: Path, text: str, message: str
) -> None:
    """Damage and other versions are told apart."""
    (tmp_path / "run.json").write_text(text)

    with pytest.raises(RunFolderError, match=message):
        results.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        {"state": "lost"},
        {"created_at": "noon"},
        {"created_at": 3},
        {"summary": []},
        {"config": float("nan")},
        {"summary": {"mean": float("nan")}},
        {"outcome": None},
        {"outcome": {"ending": "complete", "who": 1}},
        {"history": {}},
        {"name": 7},
    ],
)
def test_a_field_of_another_kind_is_damage(save: Save, damage: dict[str, Any]) -> None:
    """What readers rely on is checked when the document is read."""
    folder = save()
    (folder / "run.json").write_text(json.dumps(run_json(folder) | damage))

    with pytest.raises(RunFolderError, match=r"run\.json is damaged.*repeat the run"):
        results.load(folder)


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    """Loading a folder that is not there names the folder."""
    for name in ("nowhere", "x" * 300):
        with pytest.raises(RunFolderError, match="is no run folder"):
            results.load(tmp_path / name)


def test_a_damaged_table_is_named(save: Save) -> None:
    """A parquet file that is not one is named, without a traceback of its reader."""
    folder = save()
    (folder / "steps.parquet").write_bytes(b"not parquet")

    with pytest.raises(RunFolderError, match=r"steps\.parquet cannot be read"):
        results.load(folder)


def test_a_table_without_a_column_is_of_another_version(save: Save) -> None:
    """A run of an older version is refused in words, not by the statistics."""
    import pyarrow.parquet as pq

    path = save() / "steps.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["num_room_blocks"]), path)

    with pytest.raises(RunFolderError, match=r"no column num_room_blocks.*version"):
        results.load(path.parent)


def test_a_run_from_before_the_entry_was_queued_as_it_arrived(
    make_info: MakeInfo, make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Tables and journals without ``queued_ns`` load with every column in its place."""
    import pyarrow.parquet as pq

    rows = [make_request(request_id=i, arrival_ns=5 + i, queued_ns=9) for i in range(2)]
    with RunStore("a", make_info()) as store:
        store.journal.append(rows, [make_step()])
        path = store.folder / "requests.jsonl"
        path.write_text(path.read_text().replace('"queued_ns":9,', ""))
        during = results.load(store.folder).requests
        path = store.save(make_info(), rows, [make_step()], SUMMARY) / "requests.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["queued_ns"]), path)

    after = results.load(path.parent).requests

    assert_frame_equal(during, after)
    assert list(after.columns)[:3] == ["request_id", "arrival_ns", "queued_ns"]
    assert after["queued_ns"].tolist() == after["arrival_ns"].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("journal", "line", "message"),
    [
        ("steps.jsonl", "{}\n", r"steps\.jsonl, line 2 is no row"),
        ("requests.jsonl", "x\n", r"requests\.jsonl, line 2 is damaged"),
        ("steps.jsonl", None, r"steps\.jsonl cannot be read"),
    ],
)
def test_a_damaged_journal_is_named(
    kill: Callable[..., Path], journal: str, line: str | None, message: str
) -> None:
    """A killed run with a broken or missing journal is refused with file and line."""
    folder = kill()
    path = folder / journal
    path.unlink() if line is None else path.write_text(path.read_text() + line)

    with pytest.raises(RunFolderError, match=message):
        results.load(folder)


@pytest.mark.parametrize("value", ['"x"', "[]", "99999999999999999999"])
@pytest.mark.parametrize("name", ["request_id", "arrival_ns"])
def test_a_value_of_another_kind_is_damage(
    kill: Callable[..., Path], name: str, value: str
) -> None:
    """A row whose values do not fit its columns is no traceback of Arrow."""
    folder = kill()
    path = folder / "requests.jsonl"
    path.write_text(
        path.read_text() + path.read_text().replace(f'"{name}":0', f'"{name}":{value}')
    )

    with pytest.raises(RunFolderError, match=r"requests\.jsonl is damaged.*repeat"):
        results.load(folder)


def test_steps_of_older_versions_have_no_prefill_work() -> None:
    """Columns that a version did not write are 0 in the rows that it left."""
    row = {"first_step_ns": 5, "num_prefill_tokens": 7}
    add_later_columns(row)

    assert row["num_prefill_attention"] == row["num_prefill_context_tokens"] == 0
    assert "queued_ns" not in row
