"""``tune`` beside vLLM: the line that it emits starts vLLM, and ``--verify`` measures it.

On the CPU, with a tiny model that has no weights; about a minute together.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from bench_cli.serve_reading import parse_serve
from harness.traces.generation import GenerateOptions, generate_trace

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)

SCRIPT = Path(sys.executable).with_name("blockbench")
START_S = 150
DUMMY = "--load-format dummy --skip-tokenizer-init --enforce-eager"
CPU = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


@pytest.fixture
def model(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the configuration of a tiny Llama, beside a trace."""
    for name, value in CPU.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    options = GenerateOptions(
        num_requests=40,
        request_rate=20,
        input_len=90,
        output_len=16,
        prefix_len=160,
        num_prefixes=2,
    )
    generate_trace(Path("trace.jsonl"), options)
    return shutil.copytree(model, tmp_path / "tiny model")


def tune(*args: object) -> dict[str, Any]:
    """Tune the trace, all of which comes at once; the document."""
    asked = ("--request-rate", "inf", "--vllm-version", "0.32.0", "--jobs", 1, "--json")
    command = [str(word) for word in (SCRIPT, "tune", "trace.jsonl", *asked, *args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def without_what_a_cpu_cannot(command: str) -> list[str]:
    """Words of the options: no offload tier, and no blocks but of 32 tokens and more."""
    knobs = parse_serve(command).knobs
    words = shlex.split(command)
    left_out = ["--kv-offloading-size"]
    if knobs.get("block_size", 32) % 32:
        left_out.append("--block-size")
    for flag in left_out:
        if flag in words:
            place = words.index(flag)
            del words[place : place + 2]
    return words[words.index("serve") + 1 :]


@contextmanager
def serving(words: list[str], log: Path) -> Iterator[str]:
    """VLLM's own server with these options; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    module = "vllm.entrypoints.openai.api_server"
    where = ["--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", module, "--model", *words, *where]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True
        )
    try:
        give_up_s = time.monotonic() + START_S
        while time.monotonic() < give_up_s and process.poll() is None:
            with suppress(URLError, OSError), urlopen(f"{url}/health", timeout=2):
                break
            time.sleep(0.5)
        else:
            pytest.fail(f"the server did not start: {log.read_text()[-3000:]}")
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_emitted_line_starts_vllm(model: Path, tmp_path: Path) -> None:
    """Its options start the tiny model on the CPU, which then serves a request."""
    document = tune(
        *("--current", f"vllm serve {shlex.quote(str(model))} --max-num-seqs 1 {DUMMY}"),
        *("--space", "max_num_seqs=1|16, max_num_batched_tokens=256|512"),
        *("--budget", "8trials", "--model", model, "--max-model-len", 1_024),
        *("--block-size", 64, "--num-gpu-blocks-override", 60),
    )
    command = document["command"]
    assert document["changes"]["max_num_seqs"] == {"from": 1, "to": 16}
    assert "--max-num-seqs 16" in command

    with serving(without_what_a_cpu_cannot(command), tmp_path / "server.log") as url:
        body = {"model": str(model), "prompt": [5, 6, 7, 8], "max_tokens": 4}
        request = Request(
            f"{url}/v1/completions",
            json.dumps(body | {"ignore_eos": True, "min_tokens": 4}).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=60) as answer:
            served = json.load(answer)
    assert served["usage"]["completion_tokens"] == 4


def test_advice_is_measured(model: Path) -> None:
    """Hits, preemptions and blocks are those simulated; times are the CPU's own."""
    document = tune(
        *("--current", f"vllm serve {shlex.quote(str(model))} --max-num-seqs 1 {DUMMY}"),
        *("--space", "max_num_seqs=1|16", "--budget", "4trials", "--model", model),
        *("--block-size", 32, "--num-gpu-blocks-override", 96, "--max-model-len", 1_024),
        *("--no-async-scheduling", "--verify", "vllm", "--verify-requests", 24),
    )

    found = document["verification"]
    assert found["complete"], found["findings"]
    assert found["hardware"] == {
        "simulated": "H100-80GB",
        "measured": "cpu",
        "is_same": False,
    }
    assert found["is_confirmed"] is None
    assert set(found["sides"]) == {"current", "advised"}
    for side in found["sides"].values():
        assert side["num_runs"] == 1
        assert side["differs"] == {}
        for name in ("finished", "num_gpu_blocks", "hit_rate", "preemptions"):
            figure = side["figures"][name]
            assert figure["measured"] == pytest.approx(figure["simulated"]), name
        assert side["figures"]["e2e_mean"]["measured"] > 0
    assert found["sides"]["current"]["figures"]["hit_rate"]["measured"] > 0.3
    both = [found["gain"][source] for source in ("simulated", "measured")]
    assert all(gain["difference"] > 0 for gain in both)
