"""Tests for ``blockbench show`` and ``blockbench list``, on runs of the real command."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import results
from bench_cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_1000.jsonl"
SMALL = ("--policy", "v0", "--num-gpu-blocks-override", "1000", "--max-model-len", "4096")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Return the whole command, in an empty folder: code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["blockbench", *args])
        with pytest.raises(SystemExit) as raised:
            main()
        assert isinstance(raised.value.code, int)
        return raised.value.code, *capsys.readouterr()

    return run


def run_part(call: Call, *args: str) -> dict[str, Any]:
    """Replay a part of the bundled trace; its document."""
    code, out, _ = call("run", str(EXAMPLE), "--limit", "80", *SMALL, *args, "--json")
    assert code == 0
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("flags", [(), ("--slo", "ttft=1s,itl_p99.9=20ms,e2e_mean=1s")])
def test_a_stored_run_has_the_figures_of_the_run(
    call: Call, flags: tuple[str, ...]
) -> None:
    """What show computes from the rows is what run printed, to the last digit."""
    before = run_part(call, "--enable-prefix-caching", *flags)

    code, out, err = call("show", "--json")

    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail) == before
    assert "begun 20" in err


def test_show_is_the_screen_of_the_run(call: Call) -> None:
    """The same lines appear again, but for the last, which says where the run lies."""
    _, ran, _ = call("run", str(EXAMPLE), "--limit", "80", *SMALL, "-o", "my run")

    code, shown, _ = call("show", "my run")

    assert code == 0
    assert shown.splitlines()[:-1] == ran.splitlines()[:-1]
    assert shown.splitlines()[-1].startswith("  my run, begun 20")


def test_a_run_without_types_in_its_configuration_can_be_read(call: Call) -> None:
    """Runs from before their options are shown and listed; they are the checkpoint's."""
    before = run_part(call)
    (folder,) = Path(".blockbench/runs").iterdir()
    run = json.loads((folder / "run.json").read_text())
    for key in ("dtype", "quantization", "kv_cache_dtype", "enforce_eager"):
        del run["config"][key], before["config"][key]
    (folder / "run.json").write_text(json.dumps(run))

    code, shown, _ = call("show", "--json")

    assert code == 0
    assert json.loads(shown) == before
    assert "Llama-3.1-8B on H100-80GB, as vLLM" in call("show")[1]
    assert "complete" in call("list")[1]


def test_another_slo_can_be_asked_of_a_stored_run(call: Call) -> None:
    """Goodput and conditions are counted anew; the run itself stays as it was."""
    assert run_part(call)["goodput"] is None

    _, out, _ = call("show", "last", "--slo", "e2e=1ms,queue_max=1h", "--json")

    goodput = json.loads(out)["goodput"]
    assert (goodput["fraction"], goodput["slo"]["e2e_s"]) == (0.0, 0.001)
    assert [c["met"] for c in goodput["conditions"]] == [True]
    (folder,) = Path(".blockbench/runs").iterdir()
    assert results.load(folder).info.slo is None


@pytest.mark.parametrize(("kind", "num_rows"), [("requests", 80), ("steps", None)])
def test_rows_are_those_of_the_frames(
    call: Call, kind: str, num_rows: int | None
) -> None:
    """JSON has every row and column, whole numbers whole, null for what never came."""
    run_part(call)
    (folder,) = Path(".blockbench/runs").iterdir()
    frame = getattr(results.load(folder), kind)

    code, out, _ = call("show", f"--{kind}", "--json")

    document = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert (document["kind"], document["num_rows"]) == (kind, num_rows or len(frame))
    assert [list(row) for row in document["rows"]] == [list(frame.columns)] * len(frame)
    for name in frame.columns.drop(["gap_ns", "gap_count"], errors="ignore"):
        assert [row[name] for row in document["rows"]] == [
            None if value != value else value for value in frame[name].tolist()
        ]


def test_a_table_of_rows_is_for_other_programs(call: Call) -> None:
    """--table csv prints every row; the screen prints the first and says so."""
    run_part(call)

    _, out, _ = call("show", "--requests", "--table", "csv")
    _, screen, _ = call("show", "--requests", "--limit", "2")

    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["request_id"] for row in rows] == [str(i) for i in range(80)]
    assert "2 of 80 rows" in screen
    assert "#1 " in screen
    assert "#2 " not in screen


def test_output_takes_the_document(call: Call) -> None:
    """-o writes what --json would print, beside the screen."""
    run_part(call)

    code, out, _ = call("show", "--steps", "-o", "steps.json")

    assert code == 0
    assert "first" in out
    assert len(json.loads(Path("steps.json").read_text())["rows"]) > 80


def test_list_names_runs_newest_first(call: Call) -> None:
    """Each run has a line with how it ended; a damaged folder is named, not hidden."""
    for name in ("b", "a"):
        call(
            "run",
            str(EXAMPLE),
            "--policy",
            "v0",
            "--limit",
            "5",
            "-o",
            f".blockbench/runs/{name}",
        )
    damaged = Path(".blockbench/runs/broken")
    damaged.mkdir()
    (damaged / "run.json").write_text("{")

    code, out, err = call("list")
    _, document, _ = call("list", "--json")

    assert code == 0
    lines = [line.split()[:2] for line in out.splitlines() if "  " in line]
    assert [line for line in lines if line[1:] in (["complete"], ["damaged"])] == [
        ["a", "complete"],
        ["b", "complete"],
        ["broken", "damaged"],
    ]
    assert "broken" in err
    runs = json.loads(document)["runs"]
    assert [run["finished"] for run in runs] == [5, 5, None]


def test_an_empty_list_says_how_to_fill_it(call: Call) -> None:
    """Without a run, list names the folder and the command that makes one."""
    code, out, _ = call("list")

    assert (code, out.strip()) == (
        0,
        "no runs in .blockbench/runs; blockbench run TRACE makes one",
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["show"], "no run"),
        (["show", "nowhere"], "blockbench list"),
        (["show", ""], "blockbench list"),
        (["show", "--requests", "--steps"], "give one of them"),
        (["show", "--limit", "3"], "add --requests or --steps"),
        (["show", "--json", "--table", "csv"], "both claim stdout"),
        (["show", "--requests", "--slo", "ttft=1s"], "leave out"),
        (["list", "nowhere"], "nowhere is no folder"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(
    call: Call, args: list[str], words: str
) -> None:
    """Code 2 and one error that says what to do."""
    code, out, err = call(*args)

    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err


def start_run(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    """Start a long run through the installed script, writing to ``folder``."""
    script = Path(sys.executable).parent / "blockbench"
    command = [str(script), "run", str(EXAMPLE), "--policy", "v0"]
    command += ["--num-gpu-blocks-override", "700"]
    command += ["--max-model-len", "4096", "--speedup", "3", "--enable-prefix-caching"]
    command += ["--check", "-o", str(folder), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for_rows(folder: Path, num_bytes: int) -> None:
    """Wait until the journal of steps is so long."""
    journal = folder / "steps.jsonl"
    for _ in range(2000):
        if journal.exists() and journal.stat().st_size >= num_bytes:
            return
        time.sleep(0.01)
    pytest.fail("the run never wrote so much")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the same run, left to end."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = start_run(folder)
    process.communicate(timeout=120)
    assert process.returncode == 0
    return results.load(folder)


@pytest.mark.parametrize("num_kilobytes", [1, 100, 300])
def test_a_killed_run_shows_what_it_had(
    call: Call, whole: Any, tmp_path: Path, num_kilobytes: int
) -> None:
    """After kill -9, its rows are the first of the whole run's, marked incomplete."""
    folder = tmp_path / "killed"
    process = start_run(folder)
    wait_for_rows(folder, 1000 * num_kilobytes)
    process.kill()
    process.communicate(timeout=60)

    code, out, _ = call("show", str(folder))
    stored = results.load(folder)

    assert code == 0
    assert "INCOMPLETE" in out
    assert out.splitlines()[-1].startswith("  killed: rows up to then; ")
    steps = stored.steps.drop(columns=["gap_ns", "gap_count"])
    assert 0 < len(steps) < len(whole.steps)
    assert steps.equals(whole.steps.drop(columns=["gap_ns", "gap_count"])[: len(steps)])
    ended = stored.requests[stored.requests.status == "finished"].set_index("request_id")
    expected = whole.requests.set_index("request_id").loc[ended.index]
    assert (ended.finished_ns == expected.finished_ns).all()
    assert (ended.num_output_tokens == expected.num_output_tokens).all()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_is_saved(
    call: Call, tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C, kill and a closed terminal end the run where its books agree; code 130."""
    folder = tmp_path / "stopped"
    process = start_run(folder)
    wait_for_rows(folder, 1000)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert b"INCOMPLETE" in out
    assert b"Traceback" not in err
    stored = results.load(folder)
    assert stored.state == "interrupted"
    assert len(stored.requests) == 1000
    assert not list(folder.glob("*.jsonl"))


def test_a_run_under_way_can_be_shown(call: Call, tmp_path: Path) -> None:
    """While it runs, show has the rows so far and says that there will be more."""
    folder = tmp_path / "running"
    process = start_run(folder)
    try:
        wait_for_rows(folder, 1000)
        os.kill(process.pid, signal.SIGSTOP)
        code, out, _ = call("show", str(folder))
    finally:
        process.kill()
        process.communicate(timeout=60)

    assert code == 0
    assert out.splitlines()[-1].startswith("  under way: rows so far; ")


def test_a_terminal_obeys_no_note_of_a_trace(call: Call, tmp_path: Path) -> None:
    """Notes and names come from other people's files: escapes are shown, not obeyed."""
    trace = tmp_path / "odd\x1b[2J.jsonl"
    call(
        "trace",
        "generate",
        "-o",
        str(trace),
        "--num-requests",
        "3",
        "--note",
        "\x1b[31mx",
    )

    code, out, _ = call("run", str(trace), "--policy", "v0")

    assert code == 0
    assert "\x1b" not in out
    assert "\\x1b[31mx" in out
    assert "\x1b" not in call("list")[1]


@pytest.mark.parametrize("columns", ["0", "1", "30"])
def test_a_terminal_without_width_still_shows_names(
    call: Call, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """Columns are left out from the right, the name never."""
    run_part(call)
    (folder,) = Path(".blockbench/runs").iterdir()

    monkeypatch.setenv("COLUMNS", columns)
    out = call("list")[1]

    assert folder.name in out.replace("\n", "").replace(" ", "")


def test_a_damaged_summary_does_not_hide_other_runs(call: Call) -> None:
    """A list shows what there is; show computes it anew, or says what run.json lacks."""
    run_part(call)
    (folder,) = Path(".blockbench/runs").iterdir()
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"summary": {"kv_cache": None}}))

    assert call("list")[0] == 0
    assert call("show")[0] == 0
    del run["config"]["num_cpu_blocks"]
    (folder / "run.json").write_text(json.dumps(run))
    code, _, err = call("show")
    assert (code, err.count("\n")) == (2, 1)
    assert "run.json has no 'num_cpu_blocks'" in err


def test_a_folder_that_is_gone_is_refused_in_words(tmp_path: Path) -> None:
    """Nothing can be done in a removed folder, and the error says where to go."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = Path(sys.executable).parent / "blockbench"
    command = f"cd {gone} && rmdir {gone} && {script} list"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stderr.startswith("error: the folder that you are in was removed")
