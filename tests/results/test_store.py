"""Tests for :mod:`results.store`, with kills before each operation on a file."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import results
import results.store
from results.errors import ResultsError, RunFolderError
from results.journal import JOURNALS
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, Outcome, RunInfo
from results.store import RunStore
from results.table import record_schema

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeInfo = Callable[..., RunInfo]
Save = Callable[..., Path]

SUMMARY: dict[str, Any] = {"kind": "run", "config": {"a": 1}, "wall_s": 1.0}
NOON = datetime(2025, 11, 29, 12, 0)
RUNS = Path(".blockbench", "runs")
TABLES = {"run.json", "requests.parquet", "steps.parquet"}

KILLED_AT_EACH_OPERATION = """
import os, shutil, signal, sys
from contextlib import suppress
from dataclasses import fields
from itertools import count
from pathlib import Path
import pandas, pyarrow.parquet  # once, for all children
from results.record import RequestRecord, StepRecord
from results.run_info import Outcome, RunInfo
from results.store import RunStore, environment

LISTS = ("gap_ns", "gap_count")
ZEROS = {f.name: 0 for f in fields(StepRecord) if f.name not in LISTS}
STEPS = [StepRecord(**ZEROS | {"start_ns": number}) for number in range(6)]
REQUEST = RequestRecord(request_id=0, arrival_ns=0, queued_ns=0, num_prompt_tokens=1)
INFO = RunInfo(source="simulated", engine="sim", policy="v0", config={},
               trace={"num_requests": 1}, outcome=Outcome())
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
write = os.write
os.fsync = lambda fd: None  # a killed process loses nothing that it wrote

def run(name, folder, force, ends=True):
    store = RunStore(name, INFO, output=folder, force=force)
    store.journal.append([REQUEST], STEPS[:3])
    store.journal.append([REQUEST], STEPS[3:])
    if ends:
        store.save(INFO, [REQUEST], STEPS, {"kind": "run"})

def run_until(operation, place):
    left = [operation]
    def tick():
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    def hook(event, args):
        if event in OPERATIONS and str(place) in str(args[0]):
            tick()
    def written(fd, data):
        tick()
        return write(fd, data)
    os.write, os.fsync = written, lambda fd: tick()
    sys.addaudithook(hook)
    run("new", place / "out", force=True)

def in_child(function, *args):
    child = os.fork()
    if not child:
        with suppress(BaseException):
            function(*args)
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

old = Path(sys.argv[1]) / "old"
if sys.argv[2] != "nothing":
    in_child(run, "old", old, False, sys.argv[2] == "a whole run")
environment()
for operation in count(1):
    place = Path(sys.argv[1]) / f"{operation:03}"
    place.mkdir()
    if old.exists():
        shutil.copytree(old, place / "out")
    code = in_child(run_until, operation, place)
    if code != -signal.SIGKILL:
        raise SystemExit(code)
"""


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


def run_json(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return document


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_folder_is_named_by_time_and_trace(save: Save) -> None:
    """A run lies in .blockbench/runs, and nothing else stays there."""
    folder = save("my chat/ü")

    assert folder == Path(".blockbench/runs/1129-1200-my-chat-ü")
    assert names(folder) == TABLES
    assert list(RUNS.iterdir()) == [folder]


@pytest.mark.parametrize("name", ["𝒜" * 90, "字" * 90, "x" * 300, "..", "\udcff"])
def test_any_name_makes_a_folder(save: Save, name: str) -> None:
    """A name too long for the disk, or without a letter, is cut or replaced."""
    assert run_json(save(name))["name"] == name


def test_a_taken_name_gets_a_number(save: Save) -> None:
    """Runs of the same minute lie beside each other."""
    found = [save().name for _ in range(3)]

    assert found == ["1129-1200-chat", "1129-1200-chat-2", "1129-1200-chat-3"]


@pytest.mark.parametrize("output", [None, "out"])
def test_runs_that_start_at_once_do_not_share(
    make_info: MakeInfo, make_step: MakeStep, output: str | None
) -> None:
    """Of eight runs in one instant each has its folder; a named one takes the first."""
    barrier = Barrier(8)

    def run(number: int) -> Path | None:
        barrier.wait()
        settings = {"created_at": NOON, "output": output and Path(output)}
        try:
            with RunStore("chat", make_info(), **settings) as store:
                store.journal.append([], [make_step(start_ns=number)])
                return store.save(make_info(), [], [make_step(start_ns=number)], {})
        except RunFolderError:
            return None

    with ThreadPoolExecutor(8) as pool:
        found = [folder for folder in pool.map(run, range(8)) if folder]

    assert len(set(found)) == len(found) == (8 if output is None else 1)
    starts = [results.load(folder).steps["start_ns"].tolist() for folder in found]
    assert len({start for (start,) in starts}) == len(found)
    assert all(names(folder) == TABLES for folder in found)


def test_a_run_that_came_and_went_meanwhile_is_not_written_over(
    make_info: MakeInfo, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was empty when it was looked at, and is not when it is taken."""
    make_place, out = results.store.make_place, Path("out")

    def after_another_run(*args: Any, **settings: Any) -> Any:
        monkeypatch.setattr(results.store, "make_place", make_place)
        save("first", output=out)
        return make_place(*args, **settings)

    out.mkdir()
    monkeypatch.setattr(results.store, "make_place", after_another_run)
    with pytest.raises(RunFolderError, match="another run began there"):
        RunStore("second", make_info(), output=out)

    assert results.load(out).run["name"] == "first"
    assert names(out) == TABLES


def test_equal_rows_give_equal_bytes(
    make_info: MakeInfo, make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Two equal runs differ in nothing but times of day and wall_s in run.json."""
    rows = [make_request(), make_request(first_token_ns=None)]
    steps = [make_step(gap_ns=[3, 5], gap_count=[1, 2]), make_step()]
    folders = []
    for hour in (1, 2):
        at = datetime(2025, 1, 1, hour)
        with RunStore("a", make_info(), created_at=at) as store:
            info = make_info(wall_s=float(hour))
            folders.append(store.save(info, rows, steps, SUMMARY | {"wall_s": hour}))

    one, two = folders
    for name in ("requests.parquet", "steps.parquet"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    runs = [run_json(folder) for folder in folders]
    for key in ("created_at", "history", "wall_s"):
        assert runs[0].pop(key) != runs[1].pop(key)
    assert runs[0].pop("summary") | {"wall_s": 2} == runs[1].pop("summary")
    assert runs[0] == runs[1]


def test_run_json_says_what_was_run(make_info: MakeInfo) -> None:
    """It has the run's state and times, what it depended on, and the info's fields."""
    info = make_info(outcome=Outcome(ending=Ending.DIED, kind="vllm_assertion"))
    with RunStore("chat", make_info(), created_at=NOON) as store:
        during = run_json(store.folder)
        after = run_json(store.save(info, [], [], SUMMARY))

    keys = ["schema_version", "name", "state", "created_at", "history", "environment"]
    assert list(after) == [*keys, *info.to_dict(), "summary"]
    assert (after["schema_version"], after["name"], after["state"]) == (1, "chat", "died")
    assert after["history"][0] == {"state": "running", "at": after["created_at"]}
    assert [entry["state"] for entry in after["history"]] == ["running", "died"]
    assert set(after["environment"]) == {
        *("blockbench", "python", "platform", "numpy", "pyarrow", "pandas")
    }
    assert RunInfo.from_dict(after) == info
    assert during["summary"] is None
    assert during["outcome"]["ending"] == during["state"] == "running"
    assert [entry["state"] for entry in during["history"]] == ["running"]


def test_a_run_starts_without_pandas() -> None:
    """The version of a library is found without loading it."""
    code = "import sys; from results.store import environment; print(environment())\n"
    code += "assert {'pandas', 'pyarrow'}.isdisjoint(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert b"unknown" not in done.stdout


def test_schema_does_not_depend_on_the_rows() -> None:
    """An empty run has the columns and types of a full one; only some may be null."""
    schema = record_schema(RequestRecord)

    nullable = {name for name in schema.names if schema.field(name).nullable}
    times = {"first_scheduled_ns", "first_token_ns", "finished_ns"}
    assert nullable == times | {"num_shared_tokens", "num_shared_prompt_tokens"}
    assert str(schema.field("status").type) == "string"
    assert str(record_schema(StepRecord).field("gap_ns").type).startswith("list<")


@pytest.mark.parametrize("before", ["nothing", "a whole run", "a killed run"])
def test_a_kill_at_any_moment_leaves_a_run_to_read(tmp_path: Path, before: str) -> None:
    """Killed before any operation on a file, there is the old run, or the new with rows.

    And what was reached once is never lost again: rows, then the whole run.
    """
    command = [sys.executable, "-c", KILLED_AT_EACH_OPERATION, tmp_path, before]
    subprocess.run(command, check=True)

    stages = [_stage(place / "out") for place in sorted(tmp_path.glob("[0-9]*"))]

    first = {"nothing": (0, 0), "a whole run": (1, 6), "a killed run": (1, 6)}[before]
    assert stages[0] == first
    assert stages[-1] == (3, 6)
    assert stages == sorted(stages)
    assert len(stages) > 20
    if before == "nothing":
        assert {(0, 0), (2, 0), (2, 3), (2, 6), (3, 6)} == set(stages)
        assert stages.count((0, 0)) < 10
    else:
        assert {(1, 6), (3, 6)} == set(stages)


def _stage(folder: Path) -> tuple[int, int]:
    """How far the new run came: 0 nothing, 1 the old one, 2 rows, 3 whole; steps read."""
    before = contents(folder.parent)
    try:
        stored = results.load(folder)
    except RunFolderError:
        assert not (folder / "run.json").exists()
        return 0, 0
    for beside in folder.parent.glob("out.*/run.json"):
        results.load(beside.parent)
    assert contents(folder.parent) == before
    assert stored.steps["start_ns"].tolist() == list(range(len(stored.steps)))
    assert stored.state in (Ending.COMPLETE, Ending.KILLED)
    if stored.run["name"] == "old":
        return 1, len(stored.steps)
    return (2 if stored.state is Ending.KILLED else 3), len(stored.steps)


def test_the_disk_has_a_file_before_its_name(
    make_info: MakeInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is synced, then renamed, then its folder synced; journals go last."""
    log: list[tuple[str, int]] = []
    replace, fsync, unlink = os.replace, os.fsync, Path.unlink

    def synced(fd: int) -> None:
        log.append(("sync", os.fstat(fd).st_ino))
        fsync(fd)

    def replaced(source: Path, target: Path) -> None:
        log.append(("name", source.stat().st_ino))
        replace(source, target)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        log.append(("remove", path.stat().st_ino))
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(Path, "unlink", unlinked)
    with RunStore("a", make_info()) as store:
        journals = [(store.folder / name).stat().st_ino for name in JOURNALS]
        folder = store.save(make_info(), [], [], {})

    named = [inode for what, inode in log if what == "name"]
    there = folder.stat().st_ino
    expected = [
        entry
        for inode in named
        for entry in (("sync", inode), ("name", inode), ("sync", there))
    ]
    expected += [("remove", inode) for inode in journals]
    assert log == [*expected, ("sync", RUNS.stat().st_ino)]
    assert len(named) == 4


def test_any_locale_can_save(tmp_path: Path) -> None:
    """A folder with letters that the locale lacks takes a run and gives it back."""
    code = (
        "import sys, results; from pathlib import Path\n"
        "from results.store import RunStore; from results.run_info import *\n"
        "info = RunInfo(source='', engine='', policy='', config={},\n"
        "               trace={'num_requests': 0}, outcome=Outcome())\n"
        "with RunStore('a', info, output=Path(sys.argv[1])) as store:\n"
        "    results.load(store.save(info, [], [], {}))\n"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "Läufe"],
        env=os.environ | plain,
        capture_output=True,
    )

    assert done.stderr == b""
    assert (tmp_path / "Läufe" / "steps.parquet").exists()


def test_a_file_in_the_way_is_named(tmp_path: Path, make_info: MakeInfo) -> None:
    """A folder that cannot be made is reported before the run starts."""
    (tmp_path / "file").write_text("")

    with pytest.raises(RunFolderError, match="another place with -o"):
        RunStore("a", make_info(), output=tmp_path / "file" / "run")


@pytest.mark.parametrize("output", [None, Path("new", "run"), Path("there")])
@pytest.mark.parametrize("broken", ["Journal", "_write_text"])
def test_what_cannot_be_written_is_found_at_the_start(
    tmp_path: Path,
    make_info: MakeInfo,
    monkeypatch: pytest.MonkeyPatch,
    output: Path | None,
    broken: str,
) -> None:
    """A disk that takes no file costs no run, and what was made is removed again."""
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(results.store, broken, fail)

    with pytest.raises(RunFolderError, match=r"No space left.*another place with -o"):
        RunStore("a", make_info(), output=output)

    RUNS.exists() and RUNS.rmdir()
    assert names(tmp_path) - {".blockbench"} == {"there"}
    assert names(tmp_path / "there") == set()


def test_room_on_the_disk_is_asked_for(
    tmp_path: Path, make_info: MakeInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run starts only where there is room for it, by the number of its requests."""
    free = [20 * 2**20]
    usage = type("Usage", (), {"free": property(lambda _: free[0])})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage())
    large = make_info(trace={"num_requests": 100_000})

    message = r"20 MiB are free.*100,000 requests may need 407 MiB.*make room or choose"
    with pytest.raises(RunFolderError, match=message):
        RunStore("a", large)
    assert list(tmp_path.iterdir()) == []

    with RunStore("a", make_info(trace={"num_requests": 1000})) as store:
        assert store.folder.exists()
    free[0] = 500 * 2**20
    with RunStore("a", large) as store:
        assert store.folder.exists()


@pytest.mark.parametrize("failing", ["requests", "steps", "run.json"])
def test_a_failed_save_keeps_the_rows(
    make_info: MakeInfo,
    make_step: MakeStep,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
) -> None:
    """A full disk is reported with what is kept, and no part of a table stays."""
    write = results.store.write_records

    def write_or_fail(path: Path, *args: Any) -> None:
        path.write_bytes(b"half")
        return fail() if failing in path.name else write(path, *args)

    message = r"not saved: No space left.*blockbench show .*1200-a\).*make room"
    with RunStore("a", make_info(), created_at=NOON) as store:
        store.journal.append([], [make_step()])
        if failing == "run.json":
            monkeypatch.setattr(results.store, "_write_text", fail)
        else:
            monkeypatch.setattr(results.store, "write_records", write_or_fail)
        with pytest.raises(ResultsError, match=message):
            store.save(make_info(), [], [make_step()], SUMMARY)

    assert names(store.folder) == {"run.json", *JOURNALS}
    assert len(results.load(store.folder).steps) == 1


def test_rows_that_waited_are_kept_once_there_is_room(
    make_info: MakeInfo, make_step: MakeStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room that unfinished tables took is given to the journal."""
    monkeypatch.setattr("results.store.write_records", fail)
    with RunStore("a", make_info()) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fail)
            store.journal.append([], [make_step()])
        assert store.journal.is_empty

        with pytest.raises(ResultsError, match="blockbench show"):
            store.save(make_info(), [], [make_step()], {})

    assert len(results.load(store.folder).steps) == 1


def test_a_failed_save_without_rows_leaves_nothing(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing recorded, nothing saved: the folder goes, and nobody is sent to it."""
    monkeypatch.setattr("results.store.write_records", fail)

    with pytest.raises(ResultsError, match=r"No space left.*; make room") as raised:
        save()

    assert "blockbench show" not in str(raised.value)
    assert list(RUNS.iterdir()) == []


def test_leaving_before_the_first_row_removes_the_folder(
    tmp_path: Path, make_info: MakeInfo
) -> None:
    """A run that raised at once leaves no folder but those that were there before."""
    (tmp_path / "there").mkdir()
    for output in (None, Path("there"), Path("new", "deep", "run")):
        with pytest.raises(KeyboardInterrupt), RunStore("a", make_info(), output=output):
            raise KeyboardInterrupt

    assert list(RUNS.iterdir()) == list((tmp_path / "there").iterdir()) == []
    assert names(tmp_path) == {".blockbench", "there"}


def test_leaving_removes_nothing_that_others_put_there(make_info: MakeInfo) -> None:
    """A file that came into the folder meanwhile stays, and so does the folder."""
    with RunStore("a", make_info(), output=Path("new")) as store:
        (store.folder / "note").write_text("x")

    assert names(Path("new")) == {"note"}


def test_leaving_after_the_first_row_keeps_it(
    make_info: MakeInfo, make_step: MakeStep
) -> None:
    """A run that raised later is left as if it had been killed."""
    store = RunStore("a", make_info())
    store.journal.append([], [make_step()])
    with pytest.raises(KeyboardInterrupt), store:
        raise KeyboardInterrupt

    assert len(results.load(store.folder).steps) == 1
