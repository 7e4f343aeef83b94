"""``blockbench observe``, as a person types it."""

import importlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "harness" / "vllm_engine"))
fake: Any = importlib.import_module("fake_server")

SCRIPT = Path(sys.executable).with_name("blockbench")
Call = Callable[..., tuple[int, str, str]]
Tune = Callable[..., dict[str, Any]]


@contextmanager
def busy_server(**how: Any) -> Iterator[Any]:
    """A server on which requests come and go, though nobody asks it over HTTP."""
    with fake.serving(fake.FakeServer(**how)) as server:
        stopped = threading.Event()

        def live() -> None:
            while not stopped.wait(0.02):
                server.note("request_prompt_tokens", 300)
                server.note("request_generation_tokens", 40)
                server.note("time_to_first_token_seconds", 0.2)
                server.count("prefix_cache_queries", 300)
                server.count("request_success")

        thread = threading.Thread(target=live)
        thread.start()
        try:
            yield server
        finally:
            stopped.set()
            thread.join()


def observe(url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the installed script."""
    command = [SCRIPT, "observe", "--url", url, "--every", "0.1s", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_document_and_workload(tmp_path: Path, call: Call, tune: Tune) -> None:
    """What was seen is one document, and a workload that ``tune`` takes."""
    with busy_server() as server:
        done = observe(server.url, "--for", "2s", "--json", "-o", "seen.jsonl")

    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (document["kind"], document["source"]) == ("observation", "measured")
    assert 40 < document["requests"]["arrived"] < 110
    assert document["lengths"]["prompt_tokens"]["mean"] == 300
    assert document["latency_s"]["ttft"]["mean"] == pytest.approx(0.2)
    assert document["latency_s"]["tpot"] is None
    assert document["swapped"]["peak_requests"] is None
    assert document["server"]["num_gpu_blocks"] == 1001
    assert "few_hits" in [found["code"] for found in document["findings"]]
    assert "no sharing information" in done.stderr
    assert {method for method, _ in server.seen} == {"GET"}

    code, out, err = call("trace", "inspect", "seen.jsonl", "--json")
    assert code == 0, err
    inspected = json.loads(out)
    assert inspected["has_sharing"] is False
    assert inspected["num_requests"] == document["requests"]["arrived"]
    assert inspected["input_tokens"]["mean"] == pytest.approx(300, rel=0.02)
    assert tune("seen.jsonl", "--budget", "4trials")["command"].startswith("vllm serve")


def test_screen(tmp_path: Path) -> None:
    """A person gets the figures and what they teach."""
    with busy_server(usage=0.99, num_waiting=3) as server:
        done = observe(server.url, "--for", "500ms")

    assert done.returncode == 0, done.stderr
    assert "peak 99 %" in done.stdout
    assert "[waiting_for_blocks]" in done.stdout
    assert "-> a larger KV cache" in done.stdout


def test_who_stops_it_gets_what_was_seen(tmp_path: Path) -> None:
    """Ctrl-C writes what there is, and exits with 130."""
    command = [SCRIPT, "observe", "--every", "0.1s", "--json", "-o", "seen.jsonl"]
    with busy_server() as server:
        process = subprocess.Popen(
            [*command, "--url", server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while len(server.seen) < 15:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)

    document = json.loads(out)
    assert process.returncode == 130, err
    assert document["complete"] is False
    assert len((tmp_path / "seen.jsonl").read_text().splitlines()) == (
        document["requests"]["arrived"] + 1
    )


def test_server_that_goes_away() -> None:
    """A server that is gone for long ends it with a finding and exit 5."""
    with busy_server() as server:

        def go_away() -> None:
            while len(server.seen) < 15:
                time.sleep(0.05)
            server.has_metrics = False

        threading.Thread(target=go_away, daemon=True).start()
        done = observe(server.url, "--for", "60s", "--hang-after", "500ms", "--json")

    document = json.loads(done.stdout)
    assert done.returncode == 5
    assert document["findings"][0]["code"] == "server_unresponsive"
    assert document["requests"]["arrived"] > 0


def test_no_traffic_makes_no_workload(tmp_path: Path) -> None:
    """Without a request there is nothing to write, which is said."""
    with fake.serving(fake.FakeServer()) as server:
        done = observe(server.url, "--for", "300ms", "-o", "seen.jsonl")

    assert done.returncode == 4
    assert "watch longer" in done.stderr
    assert "[no_traffic]" in done.stdout
    assert not (tmp_path / "seen.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        ("", 2, "add --url"),
        ("--url http://k:s@h", 2, "VLLM_API_KEY"),
        ("--url h --for 15", 2, "unit"),
        ("--url h --for 100ms", 2, "watch longer"),
        ("--url h --every 1ms", 2, "--every"),
        ("--url h --force", 2, "add -o FILE"),
        ("--url h -o there", 2, "--force"),
    ],
)
def test_flags(call: Call, flags: str, code: int, told: str) -> None:
    """What cannot be done is refused before anything is asked."""
    Path("there").write_text("mine")
    ended, out, err = call("observe", *flags.split())

    assert (ended, out) == (code, "")
    assert told in err


def test_nothing_to_look_at(call: Call) -> None:
    """A server without metrics is told from one with them, with exit 5."""
    with fake.serving(fake.FakeServer(has_metrics=False)) as server:
        code, out, err = call("observe", "--url", server.url)

    assert (code, out) == (5, "")
    assert "no metrics of vLLM" in err
