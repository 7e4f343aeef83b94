"""Tests for :mod:`results.store`: folders that change under a run, and rows on disk."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import results
from results.errors import RunFolderError
from results.record import RequestRecord, StepRecord
from results.run_info import Ending, RunInfo
from results.store import RunStore

MakeRequest = Callable[..., RequestRecord]
MakeStep = Callable[..., StepRecord]
MakeInfo = Callable[..., RunInfo]

SUMMARY: dict[str, Any] = {"kind": "run"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run_meanwhile(
    make_info: MakeInfo, make_request: MakeRequest, make_step: MakeStep
) -> Callable[[Callable[[], None]], Path]:
    """Return a run into ``out`` of one request, during which something happens."""

    def run(meanwhile: Callable[[], None]) -> Path:
        rows, steps = [make_request()], [make_step()]
        with RunStore("first", make_info(), output=Path("out")) as store:
            store.journal.append(rows, steps)
            meanwhile()
            return store.save(make_info(), rows, steps, SUMMARY)

    return run


def test_a_run_that_was_moved_leaves_the_next_one_alone(
    run_meanwhile: Callable[[Callable[[], None]], Path], make_info: MakeInfo
) -> None:
    """Another run has taken its place: it is saved beside that."""

    def meanwhile() -> None:
        Path("out").rename("moved")
        with RunStore("second", make_info(), output=Path("out")) as store:
            store.save(make_info(), [], [], SUMMARY)

    folder = run_meanwhile(meanwhile)

    assert folder.name == "out-2"
    assert results.load(folder).run["name"] == "first"
    assert len(results.load(folder).requests) == 1
    assert results.load("out").run["name"] == "second"
    assert results.load("moved").state is Ending.KILLED


def test_a_run_whose_folder_was_removed_is_saved(
    run_meanwhile: Callable[[Callable[[], None]], Path],
) -> None:
    """The rows are in memory, and the folder is made again."""
    folder = run_meanwhile(lambda: shutil.rmtree("out"))

    assert folder.name == "out"
    assert len(results.load(folder).steps) == 1


@pytest.mark.parametrize(
    "names", [{"steps.jsonl"}, {"steps.jsonl", "requests.jsonl", "run.json.unfinished"}]
)
def test_a_run_killed_at_birth_can_be_replaced(
    names: set[str], make_info: MakeInfo
) -> None:
    """A folder with nothing but empty journals is no loss; with a row in one it is."""
    Path("out").mkdir()
    for name in names:
        Path("out", name).touch()

    with RunStore("next", make_info(), output=Path("out"), force=True) as store:
        store.save(make_info(), [], [], SUMMARY)

    assert results.load("out").run["name"] == "next"
    Path("rows").mkdir()
    Path("rows", "steps.jsonl").write_text("{}\n")
    with pytest.raises(RunFolderError, match="no run.json"):
        RunStore("next", make_info(), output=Path("rows"), force=True)


def test_a_flipped_bit_is_found(
    run_meanwhile: Callable[[Callable[[], None]], Path],
) -> None:
    """A column that decays on the disk is no other figure: each page has a checksum."""
    folder = run_meanwhile(lambda: None)
    path = folder / "steps.parquet"
    whole = path.read_bytes()
    num_found = 0
    for position in range(20, 400):
        path.write_bytes(
            whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :]
        )
        try:
            results.load(folder)
        except RunFolderError:
            num_found += 1

    assert num_found > 200


def test_a_run_without_a_summary_is_shown_from_its_rows(
    make_info: MakeInfo, make_request: MakeRequest
) -> None:
    """Where the summary could not be made, the run is saved all the same."""
    with RunStore("first", make_info(), output=Path("out")) as store:
        store.save(make_info(), [make_request()], [], None)

    stored = results.load("out")
    assert stored.run["summary"] is None
    assert (stored.state, len(stored.requests)) == (Ending.COMPLETE, 1)
