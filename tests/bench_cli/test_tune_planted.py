"""``blockbench tune`` on workloads whose right answer an expert knows beforehand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]
Generate = Callable[..., str]
Tune = Callable[..., dict[str, Any]]

LLAMA = "meta-llama/Llama-3.1-8B"
SERVE = f"vllm serve {LLAMA}"
SMALL_POOL = ("--num-gpu-blocks-override", 1000, "--max-model-len", 4096)
V0 = ("--policy", "v0", "--vllm-version", "0.6.3")
HITS = ("enable_prefix_caching", "kv_offloading_size")
SLO = ("--slo", "ttft=2s,tpot=50ms")


def is_kept(document: dict[str, Any]) -> bool:
    """Whether it says so, changes nothing, and holds nothing against it."""
    same: bool = document["config"] == document["current"]["knobs"]
    assert document["keep"] == same
    assert (document["changes"] == {}) == same
    assert (document["keep_reason"] is not None) == same
    return same and document["robustness"] == []


def holds_everywhere(document: dict[str, Any]) -> bool:
    """Whether the gain was found again under all five circumstances."""
    return [check["holds"] for check in document["robustness"]] == [True] * 5


def write_rows(name: str, rows: list[dict[str, Any]]) -> str:
    """Write a trace of blockbench's own format."""
    lines = [{"blockbench": 1, "generated": None}, *rows]
    Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return name


def write_returning_prefixes(generate: Generate) -> str:
    """Write a trace of 300 requests, each with one of 40 long prefixes."""
    return generate(
        *("--prefix-len", 2048, "--num-prefixes", 40, "--input-len", 64),
        *("--output-len", 16, "--num-requests", 300),
    )


def write_azure(name: str) -> str:
    """Write a trace of lengths alone: nobody knows which prompts begin alike."""
    rows = [f"2023-11-16 18:15:{i:02d}.0000000,1000,50\n" for i in range(60)]
    Path(name).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return name


def test_caching_stays_on_for_a_long_system_prompt(
    generate: Generate, tune: Tune
) -> None:
    """Of 2,112 prompt tokens 2,048 are hits: the defaults are kept, off is far worse."""
    document = tune(generate("--prefix-len", 2048, "--input-len", 64))

    evidence = document["evidence"]["enable_prefix_caching"]
    prefill = {row["value"]: row["prefill_tokens"] for row in evidence["rows"]}
    assert is_kept(document)
    assert document["command"] == SERVE
    assert prefill[False] > 20 * prefill[True]
    assert evidence["why"].startswith("off would give prefill tokens +2")


def test_caching_is_switched_on_for_a_long_system_prompt(
    generate: Generate, tune: Tune
) -> None:
    """The only change, and the present command's switch is gone from the line."""
    trace = generate("--prefix-len", 2048, "--input-len", 64)

    document = tune(trace, "--current", f"{SERVE} --no-enable-prefix-caching")

    gain = document["gain"]["over_current"]
    assert document["command"] == SERVE
    assert document["changes"] == {"enable_prefix_caching": {"from": False, "to": True}}
    assert gain["verdict"] == "better"
    assert gain["values"][1] < 0.5 * gain["values"][0]
    assert gain["interval"][1] < 0
    assert holds_everywhere(document)


def test_unique_prompts_bring_no_advice_on_hits(generate: Generate, tune: Tune) -> None:
    """Nothing is seen twice: caching and offloading stay, with that as the reason."""
    document = tune(generate("--input-len", 512))

    assert is_kept(document)
    assert document["command"] == SERVE
    for name in HITS:
        evidence = document["evidence"][name]
        assert evidence["advised"] == evidence["current"]
        assert "0.0 % of prompt tokens were seen before" in evidence["why"]
        assert evidence["rows"] == []


def test_swap_space_grows_until_the_engine_lasts(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """Eight samples a request and a tenth of a GiB: v0's engine ends, with more not."""
    trace = generate(
        *("--n", 8, "--input-len", 400, "--output-len", 200),
        *("--num-requests", 60, "--request-rate", 5),
    )
    pool = ("--num-gpu-blocks-override", 1000, "--max-model-len", 2048)
    given = (trace, *V0, *pool, "--current", f"{SERVE} --swap-space 0.1")

    document = tune(*given)

    change = document["changes"]["swap_space"]
    screen = call("tune", *given, "--budget", "12trials", "--jobs", 1)[1]
    advised = call("run", trace, *V0, *pool, "--swap-space", change["to"], "--json")[1]
    assert change["from"] == 0.1
    assert change["to"] >= 4
    assert "vLLM's engine ends there" in document["current"]["trouble"]
    assert document["trouble"] is None
    assert "0.1 would end vLLM's engine" in document["evidence"]["swap_space"]["why"]
    assert json.loads(advised)["counts"]["finished"] == 60
    assert "now: " in screen
    assert "vLLM's engine ends there" in " ".join(screen.split())
    assert all(check["holds"] for check in document["robustness"])


def test_more_swap_than_the_default_stands_in_the_line(
    generate: Generate, tune: Tune
) -> None:
    """Twenty samples of 500 tokens ask for more CPU blocks than 4 GiB hold."""
    trace = generate(
        *("--n", 20, "--input-len", 400, "--output-len", 500),
        *("--num-requests", 40, "--request-rate", 10),
    )
    pool = ("--num-gpu-blocks-override", 3000, "--max-model-len", 2048)

    fixed = ("--max-num-seqs", 256, "--block-size", 16, "--no-enable-chunked-prefill")

    document = tune(trace, *V0, *pool, *fixed, "--budget", "8trials")

    swap_space = document["config"]["swap_space"]
    need = document["evidence"]["swap_space"]["facts"]
    assert 4 < need["seen_gib"] <= swap_space
    assert need["seen_gib"] <= need["worst_gib"]
    assert swap_space in (8, 16, 32)
    assert f"--swap-space {swap_space:g}" in document["command"]
    assert document["current"]["trouble"]
    assert document["trouble"] is None


def test_a_starved_pool_gets_more_memory(generate: Generate, tune: Tune) -> None:
    """At a utilization of 0.28 requests are preempted again and again; then none is."""
    trace = generate("--input-len", 1000, "--output-len", 300)

    document = tune(
        *(trace, "--max-model-len", 4096, *SLO),
        *("--current", f"{SERVE} --gpu-memory-utilization 0.28"),
    )

    change = document["changes"].pop("gpu_memory_utilization")
    assert document["changes"] == {}
    assert change["from"] == 0.28
    assert 0.8 <= change["to"] <= 0.92  # above it too little memory is left
    assert document["current"]["figures"]["preemptions"] > 20
    assert document["advised"]["preemptions"] == 0
    assert document["gain"]["over_current"]["values"][1] > 0.95
    assert holds_everywhere(document)


def test_fewer_sequences_end_thrashing_in_a_fixed_pool(
    generate: Generate, tune: Tune
) -> None:
    """What counts is TPOT: a batch that fits is preempted less, and faster a token."""
    trace = generate("--input-len", 1000, "--output-len", 300)
    pool = ("--kv-cache-gib", 4, "--max-model-len", 4096)

    document = tune(trace, *pool, "--objective", "tpot")

    before, after = document["current"]["figures"], document["advised"]
    assert document["config"]["max_num_seqs"] <= 32
    assert f"--max-num-seqs {document['config']['max_num_seqs']}" in document["command"]
    assert after["preemptions"] < before["preemptions"] / 2
    assert after["tpot_mean"] < 0.9 * before["tpot_mean"]
    assert "gpu_memory_utilization" not in document["evidence"]


def test_huge_prompts_get_smaller_chunks(generate: Generate, tune: Tune) -> None:
    """A prompt of 7,000 tokens in one step stalls all others' decodes; in pieces less."""
    trace = generate(
        *("--input-len", 7000, "--output-len", 16),
        *("--num-requests", 150, "--request-rate", 4),
    )

    document = tune(trace, "--slo", "ttft=2s,tpot=30ms")

    change = document["changes"].pop("max_num_batched_tokens")
    gain = document["gain"]["over_current"]
    assert document["changes"] == {}
    assert change["from"] == 8192
    assert change["to"] in (512, 1024, 2048)
    assert f"--max-num-batched-tokens {change['to']}" in document["command"]
    assert gain["values"][1] > 0.95 > 0.8 > gain["values"][0]
    assert gain["interval"][0] > 0
    assert holds_everywhere(document)


def test_an_offload_tier_pays_where_prefixes_return(
    generate: Generate, tune: Tune
) -> None:
    """Forty prefixes share a pool for fifteen: host memory brings them back."""
    document = tune(write_returning_prefixes(generate), *SMALL_POOL)

    change = document["changes"]["kv_offloading_size"]
    hits = document["current"]["figures"]["hit_rate"], document["advised"]["hit_rate"]
    assert change["from"] == 0
    assert change["to"] >= 16  # 40 prefixes of 0.25 GiB, and what follows them
    assert f"--kv-offloading-size {change['to']:g}" in document["command"]
    assert hits[1] > hits[0] + 0.2
    assert "hits -" in document["evidence"]["kv_offloading_size"]["why"]
    assert any("spare" in unknown for unknown in document["unknowns"])
    assert holds_everywhere(document)


def test_no_more_of_the_host_is_taken_than_is_needed(
    generate: Generate, tune: Tune
) -> None:
    """Where a smaller tier does as well, it is the safest of the tie."""
    document = tune(write_returning_prefixes(generate), *SMALL_POOL)

    advised = document["config"]["kv_offloading_size"]
    rows = document["evidence"]["kv_offloading_size"]["rows"]
    smaller = [row for row in rows if row["value"] < advised]
    assert {row["standing"] for row in smaller} == {"worse"}


def test_no_offload_tier_where_nothing_evicted_returns(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prefix is asked for five times on end and never again: no tier helps."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "arrival_s": i / 4,
            "prompt": [[i // 5, 1024], [1000 + 2 * i, 32]],
            "output": [[1001 + 2 * i, 16]],
        }
        for i in range(200)
    ]

    document = tune(write_rows("turns.jsonl", rows), *SMALL_POOL)

    assert document["current"]["figures"]["hit_rate"] > 0.7
    assert document["config"]["enable_prefix_caching"]
    assert document["config"]["kv_offloading_size"] == 0
    assert "offloading" not in document["command"]


def test_a_model_that_barely_fits_is_told_the_length_that_does(
    generate: Generate, call: Call
) -> None:
    """An L4 has no room for 131,072 tokens: code 4, and the longest that starts."""
    code, out, err = call("tune", generate("--input-len", 200), "--gpu", "L4")

    assert (code, out) == (4, "")
    assert err.startswith("error: vLLM would not start: a sequence of max_model_len")
    assert "it starts with --max-model-len 27" in err


@pytest.mark.parametrize("gpu", ["L4", "RTX-4090"])
def test_a_model_that_barely_fits_is_tuned(
    generate: Generate, tune: Tune, call: Call, gpu: str
) -> None:
    """The length stays in the line, and no utilization that leaves too little memory."""
    trace = generate("--input-len", 1000, "--output-len", 200, "--request-rate", 4)
    size = ("--gpu", gpu, "--max-model-len", 4096)

    document = tune(trace, *size, *SLO, "--objective", "ttft")

    advised = document["config"]["gpu_memory_utilization"]
    knobs = ("--gpu-memory-utilization", advised, "--vllm-version", "0.32.0")
    fits = json.loads(call("capacity", *size, *knobs, "--json")[1])
    assert "--max-model-len 4096" in document["command"]
    assert advised <= 0.92 or fits["headroom_gib"] >= 2
    assert fits["starts"]
    assert document["advised"]["ttft_mean"] <= document["current"]["figures"]["ttft_mean"]


def test_defaults_that_serve_a_trace_are_kept(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """Two requests a second are no load: the bare command, and words that say so."""
    trace = generate("--input-len", 200, "--request-rate", 2)
    given = (trace, "--slo", "ttft=1s,tpot=30ms", "--vllm-version", "0.32.0")

    document = tune(*given)

    screen = call("tune", *given, "--budget", "12trials", "--jobs", 1)[1]
    gain = document["gain"]["over_current"]
    assert is_kept(document)
    assert (document["command"], document["replicas"]) == (SERVE, 1)
    assert gain["values"] == [1, 1]
    assert gain["difference"] == 0
    assert document["headroom"]["load"] >= 4
    reason = document["keep_reason"]
    assert reason.startswith("every request is inside the SLO, and ")
    assert "--objective ttft or tpot looks for what is faster" in reason
    assert f"keep what you have: {reason}" in " ".join(screen.split())
    assert f"\n{SERVE}\n" in screen


def test_a_shared_gpu_gets_the_smallest_utilization_that_does(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """A little more than the weights; the SLO is kept as before."""
    trace = generate("--input-len", 200, "--request-rate", 2)

    document = tune(trace, "--slo", "ttft=1s,tpot=30ms", "--shared-gpu")

    advised = document["config"]["gpu_memory_utilization"]
    size = ("--max-model-len", 131072, "--vllm-version", "0.32.0", "--json")
    least = json.loads(call("capacity", *size, "--kv-tokens", 131072)[1])
    assert least["min_gpu_memory_utilization"] <= advised
    assert advised < least["min_gpu_memory_utilization"] + 0.1
    assert f"--gpu-memory-utilization {advised:g}" in document["command"]
    facts = document["evidence"]["gpu_memory_utilization"]["facts"]
    assert advised == facts["least_keeping_slo"]
    assert advised - 0.01 < least["min_gpu_memory_utilization"]
    assert document["gain"]["over_current"]["values"] == [1, 1]


def test_a_shared_gpu_keeps_the_memory_that_the_slo_needs(
    generate: Generate, tune: Tune
) -> None:
    """Less than what is advised preempts, and misses the limits."""
    trace = generate("--input-len", 1000, "--output-len", 300)

    document = tune(
        *(trace, *SLO, "--shared-gpu", "--max-model-len", 4096),
        *("--space", "gpu_memory_utilization=0.27|0.3|0.35|0.4|0.5|0.6|0.9"),
    )

    rows = document["evidence"]["gpu_memory_utilization"]["rows"]
    advised = document["config"]["gpu_memory_utilization"]
    inside = {row["value"]: row["goodput_fraction"] for row in rows}
    assert 0.3 < advised < 0.6
    assert inside[advised] > 0.95
    assert min(inside[value] for value in inside if value < advised) < 0.9


def test_a_shared_gpu_that_misses_its_slo_puts_no_more_requests_outside(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """A tie of half a point is not enough to give memory back; that it misses is said."""
    trace = generate("--input-len", 1000, "--output-len", 300)
    given = (
        *(trace, "--slo", "ttft=1s,tpot=40ms", "--speedup", 8, "--shared-gpu"),
        *("--space", "gpu_memory_utilization=0.3|0.4|0.5|0.6", "--max-num-seqs", 1024),
        *("--max-model-len", 4096, "--vllm-version", "0.32.0", "--budget", "8trials"),
    )

    document = tune(*given)

    before, after = document["current"]["figures"], document["advised"]
    facts = document["evidence"]["gpu_memory_utilization"]["facts"]
    words = " ".join(call("tune", *given, "--jobs", 1)[1].split())
    assert before["goodput_fraction"] < 0.9
    assert after["goodput_fraction"] >= before["goodput_fraction"]
    assert (facts["keeps_slo"], facts["least_keeping_slo"]) == (False, None)
    assert "the SLO is missed with 0." in words
    assert "it is as low as puts no more requests outside" in words


def test_an_slo_that_nothing_meets_is_said_with_the_nearest(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """A token takes longer than 1 ms whatever is set: how long is said beside that."""
    trace = generate("--input-len", 1000, "--num-requests", 100)
    given = (trace, "--slo", "ttft=10ms,tpot=1ms", "--vllm-version", "0.32.0")

    document = tune(*given)

    screen = call("tune", *given, "--budget", "12trials", "--jobs", 1)[1]
    said = " ".join(screen.split())
    assert document["advised"]["goodput_fraction"] == 0
    assert document["headroom"]["load"] == 0
    assert document["replicas"] is None
    assert "no setting that was tried keeps it at today's load; nearest: 0 %" in said
    assert "(limit 10 ms), TPOT mean" in said
    assert "x of today's load misses the SLO" in said
    assert document["most_replicas_tried"] == 64
    assert "not even 64 replicas would keep the SLO at today's load" in said


def test_a_change_that_brings_none_inside_says_what_it_brings(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """0 % inside on both sides is no reason; how far the median request is out is one."""
    trace = generate("--input-len", 1000, "--num-requests", 100, "--request-rate", 50)
    current = f"{SERVE} --max-num-seqs 2"
    given = (trace, "--slo", "ttft=10ms", "--current", current)

    document = tune(*given, "--budget", "8trials")

    screen = call("tune", *given, "--budget", "8trials", "--vllm-version", "0.32.0")[1]
    said = " ".join(screen.split())
    found = document["decided_by"]["over_current"]
    checks = [check["decided_by"]["name"] for check in document["robustness"]]
    assert not document["keep"]
    assert document["gain"]["over_current"]["values"] == [0, 0]
    assert found["name"] == "over_limits"
    assert found["values"][1] < found["values"][0]
    assert "inside the SLO the median request at " in said
    assert set(checks) == {"over_limits"}


def test_overload_is_answered_with_replicas(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """No setting serves eightfold load on one GPU; shared among so many it is served."""
    trace = generate("--input-len", 1000, "--output-len", 300)
    load = (trace, "--slo", "ttft=1s,tpot=40ms", "--speedup", 8)

    document = tune(*load)

    replicas = document["replicas"]
    screen = call("tune", *load, "--budget", "12trials", "--vllm-version", "0.32.0")[1]
    enough = tune(*load, "--replicas", replicas, "--budget", "8trials")
    assert replicas in (2, 3)
    assert document["headroom"]["first_failing"] <= 1
    assert document["headroom"]["load"] is None  # all have come before one has left
    assert document["advised"]["goodput_fraction"] < 0.9
    assert f"today's load needs {replicas} replicas" in " ".join(screen.split())
    assert enough["headroom"]["kept_briefly"] >= 1
    assert enough["replicas"] == replicas


def test_overload_is_no_reason_to_starve_the_engine(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """Tokens come too late; letting few in serves the first, and fewer in all."""
    trace = generate(
        *("--prefix-len", 1500, "--num-prefixes", 1, "--input-len", 120, "--seed", 3),
        *("--output-len", 150, "--range-ratio", 0.5, "--num-requests", 300),
        *("--request-rate", 12),
    )
    engine = ("--model", "Qwen/Qwen2.5-7B", "--gpu", "A10G", "--max-model-len", 8192)
    asked = (trace, *engine, "--slo", "ttft=2s,tpot=60ms")

    document = tune(*asked)

    screen = call("tune", *asked, "--budget", "12trials", "--vllm-version", "0.32.0")[1]
    starved = tune(*asked, "--max-num-seqs", 32)["headroom"]["load"]
    said = " ".join(screen.split())
    assert document["config"]["max_num_seqs"] >= 256
    assert document["headroom"]["load"] > 1.2 * starved
    assert document["searched"]["load"] < 1
    assert document["current_today"]["goodput_fraction"] < 0.1
    assert document["advised"]["goodput_fraction"] > 0.9
    assert document["replicas"] == 2
    assert "they are compared at" in said
    assert "today's load needs 2 replicas" in said


def test_lengths_alone_bring_no_advice_on_hits(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch that somebody set stays set, and what is not known is said."""
    monkeypatch.chdir(tmp_path)

    document = tune(
        *(write_azure("azure.csv"), "--budget", "8trials"),
        *("--current", f"{SERVE} --no-enable-prefix-caching"),
    )

    assert document["command"] == f"{SERVE} --no-enable-prefix-caching"
    assert any(
        "does not say which prompts begin alike, so nothing is advised" in unknown
        for unknown in document["unknowns"]
    )
    for name in HITS:
        evidence = document["evidence"][name]
        assert evidence["advised"] == evidence["current"]
        assert evidence["why"]
        assert evidence["rows"] == []


def test_what_is_not_modelled_stays_as_it_was(generate: Generate, tune: Tune) -> None:
    """Each option comes back to the letter, quotes too, with a sentence on its limits."""
    kept = {
        '--speculative-config \'{"method": "ngram"}\'': "speculative decoding is not",
        '--kv-transfer-config \'{"kv_connector":"X"}\'': "KV connectors are not",
        "--data-parallel-size 2": "data parallelism is not modelled",
        "--enable-lora": "LoRA is not modelled",
        "--port 8001": "the advice does not depend on it",
        "--some-new-thing=3": "whether the advice depends on it is not known",
    }
    present = f"HF_HUB_OFFLINE=1 {SERVE} --no-enable-prefix-caching {' '.join(kept)}"
    trace = generate("--prefix-len", 2048, "--input-len", 64)

    document = tune(trace, "--current", present, "--budget", "8trials")

    assert document["changes"] == {"enable_prefix_caching": {"from": False, "to": True}}
    assert document["command"] == f"HF_HUB_OFFLINE=1 {SERVE} {' '.join(kept)}"
    for option, limit in kept.items():
        name = option.split()[0].split("=")[0]
        assert any(name in u and limit in u for u in document["unknowns"]), option
