"""Tests for ``blockbench calibrate``."""

import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_cli.exit_code import ExitCode

BLOCKBENCH = Path(sys.executable).with_name("blockbench")

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]

LOADS = """input_len,output_len,max_concurrency,num_requests,ttft_ms,tpot_ms
500,60,1,4,45,8.1
4000,60,4,12,260,10.5
1000,60,32,64,300,13.5
"""
ENGINE = ("--model", "Llama-3.1-8B", "--gpu", "H100-80GB", "--vllm-version", "0.32.0")
FILE = Path(".blockbench", "calibrations", "mine.toml")


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of three loads, in the folder one is in."""
    monkeypatch.chdir(tmp_path)
    Path("loads.csv").write_text(LOADS)
    return "loads.csv"


def calibrate(call: Call, *args: object) -> tuple[int, str, str]:
    """The outcome of the command on the engine of all tests."""
    return call("calibrate", *ENGINE, *args)


def test_the_document_has_what_scripts_rely_on(call: Call, loads: str) -> None:
    """Name, coefficients, residuals, cross-validation, and what was identified."""
    code, out, err = calibrate(call, "--from", loads, "--name", "mine", "--json")
    document = json.loads(out)

    assert (code, err) == (ExitCode.FINE, "")
    assert (document["name"], document["file"]) == ("mine", str(FILE))
    assert (document["kind"], document["num_figures"]) == ("calibration", 6)
    assert len(document["residuals"]) == 6
    assert set(document["cross_validation"]) == {"ttft", "tpot"}
    identified = {row["name"] for row in document["coefficients"] if row["is_identified"]}
    assert set(document["identified"]) == identified
    assert identified
    assert tomllib.loads(FILE.read_text())["name"] == "mine"


def test_the_screen_says_what_moved_and_how_to_use_it(call: Call, loads: str) -> None:
    """Coefficients, residuals by row, and the command that uses them."""
    code, out, _ = calibrate(call, "--from", loads, "--name", "mine")
    words = " ".join(out.split())

    assert code == ExitCode.FINE
    assert "rank_ns stays: 100 % of its likely spread is left" in words
    assert "loads.csv:3" in words
    assert f"saved {FILE}; blockbench run TRACE --model meta-llama/Llama-3.1-8B" in words
    assert "--gpu mine --vllm-version 0.32.0" in words


def test_a_run_takes_it_by_name(call: Call, loads: str) -> None:
    """run, capacity and profiles know a calibration by its name."""
    calibrate(call, "--from", loads, "--name", "mine")
    call("trace", "generate", "--num-requests", 20, "-o", "t.jsonl")

    def run(*args: object) -> dict[str, object]:
        code, out, _ = call("run", "t.jsonl", "--vllm-version", "0.32.0", "--json", *args)
        assert code == ExitCode.FINE
        return json.loads(out)  # type: ignore[no-any-return]

    mine, published = run("--gpu", "MINE"), run()
    other = run("--gpu", "mine", "--model", "Qwen/Qwen3-8B")

    assert mine["latency_s"] != published["latency_s"]
    assert mine["config"]["gpu"] == "mine"  # type: ignore[index]
    assert mine["config"]["step_time_error"]["num_rows"] == 3  # type: ignore[index]
    assert "was calibrated for" not in str(mine["config"]["notes"])  # type: ignore[index]
    assert "was calibrated for" in str(other["config"]["notes"])  # type: ignore[index]
    assert call("capacity", "--gpu", "mine")[0] == ExitCode.FINE
    assert "loads.csv" in FILE.read_text()
    assert (
        "calibrated: 6 figures" in call("profiles", "show", "mine", "--table", "csv")[1]
    )
    listed = json.loads(call("profiles", "list", "--json")[1])["gpus"]
    assert [gpu["name"] for gpu in listed][-1] == "mine"


def test_a_stored_run_brings_its_engine(call: Call, loads: str) -> None:
    """Steps of a run on another GPU's profile move ours to it."""
    call("trace", "generate", "--num-requests", 40, "--request-rate", 4, "-o", "t.jsonl")
    call("run", "t.jsonl", "--vllm-version", "0.32.0", "--gpu", "H200", "-o", "stored")
    code, out, _ = call(
        "calibrate", "--from", "stored", "--gpu", "H100-80GB", "--name", "mine", "--json"
    )
    document = json.loads(out)

    assert code == ExitCode.FINE
    assert "memory" in document["identified"]
    errors = document["cross_validation"]["step"]
    assert errors["fitted"] < 0.03 < errors["uncalibrated"]
    assert any("was simulated" in note for note in document["notes"])


def test_files_may_be_elsewhere(call: Call, loads: str) -> None:
    """-o names the file, and --gpu takes it as it is."""
    code, out, _ = calibrate(call, "--from", loads, "-o", "mine.toml")

    assert code == ExitCode.FINE
    assert "--gpu mine.toml" in " ".join(out.split())
    assert not FILE.exists()
    assert call("profiles", "show", "mine.toml")[0] == ExitCode.FINE


def test_a_name_is_made_up_from_gpu_and_model(call: Call, loads: str) -> None:
    """Without --name the file is named after what was measured."""
    _, out, _ = calibrate(call, "--from", loads, "--json")

    assert json.loads(out)["name"] == "H100-80GB-Llama-3.1-8B"


def test_nothing_is_replaced_unasked(call: Call, loads: str) -> None:
    """A second calibration needs --force."""
    calibrate(call, "--from", loads, "--name", "mine")
    before = FILE.read_text()
    code, _, err = calibrate(call, "--from", loads, "--name", "mine", "--fit", "memory")

    assert (code, FILE.read_text()) == (ExitCode.USAGE, before)
    assert "replace it: --force" in err
    args = ("--from", loads, "--name", "mine", "--fit", "memory", "--force")
    assert calibrate(call, *args)[0] == ExitCode.FINE
    assert FILE.read_text() != before


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--fit", "rank_ns"), 2, "the measurements do not tell rank_ns"),
        (("--fit", "speed"), 2, "--fit 'speed' is no coefficient; they are memory"),
        (("--name", "H200"), 2, "H200 is the GPU as it is published"),
        (("--name", "a/b"), 2, "a calibration cannot be called 'a/b'"),
        (("-o", "x.json"), 2, "x.json does not end in .toml"),
        (("--max-model-len", "256"), 2, "cannot be replayed"),
    ],
)
def test_what_cannot_be_done_is_refused(
    refuse: Refuse, args: tuple[str, ...], code: int, words: str
) -> None:
    """One error with a remedy, and no file."""
    Path("loads.csv").write_text(LOADS)

    assert words in refuse(code, "calibrate", *ENGINE, "--from", "loads.csv", *args)


def test_bad_rows_are_refused(refuse: Refuse) -> None:
    """A row that cannot be used ends the command as a bad trace would."""
    Path("loads.csv").write_text(LOADS + "500,60,one,4,45,8.1\n")
    message = refuse(ExitCode.BAD_TRACE, "calibrate", *ENGINE, "--from", "loads.csv")

    assert message.startswith("loads.csv:5: max_concurrency is 'one'")


def test_seconds_in_place_of_milliseconds_are_refused(refuse: Refuse) -> None:
    """Nothing is written, and the remedy is the unit."""
    header, *rows = (line.split(",") for line in LOADS.splitlines())
    for row in rows:
        row[4:] = [f"{float(figure) / 1000:.6f}" for figure in row[4:]]
    Path("loads.csv").write_text("\n".join(map(",".join, [header, *rows])) + "\n")
    message = refuse(ExitCode.USAGE, "calibrate", *ENGINE, "--from", "loads.csv")

    assert "are the figures milliseconds?" in message
    assert not FILE.parent.exists()


def test_rows_that_are_cut_are_named(refuse: Refuse) -> None:
    """A load that this engine does not finish is no measurement of it."""
    Path("loads.csv").write_text(LOADS + "1000,500000,4,8,45,8.1\n")
    message = refuse(ExitCode.USAGE, "calibrate", *ENGINE, "--from", "loads.csv")

    assert message.startswith("loads.csv:5 cannot be replayed: 8 of its 8 requests")


def test_sources_are_needed(refuse: Refuse) -> None:
    """There is nothing to fit without --from, and no model without --model."""
    assert "--from" in refuse(ExitCode.USAGE, "calibrate")
    Path("loads.csv").write_text(LOADS)
    assert "add --model" in refuse(ExitCode.USAGE, "calibrate", "--from", "loads.csv")


def test_the_installed_script_calibrates(loads: str) -> None:
    """The command as a person types it; nothing but the file is left behind."""
    done = subprocess.run(
        [BLOCKBENCH, "calibrate", *ENGINE, "--from", loads, "--name", "mine"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr == ""
    assert "saved" in done.stdout
    assert [path.name for path in FILE.parent.iterdir()] == ["mine.toml"]


def test_ctrl_c_leaves_no_file(loads: str) -> None:
    """Interrupted while it fits, it ends with 130 and nothing is written."""
    rows = "".join(f"{500 + n},400,64,1000,45,8.1\n" for n in range(40))
    Path(loads).write_text(LOADS + rows)
    process = subprocess.Popen(
        [BLOCKBENCH, "calibrate", *ENGINE, "--from", loads, "--name", "mine"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    maps = Path(f"/proc/{process.pid}/maps")
    while maps.exists() and "numpy" not in maps.read_text():  # it has not begun
        time.sleep(0.05)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (ExitCode.INTERRUPTED, b"")
    assert err.decode().endswith("interrupted: nothing was written\n")
    assert not Path(".blockbench").exists()


def test_a_run_needs_no_scipy(loads: str) -> None:
    """Only the command that fits loads what it fits with."""
    subprocess.run(
        [BLOCKBENCH, "trace", "generate", "--num-requests", "3", "-o", "t.jsonl"],
        check=True,
        capture_output=True,
    )
    code = (
        "import sys; sys.argv = ['blockbench', 'run', 't.jsonl']\n"
        "from bench_cli.main import main\n"
        "try: main()\n"
        "finally: print('scipy' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.returncode, done.stderr.strip()) == (0, "False")
