"""Tests for :mod:`results.store` and :func:`results.load`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import results
from results.errors import ResultsError, RunFolderError
from results.record import RequestRecord, StepRecord
from results.store import RunStore
from results.table import record_schema

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

SUMMARY: dict[str, Any] = {
    "kind": "run",
    "config": {"a": 1},
    "trace": {"name": "t"},
    "wall_s": 1.0,
}
NOON = datetime(2025, 11, 29, 12, 0)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def save(name: str = "chat", **settings: Any) -> Path:
    with RunStore(name, created_at=NOON, **settings) as store:
        return store.save(SUMMARY, [], [])


def unfinished(folder: Path) -> list[Path]:
    return list(folder.rglob(".unfinished-*"))


def test_folder_is_named_by_time_and_trace() -> None:
    """A run lies in .blockbench/runs, and nothing else stays there."""
    folder = save("my chat/ü")

    assert folder == Path(".blockbench/runs/1129-1200-my-chat-ü")
    assert {f.name for f in folder.iterdir()} == {
        "run.json",
        "requests.parquet",
        "steps.parquet",
    }
    assert unfinished(Path()) == []


def test_a_taken_name_gets_a_number() -> None:
    """Runs of the same minute lie beside each other."""
    names = [save().name for _ in range(3)]

    assert names == ["1129-1200-chat", "1129-1200-chat-2", "1129-1200-chat-3"]


def test_equal_rows_give_equal_bytes(
    make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Two equal runs differ in nothing but the time of day in run.json."""
    rows = [make_request(), make_request(first_token_ns=None)]
    steps = [make_step(gap_ns=[3, 5], gap_count=[1, 2]), make_step()]
    folders = []
    for hour in (1, 2):
        with RunStore("a", created_at=datetime(2025, 1, 1, hour)) as store:
            folders.append(store.save(SUMMARY, rows, steps))

    one, two = folders
    for name in ("requests.parquet", "steps.parquet"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    runs = [json.loads((f / "run.json").read_text()) for f in folders]
    assert runs[0].pop("created_at") != runs[1].pop("created_at")
    assert runs[0] == runs[1]


def test_schema_does_not_depend_on_the_rows() -> None:
    """An empty run has the columns and types of a full one; only times may be null."""
    schema = record_schema(RequestRecord)

    nullable = {name for name in schema.names if schema.field(name).nullable}
    assert nullable == {"first_scheduled_ns", "first_token_ns", "finished_ns"}
    assert str(schema.field("status").type) == "string"
    assert str(record_schema(StepRecord).field("gap_ns").type).startswith("list<")


def test_a_run_loads_as_frames(make_request: MakeRequest, make_step: MakeStep) -> None:
    """What was saved comes back, a time that never came as NaN."""
    rows = [make_request(), make_request(request_id=1, first_token_ns=None)]
    with RunStore("a") as store:
        folder = store.save(SUMMARY, rows, [make_step(gap_ns=[3], gap_count=[2])])

    loaded = results.load(folder)

    assert loaded.run["summary"] == SUMMARY
    assert loaded.requests["request_id"].tolist() == [0, 1]
    assert loaded.requests["status"].tolist() == ["finished", "finished"]
    assert loaded.requests["first_token_ns"].isna().tolist() == [False, True]
    assert loaded.steps["gap_ns"][0].tolist() == [3]


def test_any_locale_can_save(tmp_path: Path) -> None:
    """A folder with letters that the locale lacks takes a run and gives it back."""
    code = (
        "import sys, results; from pathlib import Path\n"
        "from results.store import RunStore\n"
        "with RunStore('a', output=Path(sys.argv[1])) as store:\n"
        "    results.load(store.save({'config': {}, 'trace': {}}, [], []))\n"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "Läufe"],
        env=os.environ | plain,
        capture_output=True,
    )

    assert done.stderr == b""
    assert (tmp_path / "Läufe" / "steps.parquet").exists()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """A folder that cannot be made is reported before the run starts."""
    (tmp_path / "file").write_text("")

    with pytest.raises(RunFolderError, match="another place with -o"):
        RunStore("a", output=tmp_path / "file" / "run")


def test_a_failed_write_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full disk is reported with a remedy, and no half run stays behind."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("results.store.write_records", fail)

    with pytest.raises(ResultsError, match=r"No space left.*make room"):
        save()

    assert list((tmp_path / ".blockbench" / "runs").iterdir()) == []


def test_leaving_without_saving_removes_the_folder(tmp_path: Path) -> None:
    """A run that raised leaves no folder."""
    with pytest.raises(KeyboardInterrupt), RunStore("a"):
        raise KeyboardInterrupt

    assert list((tmp_path / ".blockbench" / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ("[]", "schema version None"),
        ('{"schema_version": 99}', "update blockbench"),
    ],
)
def test_a_folder_that_cannot_be_read_says_why(
    tmp_path: Path, text: str, message: str
) -> None:
    """Damage and later versions are told apart."""
    (tmp_path / "run.json").write_text(text)

    with pytest.raises(RunFolderError, match=message):
        results.load(tmp_path)


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    """Loading a folder that is not there names the folder."""
    with pytest.raises(RunFolderError, match="holds no run"):
        results.load(tmp_path / "nowhere")


def test_a_damaged_table_is_named() -> None:
    """A parquet file that is not one is named, without a traceback of its reader."""
    folder = save()
    (folder / "steps.parquet").write_bytes(b"not parquet")

    with pytest.raises(RunFolderError, match=r"steps\.parquet cannot be read"):
        results.load(folder)
