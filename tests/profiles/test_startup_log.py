"""The shapes of a vLLM server's first lines, each read from a line of known figures."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import ProfileError
from profiles.startup_log import MAX_LOG_BYTES, StartupLog, parse_startup_log
from profiles.startup_log import read_startup_log as read

V1_PREFIX = "(EngineCore_DP0 pid=130) INFO 12-11 00:06:53 [kv_cache_utils.py:1286] "
RANK_0 = "(Worker_TP0 pid=131) INFO 12-11 00:06:53 [gpu_worker.py:359] "

V0_START = """\
INFO 01-13 10:00:00 llm_engine.py:234] Initializing an LLM engine (v0.6.6) with config: x
INFO 01-13 10:00:09 model_runner.py:1099] Loading model weights took 14.9888 GB
INFO 01-13 10:00:12 worker.py:241] Memory profiling takes 3.00 seconds
INFO 01-13 10:00:12 worker.py:241] the current vLLM instance can use total_gpu_memory \
(39.50GiB) x gpu_memory_utilization (0.90) = 35.55GiB
INFO 01-13 10:00:12 worker.py:241] model weights take 14.96GiB; non_torch_memory takes \
0.10GiB; PyTorch activation peak memory takes 9.37GiB; the rest of the memory reserved \
for KV Cache is 11.12GiB.
INFO 01-13 10:00:12 gpu_executor.py:76] # GPU blocks: 5691, # CPU blocks: 2048
INFO 01-13 10:00:12 gpu_executor.py:80] Maximum concurrency for 8192 tokens per request: \
11.12x
INFO 01-13 10:00:32 model_runner.py:1535] Graph capturing finished in 20 secs, took 0.55 \
GiB
"""

V1_FREE_MEMORY = (
    "Free memory on device (78.71/79.18 GiB) on startup. Desired GPU memory utilization"
    " is (0.9, 71.26 GiB). Actual usage is 14.99 GiB for weight, 4.76 GiB for peak"
    " activation, 0.13 GiB for non-torch memory, and -0.45 GiB for CUDAGraph memory."
    " Replace gpu_memory_utilization config with {suggestion}. Current kv cache"
    " memory in use is 51.38 GiB."
)
SUGGESTIONS = {
    "two, bytes alone": "`--kv-cache-memory=7564378828` to fit into requested memory, or"
    " `--kv-cache-memory=11809093120` to fully utilize gpu memory",
    "two, with GiB": "`--kv-cache-memory=7564378828` (7.04 GiB) to fit into requested"
    " memory, or `--kv-cache-memory=11809093120` (11.0 GiB) to fully utilize gpu memory",
    "one, no backticks": "--kv-cache-memory=7564378828",
    "the option's long name": "`--kv-cache-memory-bytes=7564378828`",
}


def parse(*lines: str) -> StartupLog:
    """The log of lines that hold at least one known one."""
    return parse_startup_log(lines, "server.log")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "# GPU blocks: 1464, # CPU blocks: 1310",
            {"num_gpu_blocks": 1464, "num_cpu_blocks": 1310},
        ),
        (
            "# CUDA blocks: 2356, # CPU blocks: 2048",
            {"num_gpu_blocks": 2356, "num_cpu_blocks": 2048},
        ),
        (
            "# cuda blocks: 3671, # CPU blocks: 2730",
            {"num_gpu_blocks": 3671, "num_cpu_blocks": 2730},
        ),
        (
            "GPU blocks: 1952, # CPU blocks: 2048",
            {"num_gpu_blocks": 1952, "num_cpu_blocks": 2048},
        ),
        (
            "# GPU blocks: -1, # CPU blocks: 512",
            {"num_gpu_blocks": -1, "num_cpu_blocks": 512},
        ),
        ("GPU blocks: -1", {"num_gpu_blocks": -1}),
        ("# GPU blocks: 33660", {"num_gpu_blocks": 33660}),
        ("GPU KV cache size: 2,042,016 tokens", {"kv_cache_tokens": 2042016}),
        ("CPU KV cache size: 1,024 tokens", {"kv_cache_tokens": 1024}),
        ("GPU + host KV cache size: 1,024 tokens", {"kv_cache_tokens": 1024}),
        (
            "Maximum concurrency for 32,768 tokens per request: 18.96x",
            {"concurrency_tokens": 32768, "max_concurrency": 18.96},
        ),
        (
            "GPU KV cache size: 315,039 tokens, Maximum concurrency for 262,144 tokens"
            " per request: 1.20x",
            {
                "kv_cache_tokens": 315039,
                "concurrency_tokens": 262144,
                "max_concurrency": 1.2,
                "kv_tokens_reliable": True,
            },
        ),
        ("Available KV cache memory: 52.36 GiB", {"kv_cache_gib": 52.36}),
        ("Available KV cache memory: -2.28 GiB", {"kv_cache_gib": -2.28}),
        ("Auto set (11.5/62.7) GiB for KV cache on node 0", {"kv_cache_gib": 11.5}),
        ("Loading model weights took 14.9888 GB", {"weights_gib": 14.9888}),
        ("Model loading took 7.1217 GB and 5.2 seconds", {"weights_gib": 7.1217}),
        ("Model loading took 14.99 GiB and 3.1 seconds", {"weights_gib": 14.99}),
        ("Model loading took 14.99 GiB memory and 3.1 seconds", {"weights_gib": 14.99}),
        ("Graph capturing finished in 18 secs, took 0.62 GiB", {"cuda_graph_gib": 0.62}),
        (
            "Estimated CUDA graph memory: 6.24 GiB total",
            {"cuda_graph_estimate_gib": 6.24},
        ),
        (
            "No available memory for the cache blocks. Try increasing it",
            {"is_refused": True},
        ),
        (
            "Free memory on device cuda:0 (104.87/121.63 GiB) on startup is less than"
            " desired GPU memory utilization (0.87, 105.82 GiB).",
            {
                "is_refused": True,
                "total_gpu_gib": 121.63,
                "gpu_memory_utilization": 0.87,
            },
        ),
        (
            "The model's max seq len (29000) is larger than the maximum number of tokens"
            " that can be stored in KV cache (23648). Try it",
            {
                "is_refused": True,
                "refused_max_model_len": 29000,
                "kv_cache_tokens": 23648,
            },
        ),
        (
            "To serve at least one request with the models's max seq len (65536),"
            " (5.62 GiB KV cache is needed, which is larger than the available KV cache"
            " memory (4.89 GiB). Based on the available memory, the estimated maximum"
            " model length is 35600.",
            {
                "is_refused": True,
                "refused_max_model_len": 65536,
                "needed_gib": 5.62,
                "kv_cache_gib": 4.89,
                "estimated_max_model_len": 35600,
            },
        ),
        (
            "with the model's max seq len (2048), 2.00 GB KV cache is needed, which is"
            " larger than the available KV cache memory (0.78 GB).",
            {
                "is_refused": True,
                "refused_max_model_len": 2048,
                "needed_gib": 2.0,
                "kv_cache_gib": 0.78,
            },
        ),
    ],
)
def test_each_shape_gives_exactly_its_figures(
    line: str, expected: dict[str, object]
) -> None:
    """A line fills the fields that it prints and leaves all others empty."""
    assert parse(line) == StartupLog(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line",
    [
        "2025-12-11T00:06:53.123456789Z {}",
        "Dec 11 00:06:53 host vllm[77]: {}",
        "vllm-1  | (EngineCore_DP0 pid=45) INFO 12-11 00:06:53 [kv_cache_utils.py:1] {}",
        "\x1b[1;36m(EngineCore_DP0 pid=45)\x1b[0;0m INFO [kv_cache_utils.py:1] {}",
        '{{"log":"INFO 12-11 kv_cache_utils.py:1] {}\\n","stream":"stderr"}}',
        "INFO 12-11 {}\r\n",
    ],
)
def test_any_prefix_is_passed_over(line: str) -> None:
    """Timestamps, processes, containers, colours and line ends change no figure."""
    assert parse(line.format("GPU KV cache size: 686,320 tokens")) == StartupLog(
        kv_cache_tokens=686320
    )


def test_colour_inside_a_line_is_passed_over() -> None:
    """Colour codes between words and figures are no part of them."""
    log = parse("GPU KV cache size: \x1b[32m686,320\x1b[0m tokens")

    assert log.kv_cache_tokens == 686320


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("vLLM API server version 0.11.0", "0.11.0"),
        (
            "vLLM API server version 0.29.1rc1.dev339+g1234abc",
            "0.29.1rc1.dev339+g1234abc",
        ),
        ("vLLM server version 0.33.0, serving model m", "0.33.0"),
        ("Initializing a V1 LLM engine (v0.11.0) with config: m", "0.11.0"),
        ("Initializing an LLM engine (v0.6.4.post1) with config: m", "0.6.4.post1"),
        ("  █▄█▀ █     █     █     █  version v0.32.0", "0.32.0"),
    ],
)
def test_versions_are_read(line: str, version: str) -> None:
    """The server, the engine and the logo each tell the version."""
    assert parse(line, "# GPU blocks: 5").vllm_version == version


@pytest.mark.parametrize(
    ("line", "block_size"),
    [
        ("args: Namespace(kv_block_size=8, block_size=32, seed=0)", 32),
        ("non-default args: {'block_size': 64}", 64),
        ("Setting attention block size to 528 tokens", 528),
        ("Forcing kv cache block size to 64 for the FlashMLA backend.", 64),
    ],
)
def test_block_size_is_read(line: str, block_size: int) -> None:
    """Options and the engine's own choice tell the block size."""
    assert parse(line, "# GPU blocks: 5").block_size == block_size


def test_the_engine_s_block_size_replaces_the_option() -> None:
    """What the engine set itself holds, not what was asked for."""
    log = parse("block_size=16", "attention block size to 528 tokens", "# GPU blocks: 5")

    assert log.block_size == 528


def test_the_last_version_is_taken() -> None:
    """Versions that differ are told, and the last one printed is the engine's."""
    log = parse("vLLM Version : 0.1", "vLLM API server version 0.10.2", "GPU blocks: 5")
    both = parse(
        "vLLM API server version 0.10.2",
        "vLLM API server version 0.11.0",
        "GPU blocks: 5",
    )

    assert (log.vllm_version, log.notes) == ("0.10.2", ())
    assert both.vllm_version == "0.11.0"
    assert both.notes == (
        "vllm_version differs between ranks or lines: 0.10.2, 0.11.0; the last is taken",
    )


def test_a_start_of_v0_is_read_whole() -> None:
    """Issue 12330: every figure of the budget, and no note."""
    assert parse(*V0_START.splitlines()) == StartupLog(
        num_gpu_blocks=5691,
        num_cpu_blocks=2048,
        kv_cache_gib=11.12,
        max_concurrency=11.12,
        concurrency_tokens=8192,
        weights_gib=14.96,
        activation_gib=9.37,
        non_torch_gib=0.10,
        cuda_graph_gib=0.55,
        total_gpu_gib=39.50,
        gpu_memory_utilization=0.90,
        vllm_version="0.6.6",
    )


def test_peak_torch_memory_holds_the_weights() -> None:
    """Issue 10517: 17.06 GiB less the weights are the activations of 0.6.4."""
    log = parse(
        "Loading model weights took 14.9888 GB",
        "Memory profiling results: total_gpu_memory=23.58GiB"
        " initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB"
        " memory_usage_post_profile=15.35GiB"
        " non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90",
    )

    assert log.activation_gib == pytest.approx(2.0712)
    assert (log.total_gpu_gib, log.non_torch_gib, log.kv_cache_gib) == (23.58, 0.35, 3.81)
    assert log.gpu_memory_utilization == 0.9
    assert len(log.notes) == 1


@pytest.mark.parametrize("suggestion", SUGGESTIONS.values(), ids=SUGGESTIONS)
def test_the_suggestion_is_the_one_within_the_budget(suggestion: str) -> None:
    """All formats give the bytes that fit the budget, not those that fill the GPU."""
    log = parse(V1_FREE_MEMORY.format(suggestion=suggestion))

    assert log == StartupLog(
        kv_cache_gib=51.38,
        weights_gib=14.99,
        activation_gib=4.76,
        non_torch_gib=0.13,
        cuda_graph_gib=-0.45,
        total_gpu_gib=79.18,
        gpu_memory_utilization=0.9,
        suggested_kv_cache_memory_bytes=7564378828,
    )


def test_a_suggestion_to_fill_the_gpu_alone_is_passed_over() -> None:
    """The second suggestion, alone on its line after a wrap, is not the first."""
    log = parse(
        "--kv-cache-memory=9 (1 GiB) to fully utilize gpu memory", "# GPU blocks: 5"
    )

    assert log.suggested_kv_cache_memory_bytes is None


def test_consumed_memory_holds_the_weights() -> None:
    """Since 2026 the weights are printed inside a sum with the non-torch memory."""
    log = parse(
        "Model loading took 55.19 GiB memory and 48.502592 seconds",
        "Actual usage is 56.89 GiB for consumed memory (weights + non-torch), 0.76 GiB"
        " for peak activation, and 0.32 GiB for CUDAGraph memory.",
    )

    assert (log.weights_gib, log.non_torch_gib) == (55.19, 1.7)
    assert log.activation_gib == 0.76


def test_an_override_is_what_the_engine_uses() -> None:
    """Issue 27181: one block in use, 125,643 profiled."""
    log = parse(
        "Overriding num_gpu_blocks=125643 with num_gpu_blocks_override=1",
        "GPU KV cache size: 16 tokens",
    )

    assert (log.profiled_num_gpu_blocks, log.override, log.num_gpu_blocks) == (
        125643,
        1,
        1,
    )


def test_the_least_rank_decides() -> None:
    """Issue 17242: the ranks have room for 335,360 and 335,168 tokens."""
    log = parse("GPU KV cache size: 335,360 tokens", "GPU KV cache size: 335,168 tokens")

    assert log.kv_cache_tokens == 335168
    assert log.num_engines == 1
    assert log.notes == (
        "kv_cache_tokens differs between ranks or lines: 335,360, 335,168;"
        " the least is taken",
    )


def test_the_fullest_rank_decides() -> None:
    """Of memory in use the greatest is taken, as it leaves the least."""
    log = parse("model weights take 22.34GiB;", "model weights take 22.50GiB;")

    assert log.weights_gib == 22.50


def test_equal_ranks_need_no_note() -> None:
    """Repeated lines that agree are one."""
    assert parse(*["# GPU blocks: 507, # CPU blocks: 1024"] * 2).notes == ()


def test_lines_of_two_engines_are_told_apart() -> None:
    """As in issue 23554: interleaved engines are counted, and the least one decides."""
    prefix = "(EngineCore_DP{} pid={}) INFO 06-30 10:00:00 [kv_cache_utils.py:716] "
    first, second = prefix.format(0, 11), prefix.format(1, 12)
    log = parse(
        first + "GPU KV cache size: 37,632 tokens",
        second + "GPU KV cache size: 40,000 tokens",
        second + "Maximum concurrency for 32,768 tokens per request: 1.22x",
        first + "Maximum concurrency for 33,792 tokens per request: 1.11x",
    )

    assert (log.num_engines, log.kv_cache_tokens) == (2, 37632)
    assert (log.max_concurrency, log.concurrency_tokens) == (1.11, 33792)
    assert log.kv_tokens_reliable is True
    assert log.notes[0] == "lines of 2 engines or starts are mixed in this log"
    assert "37,632 (EngineCore_DP0 pid=11), 40,000 (EngineCore_DP1 pid=12)" in "".join(
        log.notes
    )


def test_two_servers_of_equal_rank_are_two_engines() -> None:
    """Two processes that are both rank 0 differ by their id."""
    line = "(EngineCore_DP0 pid={}) GPU KV cache size: 16 tokens"

    assert parse(line.format(1), line.format(2)).num_engines == 2


def test_two_starts_without_prefixes_are_counted() -> None:
    """Before 0.10 no prefix tells engines apart, but each announces itself."""
    start = "Initializing a V1 LLM engine (v0.9.1) with config: m"
    log = parse(start, "GPU KV cache size: 16 tokens", start)

    assert log.num_engines == 2


@pytest.mark.parametrize(
    ("tokens", "length", "concurrency", "reliable"),
    [
        ("290,864", "32,768", "33.04", False),  # issue 40691, hybrid
        ("79,002", "262,144", "3.24", False),  # issue 40002, hybrid
        ("410,128", "131,072", "3.13", True),  # issue 19996
        ("335,360", "138", "2430.14", True),  # issue 17242
        ("1,600", "100", "14.29", True),  # 7 blocks of 16 hold 112 tokens
        ("1,600", "100", "14.31", False),
        ("1,600", "0", "1.00", False),
    ],
)
def test_tokens_and_concurrency_are_compared(
    tokens: str, length: str, concurrency: str, reliable: bool
) -> None:
    """They agree to the two printed decimals, unless the model is hybrid."""
    log = parse(
        V1_PREFIX + f"GPU KV cache size: {tokens} tokens",
        V1_PREFIX
        + f"Maximum concurrency for {length} tokens per request: {concurrency}x",
    )

    assert log.kv_tokens_reliable is reliable


def test_shapes_of_one_quantity_have_an_order() -> None:
    """The memory that was profiled stands before the refusal's copy of it."""
    log = parse(
        "available KV cache memory (4.90 GiB)",
        RANK_0 + "Available KV cache memory: 4.89 GiB",
    )

    assert (log.kv_cache_gib, log.notes) == (4.89, ())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x1f\x8b\x08\x00\x00", "not text"),
        (b"INFO: Application startup complete.\n", "no line in which a vLLM server"),
        (b"block_size = 16\nvLLM API server version 0.11.0\n", "'GPU KV cache size:'"),
    ],
)
def test_a_file_without_a_start_is_refused(
    tmp_path: Path, content: bytes, said: str
) -> None:
    """The message names the file and says what was looked for."""
    path = tmp_path / "server.log"
    path.write_bytes(content)

    with pytest.raises(ProfileError, match=f"server.log.*{said}"):
        read(path)


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A folder, a missing file and an impossible name end in words."""
    for path in (tmp_path, tmp_path / "missing.log", Path("nul\0byte")):
        with pytest.raises(ProfileError, match=r"cannot be read \(.+\)"):
            read(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_windows_are_read(tmp_path: Path, encoding: str) -> None:
    """Marks, CRLF and UTF-16, which PowerShell writes, are understood."""
    path = tmp_path / "server.log"
    path.write_bytes(V0_START.replace("\n", "\r\n").encode(encoding))

    assert read(path) == parse(*V0_START.splitlines())


def test_only_the_beginning_of_a_long_file_is_read(tmp_path: Path) -> None:
    """A file that serving made long is cut, and a note says so."""
    path = tmp_path / "server.log"
    path.write_bytes(V0_START.encode() + b"." * MAX_LOG_BYTES + b"# GPU blocks: 1\n")
    log = read(path)

    assert log.num_gpu_blocks == 5691
    assert re.fullmatch("only the first 16 MiB of .*server.log were read", log.notes[-1])


NOISE = st.lists(st.text(max_size=60), max_size=3)
LINES = V0_START.splitlines()


@given(st.lists(NOISE, min_size=len(LINES), max_size=len(LINES)))
def test_noise_between_the_lines_changes_nothing(noise: list[list[str]]) -> None:
    """Other lines, wherever they stand, leave the figures as they are."""
    mixed = [line for known, n in zip(LINES, noise, strict=True) for line in (known, *n)]

    assert parse(*mixed) == parse(*LINES)


FRAGMENTS = st.sampled_from(
    [
        *re.findall(r"\S+\s*|\s+", V0_START + V1_FREE_MEMORY),
        *("9" * 5000, "-", ",", "tokens\n", "GPU KV cache size: ", "\x1b[", "\0", "0x "),
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=5), max_size=40).map("".join))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    """Pieces of known lines in any order raise nothing but a ProfileError."""
    with suppress(ProfileError):
        assert parse(*text.splitlines()).num_engines >= 1


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_any_bytes_are_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, start: bytes, end: bytes
) -> None:
    """Files of any content raise nothing but a ProfileError."""
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(start + b"\n# GPU blocks: 37, # CPU blocks: 655\n" + end)
    with suppress(ProfileError):
        assert read(path).num_cpu_blocks is not None
