"""Tests for :mod:`results.journal`, with kills and full disks that are real."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from results.errors import RunFolderError
from results.journal import (
    REQUESTS_JOURNAL,
    STEPS_JOURNAL,
    Journal,
    is_under_way,
    last_of_each,
    read_journal,
)
from results.record import RequestRecord, StepRecord
from results.run_info import Ending
from results.stored_run import load_run

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]

WRITER = """
import os, sys, time
from dataclasses import fields
from pathlib import Path
from results.record import RequestRecord, StepRecord
from results.run_info import RunInfo
from results.store import RunStore

LISTS = ("gap_ns", "gap_count")
ZEROS = {f.name: 0 for f in fields(StepRecord) if f.name not in LISTS}
INFO = RunInfo(source="simulated", engine="sim", policy="v0", config={},
               trace={"num_requests": 1})

def step(number):
    gaps = list(range(10**9, 10**9 + number * 37 % 500))
    return StepRecord(**ZEROS | {"start_ns": number, "gap_ns": gaps})

def request(num_steps):
    return RequestRecord(request_id=0, arrival_ns=0, queued_ns=0,
                         num_prompt_tokens=1, num_output_tokens=num_steps)
"""
WRITES_FOREVER = """
num_steps = 0
with RunStore("a", INFO, output=Path(sys.argv[1])) as store:
    while True:
        more = 1 + num_steps % 7
        steps = [step(num_steps + i) for i in range(more)]
        num_steps += more
        store.journal.append([request(num_steps)], steps)
        os.write(1, num_steps.to_bytes(8, "little"))
        time.sleep(0.0005)
"""
FILLS_THE_DISK = """
import json, resource, signal
from results.errors import ResultsError

seen = {"rows": [], "whole": []}
store = RunStore("a", INFO, output=Path(sys.argv[1]))
with store:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    for number in range(0, 60, 3):
        store.journal.append([request(number + 3)], map(step, range(number, number + 3)))
        rows = (store.folder / "steps.jsonl").read_bytes()
        seen["rows"].append(rows.count(b"\\n"))
        seen["whole"].append(rows[-1:] == b"\\n")
    if sys.argv[2] == "later there is room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        store.journal.append([], [])
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
        try:
            store.save(INFO, [request(60)], [step(n) for n in range(60)], {})
        except ResultsError as error:
            seen["message"] = str(error)
print(json.dumps(seen))
"""


def start(code: str, *args: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER + code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def kill_while_it_writes(folder: Path, life_s: float) -> int:
    """Return how many steps a writer had announced when it was killed."""
    with start(WRITES_FOREVER, folder) as writer:
        assert writer.stdout is not None
        first = writer.stdout.read(8)
        time.sleep(life_s)
        writer.kill()
        told = first + writer.stdout.read()
    assert writer.returncode == -9
    last = len(told) // 8 * 8
    return int.from_bytes(told[last - 8 : last], "little")


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}


@pytest.mark.slow
def test_a_killed_run_keeps_what_it_announced(tmp_path: Path) -> None:
    """Killed at any moment, a run is read as the first steps, none announced missing."""
    draw = random.Random(17)
    lives = [draw.uniform(0.02, 0.2) for _ in range(50)]
    folders = [tmp_path / str(number) for number in range(50)]
    with ThreadPoolExecutor(4) as pool:
        announced = list(pool.map(kill_while_it_writes, folders, lives))

    for folder, num_announced in zip(folders, announced, strict=True):
        before = contents(folder)
        stored = load_run(folder)

        assert stored.state is Ending.KILLED
        numbers = stored.steps["start_ns"].tolist()
        assert numbers == list(range(len(numbers)))
        assert all(len(s) == n * 37 % 500 for n, s in enumerate(stored.steps["gap_ns"]))
        num_told = stored.requests["num_output_tokens"].tolist()
        assert [num_announced] <= num_told <= [len(numbers)]
        assert stored.requests["reason"].tolist() == ["the run was killed"]
        assert contents(folder) == before


def test_a_full_disk_costs_no_row_that_fits_later(tmp_path: Path) -> None:
    """Rows wait while the disk is full, the file stays whole, and later all are there."""
    with start(FILLS_THE_DISK, tmp_path / "run", "later there is room") as writer:
        output, _ = writer.communicate()

    seen = json.loads(output)
    assert seen["rows"][0] == 3
    assert seen["rows"][-1] == seen["rows"][-2] < 60
    assert all(seen["whole"])
    stored = load_run(tmp_path / "run")
    assert stored.steps["start_ns"].tolist() == list(range(60))
    assert stored.requests["num_output_tokens"].tolist() == [60]


def test_a_disk_that_stays_full_leaves_the_rows_so_far(tmp_path: Path) -> None:
    """A run that cannot be saved says what is kept, and that can be read."""
    with start(FILLS_THE_DISK, tmp_path / "run", "no") as writer:
        output, _ = writer.communicate()

    seen = json.loads(output)
    assert "the run was not saved: File too large" in seen["message"]
    assert f"blockbench show {tmp_path / 'run'}" in seen["message"]
    stored = load_run(tmp_path / "run")
    numbers = stored.steps["start_ns"].tolist()
    assert stored.state is Ending.KILLED
    assert 0 < len(numbers) < 60
    assert numbers == list(range(len(numbers)))
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "run.json",
        REQUESTS_JOURNAL,
        STEPS_JOURNAL,
    }


def test_rows_come_back_as_they_were(
    tmp_path: Path, make_request: MakeRequest, make_step: MakeStep
) -> None:
    """Every attribute is in the line, also those that never came to a value."""
    request = make_request(finished_ns=None, reason="ü\n")
    step = make_step(gap_ns=[3], gap_count=[2])
    journal = Journal(tmp_path)
    journal.append([request], [step])

    assert read_journal(tmp_path / REQUESTS_JOURNAL, RequestRecord) == [asdict(request)]
    assert read_journal(tmp_path / STEPS_JOURNAL, StepRecord) == [asdict(step)]
    journal.close()


def test_rows_are_copied_when_they_are_appended(
    tmp_path: Path, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that waits for room tells of the moment at which it was appended."""
    journal, request = Journal(tmp_path), make_request(num_output_tokens=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        journal.append([request], [])
    request.num_output_tokens = 2
    journal.flush()

    (row,) = read_journal(tmp_path / REQUESTS_JOURNAL, RequestRecord)
    assert row["num_output_tokens"] == 1
    journal.close()


def fail(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_request_waits_once(
    tmp_path: Path, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the disk is full, only the newest row of a request waits."""
    journal = Journal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        for number in range(9):
            journal.append([make_request(num_output_tokens=number)], [])
    journal.close()

    (row,) = read_journal(tmp_path / REQUESTS_JOURNAL, RequestRecord)
    assert row["num_output_tokens"] == 8


def test_requests_never_run_ahead_of_steps(
    tmp_path: Path,
    make_request: MakeRequest,
    make_step: MakeStep,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While steps wait for room, the requests that they led to wait too."""
    journal, write = Journal(tmp_path), os.write
    small = 800  # a request fits into it and a step does not
    monkeypatch.setattr(
        os, "write", lambda fd, row: write(fd, row) if len(row) < small else fail()
    )
    journal.append([make_request()], [make_step(gap_ns=list(range(999)))])
    journal.close()

    assert journal.is_empty
    assert (tmp_path / REQUESTS_JOURNAL).read_bytes() == b""


@pytest.mark.parametrize("num_bytes", [1, 700, 1000, 2000])
@pytest.mark.parametrize("can_truncate", [True, False])
def test_half_a_write_is_no_half_row(
    tmp_path: Path,
    make_step: MakeStep,
    monkeypatch: pytest.MonkeyPatch,
    num_bytes: int,
    can_truncate: bool,
) -> None:
    """What a disk took before it was full stays as far as it is whole rows."""
    journal, write = Journal(tmp_path), os.write
    room = [num_bytes]

    def fill_up(fd: int, rows: memoryview) -> int:
        num_taken = min(room[0], len(rows))
        room[0] -= num_taken
        return write(fd, rows[:num_taken]) if num_taken else fail()

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fill_up)
        if not can_truncate:
            patch.setattr(os, "ftruncate", fail)
        journal.append([], [make_step(start_ns=n) for n in range(5)])
        kept = read_journal(tmp_path / STEPS_JOURNAL, StepRecord)
    journal.append([], [make_step(start_ns=5)])
    journal.close()

    rows = read_journal(tmp_path / STEPS_JOURNAL, StepRecord)
    assert kept == rows[: len(kept)]
    row_bytes = (tmp_path / STEPS_JOURNAL).stat().st_size // 6
    assert len(kept) == num_bytes // row_bytes
    assert [row["start_ns"] for row in rows] == list(range(6))


def test_a_cut_last_line_is_left_out(tmp_path: Path, make_request: MakeRequest) -> None:
    """Cut anywhere in its last line, a journal is read as the lines before."""
    path = tmp_path / REQUESTS_JOURNAL
    journal = Journal(tmp_path)
    journal.append([make_request(request_id=n) for n in range(3)], [])
    journal.close()
    whole = path.read_bytes()
    start_of_last = whole[:-1].rindex(b"\n") + 1

    for end in range(start_of_last, len(whole)):
        path.write_bytes(whole[:end])

        ids = [row["request_id"] for row in read_journal(path, RequestRecord)]
        assert ids == [0, 1], whole[:end]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", r"line 2 is damaged.*delete that line"),
        (b"\0\0", r"line 2 is damaged"),
        (b"[]", r"line 2 is no row.*version"),
        (b'{"request_id": 1}', r"line 2 is no row.*version"),
    ],
)
def test_a_broken_line_is_named(
    tmp_path: Path, make_request: MakeRequest, line: bytes, message: str
) -> None:
    """A line that is no row is refused with file, number and a remedy."""
    journal, path = Journal(tmp_path), tmp_path / REQUESTS_JOURNAL
    journal.append([make_request()], [])
    journal.close()
    row = path.read_bytes()
    path.write_bytes(row + line + b"\n" + row)

    with pytest.raises(RunFolderError, match=rf"requests\.jsonl, {message}"):
        read_journal(path, RequestRecord)


def test_the_last_row_of_a_request_counts() -> None:
    """A request that changed is read as it was last, in the order of the ids."""
    rows: list[dict[str, Any]] = [
        {"request_id": 7, "n": 1},
        {"request_id": 2, "n": 1},
        {"request_id": 7, "n": 2},
    ]

    assert last_of_each(rows) == [{"request_id": 2, "n": 1}, {"request_id": 7, "n": 2}]


def test_a_second_journal_is_refused(tmp_path: Path, make_step: MakeStep) -> None:
    """Two runs never write into one folder, and the first one keeps its rows."""
    journal = Journal(tmp_path)
    journal.append([], [make_step()])

    with pytest.raises(FileExistsError):
        Journal(tmp_path)
    journal.close()
    assert len(read_journal(tmp_path / STEPS_JOURNAL, StepRecord)) == 1


def test_a_journal_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    """The first file goes again when the second is in the way."""
    (tmp_path / REQUESTS_JOURNAL).mkdir()

    with pytest.raises(FileExistsError):
        Journal(tmp_path)
    assert not (tmp_path / STEPS_JOURNAL).exists()


def test_a_run_is_alive_while_its_journal_is_open(tmp_path: Path) -> None:
    """The lock is gone with the journal, and tells more than the journal's age."""
    assert not is_under_way(tmp_path)
    journal = Journal(tmp_path)
    for name in (REQUESTS_JOURNAL, STEPS_JOURNAL):
        os.utime(tmp_path / name, (0, 0))
    assert is_under_way(tmp_path)
    journal.close()
    assert not is_under_way(tmp_path)


def test_a_reader_is_not_taken_for_the_writer(tmp_path: Path) -> None:
    """Two who ask at the same time do not see each other's lock."""
    fcntl = pytest.importorskip("fcntl")
    Journal(tmp_path).close()
    with (tmp_path / STEPS_JOURNAL).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        assert not is_under_way(tmp_path)


@pytest.mark.parametrize("reason", ["no fcntl", "a network disk"])
def test_without_locks_a_silent_journal_is_a_dead_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Where nothing can be locked, the age of the last sign of life decides."""
    if reason == "no fcntl":
        monkeypatch.setitem(sys.modules, "fcntl", None)
    else:
        monkeypatch.setattr("fcntl.flock", fail)
    journal = Journal(tmp_path)
    assert is_under_way(tmp_path)

    for name in (REQUESTS_JOURNAL, STEPS_JOURNAL):
        os.utime(tmp_path / name, (time.time() - 11, time.time() - 11))
    assert not is_under_way(tmp_path)

    journal.append([], [])  # nothing new, but alive
    assert is_under_way(tmp_path)
    journal.close()
