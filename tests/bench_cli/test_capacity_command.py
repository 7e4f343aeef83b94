"""Tests for ``blockbench capacity``."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench_cli.exit_code import ExitCode

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]

KEYS = {
    "num_gpu_blocks",
    "num_cpu_blocks",
    "block_bytes",
    "kv_cache_gib",
    "kv_cache_tokens",
    "max_concurrency",
    "weights_gib",
    "activation_gib",
    "cuda_graph_gib",
    "non_torch_gib",
    "headroom_gib",
    "max_model_len_that_fits",
    "interval",
}


@pytest.fixture
def document(call: Call) -> Callable[..., dict[str, Any]]:
    """A caller that gives back the JSON document."""

    def document(*args: object) -> dict[str, Any]:
        code, out, err = call("capacity", "--vllm-version", "0.11.0", "--json", *args)
        assert (code, err) == (ExitCode.FINE, "")
        return json.loads(out)  # type: ignore[no-any-return]

    return document


def test_memory_is_split_as_vllm_printed_it(document: Any) -> None:
    """Llama-3.1-8B on H100 at 0.9 has 51.38 GiB of KV cache (memory.csv, vLLM 0.11.0)."""
    found = document("--gpu-memory-utilization", 0.9)

    assert found.keys() >= KEYS
    assert found["kv_cache_gib"] == pytest.approx(51.38, rel=0.01)
    assert found["weights_gib"] == pytest.approx(14.99, rel=0.005)
    assert found["block_bytes"] == 2 * 2**20
    assert found["kv_cache_tokens"] == 16 * found["num_gpu_blocks"]
    assert found["interval"][0] < found["num_gpu_blocks"] < found["interval"][1]
    assert found["max_concurrency"] == pytest.approx(found["kv_cache_tokens"] / 131_072)


def test_given_memory_gives_printed_blocks(document: Any) -> None:
    """11.12 GiB are 5,691 blocks and 11.12 requests of 8,192 tokens (issue 12330)."""
    found = document("--kv-cache-gib", 11.12, "--max-model-len", 8192)

    assert abs(found["num_gpu_blocks"] - 5691) <= 2
    assert found["max_concurrency"] == pytest.approx(11.12, abs=0.005)
    assert found["interval"] == [found["num_gpu_blocks"]] * 2
    assert found["max_model_len_that_fits"] == 91_088


def test_the_screen_says_where_memory_goes(call: Call) -> None:
    """Each part of the budget has its figure."""
    code, out, err = call("capacity", "--vllm-version", "0.32.0")

    assert (code, err) == (ExitCode.FINE, "")
    words = " ".join(out.split())
    assert "weights 14.99, activations 4.75, CUDA 0.13, graphs 0.55" in words


def test_utilizations_are_rows(document: Any, call: Call) -> None:
    """Nine values from 0.8 to 0.96, each with more blocks than the one before."""
    rows = document("--vary", "gpu_memory_utilization=0.8..0.96")["vary"]

    assert [row["gpu_memory_utilization"] for row in rows][::4] == [0.8, 0.88, 0.96]
    blocks = [row["num_gpu_blocks"] for row in rows]
    assert len(blocks) == 9
    assert blocks == sorted(set(blocks))
    _, out, _ = call("capacity", "--vary", "block_size=16,32", "--table", "csv")
    assert [row["block_size"] for row in csv.DictReader(io.StringIO(out))] == ["16", "32"]


def test_what_does_not_fit_is_a_row_with_its_reason(document: Any, call: Call) -> None:
    """The other rows are there."""
    args = ("--model", "Llama-3.1-70B", "-tp", 4, "--vary", "tensor_parallel_size=1,4")
    rows = document(*args)["vary"]

    assert "leave -" in rows[0]["error"]
    assert rows[1]["error"] is None
    _, out, _ = call("capacity", *args)
    assert "it starts on 4 GPUs" in " ".join(out.split())


def test_what_is_varied_need_not_fit_as_given(document: Any, call: Call) -> None:
    """70B does not fit on one GPU; the rows say on how many it does."""
    args = ("--model", "Llama-3.1-70B", "--vary", "tensor_parallel_size=1,2,4")
    found = document(*args)

    assert [row["error"] is None for row in found["vary"]] == [False, True, True]
    assert found["config"]["tensor_parallel_size"] == 2
    _, out, _ = call("capacity", *args, "--table", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert "leave -" in rows[0]["error"]


def test_tokens_need_a_utilization(document: Any) -> None:
    """The smallest utilization that holds the tokens holds them, and less does not."""
    wanted = document("--kv-tokens", 300_000)["min_gpu_memory_utilization"]
    enough = document("--gpu-memory-utilization", wanted)
    too_low = document("--gpu-memory-utilization", round(wanted - 0.01, 2))

    assert enough["kv_cache_tokens"] >= 300_000 > too_low["kv_cache_tokens"]


LOG = "\n".join(
    [
        "INFO 11-21 03:11:25 worker.py:232] Memory profiling results:"
        " total_gpu_memory=23.58GiB initial_memory_usage=15.26GiB"
        " peak_torch_memory=17.06GiB memory_usage_post_profile=15.34GiB"
        " non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90",
        "INFO 11-21 03:11:26 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048",
        "INFO 11-21 03:11:26 gpu_executor.py:117] Maximum concurrency for 20000 tokens"
        " per request: 1.56x",
    ]
)


def test_a_log_replaces_the_estimate(call: Call, tmp_path: Path) -> None:
    """What vllm issue 10517 printed comes back; the rest is carried to other settings."""
    log = tmp_path / "serve.log"
    log.write_text(LOG)
    flags = ("--gpu", "RTX-3090", "--vllm-version", "0.6.3", "--max-model-len", 20_000)
    vary = ("--vary", "max_model_len=20000,29000")
    code, out, err = call("capacity", *flags, "--from-log", log, *vary, "--json")
    found = json.loads(out)

    assert (code, err) == (ExitCode.FINE, "")
    assert found["num_gpu_blocks"] == 1952
    assert found["max_concurrency"] == pytest.approx(1.56, abs=0.005)
    assert found["kv_cache_gib"] == pytest.approx(3.81, abs=0.01)
    assert found["total_gib"] == 23.58
    assert found["source_of_num_gpu_blocks"] == "log"
    same, longer = found["vary"]
    assert same["num_gpu_blocks"] == pytest.approx(1952, abs=2)
    assert longer["num_gpu_blocks"] == pytest.approx(1478, abs=5)  # as it printed, too


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--model", "Llama-3.1-70B"], 4, "it starts on 4 GPUs"),
        (["-tp", 5], 4, "must divide the 32 attention heads"),
        (["--gpu-memory-utilization", 0.1], 4, "leave -"),
        (["--swap-space", 4, "--vllm-version", "0.32.0"], 2, "--kv-offloading-size"),
        (["--vary", "model=a"], 2, "cannot vary model"),
        (["--from-log", "missing.log"], 2, "missing.log"),
        (["--from-log", "x", "--kv-cache-gib", 4], 2, "give one of them"),
        (["--kv-cache-gib", 4, "--num-gpu-blocks-override", 4], 2, "give one of them"),
        (
            ["--kv-tokens", 9, "--kv-cache-gib", 4],
            2,
            "--kv-tokens asks for a utilization",
        ),
        (["--host-memory-gib", 0], 2, "must exceed 0"),
        (["--kv-tokens", 10**9], 4, "raise tensor_parallel_size"),
        (["-pp", 33], 4, "give 1 to 32"),
        (["--model", "no/such-model"], 2, "no model is called"),
        (["--kv-cache-dtype", "int3"], 2, "int3"),
    ],
)
def test_nonsense_is_refused(
    refuse: Refuse, args: list[object], code: int, message: str
) -> None:
    """One line that names the remedy, and the exit code of its kind."""
    assert message in refuse(code, "capacity", *args)


def test_swap_space_counts_for_every_gpu(refuse: Refuse, call: Call) -> None:
    """Eight ranks of 4 GiB need 32 GiB: a host of 30 cannot, one of 64 can."""
    args = ("--policy", "v0", "--model", "Llama-3.1-70B", "-tp", 8, "--host-memory-gib")

    assert "take 32 of 30 GiB" in refuse(4, "capacity", *args, 30)
    assert call("capacity", *args, 64)[0] == ExitCode.FINE
