"""``--engine server`` and ``observe`` on vLLM's own server, with a tiny dummy model.

The server takes half a minute to start, so that all tests share it; the last kills it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import httpx
import numpy as np
import pytest

from harness.config import resolve_config
from harness.replay import replay
from harness.traces import open_trace
from harness.traces.generation import GenerateOptions, generate_trace
from harness.vllm_engine.server.options import ServerOptions
from harness.vllm_engine.server.replay import replay_on_server
from results.record import RequestStatus
from results.run_info import Ending

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)

SCRIPT = Path(sys.executable).with_name("blockbench")
VOCAB = 2_048
BLOCK, NUM_BLOCKS, LONGEST = 32, 128, 1_024
START_S = 150
FLAGS = (
    "--served-model-name tiny --load-format dummy --skip-tokenizer-init --enforce-eager"
    f" --block-size {BLOCK} --num-gpu-blocks-override {NUM_BLOCKS} --max-model-len"
    f" {LONGEST} --enable-prompt-tokens-details --enable-per-request-metrics"
    " --host 127.0.0.1"
)


class RealServer:
    """vLLM's server in a process group of its own."""

    def __init__(self, model: Path, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "server.log"
        environment = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
        }
        module = "vllm.entrypoints.openai.api_server"
        flags = ["--model", str(model), "--port", str(port), *FLAGS.split()]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *flags],
                stdout=log,
                stderr=log,
                env=os.environ | environment,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers."""
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up and self.process.poll() is None:
            with suppress(URLError, OSError), urlopen(f"{self.url}/health", timeout=2):
                return
            time.sleep(0.5)
        pytest.fail(f"the server did not start: {self.log.read_text()[-3000:]}")

    def num_looks(self) -> int:
        """How often somebody has asked for its metrics, as its log tells."""
        return self.log.read_text(errors="replace").count("GET /metrics")

    def wait_for_looks(self, number: int) -> None:
        """Until it has been asked for its metrics so many times more."""
        enough, give_up = self.num_looks() + number, time.monotonic() + START_S
        while self.num_looks() < enough:
            assert time.monotonic() < give_up, "nobody looks at the server"
            time.sleep(0.1)

    def kill(self) -> None:
        """End it and the processes that it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Start the server once."""
    real = RealServer(model, tmp_path_factory.mktemp("server"))
    try:
        real.wait()
        yield real
    finally:
        real.kill()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trace(**options: Any) -> str:
    """A trace of conversations that begin alike."""
    plain = {
        "num_requests": 24,
        "input_len": 90,
        "output_len": 12,
        "range_ratio": 0.5,
        "prefix_len": 5 * BLOCK,
        "num_prefixes": 2,
        "turns": 3,
    }
    generate_trace(Path("trace.jsonl"), GenerateOptions(**plain | options), force=True)
    return "trace.jsonl"


def blockbench(*args: str) -> tuple[int, dict[str, Any]]:
    """Run the installed script: exit code and document."""
    done = subprocess.run([SCRIPT, *args], capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def run(url: str, *flags: str) -> tuple[int, dict[str, Any]]:
    asked = ("--engine", "server", "--url", url, "--vocab-size", str(VOCAB))
    return blockbench("run", "trace.jsonl", *asked, "--json", *flags)


def test_one_at_a_time_finds_what_is_simulated(server: RealServer) -> None:
    """Cached tokens of each request are those of ``sim --policy v1``, all told.

    Later turns continue what the server has generated, so that those hits are there too.
    """
    workload = open_trace(trace())
    config = resolve_config(
        model="meta-llama/Llama-3.1-8B",
        gpu="H100-80GB",
        policy="v1",
        num_gpu_blocks_override=NUM_BLOCKS,
        block_size=BLOCK,
        max_model_len=LONGEST,
    )
    simulated = replay(workload, config, max_concurrency=1)
    options = ServerOptions(
        url=server.url, vocab_size=VOCAB, warmup_requests=2, max_concurrency=1
    )
    measured = replay_on_server(workload, options)

    found = [row.num_cached_tokens for row in measured.requests]
    known = measured.measurement
    assert found == [row.num_cached_tokens for row in simulated.requests]
    assert known.counters["prefix_cache_hit_tokens"] == sum(found) > 0
    assert known.counters["prefix_cache_query_tokens"] == workload.input_tokens.sum()
    assert known.counters["generation_tokens"] == workload.output_tokens.sum()
    assert known.counters["finished_requests"] == len(workload)
    assert known.counters["preemptions"] == 0
    assert known.is_cold
    assert known.facts["num_gpu_blocks"] == NUM_BLOCKS
    assert known.facts["max_model_len"] == LONGEST
    assert "requests.first_scheduled_ns" not in known.unmeasured


def test_timed_run_agrees_with_itself(server: RealServer) -> None:
    """With many at a time counters and requests tell the same, and latencies are sane."""
    trace(num_requests=40, request_rate=40, output_len=24, turns=1)
    code, document = run(server.url, "-o", "run")
    counters = json.loads(Path("run/run.json").read_text())["measurement"]["counters"]

    assert code == 0
    assert document["counts"]["finished"] == 40
    assert counters["generation_tokens"] == open_trace("trace.jsonl").output_tokens.sum()
    assert document["prefix_cache"]["hit_tokens"] == counters["prefix_cache_hit_tokens"]
    assert document["prefix_cache"]["hit_tokens"] > 20 * 5 * BLOCK
    latency = document["latency_s"]
    assert 0 < latency["ttft"]["p50"] < latency["e2e"]["p50"] < 60
    assert latency["itl"]["mean"] > 0


def test_samples_have_the_length_of_the_longest(server: RealServer) -> None:
    """Samples are one request to vLLM; its counters look each of them up on its own."""
    workload = open_trace(trace(num_requests=10, n=2))
    options = ServerOptions(url=server.url, vocab_size=VOCAB, max_concurrency=1)
    measured = replay_on_server(workload, options)
    lengths = [[tokens for _, tokens in workload.outputs.runs(i)] for i in range(10)]
    found = sum(row.num_cached_tokens for row in measured.requests)

    assert [row.num_output_tokens for row in measured.requests] == [
        2 * max(both) for both in lengths
    ]
    assert measured.measurement.counters["prefix_cache_hit_tokens"] >= found
    assert any("several lengths" in note for note in measured.measurement.notes)


def test_preemptions_are_counted(server: RealServer) -> None:
    """More than the blocks hold at a time is preempted, as the server counts.

    Samples of one request reach the engine together, however slow the machine is.
    """
    shape = {"num_requests": 2, "n": 8, "turns": 1, "prefix_len": 0, "num_prefixes": 1}
    trace(**shape, input_len=200, output_len=700, range_ratio=0.0)
    code, document = run(server.url)

    assert code == 0
    assert document["counts"]["finished"] == 2
    assert document["counts"]["preemptions"] > 0
    assert document["counts"]["swap_out_blocks"] is None


def test_wrong_model(server: RealServer) -> None:
    """A model that is not served ends with a finding, exit 5, and nothing sent."""
    trace()
    code, document = run(server.url, "--api-model", "gpt-9")

    assert code == 5
    assert document["findings"][0]["code"] == "server_error"
    assert "it serves tiny" in document["findings"][0]["message"]
    assert document["counts"]["failed"] == 24


def test_too_long_for_the_model(server: RealServer) -> None:
    """A prompt that the model cannot take is rejected, and the run goes to its end."""
    workload = open_trace(trace(num_requests=3, turns=1, input_len=LONGEST))
    measured = replay_on_server(workload, ServerOptions(url=server.url, vocab_size=VOCAB))

    assert RequestStatus.REJECTED in {row.status for row in measured.requests}
    assert measured.outcome.ending is Ending.COMPLETE


def test_priorities_are_left_out_where_arrival_decides(server: RealServer) -> None:
    """The server says what it goes by, and takes a priority in silence all the same."""
    workload = open_trace(trace(num_requests=3, turns=1))
    workload = replace(workload, priority=np.full(3, 5))
    measured = replay_on_server(workload, ServerOptions(url=server.url, vocab_size=VOCAB))
    body = {"model": "tiny", "prompt": [500], "max_tokens": 1, "priority": 5}

    assert measured.measurement.facts["scheduling_policy"] == "fcfs"
    assert any("policy is fcfs" in note for note in measured.measurement.notes)
    assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200


def test_watched_while_others_use_it(server: RealServer) -> None:
    """``observe`` counts the requests of others and makes a workload like theirs.

    Nothing here depends on how fast the machine is: the others begin once it watches,
    and it is told to stop once they are done.
    """
    workload = open_trace(trace(num_requests=40, request_rate=20, turns=1))
    options = ServerOptions(url=server.url, vocab_size=VOCAB)
    flags = ("--for", "10m", "--every", "0.25s", "-o", "seen.jsonl", "--json")
    with subprocess.Popen(
        [SCRIPT, "observe", "--url", server.url, *flags],
        stdout=subprocess.PIPE,
        text=True,
    ) as watcher:
        try:
            server.wait_for_looks(3)  # the first are to find out what the server is
            theirs = replay_on_server(workload, options)
            server.wait_for_looks(2)  # of which one may have begun before they were done
        finally:
            watcher.send_signal(signal.SIGINT)
        output, _ = watcher.communicate(timeout=60)
    document = json.loads(output)
    seen = open_trace("seen.jsonl")

    assert theirs.outcome.ending is Ending.COMPLETE, theirs.outcome.message
    assert watcher.returncode == 130
    assert document["requests"]["finished"] == 40
    assert len(seen) == 40
    assert seen.input_tokens.mean() == pytest.approx(
        workload.input_tokens.mean(), rel=0.1
    )
    assert document["prefix_cache"]["hit_rate"] > 0.3
    assert not seen.has_sharing


def test_server_that_is_killed(server: RealServer) -> None:
    """A server that dies in the middle is a finding, exit 5, and the rows so far."""
    workload = open_trace(trace(num_requests=200, request_rate=20, turns=1))
    killed_s: list[float] = []

    def kill_in_the_middle(num_done: int, num_requests: int) -> None:
        if num_done >= 10 and not killed_s:
            server.kill()
            killed_s.append(time.monotonic())

    measured = replay_on_server(
        workload,
        ServerOptions(url=server.url, vocab_size=VOCAB, hang_after_s=20),
        on_progress=kill_in_the_middle,
    )

    statuses = [row.status for row in measured.requests]
    assert time.monotonic() - killed_s[0] < 20
    assert measured.outcome.ending is Ending.DIED
    assert measured.outcome.kind == "server_lost"
    assert statuses.count(RequestStatus.FINISHED) >= 10
    assert len(statuses) == 200
