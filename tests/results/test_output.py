"""Tests for :mod:`results.output`, through the store that asks it."""

import json
from pathlib import Path
from typing import Any

import pytest

import results
from results.errors import RunFolderError
from results.store import RunStore


def save(name: str = "chat", **settings: Any) -> Path:
    with RunStore(name, **settings) as store:
        return store.save({"kind": "run", "config": {}, "trace": {}}, [], [])


def unfinished(folder: Path) -> list[Path]:
    return list(folder.rglob(".unfinished-*"))


def test_an_output_folder_is_not_overwritten(tmp_path: Path) -> None:
    """-o on a folder that holds something is refused, and nothing there changes."""
    target = tmp_path / "out"
    save(output=target)
    before = (target / "run.json").stat().st_mtime_ns

    with pytest.raises(RunFolderError, match="--force"):
        save(output=target)

    assert (target / "run.json").stat().st_mtime_ns == before
    assert unfinished(tmp_path) == []


def test_an_empty_output_folder_is_used(tmp_path: Path) -> None:
    """A folder made for the run beforehand takes it."""
    target = tmp_path / "out"
    target.mkdir()

    assert save(output=target) == target
    assert (target / "run.json").exists()


def test_force_replaces_a_run(tmp_path: Path) -> None:
    """--force puts the new run in place of the old."""
    target = tmp_path / "out"
    save(output=target)
    save("other", output=target, force=True)

    assert results.load(target).run["name"] == "other"


def test_force_replaces_nothing_but_runs(tmp_path: Path) -> None:
    """--force on a folder with other files is refused, and they stay."""
    keep = tmp_path / "out" / "thesis.tex"
    keep.parent.mkdir()
    keep.write_text("x")

    with pytest.raises(RunFolderError, match=r"thesis\.tex"):
        save(output=keep.parent, force=True)

    assert keep.read_text() == "x"


@pytest.mark.parametrize(
    "text",
    ['{"precious": 1}', '{"schema_version": 1, "summary": 2}', "[]", "{", "[" * 9999],
)
def test_force_keeps_a_run_json_that_is_not_ours(tmp_path: Path, text: str) -> None:
    """A file that only bears the name of ours is refused, and stays."""
    keep = tmp_path / "out" / "run.json"
    keep.parent.mkdir()
    keep.write_text(text)

    with pytest.raises(RunFolderError, match=r"no run\.json that blockbench wrote"):
        save(output=keep.parent, force=True)

    assert keep.read_text() == text


@pytest.mark.parametrize("name", ["run.json", "steps.parquet"])
def test_force_keeps_folders_named_like_our_files(tmp_path: Path, name: str) -> None:
    """A folder in place of one of our files is refused with what it holds."""
    target = tmp_path / "out"
    save(output=target)
    (target / name).unlink()
    (target / name).mkdir()

    with pytest.raises(RunFolderError, match=name.replace(".", r"\.")):
        save(output=target, force=True)

    assert (target / name).is_dir()


def test_force_needs_a_run_json(tmp_path: Path) -> None:
    """Tables alone are no run."""
    target = tmp_path / "out"
    save(output=target)
    (target / "run.json").unlink()

    with pytest.raises(RunFolderError, match=r"no run\.json"):
        save(output=target, force=True)

    assert (target / "steps.parquet").exists()


def test_force_replaces_runs_of_other_versions(tmp_path: Path) -> None:
    """A run that this version cannot read is a run all the same."""
    target = tmp_path / "out"
    save(output=target)
    run = json.loads((target / "run.json").read_text()) | {"schema_version": 99}
    (target / "run.json").write_text(json.dumps(run))

    save("other", output=target, force=True)

    assert results.load(target).run["name"] == "other"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_takes_the_run_where_it_leads(tmp_path: Path, exists: bool) -> None:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            RunStore("a", output=tmp_path / name)

    assert unfinished(tmp_path) == []
