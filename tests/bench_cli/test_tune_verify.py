"""``tune --verify`` as a person types it, with a vLLM and a server that only speak so."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench_cli.tune_verify_plan import part_of
from bench_cli.tune_verify_side import differing, split_kept, variables

sys.path.append(str(Path(__file__).parents[1] / "harness" / "vllm_engine"))
fake_server: Any = importlib.import_module("fake_server")

Generate = Callable[..., str]
Call = Callable[..., tuple[int, str, str]]
Told = Callable[[], list[dict[str, Any]]]
Verify = Callable[..., tuple[int, dict[str, Any], str]]

SCRIPT = Path(sys.executable).with_name("blockbench")
H100 = "NVIDIA H100 80GB HBM3"
SERVE = "vllm serve meta-llama/Llama-3.1-8B"
CURRENT = f"VLLM_NOTE='a b' {SERVE} --max-num-seqs 1 --port 8000 --seed 7"
KEYS = {
    *("engine", "not_run", "complete", "requests", "hardware", "sides", "server"),
    *("gain", "is_confirmed", "reason", "findings", "notes", "wall_s"),
}


@pytest.fixture
def trace(generate: Generate) -> str:
    """Return a trace of 30 requests in three seconds."""
    sizes = ("--num-requests", 30, "--request-rate", 10, "--input-len", 40)
    return generate(*sizes, "--output-len", 5, "--prefix-len", 48)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Return a reader of what each start of vLLM was told."""
    path = tmp_path / "told.jsonl"
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


def tune_command(trace: str, *flags: object) -> list[str]:
    """A short search that finds more sequences to be better; verified where asked."""
    asked = ("--space", "max_num_seqs=1|16", "--request-rate", "inf")
    short = ("--kv-cache-gib", 4, "--max-model-len", 4096, "--budget", "4trials")
    version = () if "--vllm-version" in flags else ("--vllm-version", "0.32.0")
    words = (SCRIPT, "tune", trace, *asked, *short, *version, "--jobs", 1, *flags)
    return [str(word) for word in words]


def environment(python: Path, tmp_path: Path, **plan: Any) -> dict[str, str]:
    """Write the fake's interpreter; the variables that it is started with."""
    script = Path(__file__).with_name("fake_vllm.py")
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    python.chmod(0o755)
    told = str(tmp_path / "told.jsonl")
    document = json.dumps({"num_requests": 30, "told": told} | plan)
    return dict(os.environ) | {"FAKE_VLLM": document, "COLUMNS": "110"}


@pytest.fixture
def verify(tmp_path: Path, trace: str) -> Verify:
    """Return a caller of ``tune --verify vllm --json``: how it ended, what it found."""

    def verify(*flags: object, **plan: Any) -> tuple[int, dict[str, Any], str]:
        python = tmp_path / "python"
        env = environment(python, tmp_path, **plan)
        on_vllm = ("--verify", "vllm", "--vllm-python", python, "--json")
        current = () if "--current" in flags else ("--current", CURRENT)
        done = subprocess.run(
            tune_command(trace, *current, *on_vllm, *flags),
            capture_output=True,
            text=True,
            env=env,
            timeout=120,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout), done.stderr

    return verify


def test_gain_is_confirmed(verify: Verify, told: Told) -> None:
    """Both settings run in turns, with what the lines say; measured stands beside."""
    code, document, err = verify("--repeats", 3, gpu=H100, slow=[1])

    found = document["verification"]
    assert code == 0, err
    assert set(found) == KEYS
    assert (found["is_confirmed"], found["complete"]) == (True, True), found["reason"]
    assert found["reason"].startswith("better: +")
    assert found["hardware"] == {"simulated": "H100-80GB", "measured": H100} | {
        "is_same": True
    }
    starts = told()
    assert [start["given"]["max_num_seqs"] for start in starts] == [1, 16] * 3
    assert {tuple(start["engine_args"]) for start in starts} == {("--seed", "7")}
    assert {start["variables"]["VLLM_NOTE"] for start in starts} == {"a b"}
    assert all(start["vllm_version"] == "0.32.0" for start in starts)
    sides = found["sides"]
    assert sides["advised"]["command"] == document["command"]
    assert "--max-num-seqs 1 " in sides["current"]["command"] + " "
    assert [side["num_runs"] for side in sides.values()] == [3, 3]
    folders = [folder for side in sides.values() for folder in side["folders"]]
    assert len(set(folders)) == 6
    assert all(Path(folder, "run.json").exists() for folder in folders)
    assert found["gain"]["simulated"]["verdict"] == "better"
    assert found["gain"]["measured"]["interval"][0] > 0
    blocks = sides["current"]["figures"]["num_gpu_blocks"]
    assert blocks["measured"] == 100
    assert blocks["simulated"] > 100
    ttft = sides["current"]["figures"]["ttft_mean"]
    assert ttft["least"] < ttft["measured"] < ttft["most"]
    assert ttft["simulated"] != ttft["measured"]
    differs = sides["advised"]["differs"]
    assert differs["max_model_len"] == {"simulated": 4096, "measured": 1024}
    assert "max_num_seqs" not in differs
    assert any(note.startswith("--port: of the server") for note in found["notes"])
    assert "6 runs of 30 of 30 requests, in real time" in err


def test_loss_is_said(verify: Verify) -> None:
    """What is worse on the engine refutes the advice, which still stands there."""
    code, document, err = verify("--repeats", 2, gpu=H100, slow=[16])

    found = document["verification"]
    assert code == 0, err
    assert found["is_confirmed"] is False, found["reason"]
    assert found["reason"].startswith("worse: ")
    assert document["changes"]["max_num_seqs"] == {"from": 1, "to": 16}


def test_single_runs_confirm_nothing(verify: Verify) -> None:
    """One run each is no evidence, whatever it shows."""
    _, document, _ = verify(gpu=H100, slow=[1])

    found = document["verification"]
    assert found["is_confirmed"] is None
    assert "one run each points the advised way; --repeats 5" in found["reason"]
    assert found["gain"]["measured"]["verdict"] == "not tested"


def test_other_hardware_is_no_evidence(verify: Verify) -> None:
    """A CPU neither confirms nor refutes what was advised for an H100, in words."""
    _, document, _ = verify("--repeats", 2, slow=[1])

    found = document["verification"]
    assert found["hardware"]["is_same"] is False
    assert found["is_confirmed"] is None
    assert "that is a CPU and not H100-80GB" in found["reason"]
    assert "measured on a CPU, simulated for H100-80GB" in found["notes"][0]


def test_advice_with_which_vllm_does_not_start(verify: Verify, call: Call) -> None:
    """A finding with vLLM's own last line, code 5; the advice and its doubt are there."""
    code, document, err = verify("--repeats", 2, gpu=H100, fails=[16])

    found = document["verification"]
    (finding,) = found["findings"]
    assert code == 5, err
    assert (finding["code"], finding["side"]) == ("vllm_out_of_memory", "advised")
    assert finding["message"].startswith("with the advised settings: vLLM ran out of")
    assert "torch.OutOfMemoryError: CUDA out of memory" in finding["message"]
    assert finding["advice"].startswith("keep the present settings, or narrow --space")
    assert found["is_confirmed"] is False
    assert [side["num_runs"] for side in found["sides"].values()] == [2, 0]
    assert found["sides"]["advised"]["figures"]["ttft_mean"]["measured"] is None
    assert document["command"].endswith("--seed 7")
    (failed,) = found["sides"]["advised"]["folders"]
    assert "OutOfMemoryError" in Path(failed, "vllm.log").read_text()


def test_present_settings_with_which_vllm_does_not_start(verify: Verify) -> None:
    """Code 5 as well; settings that last are better than such that do not."""
    code, document, _ = verify(gpu=H100, fails=[1])

    found = document["verification"]
    assert code == 5
    assert found["is_confirmed"] is True
    assert [finding["side"] for finding in found["findings"]] == ["current"]


def test_what_is_kept_runs_alone(verify: Verify, told: Told) -> None:
    """With nothing to change there is one setting to measure, and no gain."""
    current = ("--current", f"{SERVE} --max-num-seqs 16")
    code, document, err = verify(*current, gpu=H100)

    found = document["verification"]
    assert code == 0, err
    assert document["keep"]
    assert set(found["sides"]) == {"current"}
    assert found["gain"] == {"simulated": None, "measured": None}
    assert (found["is_confirmed"], len(told())) == (None, 1)


def test_part_of_the_trace(verify: Verify, told: Told) -> None:
    """So many requests as are asked for, simulated and measured; runs say which."""
    flags = ("--verify-requests", 12, "--current", f"{SERVE} --max-num-seqs 16")
    _, document, err = verify(*flags, num_requests=12)

    found = document["verification"]
    assert found["requests"] == {
        "first_request": 0,
        "num_requests": 12,
        "num_in_trace": 30,
    }
    finished = found["sides"]["current"]["figures"]["finished"]
    assert (finished["simulated"], finished["measured"]) == (12, 12)
    assert "1 run of 12 of 30 requests, in real time" in err
    (folder,) = found["sides"]["current"]["folders"]
    assert json.loads(Path(folder, "run.json").read_text())["config"]["slice"] == "0:12"


def test_two_minutes_of_a_long_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a number each run takes what arrives in two minutes, and says so."""
    monkeypatch.chdir(tmp_path)
    at_s = [*range(0, 100, 5), *range(300, 480)]
    row = {"input_length": 32, "output_length": 4}
    rows = [{"timestamp": 1000 * s, **row, "hash_ids": [s]} for s in at_s]
    Path("long.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    env = environment(tmp_path / "python", tmp_path, num_requests=20)
    flags = ("--current", f"{SERVE} --max-num-seqs 16", "--verify", "vllm")
    command = tune_command("long.jsonl", *flags, "--vllm-python", tmp_path / "python")
    place = command.index("--request-rate")
    command[place : place + 2] = ["--json"]

    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["verification"]
    assert found["requests"]["num_requests"] == 20
    assert (
        "about 2 min of the trace (--verify-requests takes more or fewer)" in done.stderr
    )


class Hundred:
    """A workload, as far as its length matters."""

    duration_s = 900.0

    def __len__(self) -> int:
        return 100


@pytest.mark.parametrize(
    ("stretch", "expected"), [(None, slice(0, 40)), (slice(80, 95), slice(60, 100))]
)
def test_two_minutes_of_a_closed_loop(stretch: slice | None, expected: slice) -> None:
    """What is served in two simulated minutes, from where the stretch begins."""
    workload = Hundred()
    engine = SimpleNamespace(workload=workload, max_concurrency=4)
    engine.under = lambda load: engine if load == 1 else None
    start = SimpleNamespace(run=SimpleNamespace(summary={"simulated_s": 300.0}))
    answer: Any = SimpleNamespace(stretch=stretch, start=start, load=1.0)
    asked: Any = SimpleNamespace(engine=engine)
    flags: Any = SimpleNamespace(num_requests=None)

    assert part_of(asked, answer, flags) == expected


def test_other_version_is_said(verify: Verify) -> None:
    """What was measured was not what was simulated."""
    code, document, _ = verify("--vllm-version", "0.24.0", gpu=H100)

    found = document["verification"]
    assert code == 0
    assert "measured with vLLM 0.32.0, simulated for 0.24.0" in found["notes"]


def test_what_vllm_refuses_is_a_finding(verify: Verify) -> None:
    """It comes after the search, and so it loses no advice; code 5."""
    code, document, err = verify(gpu=H100, refuses=True)

    found = document["verification"]
    assert code == 5, err
    assert [finding["code"] for finding in found["findings"]] == ["not_run"] * 2
    assert found["findings"][1]["message"] == (
        "with the advised settings: it was not run: vLLM has no --swap-space"
    )
    assert document["changes"]["max_num_seqs"]["to"] == 16


def test_stopped_while_measuring(trace: str, tmp_path: Path) -> None:
    """Ctrl-C while vLLM starts ends with 130, and the advice is printed."""
    python, told = tmp_path / "python", tmp_path / "told.jsonl"
    env = environment(python, tmp_path, hangs=True)
    flags = ("--current", CURRENT, "--verify", "vllm", "--vllm-python", python)
    process = subprocess.Popen(
        tune_command(trace, *flags, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    give_up_s = time.monotonic() + 60
    while not told.exists() and time.monotonic() < give_up_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    document = json.loads(out)
    assert process.returncode == 130, err
    assert document["changes"]["max_num_seqs"]["to"] == 16
    assert document["verification"]["complete"] is False
    assert document["verification"]["reason"] == "measuring was stopped"


def test_screen(trace: str, tmp_path: Path) -> None:
    """The advice first, then what was measured beside it."""
    python = tmp_path / "python"
    env = environment(python, tmp_path, gpu=H100, slow=[1])
    flags = ("--current", CURRENT, "--verify", "vllm", "--vllm-python", python)

    done = subprocess.run(
        tune_command(trace, *flags, "--repeats", 2),
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    advice, _, verified = done.stdout.partition("verified on vLLM")
    assert "max_num_seqs 1 -> 16" in advice
    assert f"on {H100}: 30 of 30 requests, 2 runs" in verified
    assert "now: simulated" in verified
    assert "advised: simulated" in verified
    assert "confirmed   yes: better: +" in verified
    assert "gain        simulated" in verified
    assert "            measured" in verified


def test_screen_where_nothing_was_measured(trace: str, tmp_path: Path) -> None:
    """The head says so; a wide command is one line in a narrow terminal."""
    python = tmp_path / "python"
    env = environment(python, tmp_path, gpu=H100, refuses=True) | {"COLUMNS": "80"}
    flags = ("--current", CURRENT, "--verify", "vllm", "--vllm-python", python)

    done = subprocess.run(
        tune_command(trace, *flags), capture_output=True, text=True, env=env, timeout=120
    )

    command = next(line for line in done.stdout.splitlines() if SERVE in line)
    words = " ".join(done.stdout.split())
    assert done.returncode == 5, done.stderr
    assert command.startswith("VLLM_NOTE='a b' ")
    assert command.endswith("--port 8000 --seed 7")
    assert len(command) > 80
    assert "30 of 30 requests, no run came to its end" in words


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="this Python has vLLM"
)
def test_python_without_vllm_is_refused_before_the_search(trace: str, call: Call) -> None:
    """Nobody waits for a search only to learn that nothing can verify it."""
    code, out, err = call("tune", trace, "--verify", "vllm")

    assert (code, out) == (2, "")
    assert "has no vllm: pip install 'blockbench[vllm]' there" in err


def on_server(trace: str, server: Any, *flags: object) -> tuple[int, Any, str]:
    """``tune --verify server --json``: how it ended, and what it found."""
    on = ("--verify", "server", "--url", server.url, "--json")
    done = subprocess.run(
        tune_command(trace, *on, *flags), capture_output=True, text=True, timeout=120
    )
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def test_server_with_the_advised_settings(trace: str) -> None:
    """What it says of its cache tells the two apart; the other needs a restart."""
    current = f"{CURRENT} --no-enable-prefix-caching"
    with fake_server.serving(fake_server.FakeServer()) as server:
        code, document, err = on_server(trace, server, "--current", current)

    found = document["verification"]
    assert code == 0, err
    assert document["changes"]["enable_prefix_caching"]["to"] is True
    assert found["server"]["settings"] == "advised"
    assert found["server"]["reason"] == "it has enable_prefix_caching on"
    assert "--max-num-seqs 1 " in found["server"]["restart"]
    assert [side["num_runs"] for side in found["sides"].values()] == [0, 1]
    assert found["sides"]["advised"]["figures"]["num_gpu_blocks"]["measured"] == 1001
    assert found["is_confirmed"] is None
    assert "a server does not say what it runs on" in found["notes"][0]


def test_server_that_does_not_say(trace: str) -> None:
    """It is set beside the present settings, and that is said."""
    with fake_server.serving(fake_server.FakeServer()) as server:
        code, document, err = on_server(trace, server, "--current", CURRENT)

    found = document["verification"]
    assert code == 0, err
    assert (found["server"]["settings"], found["server"]["beside"]) == (None, "current")
    assert "it does not say its max_num_seqs" in found["server"]["reason"]
    assert "--current says that these run" in found["server"]["reason"]
    assert found["server"]["restart"] == document["command"]


def test_server_that_fails(trace: str) -> None:
    """A finding, code 5, and the advice."""
    server_of = fake_server.FakeServer(fault="drop", fault_at=3)
    with fake_server.serving(server_of) as server:
        code, document, err = on_server(
            trace, server, "--current", CURRENT, "--warmup", 0
        )

    found = document["verification"]
    assert code == 5, err
    assert [finding["code"] for finding in found["findings"]] == ["server_lost"]
    assert found["server"] is None


def test_server_that_is_not_there(trace: str) -> None:
    """Said before the search, with code 5."""
    with fake_server.serving(fake_server.FakeServer()) as server:
        pass
    code, document, err = on_server(trace, server)

    assert (code, document) == (5, None)
    assert "correct --url" in err


def test_options_of_the_server_are_left_out() -> None:
    """With their values; what the engine has stays as it was written."""
    kept = ["--port", "8000", "--seed", "7", "--api_key=x", "-O", "'a b'", "--no-x"]

    assert split_kept(kept) == (
        ["--seed", "7", "-O", "'a b'", "--no-x"],
        ["--port", "--api_key"],
    )


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were there have their values again, others are gone."""
    monkeypatch.setenv("VLLM_A", "old")
    with variables(["VLLM_A='new one'", "VLLM_B=1"]):
        assert (os.environ["VLLM_A"], os.environ["VLLM_B"]) == ("new one", "1")

    assert os.environ["VLLM_A"] == "old"
    assert "VLLM_B" not in os.environ


def test_what_an_engine_does_not_say_differs_from_nothing() -> None:
    """None is not known; a cache type that was not given is vLLM's auto."""
    ours = {"block_size": 16, "kv_cache_dtype": None, "watermark": 0.01}
    ours |= {"gpu_memory_utilization": 0.9, "source_of_num_gpu_blocks": "override"}
    theirs = {"block_size": 32, "kv_cache_dtype": "auto", "gpu_memory_utilization": 0.5}

    assert differing(ours, theirs) == {"block_size": {"simulated": 16, "measured": 32}}
