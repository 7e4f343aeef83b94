"""Flags of ``run`` that cannot be meant: each is refused before anything runs."""

import re
import shlex
from collections.abc import Callable

import pytest

Refuse = Callable[..., str]

pytestmark = pytest.mark.usefixtures("files")

HUGE = 10**30
ENDLESS = "9" * 5000

# What is given to ``run TRACE`` -> exit code, and words of the one message.
RUN_FLAGS = {
    "--num-gpu-blocks-override 0": (2, "'--num-gpu-blocks-override': .* equal to 1"),
    "--num-gpu-blocks-override -1": (2, "'--num-gpu-blocks-override': .* equal to 1"),
    "--num-gpu-blocks-override 1.5": (2, "'--num-gpu-blocks-override': .* integer"),
    f"--num-gpu-blocks-override {HUGE}": (4, "num_gpu_blocks_override is .* or less"),
    f"--num-gpu-blocks-override {ENDLESS}": (2, "'--num-gpu-blocks-override'"),
    "--num-cpu-blocks-override -1": (2, "'--num-cpu-blocks-override': .* equal to 0"),
    f"--num-cpu-blocks-override {HUGE}": (4, "num_cpu_blocks_override is .* or less"),
    "--block-size 0": (4, "block_size is 0; it must be one of 1, 2, 4, 8, 16"),
    "--block-size 7": (4, "block_size is 7; it must be one of 1, 2, 4, 8, 16"),
    "--block-size -16": (4, "block_size is -16; it must be one of"),
    f"--block-size {10**9}": (4, "block_size is 1000000000; it must be one of"),
    f"--block-size {HUGE}": (4, "block_size is 10+; it must be one of"),
    "--block-size big": (2, "'--block-size': .* integer"),
    "--watermark -1": (4, "watermark is -1; it is a share of the blocks, from 0"),
    "--watermark 1": (4, "watermark is 1; it is a share of the blocks"),
    "--watermark nan": (4, "watermark is nan; it is a share of the blocks"),
    "--watermark ''": (2, "'--watermark': .* number"),
    "--gpu-memory-utilization 0": (4, "gpu_memory_utilization is 0; .*leave it out"),
    "--gpu-memory-utilization 1.5": (4, "gpu_memory_utilization is 1.5; .*leave it out"),
    "--gpu-memory-utilization 90": (4, "gpu_memory_utilization is 90; .*leave it out"),
    "--gpu-memory-utilization nan": (4, "gpu_memory_utilization is nan; .*leave it out"),
    "--gpu-memory-utilization -1": (4, "gpu_memory_utilization is -1; .*leave it out"),
    "--gpu-memory-utilization 1e-300": (4, "0.00 GiB are allowed on each GPU.*; raise"),
    "--policy v0 --swap-space -1": (4, "swap_space is -1; it must be at least 0"),
    "--policy v0 --swap-space nan": (4, "swap_space is nan; it must be at least 0"),
    "--policy v0 --swap-space inf": (
        4,
        "swap_space is inf; it must be at most 1,000,000",
    ),
    "--policy v0 --swap-space 1e9": (
        4,
        r"swap_space is 1e\+09; it must be at most 1,000,000",
    ),
    "--policy v0 --swap-space 1e5": (
        4,
        "num_cpu_blocks comes to .*; lower swap_space or raise",
    ),
    "--swap-space 4": (2, "0.32.0 has no --swap-space; 0.18.0 .*use --kv-offloading"),
    "--kv-offloading-size 0": (4, "kv_offloading_size is 0; one block .* leave it out"),
    "--kv-offloading-size -1": (4, "kv_offloading_size is -1; one block of all ranks"),
    "--kv-offloading-size nan": (4, "kv_offloading_size is nan; one block of all"),
    "--kv-offloading-size inf": (4, "kv_offloading_size is inf, more than 10,000,000"),
    "--kv-offloading-size 1e6": (4, r"is 1e\+06, more than .*give 19,531 GiB or less"),
    "--kv-offloading-size 4GiB": (2, "'--kv-offloading-size': .* number"),
    "--policy v0 --kv-offloading-size 4": (2, "belongs to policy v1; .*--swap-space"),
    "--policy v0 --async-scheduling": (2, "--async-scheduling belongs to policy v1"),
    "--policy v0 --scheduling-policy priority": (2, "is not replayed with policy v0"),
    "--scheduling-policy lifo": (2, "'lifo' is not one of 'fcfs', 'priority'"),
    "--long-prefill-token-threshold -1": (4, "threshold is -1; vLLM starts with 0"),
    "--long-prefill-token-threshold 131073": (4, r"to max_model_len \(131072\); lower"),
    "--preemption-mode swap": (2, "v1 always recomputes .*or use --policy v0"),
    "--model google/gemma-2-9b": (2, "mixes full and sliding-window layers: .*choose"),
    "--model Mistral-7B-v0.1 --policy v0": (2, "sliding window of 4,096 .*--policy v1"),
    "--swap-space 4GiB": (2, "'--swap-space': .* number"),
    "--max-num-seqs 0": (4, "max_num_seqs is 0; give 1 or more"),
    f"--max-num-seqs {HUGE}": (4, r"below max_num_seqs \(10+\).*lower the second"),
    "--policy v0 --max-num-batched-tokens 255": (
        4,
        r"\(255\) is below max_num_seqs \(256\).*raise",
    ),
    "--policy v0 --max-num-batched-tokens -1": (
        4,
        r"\(-1\) is below max_num_seqs \(256\)",
    ),
    "--max-num-batched-tokens 255 --max-num-seqs 256": (
        4,
        r"\(255\) is below max_num_seqs \(256\).*raise",
    ),
    "--max-num-batched-tokens -1": (4, r"\(-1\) is below max_num_seqs \(1\)"),
    f"--max-num-batched-tokens {HUGE}": (4, "max_num_batched_tokens is 1,000.* or less"),
    "--max-num-batched-tokens 300 --no-enable-chunked-prefill": (
        4,
        r"\(300\) is below max_model_len .*; lower max_model_len to 300 or use --enable",
    ),
    "--max-model-len 0": (4, "max_model_len is 0; .*Llama-3.1-8B takes 1 to 131072"),
    "--max-model-len 131073": (4, "max_model_len is 131073; .* takes 1 to 131072"),
    f"--max-model-len {HUGE}": (4, "max_model_len is 10+; .* takes 1 to 131072"),
    "--tensor-parallel-size 0": (2, "'--tensor-parallel-size' / '-tp': .* equal to 1"),
    "--tensor-parallel-size 3": (4, "is 3; it must divide the 32 attention heads"),
    f"--tensor-parallel-size {10**9}": (4, "is 10+; it must divide the 32 attention"),
    f"-tp {HUGE}": (4, "is 10+; it must divide the 32 attention heads.*; use a power"),
    "--kv-cache-gib 0": (4, "kv_cache_gib is 0; one block takes 0.0020 GiB; give"),
    "--kv-cache-gib -1": (4, "kv_cache_gib is -1; one block takes 0.0020 GiB; give"),
    "--kv-cache-gib nan": (4, "kv_cache_gib is nan; one block takes"),
    "--kv-cache-gib inf": (4, "kv_cache_gib is inf; it must be at most 1,000,000"),
    "--kv-cache-gib 1e6": (4, "num_gpu_blocks comes to .*; lower kv_cache_gib or raise"),
    "--model llama-3.1-8": (2, r"'llama-3.1-8'; .*did you mean meta-llama/Llama-3.1-8B"),
    "--model ''": (2, "no model is called ''; blockbench profiles list has"),
    "--gpu H1000": (2, "no GPU is called 'H1000'; .*did you mean H100-80GB"),
    "--model Llama-3.1-70B --gpu A100": (4, r"weights \(131.45\).*it starts on 4 GPUs"),
    "--vllm-version garbage": (2, "'garbage' is no vLLM version; .*one such as 0.6.3"),
    "--vllm-version ''": (2, "'--vllm-version': it is empty; give one as 0.32.0"),
    "--vllm-version 0.11 --policy v0": (2, "vLLM 0.11 has no v0 engine; policy v0 cov"),
    "--vllm-version 0.7.3 --policy v1": (2, "does not run v1 by itself; .*--policy v0"),
    "--vllm-version 0.23 --watermark 0.1": (
        2,
        "0.23 has no --watermark; .*0.24.0; leave",
    ),
    f"--vllm-version {ENDLESS}.1": (2, "is no vLLM version"),
    "--policy v2": (2, "'--policy': .*'v2' is not one of 'v0', 'v1'"),
    "--engine simulated": (2, "'--engine': .*'simulated' is not one of 'sim'"),
    "--engine torch": (2, "'torch' is not one of 'sim', 'vllm', 'server'"),
    "--engine server": (2, "--engine server needs the server's address; add --url"),
    "--engine vllm --url http://h": (2, "--url belongs to --engine server; add that"),
    "--engine-args --dtype": (2, "--engine-args belongs to --engine vllm; add that"),
    "--warmup 3": (2, "--warmup belongs to --engine vllm or --engine server"),
    "--engine vllm --num-cpu-blocks-override 5": (2, "vLLM has no --num-cpu-blocks-over"),
    "--engine vllm --hang-after soon": (2, "'?soon"),
    "--engine vllm --vllm-python /no/python": (2, "--vllm-python /no/python cannot be"),
    "--preemption-mode swapp": (2, "'swapp' is not one of 'recompute', 'swap'"),
    "--format csv": (2, "format 'csv' is unknown; this version reads blockbench, moonc"),
    "--format ''": (2, "format '' is unknown; this version reads"),
    "--format azure": (3, "good.jsonl:1: column TIMESTAMP, .*; leave --format out"),
    "--format blockbench": (3, "good.jsonl:1: the header is missing; begin the file"),
    "--table xml": (2, "'--table': .*'xml' is not one of 'rich', 'github'"),
    "--request-rate 0": (2, "--request-rate 0 never sends a request; it must exceed 0"),
    "--request-rate -1": (2, "'-1' is not a number from 0; write it as --request-rate 4"),
    "--request-rate nan": (2, "'nan' is not a number from 0; write it as --request-rate"),
    "--request-rate ''": (2, "'' is not a number from 0; write it as --request-rate 4"),
    "--request-rate 4/x": (2, "'4/x' is no rate; write it as --request-rate 4, 4/s"),
    "--request-rate 1e-300": (2, "request rate 1e-300 .* never finishes; raise"),
    "--request-rate 1e400": (2, "'1e400' is not a number from 0"),
    "--request-rate 1 --burstiness 0": (2, "burstiness is 0, must be above 0; 1 is"),
    "--request-rate 1 --burstiness nan": (2, "burstiness is nan, must be above 0"),
    "--request-rate 1 --burstiness 1e-300": (2, "never finishes; raise the one or"),
    "--speedup 0": (2, "'0' is no factor above 0; write it as --speedup 2 or 0.5x"),
    "--speedup nan": (2, "'nan' is not a number from 0; write it as --speedup 2"),
    "--speedup inf": (2, "'inf' is not a number from 0; write it as --speedup 2"),
    "--speedup ''": (2, "'' is not a number from 0; write it as --speedup 2"),
    "--slo ttft": (2, "--slo cannot read 'ttft'; give limits .*ttft=2s,tpot=50ms"),
    "--slo ''": (2, "--slo cannot read ''; give limits"),
    "--slo ttft=2": (2, "--slo ttft: '2' has no unit; use one of ns, us"),
    "--slo ttft=": (2, "--slo ttft: '' is not a number from 0; write it as 2s"),
    "--slo ttft=-1s": (2, "--slo ttft: '-1s' is not a number from 0; write it as 2s"),
    "--slo ttft=0s": (2, "--slo 'ttft=0s' can never be met; raise it"),
    "--slo ttft=nans": (2, "--slo ttft: 'nans' is not a number"),
    "--slo ttft=1e400s": (2, "--slo ttft: '1e400s' is not a number"),
    "--slo ttft=2s,ttft=3s": (2, "--slo names ttft twice; keep one"),
    "--slo speed=2s": (2, "--slo cannot read 'speed=2s'; give limits"),
    "--limit 0": (2, "'--limit': .* equal to 1"),
    "--slice 5:5": (2, "--slice 5:5 holds no request; B must exceed A"),
    "--slice 3:": (2, "selects none of the trace's 3 requests.*; begin it below 3"),
    "--slice -2:": (2, "--slice cannot read '-2:'; write A:B"),
    "--slice ''": (2, "--slice cannot read ''; write A:B"),
    f"--slice {ENDLESS}:": (2, "--slice cannot read '9+:'; write A:B"),
    "--max-concurrency 0": (2, "'--max-concurrency': .* equal to 1"),
    "--seed -1 --request-rate 1": (2, "'--seed': .* equal to 0"),
    "--request-rate 1 --speedup 2": (2, "--request-rate .* --speedup .*; give one"),
    "--burstiness 2": (2, "--burstiness .*; add --request-rate"),
    "--seed 0": (2, "--seed .*; add --request-rate"),
    "--force": (2, "--force .*; add -o FOLDER"),
    "--json --table csv": (2, "--json and --table .*; give one of them"),
    "--kv-cache-gib 9 --num-gpu-blocks-override 9": (2, "GPU blocks; give one of them"),
    "--policy v0 --swap-space 9 --num-cpu-blocks-override 9": (
        2,
        "CPU blocks; give one of them",
    ),
    "--kv-offloading-size 9 --num-cpu-blocks-override 9": (
        2,
        "CPU blocks; give one of them",
    ),
    "-o ''": (2, "'--output' / '-o': it is empty"),
    "-o -": (2, "'--output' / '-o': - is no file's name; name one"),
    "-o good.jsonl": (2, "good.jsonl is a file; name a folder with -o"),
    "-o good.jsonl/run": (2, "good.jsonl.*; choose another .*with -o"),
    "-o full": (2, "full is not empty; choose another folder or add --force"),
    "-o full --force": (2, "full holds 'x', which is no part of a run"),
    "-o loop": (2, "loop is a link that leads back to itself"),
    f"-o {'x' * 300}": (2, "x+.*[Ff]ile name too long"),
    "-o /proc/nowhere/run": (2, "/proc/nowhere.* choose another place with -o"),
    "--blocksize 16": (
        2,
        r"No such option: --blocksize \(Possible options: --block-size",
    ),
    "--gpu-memory 0.5": (2, "No such option: --gpu-memory"),
    "--dtype bf16": (2, "dtype is 'bf16'; it must be auto or one of bfloat16, float16"),
    "--dtype bfloat16 --gpu T4": (4, "T4 has no bfloat16; give --dtype float16"),
    "--dtype float32 --gpu RTX-4090": (4, r"weights \(29.98\)"),
    "--quantization int3": (
        2,
        "is not quantised; .*only fp8, awq, gptq follow, not int3",
    ),
    "-q": (2, "Option '-q' requires an argument"),
    "--kv-cache-dtype int3": (2, "kv_cache_dtype is 'int3'; it must be auto or one of"),
    "--kv-cache-dtype fp8 --vllm-version 0.2.7": (4, "0.2.7 has no .*fp8; it has auto"),
    "--kv-cache-dtype fp8 --gpu V100-32GB": (4, "V100-32GB has no attention .*of fp8"),
    "--enforce-eager=1": (2, "Option '--enforce-eager' does not take a value"),
    "--model": (2, "Option '--model' requires an argument"),
    "-o": (2, "Option '-o' requires an argument"),
    "--json=1": (2, "Option '--json' does not take a value"),
    "--enable-prefix-caching=false": (2, "'--enable-prefix-caching' does not take a val"),
    "another.jsonl": (2, r"unexpected extra argument\(s\) \(another.jsonl\)"),
}


def shortened(flags: str) -> str:
    """The flags as a test's id."""
    return flags if len(flags) < 60 else flags[:50] + "..."


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [(flags, *expected) for flags, expected in RUN_FLAGS.items()],
    ids=map(shortened, RUN_FLAGS),
)
def test_run_refuses_what_cannot_be(
    refuse: Refuse, flags: str, code: int, words: str
) -> None:
    """A value or a pair of flags that makes no sense is named with what does."""
    message = refuse(code, "run", "good.jsonl", *shlex.split(flags))

    assert re.search(words, message)
