"""``blockbench run --engine server``, as a person types it."""

import importlib
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

sys.path.append(str(Path(__file__).parents[1] / "harness" / "vllm_engine"))
fake: Any = importlib.import_module("fake_server")

SCRIPT = Path(sys.executable).with_name("blockbench")
Call = Callable[..., tuple[int, str, str]]
Generate = Callable[..., str]

KEY = "sk-9f3e"


@pytest.fixture
def trace(generate: Generate) -> str:
    """Return a trace of 30 requests over a second, with sharing."""
    sizes = ("--num-requests", 30, "--request-rate", 30, "--input-len", 40)
    return generate(*sizes, "--output-len", 5, "--prefix-len", 48)


def run(trace: str, url: str, *flags: str, **env: str) -> tuple[int, str, str]:
    """Run the installed script: exit code, stdout and stderr."""
    command = [SCRIPT, "run", trace, "--engine", "server", "--url", url, *flags]
    kept = {n: v for n, v in os.environ.items() if not n.endswith("API_KEY")}
    done = subprocess.run(
        command, capture_output=True, text=True, env=kept | env, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_run_on_a_server(trace: str, tmp_path: Path) -> None:
    """A replay is measured, saved and shown like any run, and n/a where nobody looked."""
    with fake.serving(fake.FakeServer(preemptions_a_request=1)) as server:
        code, out, err = run(trace, server.url, "--json", "-o", "run")

    document = json.loads(out)
    assert code == 0, err
    assert (document["source"], document["engine"]) == ("measured", "server")
    assert document["counts"]["finished"] == 30
    assert document["counts"]["preemptions"] == 30
    assert document["counts"]["swap_out_blocks"] is None
    assert document["prefix_cache"]["hit_tokens"] > 0
    assert document["latency_s"]["ttft"]["p50"] > 0
    assert document["latency_s"]["queue"]["p50"] is None
    assert document["config"]["num_gpu_blocks"] == 1001
    assert document["config"]["vllm_version"] == "0.32.0"
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["measurement"]["lateness_s"]["p50"] < 1


def test_a_measured_run_is_shown_and_compared(trace: str, call: Call) -> None:
    """``show`` reads it back, and ``compare`` takes two of them."""
    with fake.serving(fake.FakeServer()) as server:
        assert run(trace, server.url, "-o", "a")[0] == 0
        assert run(trace, server.url, "-o", "b", "--max-concurrency", "2")[0] == 0
    code, out, err = call("show", "a")
    assert code == 0, err
    assert "measured" in out
    code, out, err = call("compare", "a", "b")
    assert code == 0, err


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("500", "server_error"),
        ("drop", "server_lost"),
        ("hang", "server_unresponsive"),
    ],
)
def test_fault_in_the_middle(trace: str, fault: str, finding: str, call: Call) -> None:
    """Each ends in bounded time with a finding, exit 5 and the rows so far."""
    with fake.serving(fake.FakeServer(fault=fault, fault_at=12)) as server:
        started = time.monotonic()
        code, out, err = run(
            trace, server.url, "--json", "--warmup", "0", "--hang-after", "1s", "-o", "r"
        )
        assert time.monotonic() - started < 20

    document = json.loads(out)
    assert code == 5
    assert finding in [found["code"] for found in document["findings"]]
    assert document["complete"] is False
    assert document["counts"]["finished"] >= 8
    assert sum(document["counts"][s] for s in ("finished", "failed")) == 30
    assert err.splitlines()[-1].startswith("error: ")
    code, out, err = call("show", "r", "--requests", "--json")
    assert code == 0, err


def test_wrong_model_wrong_key_wrong_port(trace: str) -> None:
    """What is wrong from the start is a finding too, says what to do, and exits 5."""
    with fake.serving(fake.FakeServer(api_key=KEY)) as server:
        wrong = run(trace, server.url, "--json", "-o", "r1", VLLM_API_KEY="sk-other")
        model = run(
            trace,
            server.url,
            "--api-model",
            "x",
            "--json",
            "-o",
            "r2",
            OPENAI_API_KEY=KEY,
        )
        gone = server.url
    port = run(trace, gone, "--json", "-o", "r3")

    told = [json.loads(out)["findings"][0] for _, out, _ in (wrong, model, port)]
    assert [code for code, _, _ in (wrong, model, port)] == [5, 5, 5]
    assert [found["code"] for found in told] == [
        "server_error",
        "server_error",
        "server_lost",
    ]
    assert "VLLM_API_KEY" in told[0]["message"]
    assert "no model 'x'; it serves tiny" in told[1]["message"]
    assert "correct --url" in told[2]["message"]


def test_the_key_is_stored_nowhere(trace: str, tmp_path: Path) -> None:
    """The key reaches the server, and neither a screen nor a file."""
    with fake.serving(fake.FakeServer(api_key=KEY)) as server:
        code, out, err = run(trace, server.url, "-o", "run", VLLM_API_KEY=KEY)

    assert code == 0, err
    assert server.authorizations == {f"Bearer {KEY}"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert all(KEY.encode() not in path.read_bytes() for path in files)
    assert KEY not in out + err


def test_interrupted_run_is_kept(trace: str, tmp_path: Path) -> None:
    """Ctrl-C ends a replay with exit 130, and what was measured is saved."""
    with fake.serving(fake.FakeServer()) as server:
        command = [SCRIPT, "run", trace, "--engine", "server", "--url", server.url]
        process = subprocess.Popen(
            [*command, "-o", "run", "--speedup", "0.1", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while len(server.bodies) < 8:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)

    assert process.returncode == 130, err
    assert json.loads(out)["counts"]["finished"] >= 3
    assert (tmp_path / "run" / "requests.parquet").exists()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--engine", "server"], "--url"),
        (["--url", "http://h:1"], "--engine server"),
        (["--engine", "server", "--url", "http://a:b@h"], "VLLM_API_KEY"),
        (["--vocab-size", "99"], "--engine server"),
        (["--engine", "server", "--url", "h", "--hang-after", "5"], "unit"),
    ],
)
def test_flags_that_go_together(
    trace: str, call: Call, flags: list[str], told: str
) -> None:
    """A server needs its URL, and a URL its engine."""
    code, out, err = call("run", trace, *flags)

    assert (code, out) == (2, "")
    assert told in err
