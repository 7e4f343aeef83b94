"""Tests for ``blockbench run`` with policy v1, on the bundled trace."""

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

from bench_cli.exit_code import ExitCode
from results.run_info import Ending

Call = Callable[..., tuple[int, str, str]]
Run = Callable[..., dict[str, Any]]

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_1000.jsonl"
SMALL = ("--num-gpu-blocks-override", 1000, "--max-model-len", 4096)
TIER = (*SMALL, "--kv-offloading-size", 4)


@pytest.fixture
def run(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a caller of ``run --json`` on 200 requests of today's vLLM: the document."""
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> dict[str, Any]:
        flags = ("--vllm-version", "0.32.0", "--limit", 200, "--json", *args)
        code, out, err = call("run", EXAMPLE, *flags)
        assert code == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    return run


def test_summary_of_v1_has_null_for_swaps(run: Run) -> None:
    """No swap, no copy-on-write and no tier: null, not 0; preemptions are numbers."""
    document = run(*SMALL)

    counts = document["counts"]
    missing = {name for name, value in counts.items() if value is None}
    assert document["policy"] == "v1"
    assert counts["finished"] == 200
    assert missing == {
        "swap_preemptions",
        "swap_out_blocks",
        "swap_in_blocks",
        "copy_on_write",
        "offload_store_blocks",
        "offload_load_blocks",
        "offload_store_bytes",
        "offload_load_bytes",
        "offload_evictions",
    }
    assert counts["preemptions"] == counts["recompute_preemptions"]
    assert document["prefix_cache"]["offload_hit_tokens"] is None
    assert document["config"]["swap_space"] is None


def test_tier_stores_and_loads(run: Run) -> None:
    """2,048 blocks of 2 MiB: hits from there come on top of those of the GPU."""
    without, document = run(*SMALL), run(*TIER)

    counts, prefix = document["counts"], document["prefix_cache"]
    assert document["config"]["num_cpu_blocks"] == 2048
    assert counts["offload_store_bytes"] == counts["offload_store_blocks"] * 2**21
    assert counts["offload_load_blocks"] * 16 >= prefix["offload_hit_tokens"] > 0
    assert prefix["gpu_hit_tokens"] + prefix["offload_hit_tokens"] == prefix["hit_tokens"]
    assert prefix["hit_tokens"] > without["prefix_cache"]["hit_tokens"]
    assert 0 < document["kv_cache"]["peak_cpu_blocks"] <= 2048


def test_stored_run_of_v1_has_the_same_summary(call: Call, run: Run) -> None:
    """What ``show`` computes from the rows is what was printed when the run ended."""
    document = run(*TIER)

    code, out, _ = call("show", "--json")

    assert code == 0
    assert json.loads(out) == document


def test_screen_of_v1_names_the_tier(
    call: Call, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies stand on a line of their own, and nothing is said of swaps."""
    monkeypatch.setenv("COLUMNS", "200")
    run(*TIER)

    _, out, _ = call("show")

    assert "offloading 4 GiB" in out.splitlines()[1]
    assert "GiB stored" in out
    assert "swap" not in out
    assert "copy-on-write" not in out
    assert "n/a" not in out


def test_full_pool_of_v1_is_full(run: Run) -> None:
    """All blocks but block 0 in use are 100 %, and what is cached idle is no more."""
    kv_cache = run("--num-gpu-blocks-override", 257, "--max-model-len", 4096)["kv_cache"]

    assert kv_cache["peak_usage"] == 1.0
    assert kv_cache["peak_cached_idle"] <= 1.0


def test_full_bar_stands_for_all_that_can_be_held(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four blocks three can be held; a request that holds them all fills the bars."""
    monkeypatch.chdir(tmp_path)
    rows = [{"blockbench": 1, "generated": None, "note": "made up"}]
    rows += [{"arrival_s": 0, "prompt": [[0, 40]], "output": [[1, 8]]}]
    Path("one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    _, out, _ = call("run", "one.jsonl", "--num-gpu-blocks-override", 4)

    assert "4 blocks (48 tokens)   peak 100 %   mean 100 %" in out
    assert "█" * 16 in out


def test_books_agree_in_every_turn(run: Run) -> None:
    """--check finds nothing, with a tier and without, and changes nothing."""
    for flags in (SMALL, TIER):
        checked = run("--limit", 50, *flags, "--check")
        assert checked | {"wall_s": 0} == run("--limit", 50, *flags) | {"wall_s": 0}


def test_async_scheduling_can_be_left_out(run: Run) -> None:
    """The host's work then lengthens each step."""
    ahead, in_turn = run(*SMALL), run(*SMALL, "--no-async-scheduling")

    assert ahead["config"]["async_scheduling"] is True
    assert in_turn["config"]["async_scheduling"] is False
    tpot = [document["latency_s"]["tpot"]["p50"] for document in (ahead, in_turn)]
    assert tpot[0] < tpot[1]


def test_requests_without_a_priority_are_served_in_order(run: Run) -> None:
    """A trace without priorities is served the same by priority, with other victims."""
    fcfs = run("--scheduling-policy", "fcfs")
    priority = run("--scheduling-policy", "priority")

    assert priority["config"]["scheduling_policy"] == "priority"
    assert priority["latency_s"] == fcfs["latency_s"]


def test_urgent_requests_are_served_first(call: Call, tmp_path: Path) -> None:
    """Of ten that wait for one place the last has priority -1, and is second to run."""
    rows = [{"blockbench": 1, "generated": None, "note": "made up"}]
    for i in range(10):
        tokens = {"prompt": [[i, 100]], "output": [[100 + i, 20]]}
        rows.append({"arrival_s": i / 1000, "priority": -1 if i == 9 else 0, **tokens})
    trace = tmp_path / "ten.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def order_of(policy: str) -> list[int]:
        flags = ("--max-num-seqs", 1, "--scheduling-policy", policy)
        code, _, err = call("run", trace, *flags, "-o", tmp_path / policy)
        assert code == 0, err
        _, out, _ = call("show", tmp_path / policy, "--requests", "--json")
        begun = sorted(json.loads(out)["rows"], key=lambda r: r["first_scheduled_ns"])
        return [row["request_id"] for row in begun]

    assert order_of("priority") == [0, 9, 1, 2, 3, 4, 5, 6, 7, 8]
    assert order_of("fcfs") == list(range(10))


def test_window_of_a_model_bounds_what_is_held(call: Call, tmp_path: Path) -> None:
    """A sequence of 12,000 tokens holds the 4,096 of Mistral's window, and a chunk."""
    rows = [{"blockbench": 1, "generated": None, "note": "made up"}]
    rows += [{"arrival_s": 0, "prompt": [[0, 11_000]], "output": [[1, 1000]]}]
    trace = tmp_path / "long.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--num-gpu-blocks-override", 2000, "--max-num-batched-tokens", 1024]
    flags += ["--json", "-o", tmp_path / "run", "--force", "--max-model-len", 16384]

    def peak_of(model: str) -> float:
        code, out, err = call("run", trace, "--model", model, *flags)
        assert code == 0, err
        peak: float = json.loads(out)["kv_cache"]["peak_usage"] * 1999
        return peak

    assert peak_of("meta-llama/Llama-3.1-8B") == pytest.approx(12_000 / 16)
    assert 4096 / 16 <= peak_of("mistralai/Mistral-7B-v0.1") <= (4096 + 2 * 1024) / 16 + 1


def test_samples_are_requests_of_their_own(call: Call, tmp_path: Path) -> None:
    """Four samples in two places take turns; v0 would never admit them."""
    rows = [{"blockbench": 1, "generated": None, "note": "made up"}]
    outputs = [[1 + k, 20] for k in range(4)]
    rows += [{"arrival_s": 0, "prompt": [[0, 100]], "output": outputs}]
    trace = tmp_path / "samples.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))

    args = ("--max-num-seqs", 2, "--json", "-o", tmp_path / "run")
    code, out, _ = call("run", trace, *args)

    document = json.loads(out)
    assert code == 0
    assert document["counts"]["finished"] == 1
    assert document["throughput"]["output_token_per_s"] * document["simulated_s"] == (
        pytest.approx(80)
    )
    assert document["latency_s"]["queue"]["max"] < document["latency_s"]["e2e"]["max"] / 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--preemption-mode", "swap"], "--preemption-mode belongs to policy v0"),
        (["--swap-space", 4], "use --kv-offloading-size"),
        (["--vllm-version", "0.11.0", "--kv-offloading-size", 4], "came with 0.11.1"),
        (["--vllm-version", "0.23.0", "--watermark", 0.1], "came with 0.24"),
        (["--kv-offloading-size", 0.0001], "kv_offloading_size is 0.0001"),
    ],
)
def test_v1_refuses_what_it_does_not_have(
    args: list[object], words: str, call: Call, tmp_path: Path
) -> None:
    """Nothing is replayed, and the message names what there is instead."""
    given = ["--vllm-version", "0.32.0", *args, "-o", tmp_path / "run"]

    code, out, err = call("run", EXAMPLE, *given)

    assert code in (ExitCode.USAGE, ExitCode.IMPOSSIBLE)
    assert out == ""
    assert words in err
    assert not (tmp_path / "run").exists()


def test_ctrl_c_keeps_what_a_v1_run_recorded(tmp_path: Path) -> None:
    """It is saved at the next turn, marked incomplete, with the tier's figures."""
    rows = [{"blockbench": 1, "generated": None, "note": "made up"}]
    rows += [
        {"arrival_s": i / 10, "prompt": [[i, 900]], "output": [[100_000 + i, 300]]}
        for i in range(30_000)
    ]
    trace = tmp_path / "long.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "run"
    flags = [str(flag) for flag in (*TIER, "--json", "-o", folder)]
    script = "from bench_cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "run", str(trace), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(EXAMPLE.parents[1])},
        text=True,
    )
    journal = folder / "steps.jsonl"
    while not (journal.exists() and journal.stat().st_size) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()

    document = json.loads(out)
    assert process.returncode == 130, err
    assert document["complete"] is False
    assert document["counts"]["failed"] > 0
    assert document["counts"]["offload_store_blocks"] > 0
    saved = json.loads((folder / "run.json").read_text())
    assert saved["outcome"]["ending"] == Ending.INTERRUPTED
