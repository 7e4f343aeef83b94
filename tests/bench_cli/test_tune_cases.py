"""Operators' cases about choosing a setting: tune, compare or capacity answers them.

Source: cases.md, groups B and C; each docstring names the case and its vLLM issue.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import results

Call = Callable[..., tuple[int, str, str]]
Generate = Callable[..., str]
Tune = Callable[..., dict[str, Any]]

VERSION = ("--vllm-version", "0.32.0")
RUNS = Path(".blockbench", "runs")
SERVE = "vllm serve meta-llama/Llama-3.1-8B"


def capacity(call: Call, *args: object) -> dict[str, Any]:
    """What ``capacity --json`` prints."""
    code, out, err = call("capacity", *args, *VERSION, "--json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def compare(call: Call, *args: object) -> dict[str, Any]:
    """What ``compare --json`` prints."""
    code, out, err = call("compare", *args, *VERSION, "--jobs", 1, "--json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def rows_of(document: dict[str, Any], name: str) -> dict[Any, dict[str, Any]]:
    """Evidence of a knob, by value, of those values that were replayed."""
    rows = document["evidence"][name]["rows"]
    return {row["value"]: row for row in rows if row["ttft_mean"] is not None}


@pytest.mark.parametrize("command", ["capacity", "tune"])
def test_no_utilization_works_and_the_remedies_are_named(
    generate: Generate, call: Call, command: str
) -> None:
    """B6 (#5274): weights of 32B on 32 GB leave nothing at any utilization: code 4."""
    given = ("--model", "Qwen/Qwen2.5-32B", "--gpu", "V100-32GB", *VERSION)
    trace = (generate("--num-requests", 5),) if command == "tune" else ()

    code, out, err = call(command, *trace, *given, "--gpu-memory-utilization", 1)

    assert (code, out) == (4, "")
    for remedy in ("tensor_parallel_size", "max_num_batched_tokens", "max_num_seqs"):
        assert remedy in err


def test_the_largest_utilization_that_starts_is_not_advised(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """B7 (#21410): 0.98 starts, would hold the most, and dies under load: 2 GiB stay."""
    size = ("--gpu", "L4", "--max-model-len", 8192)
    trace = generate("--input-len", 1000, "--output-len", 200, "--request-rate", 4)

    document = tune(trace, *size, "--space", "gpu_memory_utilization=0.86..0.99..0.01")

    advised = document["config"]["gpu_memory_utilization"]
    fits = capacity(call, *size, "--gpu-memory-utilization", advised)
    riskier = capacity(call, *size, "--gpu-memory-utilization", 0.98)
    assert riskier["starts"]
    assert riskier["num_gpu_blocks"] > fits["num_gpu_blocks"]
    assert riskier["headroom_gib"] < 1
    assert advised <= 0.92 or fits["headroom_gib"] >= 2


@pytest.mark.parametrize(("utilization", "is_warned"), [(0.98, True), (0.92, False)])
def test_a_present_utilization_that_leaves_little_is_warned_of(
    generate: Generate, tune: Tune, utilization: float, is_warned: bool
) -> None:
    """B7: it may stay, as nothing does better, and is none that lasts for sure."""
    trace = generate("--num-requests", 20, "--request-rate", 1)
    current = f"{SERVE} --gpu-memory-utilization {utilization} --max-model-len 8192"

    document = tune(trace, "--current", current, "--budget", "4trials")

    said = [u for u in document["unknowns"] if "lasts under load" in u]
    assert document["config"]["gpu_memory_utilization"] == utilization
    assert len(said) == is_warned
    if is_warned:
        assert said[0].startswith("whether utilization 0.98 lasts under load: it leaves ")
        assert said[0].endswith(" GiB, and memory is not short")


def test_memory_that_no_batch_can_fill_is_given_back(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """B22 (#33263): one sequence of 1,024 tokens needs 65 blocks, not 175,856 tokens."""
    trace = generate(
        *("--input-len", 400, "--output-len", 50),
        *("--num-requests", 20, "--request-rate", 1),
    )
    size = ("--max-num-seqs", 1, "--max-model-len", 1024)

    document = tune(trace, *size, "--shared-gpu", "--budget", "16trials")

    advised = document["config"]["gpu_memory_utilization"]
    knobs = (*size, "--kv-tokens", 1024)
    least = capacity(call, *knobs)["min_gpu_memory_utilization"]
    gain = document["gain"]["over_current"]
    assert least <= advised < least + 0.05
    assert f"--gpu-memory-utilization {advised:g}" in document["command"]
    assert gain["values"][1] < 1.02 * gain["values"][0]


def test_caching_of_prompts_too_short_to_gain_is_no_advice(
    generate: Generate, tune: Tune
) -> None:
    """C1 (#2762, #8005): 130 tokens that nobody shares, one of output: no advice."""
    trace = generate("--input-len", 130, "--output-len", 1)

    found = [
        tune(trace, "--budget", "8trials", "--current", f"{SERVE}{switch}")
        for switch in ("", " --no-enable-prefix-caching")
    ]

    for document in found:
        assert "enable_prefix_caching" not in document["changes"]
        assert (
            "were seen before, at most"
            in (document["evidence"]["enable_prefix_caching"]["why"])
        )


def test_queueing_is_named_where_hits_cannot_help(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """C3 (#8223): 94 % hits, 48 at a time, a poor TTFT: who waits gets more places."""
    trace = generate("--prefix-len", 2900, "--input-len", 172, "--output-len", 180)
    load = (trace, "--max-concurrency", 48)

    document = tune(
        *(*load, "--current", f"{SERVE} --max-num-seqs 16", "--budget", "16trials"),
        *("--objective", "ttft"),
    )

    run = call("run", *load, *VERSION, "--max-num-seqs", 16, "--json")[1]
    findings = {finding["code"]: finding for finding in json.loads(run)["findings"]}
    figures = document["current"]["figures"]
    assert figures["hit_rate"] > 0.9
    assert {"queue_dominates_ttft", "not_kv_bound"} & findings.keys()
    assert document["config"]["max_num_seqs"] >= 48
    assert document["advised"]["ttft_mean"] < 0.5 * figures["ttft_mean"]
    assert document["config"]["enable_prefix_caching"]


@pytest.mark.parametrize("gpu", ["H100-80GB", "L4"])
def test_block_size_stays_unless_more_is_gained_than_noise(
    generate: Generate, tune: Tune, gpu: str
) -> None:
    """C5 (#14319): 16 stays; what each size leaves empty is beside it."""
    trace = generate("--input-len", 200, "--output-len", 50, "--request-rate", 2)

    document = tune(trace, "--gpu", gpu, "--max-model-len", 4096)

    rows = rows_of(document, "block_size")
    assert document["config"]["block_size"] == 16
    assert "block-size" not in document["command"]
    assert rows[32]["fragmentation"] > rows[16]["fragmentation"] > 0


def test_capped_chunks_let_short_prompts_pass(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6 (#37308): four prompts of 2,048 tokens, then two of 128: 256 a step each."""
    monkeypatch.chdir(tmp_path)
    lengths = [2048, 2048, 2048, 2048, 128, 128]
    rows = [
        {
            "arrival_s": i * 0.008,
            "prompt": [[2 * i, length]],
            "output": [[2 * i + 1, 64]],
        }
        for i, length in enumerate(lengths)
    ]
    lines = [{"blockbench": 1, "generated": None}, *rows]
    Path("six.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ("--gpu", "L4", "--max-model-len", 4096, "--max-num-batched-tokens", 2048)
    knobs = ("--vary", "long_prefill_token_threshold=0,256")

    document = compare(call, "six.jsonl", *flags, *knobs)

    whole, capped = (of_short_prompts(folder) for folder in sorted(RUNS.iterdir()))
    [ttft] = [m for m in document["metrics"] if m["name"] == "ttft_mean"]
    assert capped < 0.8 * whole
    assert ttft["values"][1] < ttft["values"][0]


def of_short_prompts(folder: Path) -> float:
    """The longest TTFT of the last two requests of a run, in nanoseconds."""
    requests = results.load(folder).requests.iloc[4:]
    return float((requests["first_token_ns"] - requests["arrival_ns"]).max())


def test_preemptions_stand_beside_throughput(generate: Generate, tune: Tune) -> None:
    """C9 (#15253): outputs of 4,096 tokens thrash a pool; each row has both figures."""
    trace = generate(
        *("--input-len", 200, "--output-len", 2000),
        *("--num-requests", 60, "--request-rate", "inf"),
    )

    document = tune(trace, "--kv-cache-gib", 6, "--max-model-len", 8192)

    rows = rows_of(document, "max_num_seqs")
    assert document["objective"] == "throughput"
    assert document["current"]["figures"]["preemptions"] > 0
    for row in rows.values():
        assert row["preemptions"] >= 0
        assert row["output_token_per_s"] > 0


def test_the_knee_where_preemptions_start_is_seen(generate: Generate, tune: Tune) -> None:
    """C10 (#10709): small batches preempt nobody, 256 and 512 do, and gain nothing."""
    trace = generate(
        *("--input-len", 200, "--output-len", 800),
        *("--num-requests", 150, "--request-rate", "inf"),
    )

    document = tune(
        *(
            trace,
            "--kv-cache-gib",
            8,
            "--max-model-len",
            4096,
            "--max-num-batched-tokens",
        ),
        *(2048, "--space", "max_num_seqs=16|32|64|128|256|512", "--budget", "20trials"),
        *("--current", f"{SERVE} --max-num-seqs 256"),
    )

    advised = document["config"]["max_num_seqs"]
    current, figures = document["current"]["figures"], document["advised"]
    assert current["preemptions"] > 0
    assert advised <= 256
    assert figures["preemptions"] <= current["preemptions"]
    assert figures["output_token_per_s"] >= current["output_token_per_s"]


def test_more_sequences_trade_time_per_token_for_waiting(
    generate: Generate, tune: Tune
) -> None:
    """C11 (#17598): TPOT grows with the batch, TTFT falls; the reason names both."""
    trace = generate("--input-len", 500, "--output-len", 200, "--request-rate", 16)

    document = tune(
        *(trace, "--current", f"{SERVE} --max-num-seqs 16", "--budget", "16trials"),
        *("--space", "max_num_seqs=16|32|64|128"),
    )

    rows = rows_of(document, "max_num_seqs")
    tpot = [rows[value]["tpot_mean"] for value in sorted(rows)]
    ttft = [rows[value]["ttft_mean"] for value in sorted(rows)]
    why = document["evidence"]["max_num_seqs"]["why"]
    assert len(rows) >= 3
    assert tpot == sorted(tpot)
    assert tpot[0] < tpot[-1]
    assert ttft == sorted(ttft, reverse=True)
    assert "16 would give TTFT +" in why
    assert "TPOT -" in why
