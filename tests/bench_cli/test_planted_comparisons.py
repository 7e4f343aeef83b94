"""``blockbench compare`` on workloads whose answer an expert knows beforehand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]
Compare = Callable[..., dict[str, Any]]
Generate = Callable[..., str]

SMALL_POOL = ("--num-gpu-blocks-override", 1000, "--max-model-len", 4096)
OUTCOMES = [
    f"{latency}_{statistic}"
    for latency in ("ttft", "tpot", "itl", "e2e")
    for statistic in ("mean", "p50", "p90", "p99")
]


@pytest.fixture
def compare(call: Call) -> Compare:
    """Return a caller of ``compare --json``, as today's vLLM unless told otherwise."""

    def compare(*args: object) -> dict[str, Any]:
        version = () if "--policy" in args else ("--vllm-version", "0.32.0")
        code, out, err = call("compare", *args, *version, "--json")
        assert code == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    return compare


def of_metrics(document: dict[str, Any], key: str) -> dict[str, Any]:
    """A key of each metric of the one arm beside the baseline, by name."""
    return {metric["name"]: metric[key] for metric in document["metrics"]}


def said_of(document: dict[str, Any]) -> tuple[str, str]:
    """Verdict and reason of the one arm beside the baseline."""
    _, arm = document["arms"]
    return arm["verdict"], arm["reason"]


def verdicts(document: dict[str, Any], names: Sequence[str] = OUTCOMES) -> set[str]:
    """What was said of these metrics, those with too few requests left out."""
    found = of_metrics(document, "verdict")
    return {found[name] for name in names} - {"not tested"}


@pytest.mark.parametrize("policy", ["v0", "v1"])
def test_a_long_shared_prefix_makes_caching_better(
    generate: Generate, compare: Compare, policy: str
) -> None:
    """Of 2,112 prompt tokens 2,048 are hits for all but the first few requests."""
    trace = generate("--prefix-len", 2048, "--input-len", 64)
    chunks = ("--no-enable-chunked-prefill",) if policy == "v0" else ()

    document = compare(trace, "--policy", policy, *chunks)

    verdict, reason = said_of(document)
    found = of_metrics(document, "verdict")
    assert verdict == "better"
    assert reason.startswith("hits save 96 % of prefill tokens; ")
    assert "TTFT p50 falls" in reason
    assert reason.endswith("; nothing lost")
    assert verdicts(document) == {"better"}
    assert (found["hit_tokens"], found["prefill_tokens"]) == ("better", "better")
    assert ["hit_tokens", "prefill_tokens", "queue_mean", "ttft_mean"] in [
        chain["metrics"] for chain in document["chains"]
    ]


def test_unique_prompts_make_no_difference(generate: Generate, compare: Compare) -> None:
    """No metric at all is better or worse, and each difference is exactly 0."""
    document = compare(generate("--input-len", 512))

    verdict, reason = said_of(document)
    assert verdict == "no difference found"
    assert reason.startswith("prefix caching saves nothing; ")
    assert {metric["verdict"] for metric in document["metrics"]} == {
        "no difference found",
        "not tested",
    }
    assert {m["difference"] for m in document["metrics"]} <= {0, None}


@pytest.mark.parametrize("policy", ["v0", "v1"])
def test_caching_that_only_evicts_makes_no_difference(
    generate: Generate, compare: Compare, policy: str
) -> None:
    """Thousands of blocks are cached and evicted, none is found again."""
    document = compare(generate("--input-len", 512), "--policy", policy, *SMALL_POOL)

    verdict, reason = said_of(document)
    evictions = of_metrics(document, "values")["evictions"]
    assert verdict == "no difference found"
    assert evictions[0] is None
    assert evictions[1] > 5000
    assert (
        f"prefix caching saves nothing, and evicts {evictions[1]:,.0f} blocks" in reason
    )
    assert verdicts(document) == {"no difference found"}
    assert document["arms"][1]["summary"]["prefix_cache"]["hit_tokens"] == 0


def test_prefixes_that_come_back_too_late_are_only_evicted(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty prefixes in turn through a pool for fifteen: each is gone when it returns."""
    monkeypatch.chdir(tmp_path)
    rows = [{"blockbench": 1, "generated": None}]
    for i in range(240):
        prompt = [[i % 60, 1024], [1000 + 2 * i, 32]]
        output = [[1001 + 2 * i, 16]]
        rows.append({"arrival_s": i / 4, "prompt": prompt, "output": output})
    Path("turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    document = compare("turns.jsonl", *SMALL_POOL)

    verdict, reason = said_of(document)
    summary = document["arms"][1]["summary"]
    assert verdict == "no difference found"
    assert "saves nothing, and evicts" in reason
    assert summary["prefix_cache"]["hit_tokens"] == 0
    assert summary["waste"]["regretted_evictions"] > 5000


def test_blocks_larger_than_the_shared_prefix_lose_all_hits(
    generate: Generate, compare: Compare
) -> None:
    """A prefix of 100 tokens fills six blocks of 16, and no block of 128."""
    trace = generate("--prefix-len", 100, "--input-len", 200)

    document = compare(trace, "--vary", "block_size=16,128")

    verdict, reason = said_of(document)
    hits = of_metrics(document, "values")["hit_rate"]
    found = of_metrics(document, "verdict")
    assert hits[0] > 0.3
    assert hits[1] == 0
    assert verdict == "worse"
    assert reason.startswith("hits that are lost add 47 % to prefill tokens; TTFT")
    assert (found["hit_rate"], found["prefill_tokens"]) == ("worse", "worse")


@pytest.mark.parametrize(
    ("variation", "finding"),
    [
        ("preemption_mode=swap,recompute", "recompute_several"),
        ("swap_space=4,0", "swap_space_short"),
    ],
)
def test_only_swapping_serves_several_samples_under_v0(
    generate: Generate, compare: Compare, variation: str, finding: str
) -> None:
    """Without it vLLM's engine ends, so the few that finish say nothing of its speed."""
    trace = generate("--n", 4, "--input-len", 400, "--output-len", 100)
    pool = ("--policy", "v0", "--num-gpu-blocks-override", 600, "--max-model-len", 2048)

    document = compare(trace, *pool, "--vary", variation)

    verdict, reason = said_of(document)
    counts = of_metrics(document, "values")["finished"]
    codes = [f["code"] for f in document["arms"][1]["summary"]["findings"]]
    assert verdict == "worse"
    assert "vLLM's engine ends there" in reason
    assert finding in codes
    assert counts[0] == 200 > counts[1]
    assert of_metrics(document, "verdict")["finished"] == "worse"
    assert verdicts(document) == set()


def test_swapping_survives_what_recomputing_does_not(
    generate: Generate, compare: Compare
) -> None:
    """With the doomed arm as the baseline, the other one is the better."""
    trace = generate("--n", 4, "--input-len", 400, "--output-len", 100)
    pool = ("--policy", "v0", "--num-gpu-blocks-override", 600, "--max-model-len", 2048)

    document = compare(trace, *pool, "--vary", "preemption_mode=recompute,swap")

    assert said_of(document)[0] == "better"
    assert of_metrics(document, "verdict")["finished"] == "better"


def test_a_pool_without_preemptions_is_better(
    generate: Generate, compare: Compare
) -> None:
    """More memory ends preemptions, and with them repeated work."""
    trace = generate("--input-len", 1000, "--output-len", 300)

    document = compare(trace, "--max-model-len", 4096, "--vary", "kv_cache_gib=2,16")

    verdict, reason = said_of(document)
    preemptions = of_metrics(document, "values")["preemptions"]
    found = of_metrics(document, "verdict")
    assert preemptions[0] > 0
    assert preemptions[1] == 0
    assert verdict in ("better", "mixed")  # larger batches are slower ones
    assert f"preemptions fall from {preemptions[0]:,.0f} to 0" in reason
    assert (found["preemptions"], found["e2e_mean"]) == ("better", "better")
    assert ["mean_usage", "preemptions", "recomputed_tokens", "e2e_mean"] in [
        chain["metrics"] for chain in document["chains"]
    ]


def test_a_tier_that_holds_what_is_evicted_is_better(
    generate: Generate, compare: Compare
) -> None:
    """Prefixes that the GPU's blocks lost come back from host memory."""
    trace = generate("--prefix-len", 1024, "--num-prefixes", 40, "--input-len", 64)

    document = compare(trace, *SMALL_POOL, "--vary", "kv_offloading_size=0,16")

    verdict, reason = said_of(document)
    values = of_metrics(document, "values")["offload_hit_tokens"]
    assert verdict == "better"
    assert "more hits save" in reason
    assert values[0] is None
    assert values[1] > 50_000


def test_more_load_is_slower_and_its_throughput_is_not_judged(
    generate: Generate, compare: Compare
) -> None:
    """Twice the requests a second are no achievement of a setting."""
    trace = generate("--input-len", 2000, "--output-len", 200)

    document = compare(trace, "--vary", "speedup=1,2")

    found = of_metrics(document, "verdict")
    assert said_of(document)[0] == "worse"
    assert (found["tpot_mean"], found["e2e_mean"]) == ("worse", "worse")
    assert found["output_token_per_s"] == "not tested"


def test_a_trace_that_hides_sharing_says_nothing_of_caching(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths alone tell no hits, so equal latencies are no finding."""
    monkeypatch.chdir(tmp_path)
    rows = [f"2023-11-16 18:15:{i:02d}.0000000,1000,50\n" for i in range(40)]
    Path("azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows)
    )

    document = compare("azure.csv")

    verdict, reason = said_of(document)
    assert verdict == "not tested"
    assert "does not say which prompts begin alike" in reason
