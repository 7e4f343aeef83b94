"""Tests for :mod:`results.output`, through the store that asks it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import results
from results.errors import ResultsError, RunFolderError
from results.output import ENGINE_LOG, RUN_FILES, where_run_lies
from results.record import StepRecord
from results.run_info import Ending, RunInfo
from results.runs import list_runs
from results.store import RunStore

MakeInfo = Callable[..., RunInfo]
MakeStep = Callable[..., StepRecord]
Save = Callable[..., Path]


@pytest.fixture
def save(make_info: MakeInfo) -> Save:
    """Return a function that stores a run without rows."""

    def save_run(name: str = "chat", **settings: Any) -> Path:
        with RunStore(name, make_info(), **settings) as store:
            return store.save(make_info(), [], [], {"kind": "run"})

    return save_run


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_output_folder_is_not_overwritten(tmp_path: Path, save: Save) -> None:
    """-o on a folder that holds something is refused, and nothing there changes."""
    target = tmp_path / "out"
    save(output=target)
    before = (target / "run.json").stat().st_mtime_ns

    with pytest.raises(RunFolderError, match="--force"):
        save(output=target)

    assert (target / "run.json").stat().st_mtime_ns == before
    assert names(tmp_path) == {"out"}


def test_an_empty_output_folder_is_used(tmp_path: Path, save: Save) -> None:
    """A folder made for the run beforehand takes it."""
    target = tmp_path / "out"
    target.mkdir()

    assert save(output=target) == target
    assert (target / "run.json").exists()


def test_force_replaces_a_run(tmp_path: Path, save: Save) -> None:
    """--force puts the new run in place of the old."""
    target = tmp_path / "out"
    save(output=target)
    save("other", output=target, force=True)

    assert results.load(target).run["name"] == "other"


def test_force_replaces_nothing_but_runs(tmp_path: Path, save: Save) -> None:
    """--force on a folder with other files is refused, and they stay."""
    keep = tmp_path / "out" / "thesis.tex"
    keep.parent.mkdir()
    keep.write_text("x")

    with pytest.raises(RunFolderError, match=r"thesis\.tex"):
        save(output=keep.parent, force=True)

    assert keep.read_text() == "x"


@pytest.mark.parametrize(
    "text",
    [
        '{"precious": 1}',
        '{"schema_version": 1}',
        '{"schema_version": 1, "summary": 2}',
        "[]",
        "{",
        "[" * 9999,
    ],
)
def test_force_keeps_a_run_json_that_is_not_ours(
    tmp_path: Path, save: Save, text: str
) -> None:
    """A file that only bears the name of ours is refused, and stays."""
    keep = tmp_path / "out" / "run.json"
    keep.parent.mkdir()
    keep.write_text(text)

    with pytest.raises(RunFolderError, match=r"no run\.json that blockbench wrote"):
        save(output=keep.parent, force=True)

    assert keep.read_text() == text


@pytest.mark.parametrize("name", ["run.json", "steps.parquet"])
def test_force_keeps_folders_named_like_our_files(
    tmp_path: Path, save: Save, name: str
) -> None:
    """A folder in place of one of our files is refused with what it holds."""
    target = tmp_path / "out"
    save(output=target)
    (target / name).unlink()
    (target / name).mkdir()

    with pytest.raises(RunFolderError, match=name.replace(".", r"\.")):
        save(output=target, force=True)

    assert (target / name).is_dir()


def test_force_needs_a_run_json(tmp_path: Path, save: Save) -> None:
    """Tables alone are no run."""
    target = tmp_path / "out"
    save(output=target)
    (target / "run.json").unlink()

    with pytest.raises(RunFolderError, match=r"no run\.json"):
        save(output=target, force=True)

    assert (target / "steps.parquet").exists()


def test_force_replaces_runs_of_other_versions(tmp_path: Path, save: Save) -> None:
    """A run that this version cannot read is a run all the same."""
    target = tmp_path / "out"
    save(output=target)
    run = json.loads((target / "run.json").read_text()) | {"schema_version": 99}
    (target / "run.json").write_text(json.dumps(run))

    save("other", output=target, force=True)

    assert results.load(target).run["name"] == "other"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_takes_the_run_where_it_leads(
    tmp_path: Path, save: Save, exists: bool
) -> None:
    """A link to an empty folder, or to none yet, stays a link and leads to the run."""
    link, target = tmp_path / "link", tmp_path / "far" / "target"
    if exists:
        target.mkdir(parents=True)
    link.symlink_to(target)

    assert save(output=link) == link
    save("other", output=link, force=True)

    assert link.is_symlink()
    assert results.load(target).run["name"] == "other"


def test_what_can_be_no_run_folder_is_refused_first(
    tmp_path: Path, make_info: MakeInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in a circle, a name too long and a mounted disk are known before the run."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "disk")

    for name, message in (
        ("loop", "leads back to itself"),
        ("x" * 300, "choose another place with -o"),
        ("disk", "folder inside it"),
    ):
        with pytest.raises(RunFolderError, match=message):
            RunStore("a", make_info(), output=tmp_path / name)

    assert names(tmp_path) == {"loop", "disk"}


def test_force_replaces_a_killed_run(
    tmp_path: Path, save: Save, make_info: MakeInfo, make_step: MakeStep
) -> None:
    """What a kill left is a run too, half-written files included."""
    target = tmp_path / "out"
    store = RunStore("killed", make_info(), output=target)
    store.journal.append([], [make_step()])
    store.journal.close()
    (target / "run.json.unfinished").write_text("{")
    (target / "steps.parquet.unfinished").write_text("PAR1")

    save("other", output=target, force=True)

    assert results.load(target).run["name"] == "other"
    assert names(tmp_path) == {"out"}
    assert names(target) == {"run.json", "requests.parquet", "steps.parquet"}


def test_force_refuses_a_run_that_is_under_way(
    tmp_path: Path, save: Save, make_info: MakeInfo, make_step: MakeStep
) -> None:
    """A run is not pulled from under the process that writes it."""
    target = tmp_path / "out"
    with RunStore("first", make_info(), output=target) as store:
        store.journal.append([], [make_step()])

        with pytest.raises(RunFolderError, match="under way; wait for its end"):
            save("other", output=target, force=True)

        store.save(make_info(), [], [make_step()], {})
    assert results.load(target).run["name"] == "first"


def test_the_old_run_stays_until_the_new_one_is_whole(
    tmp_path: Path, make_info: MakeInfo, make_step: MakeStep, save: Save
) -> None:
    """The new run grows in a folder beside the old one, where it can be read."""
    target = tmp_path / "out"
    save("old", output=target)
    with RunStore("new", make_info(), output=target, force=True) as store:
        store.journal.append([], [make_step()])

        assert store.folder == tmp_path / "out.unfinished"
        assert results.load(target).run["name"] == "old"
        assert results.load(store.folder).state is Ending.RUNNING
        assert {entry.state for entry in list_runs(tmp_path)} == {
            Ending.COMPLETE,
            Ending.RUNNING,
        }

        assert store.save(make_info(), [], [make_step()], {"kind": "run"}) == target
    assert results.load(target).run["name"] == "new"
    assert names(tmp_path) == {"out"}


def test_two_runs_may_be_about_to_replace_one(
    tmp_path: Path, make_info: MakeInfo, save: Save
) -> None:
    """Each has a folder of its own beside the old one, and the last to end stays."""
    target = tmp_path / "out"
    save("old", output=target)
    with (
        RunStore("first", make_info(), output=target, force=True) as first,
        RunStore("second", make_info(), output=target, force=True) as second,
    ):
        assert first.folder != second.folder
        second.save(make_info(), [], [], {"kind": "run"})
        first.save(make_info(), [], [], {"kind": "run"})

    assert results.load(target).run["name"] == "first"
    assert names(tmp_path) == {"out"}


def test_a_replacing_run_that_came_to_nothing_leaves_the_old_one(
    tmp_path: Path, make_info: MakeInfo, save: Save
) -> None:
    """Nothing stays beside the old run when the new one recorded nothing."""
    target = tmp_path / "out"
    save("old", output=target)
    with RunStore("new", make_info(), output=target, force=True):
        pass

    assert results.load(target).run["name"] == "old"
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize("change", ["foreign file", "no folder", "rename fails"])
def test_what_changed_during_the_run_is_respected(
    tmp_path: Path,
    make_info: MakeInfo,
    save: Save,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the old run cannot be replaced any more, both are whole and named."""
    target = tmp_path / "out"
    save("old", output=target)
    with RunStore("new", make_info(), output=target, force=True) as store:
        if change == "no folder":
            shutil.rmtree(target)
            store.save(make_info(), [], [], {"kind": "run"})
            assert results.load(target).run["name"] == "new"
            return
        if change == "foreign file":
            (target / "thesis.tex").write_text("x")
        else:
            fail_to_rename(store.folder, monkeypatch)
        with pytest.raises(ResultsError, match=r"could not be put.*out\.unfinished"):
            store.save(make_info(), [], [], {"kind": "run"})

    assert results.load(target).run["name"] == "old"
    assert results.load(store.folder).run["name"] == "new"
    assert results.load(store.folder).state is Ending.COMPLETE
    assert names(tmp_path) == {"out", "out.unfinished"}


def fail_to_rename(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this folder, and no other, be refused another name."""
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path == folder:
            raise OSError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)


def test_a_folder_with_our_word_in_its_name_is_not_touched(
    tmp_path: Path, save: Save
) -> None:
    """Folders that bear the names we would take stay, and ours get numbers."""
    target = tmp_path / "out"
    save("old", output=target)
    for name in ("out.unfinished", "out.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note").write_text("x")

    save("new", output=target, force=True)

    assert results.load(target).run["name"] == "new"
    assert names(tmp_path) == {"out", "out.unfinished", "out.replaced"}
    assert names(tmp_path / "out.replaced") == {"note"}


@pytest.mark.parametrize("aside", ["out.replaced", "out.replaced-2"])
def test_a_run_set_aside_is_found(tmp_path: Path, save: Save, aside: str) -> None:
    """A run that a kill left without its name is read by that name, links followed."""
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "out.replaced").mkdir()
    save(output=tmp_path / "out")
    os.replace(tmp_path / "out", tmp_path / aside)

    for name in ("out", "link"):
        assert where_run_lies(tmp_path / name) == tmp_path / aside
        assert results.load(tmp_path / name).folder == tmp_path / aside


def test_our_files_are_what_a_run_can_leave(
    tmp_path: Path, make_info: MakeInfo, make_step: MakeStep
) -> None:
    """Nothing that a store writes is foreign to the next one."""
    written: set[str] = set()
    with RunStore("a", make_info(), output=tmp_path / "out") as store:
        store.journal.append([], [make_step()])
        written |= names(store.folder)
        written |= names(store.save(make_info(), [], [], {}))

    assert written < set(RUN_FILES)
    assert {f"{name}.unfinished" for name in written if "jsonl" not in name} == (
        set(RUN_FILES) - written - {ENGINE_LOG}
    )
