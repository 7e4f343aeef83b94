"""The scripts under benchmarks/ still run."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.request import Request
from profiles.capacity import ESTIMATE_ERROR_ROWS
from profiles.gpu import known_gpus, load_gpu

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EXAMPLE = BENCHMARKS.parent / "examples" / "chat_1000.jsonl"

sys.path.append(str(BENCHMARKS))
replay_calls: Any = importlib.import_module("replay_calls")
fidelity_knobs: Any = importlib.import_module("fidelity_knobs")
fidelity_latency: Any = importlib.import_module("fidelity_latency")
offload_replay: Any = importlib.import_module("offload_replay")
published_servers: Any = importlib.import_module("published_servers")


def test_repeat_speed_prints_a_ratio() -> None:
    """Both ways of the bundled trace are measured in one run, with equal steps."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "repeat_speed.py"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert "23,875 steps" in done.stdout
    assert "ratio" in done.stdout


def test_fidelity_meets_its_gates_as_the_docs_say() -> None:
    """Sizes agree with published rows, and docs/fidelity.md holds what is printed."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "fidelity.py", "capacity"],
        capture_output=True,
        text=True,
    )
    docs = (BENCHMARKS.parent / "docs" / "fidelity.md").read_text(encoding="utf-8")

    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert [line for line in done.stdout.splitlines() if line not in docs] == []
    inside, known = ESTIMATE_ERROR_ROWS
    assert f"inside the interval of the estimate: {inside} of {known} rows" in docs


@pytest.mark.data
def test_condense_ops_prints_the_bundled_kernels(data_dir: Path) -> None:
    """Fitting anew gives profiles/data/kernels.toml, to the last digit, and errors."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "condense_ops.py"],
        capture_output=True,
        text=True,
        env=os.environ | {"BLOCKBENCH_DATA": str(data_dir)},
    )
    bundled = BENCHMARKS.parent / "profiles" / "data" / "kernels.toml"

    assert done.returncode == 0, done.stderr
    assert done.stdout == bundled.read_text(encoding="utf-8")
    assert (
        "| H100-80GB | gemm_bfloat16       | 9,372  | 0            | 4.8% " in done.stderr
    )


def test_compare_speed_prints_a_ratio() -> None:
    """Both arms and their comparison are timed in one run; what it is, is no test."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "compare_speed.py", EXAMPLE, "--repeat", "1"],
        capture_output=True,
        text=True,
    )

    assert done.stdout.startswith("arms "), done.stderr
    assert "(limit 1.3x)" in done.stdout


def test_load_trace_prints_time_and_memory() -> None:
    """The bundled trace is loaded, and what that took is said."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "load_trace.py", EXAMPLE],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "1,000 requests" in done.stdout


def test_replay_speed_measures_both_loops_on_the_same_requests() -> None:
    """Costs and gates of the parts asked for are printed; vLLM is said to be missing."""
    parts = ["--part", "whole", "--part", "reference", "--part", "growth"]
    done = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "replay_speed.py", EXAMPLE, *parts),
            *("--limit", "100", "--sizes", "20", "40"),
        ],
        capture_output=True,
        text=True,
    )

    assert done.returncode == ("FAILED" in done.stdout), done.stderr
    assert not done.stderr
    for line in (
        "whole trace, load and replay                     1,000",
        "first requests, naive loop                         100",
        "first requests, vLLM                         not measured",
        "times naive: ",
        "steady load, replay                                 40",
        "peak MiB: ",
    ):
        assert line in done.stdout


def test_calls_come_back_from_their_file(tmp_path: Path) -> None:
    """Another interpreter reads the very requests, before the very calls."""
    request = Request(
        request_id=7,
        arrival_ns=5,
        prompt=((3, 20), (4, 1)),
        num_prompt_tokens=21,
        outputs=((5, 2), (6, 9)),
        priority=1,
        extra_keys=("salt",),
    )
    calls = [[], [request, request], [], [request]]

    replay_calls.write_calls(tmp_path / "calls.json", {"block_size": 16}, calls)

    assert replay_calls.read_calls(tmp_path / "calls.json") == ({"block_size": 16}, calls)


def test_block_sizes_cost_what_argonne_measured() -> None:
    """Of Llama-3-8B, size 8 loses a fifth of the throughput and 128 gains 2 %."""
    rows = published_servers.published_rows(published_servers.PUBLISHED / "knobs.csv")

    effects = list(fidelity_knobs.block_size_effects(rows))

    held = [effect for effect in effects if not effect.use]
    fitted = [effect for effect in effects if effect.use == fidelity_knobs.FITTED]
    assert (len(effects), len(held), len(fitted)) == (39, 25, 2)
    assert sum(effect.is_right for effect in held) >= 0.75 * len(held)
    assert [effect.factor for effect in fitted] == pytest.approx([1, 1], abs=0.05)


def test_more_sequences_serve_more_when_saturated() -> None:
    """192 against 128 sequences: right sign, within a factor of two of +11.7 %."""
    names = ("kubecon-na-2025/vllm stage 4", "kubecon-na-2025/vllm+batch_size stage 4")
    rows = [
        row for row in published_servers.bundled() if row.row["source"].endswith(names)
    ]

    (effect,) = fidelity_knobs.server_effects(fidelity_latency.compared(rows))

    assert effect.has_right_sign
    assert effect.is_right


def test_prompts_in_the_tier_are_worth_what_vllm_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 60 % of each prompt in CPU memory twice as many are prefilled (2.03)."""
    monkeypatch.setattr(offload_replay, "NUM_PROMPTS", 1200)
    offload_replay.prefill_tok_s.cache_clear()

    ratio = offload_replay.prefill_tok_s(0.6) / offload_replay.prefill_tok_s(None)

    offload_replay.prefill_tok_s.cache_clear()
    assert 1 + 1.034 / 2 < ratio < 1 + 1.034 * 2


def test_an_effect_of_the_wrong_sign_is_not_right() -> None:
    """However near in size; and neither is one more than twice as large."""
    of = {"knob": "a", "setting": "b", "measured": 1.1}

    found = [
        fidelity_knobs.Effect(**of, ours=ours).is_right
        for ours in (0.9, 1.0, 1.04, 1.06, 1.19, 1.21)
    ]

    assert found == [False, False, False, True, True, False]


@pytest.mark.slow
def test_known_errors_are_those_of_the_rows_that_no_fit_has_seen() -> None:
    """Replaying them anew gives what gpus.toml states, and the limits are kept."""
    latency = importlib.import_module("fidelity_latency")
    published = importlib.import_module("published_servers")
    rows = [row for row in published.bundled() if not (row.is_fitted or row.is_saturated)]
    found = latency.compared(rows)

    for name in known_gpus():
        measured, stated = latency.known_error(found, name), load_gpu(name).known_error
        assert stated is not None
        assert stated.num_rows == measured.num_rows
        assert stated.types == measured.types
        assert stated.fraction == pytest.approx(measured.fraction, abs=0.0006)
        assert stated.ttft_fraction == pytest.approx(measured.ttft_fraction, abs=0.0006)
    assert all([*latency.closed_loop_gates(found), *latency.rate_gates(found)])


@pytest.mark.slow
def test_latency_meets_its_gates_as_the_docs_say() -> None:
    """Replays agree with servers, and docs/fidelity.md holds what is printed."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "fidelity.py", "latency"],
        capture_output=True,
        text=True,
    )
    docs = (BENCHMARKS.parent / "docs" / "fidelity.md").read_text(encoding="utf-8")

    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert [line for line in done.stdout.splitlines() if line not in docs] == []
