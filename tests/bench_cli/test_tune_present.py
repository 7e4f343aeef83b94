"""Tests for :mod:`bench_cli.tune_present` and :mod:`bench_cli.tune_line`."""

from collections.abc import Callable
from typing import Any

import pytest

from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Policy
from bench_cli.serve_reading import parse_serve
from bench_cli.tune_present import Present, present_of
from harness.config import resolve_config
from harness.errors import UsageError

Call = Callable[..., tuple[int, str, str]]
Generate = Callable[..., str]
Tune = Callable[..., dict[str, Any]]

LLAMA = "meta-llama/Llama-3.1-8B"
SERVE = f"vllm serve {LLAMA}"
QUICK = ("--budget", "4trials", "--space", "max_num_seqs=64|128")


def present(command: str | None = None, **flags: Any) -> Present:
    """The present settings of a command and flags."""
    current = None if command is None else parse_serve(command)
    return present_of(EngineFlags(**{"max_model_len": 4096, **flags}), current)


@pytest.mark.parametrize(
    ("version", "option", "note"),
    [
        ("0.19.1", "--swap-space 16", "0.18.0 no longer has it"),
        ("0.19.1", "--swap-space 16", "--kv-offloading-size is what keeps blocks on"),
        ("0.16.0", "--swap-space 16", "takes --swap-space and does not swap: left out"),
        ("0.16.0", "--watermark 0.05", "no --watermark (it came with 0.24.0)"),
        ("0.32.0", "--num-scheduler-steps 8", "0.10.1 no longer has it"),
        ("0.32.0", "--preemption-mode swap", "0.11.0 no longer has it"),
        ("0.10.2", "--enable-chunked-prefill=False", "chunks prefills in v1 whatever"),
        ("0.9.2", "--block-size 256", "has no --block-size 256; it has 1, 8, 16"),
    ],
)
def test_what_leaves_the_line_is_said(version: str, option: str, note: str) -> None:
    """An option that a version lacks, or does nothing with, goes with its reason."""
    found = present(f"{SERVE} {option} --api-key k", vllm_version=version)

    assert found.command is not None
    assert note in " ".join(found.notes)
    assert found.command.kept == ("--api-key", "k")
    assert found.command.knobs == found.current == {}


@pytest.mark.parametrize(
    ("command", "version"),
    [
        (f"VLLM_USE_V1=0 {SERVE}", "0.9.2"),
        (SERVE, "0.8.5"),
        (SERVE, "0.6.3"),
    ],
)
def test_priorities_of_v0_stay_in_the_line(command: str, version: str) -> None:
    """v0 has had them since 0.6.3; that they are not replayed is said, not refused."""
    found = present(f"{command} --scheduling-policy priority", vllm_version=version)

    assert found.start.policy == "v0"
    assert found.start.scheduling_policy == "fcfs"
    assert found.unreplayed == ("--scheduling-policy", "priority")
    assert "--scheduling-policy priority is not replayed with v0" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("command", "flags", "policy", "note"),
    [
        (None, {"gpu": "T4"}, "v0", "compute capability 7.5, below 8.0"),
        (SERVE, {"gpu": "T4"}, "v0", "compute capability 7.5, below 8.0"),
        (f"{SERVE} --preemption-mode swap", {}, "v0", "--preemption-mode swap"),
        (f"{SERVE} --num-scheduler-steps 8", {}, "v0", "--num-scheduler-steps 8"),
        (None, {"gpu": "A100-80GB", "kv_cache_dtype": "fp8"}, "v0", "on a A100-80GB"),
        (f"{SERVE} -pp 2", {"vllm_version": "0.9.0"}, "v0", "--pipeline-parallel-size 2"),
        (SERVE, {}, "v1", ""),
        (None, {"kv_cache_dtype": "fp8"}, "v1", ""),
        (f"VLLM_USE_V1=0 {SERVE}", {}, "v0", ""),
        (None, {"policy": Policy.V0}, "v0", ""),
        (None, {"gpu": "T4", "vllm_version": "0.10.2"}, "v1", ""),
    ],
)
def test_the_engine_is_that_of_a_plain_serve(
    command: str | None, flags: dict[str, Any], policy: str, note: str
) -> None:
    """Between 0.8 and 0.10 a GPU or an option brings v0, and the reason is said."""
    small = {"model": "Qwen/Qwen2.5-1.5B"} if command is None else {}
    if command is not None and flags.get("gpu") == "T4":
        command = command.replace(LLAMA, "Qwen/Qwen2.5-1.5B")
    found = present(command, **{"vllm_version": "0.9.2", **small, **flags})

    assert found.start.policy == policy
    assert found.given["policy"] == policy
    assert [n for n in found.notes if "runs v0 with" in n and note in n] != [] or not note


@pytest.mark.parametrize(
    "flags",
    [{}, {"gpu": "T4"}, {"preemption_mode": "swap"}, {"kv_cache_dtype": "fp8"}],
)
@pytest.mark.parametrize("version", ["0.7.3", "0.8.5", "0.10.2", "0.16.0"])
def test_run_has_the_engine_that_tune_has(flags: dict[str, Any], version: str) -> None:
    """One rule for all commands, so that advice is checked on what it was found for."""
    knobs = {"model": "Qwen/Qwen2.5-1.5B", "gpu": "A100-80GB", **flags}
    knobs |= {"max_model_len": 4096, "vllm_version": version}
    if flags.get("kv_cache_dtype") and knobs["gpu"] == "T4":
        return
    if flags.get("preemption_mode") and version == "0.16.0":
        return

    ours = resolve_config(**knobs)

    assert present_of(EngineFlags(**knobs), None).start.policy == ours.policy


def test_v1_that_vllm_refuses_is_refused() -> None:
    """With ``VLLM_USE_V1=1`` it does not start on a T4, and nothing is advised for it."""
    with pytest.raises(UsageError, match="0.9.2 does not run v1 with compute capability"):
        present(
            "VLLM_USE_V1=1 vllm serve Qwen/Qwen2.5-1.5B", gpu="T4", vllm_version="0.9.2"
        )


@pytest.mark.parametrize(("version", "dtype"), [("0.8.5", "half"), ("0.9.2", None)])
def test_half_is_given_where_bf16_is_refused(version: str, dtype: str | None) -> None:
    """Up to 0.8 vLLM does not start a bfloat16 model on a T4 without it."""
    found = present(None, model="Qwen/Qwen2.5-1.5B", gpu="T4", vllm_version=version)

    assert found.given.get("dtype") == dtype
    assert any("--dtype half" in note for note in found.notes) == (dtype is not None)


def test_line_of_a_fallback_is_plain(generate: Generate, tune: Tune) -> None:
    """It brings v0 by itself; where v1 would run, v0 is asked for."""
    trace = generate("--num-requests", 20)
    small = ("--model", "Qwen/Qwen2.5-1.5B", "--max-model-len", 2048)

    old = tune(trace, *QUICK, *small, "--gpu", "T4", "--vllm-version", "0.8.5")
    told = tune(trace, *QUICK, *small, "--vllm-version", "0.8.5", "--policy", "v0")

    assert (old["policy"], told["policy"]) == ("v0", "v0")
    assert old["command"].startswith("vllm serve Qwen/Qwen2.5-1.5B --dtype half ")
    assert told["command"].startswith("VLLM_USE_V1=0 vllm serve")
    assert any("below 8.0" in each for each in old["unknowns"])


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("0.24.0", f"{SERVE} --max-model-len 8192 --max-num-batched-tokens 256"),
        ("0.24.0", f"{SERVE} --max-num-seqs 1024 --api-key k"),
        ("0.8.5", f"{SERVE} --preemption-mode swap --num-scheduler-steps 8"),
        ("0.8.5", f"VLLM_USE_V1=1 {SERVE} --max-num-seqs 64"),
        ("0.8.5", f"{SERVE} --max-num-seqs 64 --scheduling-policy priority"),
    ],
)
def test_keeping_is_the_same_line(
    generate: Generate, tune: Tune, version: str, command: str
) -> None:
    """Nothing is added, as a limit that follows from another, and nothing taken away."""
    trace = generate("--num-requests", 10, "--request-rate", 1)

    found = tune(
        *(trace, "--budget", "2trials", "--space", "block_size=16|32"),
        *("--vllm-version", version, "--slo", "e2e=1h", "--current", command),
    )

    assert found["keep"]
    assert found["command"] == command


def test_another_known_model_is_refused() -> None:
    """It would be advice for one model and the line of another."""
    with pytest.raises(UsageError, match=r"Qwen3-8B is another model than meta-llama/Ll"):
        present(SERVE, model="Qwen/Qwen3-8B")


@pytest.mark.parametrize("model", ["/models/llama", "my-llama", "org/Llama-3.1-8B-FP8"])
def test_a_model_of_another_name_is_said(model: str) -> None:
    """A folder or a name of one's own may well be the model that was named."""
    found = present(f"vllm serve {model}", model="meta-llama/Llama-3.1-8B-Instruct")

    assert f"whether {model} is meta-llama/Llama-3.1-8B-Instruct" in found.notes[0]


@pytest.mark.parametrize("model", ["meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B"])
def test_aliases_are_the_same_model(model: str) -> None:
    """Two ids of one profile contradict nothing."""
    assert present(SERVE, model=model).notes == ()
