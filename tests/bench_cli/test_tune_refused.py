"""Tests for what ``blockbench tune`` says of refused requests, and cannot tell."""

from collections.abc import Callable
from typing import Any

Call = Callable[..., tuple[int, str, str]]
Generate = Callable[..., str]
Tune = Callable[..., dict[str, Any]]

QUICK = ("--budget", "4trials", "--space", "max_num_seqs=64|128")


def test_requests_that_are_too_long_are_counted(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """How many, why, and what would take them: in JSON and on the screen."""
    trace = generate(
        *("--num-requests", 40, "--input-len", 1000, "--range-ratio", 0.5),
        *("--output-len", 8),
    )
    given = (trace, *QUICK, "--max-model-len", 1400)

    refused = tune(*given)["refused"]
    screen = call("tune", *given)[1]

    assert 0 < refused["current"] == refused["advised"] < 40 == refused["num_requests"]
    assert [reason["code"] for reason in refused["reasons"]] == ["prompt_too_long"]
    assert "longer than max_model_len (1,400 tokens)" in refused["reasons"][0]["message"]
    assert refused["reasons"][0]["advice"].startswith("--max-model-len 1")
    assert f"{refused['advised']:,} of 40 requests" in " ".join(screen.split())
    assert "takes the longest" in " ".join(screen.split())


def test_nothing_is_said_where_none_is_refused(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """The document has null, the screen no such line."""
    trace = generate("--num-requests", 20)

    assert tune(trace, *QUICK)["refused"] is None
    assert "refused" not in call("tune", trace, *QUICK)[1]


def test_what_fp8_does_to_answers_is_not_known(generate: Generate, tune: Tune) -> None:
    """It is said where fp8 is advised, not where it is the present type."""
    trace = generate("--input-len", 1000, "--output-len", 300, "--num-requests", 100)
    pool = ("--kv-cache-gib", 2, "--max-model-len", 4096, "--objective", "throughput")
    space = ("--space", "kv_cache_dtype=auto|fp8", "--budget", "4trials")

    advised = tune(trace, *pool, *space)
    present = tune(trace, *pool, *QUICK, "--kv-cache-dtype", "fp8")

    assert advised["config"]["kv_cache_dtype"] == "fp8"
    assert any("kv_cache_dtype fp8 does to the answers" in u for u in advised["unknowns"])
    assert not any("to the answers" in unknown for unknown in present["unknowns"])


def test_what_only_blockbench_lacks_is_told_apart(generate: Generate, tune: Tune) -> None:
    """VLLM has a tier without prefix caching: such a setting could start there."""
    trace = generate("--prefix-len", 1024, "--num-prefixes", 40, "--input-len", 64)

    document = tune(
        *(trace, "--kv-cache-gib", 2, "--max-model-len", 4096, "--budget", "2trials"),
        *("--kv-offloading-size", 8, "--space", "enable_prefix_caching=on|off"),
    )

    evidence = document["evidence"]["enable_prefix_caching"]
    off = next(row for row in evidence["rows"] if row["value"] is False)
    assert off["standing"] == "not replayed"
    assert off["num_gpu_blocks"] is None
    assert evidence["why"] == (
        "off is not replayed with the rest as it is, though vLLM has it"
    )
