"""Tests for ``blockbench compare`` when it is stopped, through the installed script."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import results

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_1000.jsonl"
SCRIPT = Path(sys.executable).with_name("blockbench")
LONG = ["--policy", "v0", "--num-gpu-blocks-override", "700", "--max-model-len", "4096"]
LONG += ["--speedup", "3"]
RUNS = Path(".blockbench", "runs")
Start = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads and signals processes"
)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a starter of long comparisons, each in a session that it leaves empty."""
    monkeypatch.chdir(tmp_path)
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [SCRIPT, "compare", EXAMPLE, *LONG, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(60)
        wait_until(lambda pid=process.pid: not members(pid))  # type: ignore[misc]


def members(session: int) -> list[tuple[int, int]]:
    """Processes of a session that are no zombies: pid and parent's pid, oldest first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append((int(stat.parent.name), int(parent)))
    return sorted(found)


def wait_until(is_so: Callable[[], object], timeout_s: float = 30) -> None:
    """Look again and again."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it never came about"
        time.sleep(0.01)


def states() -> dict[str, str]:
    """How each run stands, by the end of its name."""
    return {
        path.parent.name.split("chat_1000-")[1]: json.loads(path.read_text())["state"]
        for path in RUNS.glob("*/run.json")
    }


def workers(process: "subprocess.Popen[str]") -> list[int]:
    """Processes that replay an arm: children of the server that starts them."""
    found = dict(members(process.pid))
    return [pid for pid in found if found[pid] in found and found[pid] != process.pid]


def stop(
    process: "subprocess.Popen[str]", send: Callable[[int], None]
) -> tuple[int, str, str]:
    """Send a signal while no arm gets on: exit code, stdout and stderr."""
    frozen = workers(process)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    send(process.pid)
    select.select([process.stderr], [], [], 10)  # it says that it is stopping
    time.sleep(0.3)  # arms are told every 0.1 s
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_arms_are_saved_and_named(start: Start, number: signal.Signals) -> None:
    """Code 130, no word on stdout, each arm's run marked, and no process is left."""
    process = start("--jobs", "2")
    wait_until(lambda: list(states().values()) == ["running"] * 2)
    code, out, err = stop(process, lambda pid: os.killpg(pid, number))

    assert (code, out) == (130, "")
    folders = sorted(RUNS.iterdir())
    assert err.split("\n")[1:-1] == [
        "stopping; what was recorded is being saved",
        f"prefix caching off was interrupted; saved {folders[0]}",
        f"prefix caching on was interrupted; saved {folders[1]}",
    ]
    assert {results.load(folder).state for folder in folders} == {"interrupted"}
    assert members(process.pid) == []


def test_arm_that_had_not_begun_is_named(start: Start) -> None:
    """One process at a time: the second arm has no run, and the output says so."""
    process = start("--jobs", "1")
    wait_until(lambda: list(states().values()) == ["running"])
    code, out, err = stop(process, lambda pid: os.kill(pid, signal.SIGINT))

    assert (code, out) == (130, "")
    assert "prefix caching off was interrupted; saved " in err
    assert "prefix caching on had not begun" in err
    assert states() == {"prefix-caching-off": "interrupted"}


def test_arms_that_were_complete_are_compared(start: Start) -> None:
    """The third is stopped: the first two are on stdout, and the code is 130."""
    process = start("--jobs", "1", "--vary", "block_size=16,32,64,128", "--json")
    wait_until(lambda: states().get("block_size-64") == "running")
    code, out, err = stop(process, lambda pid: os.kill(pid, signal.SIGTERM))

    document = json.loads(out)
    assert code == 130
    assert [arm["name"] for arm in document["arms"]] == ["block_size=16", "block_size=32"]
    assert any(n.startswith("block_size=64 was inter") for n in document["notes"])
    assert "block_size=128 had not begun" in document["notes"]
    assert err == "\nstopping; what was recorded is being saved\n"
    assert states() == {
        "block_size-16": "complete",
        "block_size-32": "complete",
        "block_size-64": "interrupted",
    }


def test_arm_that_cannot_start_is_nothing_to_compare(start: Start) -> None:
    """One complete run beside an error and a stopped one makes no comparison."""
    process = start("--jobs", "1", "--vary", "block_size=16,24,32")
    wait_until(lambda: states().get("block_size-32") == "running")
    code, out, err = stop(process, lambda pid: os.kill(pid, signal.SIGINT))

    assert (code, out) == (130, "")
    assert "block_size=16 was complete; saved " in err
    assert "block_size=32 was interrupted; saved " in err


def test_killed_process_of_an_arm_is_named(start: Start) -> None:
    """Code 5 and one line; what both arms had recorded can be read."""
    process = start("--jobs", "2")
    wait_until(lambda: list(states().values()) == ["running"] * 2)
    os.kill(workers(process)[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (5, "")
    assert err.startswith("error: the process that worked on prefix caching o")
    assert "ended with signal 9, perhaps for want of memory" in err
    assert err.count("\n") == 1
    folders = sorted(RUNS.iterdir())
    assert {results.load(f).state for f in folders} == {"interrupted", "killed"}
    assert members(process.pid) == []


def test_processes_end_with_a_killed_parent(start: Start) -> None:
    """Nobody goes on replaying for a comparison that is gone."""
    process = start("--jobs", "2")
    wait_until(lambda: list(states().values()) == ["running"] * 2)
    process.kill()
    process.communicate(timeout=60)

    wait_until(lambda: not members(process.pid), timeout_s=5)
    assert {results.load(f).state for f in RUNS.iterdir()} == {"killed"}
