"""Tests for :mod:`results.runs`."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from results.errors import RunFolderError
from results.journal import is_under_way
from results.record import StepRecord
from results.run_info import Ending, Outcome, RunInfo
from results.runs import find_run, list_runs
from results.store import RunStore

MakeInfo = Callable[..., RunInfo]
MakeStep = Callable[..., StepRecord]
Save = Callable[..., Path]

RUNS = Path(".blockbench", "runs")
NOON = datetime(2025, 11, 29, 12, 0)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def save(make_info: MakeInfo) -> Save:
    """Return a function that stores a run so many minutes after noon."""

    def save_run(name: str = "chat", minutes: int = 0, **changes: Any) -> Path:
        at = NOON + timedelta(minutes=minutes)
        with RunStore(name, make_info(), created_at=at) as store:
            return store.save(make_info(**changes), [], [], {"kind": "run"})

    return save_run


def test_a_run_is_found_by_folder_name_or_part(save: Save, tmp_path: Path) -> None:
    """A path, a whole name and a part of just one name lead to the same run."""
    save("code", minutes=1)
    chat = save("chat")

    assert find_run(str(chat)) == chat
    assert find_run(str(tmp_path / chat)) == tmp_path / chat
    assert find_run("1129-1200-chat") == chat
    assert find_run("cha") == chat


def test_a_whole_name_is_no_part(save: Save) -> None:
    """The first of two runs of one minute is found by its name, which begins both."""
    first, second = save(), save()

    assert find_run("1129-1200-chat") == first
    assert find_run("chat-2") == second


def test_a_folder_goes_before_a_name(save: Save) -> None:
    """A run folder at hand is meant, a folder of something else is not."""
    chat = save()
    Path("chat").mkdir()
    assert find_run("chat") == chat

    chat.rename("chat")
    save()
    assert find_run("chat") == Path("chat")


def test_last_is_the_newest(save: Save, make_info: MakeInfo) -> None:
    """The one that began last is meant, ended or not, and not the last by name."""
    save(minutes=5)
    save("aaa", minutes=9)
    save("zzz", minutes=1)
    assert find_run("last").name == "1129-1209-aaa"

    with RunStore("under way", make_info(), created_at=NOON + timedelta(days=1)):
        assert find_run("last").name == "1130-1200-under-way"


def test_time_zones_are_minded(make_info: MakeInfo) -> None:
    """A run that began later is the newest, whatever the clocks on the wall said."""
    for hours, minutes in ((12, 0), (-12, 30), (0, 15)):
        zone = timezone(timedelta(hours=hours))
        at = datetime(2025, 11, 29, 12, minutes, tzinfo=UTC).astimezone(zone)
        with RunStore(f"{minutes} past", make_info(), created_at=at) as store:
            store.save(make_info(), [], [], {})

    with RunStore("here", make_info(), created_at=datetime(2025, 11, 29, 20)) as store:
        store.save(make_info(), [], [], {})

    names = [entry.run and entry.run["name"] for entry in list_runs()]
    assert [name for name in names if name != "here"] == ["30 past", "15 past", "0 past"]


def test_runs_of_one_minute_are_told_apart(make_info: MakeInfo) -> None:
    """A script that runs several times a second gets the last of them."""
    found = []
    for number in range(12):
        at = NOON + timedelta(milliseconds=number)
        with RunStore("a", make_info(), created_at=at) as store:
            found.append(store.save(make_info(), [], [], {}))
            assert find_run("last") == found[-1]

    assert [entry.folder for entry in list_runs()] == found[::-1]


@pytest.mark.parametrize("text", ["last", "chat", ""])
def test_without_runs_the_way_to_one_is_named(text: str) -> None:
    """An empty folder of runs, or none, is no traceback."""
    with pytest.raises(RunFolderError, match="blockbench (run|list)"):
        find_run(text)


@pytest.mark.parametrize("text", ["caht", "1129-1200-caht", "chatt", "1129-1201-chat"])
def test_a_mistyped_name_is_answered_with_the_nearest(save: Save, text: str) -> None:
    """What is meant can be seen from the error, as can the way to all names."""
    save()
    save("something else")

    message = "did you mean 1129-1200-chat.*blockbench list"
    with pytest.raises(RunFolderError, match=message) as raised:
        find_run(text)
    assert "something" not in str(raised.value)


def test_a_name_like_no_other_gets_no_guess(save: Save) -> None:
    """Nothing is offered that is not near."""
    save()

    for text in ("qqqq", "x" * 300, ""):
        with pytest.raises(RunFolderError, match="is no run folder") as raised:
            find_run(text)
        assert "did you mean" not in str(raised.value)


def test_a_part_of_several_names_is_refused(save: Save) -> None:
    """No run is chosen for the user."""
    for minutes in range(7):
        save(minutes=minutes)

    message = "part of 1129-1200-chat, .*1129-1204-chat and 2 more; give more of the name"
    with pytest.raises(RunFolderError, match=message):
        find_run("chat")


def test_runs_are_listed_with_their_state(
    save: Save, make_info: MakeInfo, make_step: MakeStep
) -> None:
    """Each run tells how it ended, or that it is under way or was killed."""
    save("stuck", minutes=1, outcome=Outcome(ending=Ending.STUCK))
    save("complete", minutes=2)
    killed = RunStore("killed", make_info(), created_at=NOON)
    killed.journal.close()
    with RunStore("running", make_info(), created_at=NOON + timedelta(minutes=3)):
        entries = list_runs()

    states = [entry.state for entry in entries]
    assert states == [Ending.RUNNING, Ending.COMPLETE, Ending.STUCK, Ending.KILLED]
    runs = [entry.run for entry in entries]
    assert [run and run["name"] for run in runs] == [
        *("running", "complete", "stuck", "killed")
    ]
    assert {entry.problem for entry in entries} == {""}


def test_a_run_that_ends_while_it_is_listed_was_not_killed(
    make_info: MakeInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is free because it is complete, which run.json says by then."""
    with RunStore("a", make_info()) as store:

        def end(folder: Path) -> bool:
            store.save(make_info(), [], [], {})
            return is_under_way(folder)

        monkeypatch.setattr("results.stored_run.is_under_way", end)
        (entry,) = list_runs()

    assert entry.state is Ending.COMPLETE


def test_damaged_runs_are_never_the_last(save: Save) -> None:
    """With nothing else there, there is no last run."""
    (save() / "run.json").write_text("")

    with pytest.raises(RunFolderError, match="there is no run in"):
        find_run("last")


def test_a_damaged_folder_hides_no_other(save: Save) -> None:
    """What cannot be read is listed last, with the reason."""
    for minutes, text in enumerate(
        (None, "", "{}", "[" * 99999, '{"schema_version": 1}')
    ):
        path = save("bad", minutes=minutes) / "run.json"
        path.unlink() if text is None else path.write_text(text)
    good = save("good")
    (RUNS / "note.txt").write_text("x")
    (RUNS / ".hidden").mkdir()

    first, *others = list_runs()

    assert first.folder == good
    assert len(others) == 5
    assert all(entry.problem and entry.run is entry.state is None for entry in others)
    assert find_run("last") == good


def test_a_file_in_place_of_the_runs_is_named() -> None:
    """A folder of runs that is none is no traceback."""
    RUNS.parent.mkdir()
    RUNS.write_text("x")

    with pytest.raises(RunFolderError, match=r"runs cannot be read"):
        list_runs()
    with pytest.raises(RunFolderError, match=r"runs cannot be read"):
        find_run("chat")
