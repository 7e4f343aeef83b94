"""Tests for :mod:`bench_cli.serve_line` and :mod:`bench_cli.serve_reading`."""

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_cli.engine_flags import EngineFlags
from bench_cli.serve_line import (
    CONTINUED,
    ServeLine,
    serve_line,
    serve_yaml,
    settings_of,
)
from bench_cli.serve_reading import parse_serve
from bench_cli.shell_word import Word
from harness.errors import UsageError
from profiles.default_engine import has_both_engines, why_v0
from profiles.serve_option import OPTIONS, why_not

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "published"
LLAMA = "meta-llama/Llama-3.1-8B"
VERSIONS = (
    ("0.4.3", "v0"),
    ("0.5.5", "v0"),
    ("0.6.3", "v0"),
    ("0.8.5", "v0"),
    ("0.8.5", "v1"),
    ("0.10.2", "v0"),
    ("0.10.2", "v1"),
    ("0.12.0", "v1"),
    ("0.16.0", "v1"),
    ("0.19.1", "v1"),
    ("0.24.0", "v1"),
    ("0.32.0", "v1"),
)
WHOLE = st.integers(0, 2**40)
SHARE = st.floats(0, 1, allow_subnormal=False)
GIB_SIZE = st.floats(0.125, 4096) | st.integers(1, 4096).map(float)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tensor_parallel_size": st.integers(1, 64),
    "dtype": st.sampled_from(["auto", "float16", "bfloat16"]),
    "quantization": st.sampled_from(["fp8", "awq", "gptq"]),
    "kv_cache_dtype": st.sampled_from(["auto", "fp8", "fp8_e5m2"]),
    "gpu_memory_utilization": SHARE,
    "num_gpu_blocks_override": WHOLE,
    "kv_cache_gib": st.integers(1, 2**50).map(lambda size: size / 2**30),
    "block_size": st.sampled_from([8, 16, 32]),
    "swap_space": GIB_SIZE,
    "preemption_mode": st.sampled_from(["recompute", "swap"]),
    "kv_offloading_size": GIB_SIZE,
    "max_model_len": st.integers(1, 2**30),
    "max_num_seqs": WHOLE,
    "max_num_batched_tokens": WHOLE,
    "long_prefill_token_threshold": WHOLE,
    "watermark": SHARE,
    "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
}
WORDS = st.text(min_size=1, max_size=20).filter(
    lambda text: not text.startswith("-") and "\\\n" not in text and "\\\r" not in text
)
KEPT_FLAGS = st.sampled_from(["--speculative-config", "-O3", "--port", "-pp", "--x.y"])


def published(name: str) -> dict[str, dict[str, str]]:
    """Rows of a published table, by version."""
    with (PUBLISHED / name).open(newline="") as file:
        return {row["vllm"]: row for row in csv.DictReader(file)}


DECLARED = published("vllm_serve_options.csv")


@st.composite
def kept_options(draw: st.DrawFn) -> tuple[str, ...]:
    """Options that are not modelled, with values that need quotes."""
    groups = draw(
        st.lists(st.tuples(KEPT_FLAGS, st.lists(WORDS, max_size=2)), max_size=3)
    )
    return tuple(w for flag, words in groups for w in (flag, *map(shlex.quote, words)))


@st.composite
def starts(draw: st.DrawFn) -> tuple[str, str, ServeLine]:
    """A version, an engine, and what a command for it can say."""
    version, policy = draw(st.sampled_from(VERSIONS))
    knobs = {}
    for knob, option in OPTIONS.items():
        # a switch that is off by default and has no off is left out of the command
        has_off = DECLARED[version][option.key] in ("true_false", "on_off")
        values = VALUES.get(knob, st.sampled_from([True, False] if has_off else [True]))
        value = draw(st.none() | values)
        if value is not None and not why_not(option, value, version, policy):
            knobs[knob] = value
    model = draw(st.sampled_from([LLAMA, "/models/it's a model", "org/é"]))
    kept, environment = draw(kept_options()), draw(st.sampled_from([(), ("A='b c'",)]))
    return (
        version,
        policy,
        ServeLine(model=model, knobs=knobs, kept=kept, environment=environment),
    )


@given(starts())
def test_what_is_written_reads_back(start: tuple[str, str, ServeLine]) -> None:
    """Every model, knob, kept word and variable survives the command."""
    version, policy, line = start
    text = serve_line(
        line.model,
        line.knobs,
        version=version,
        policy=policy,
        kept=line.kept,
        environment=line.environment,
        between=CONTINUED,
    )

    read = parse_serve(text)
    asked = read.knobs.pop("policy", None)
    assert read == line
    has_both = has_both_engines(version)
    kept = settings_of([Word.read(raw) for raw in line.kept])
    by_itself = "v0" if why_v0(version, gpu=None, options=kept | line.knobs) else "v1"
    assert asked == (policy if has_both and policy != by_itself else None)


@given(starts())
def test_the_command_has_nothing_that_the_version_lacks(
    start: tuple[str, str, ServeLine],
) -> None:
    """Each option in it is declared by that version, in that form, and was asked for."""
    version, policy, line = start
    text = serve_line(line.model, line.knobs, version=version, policy=policy)
    flags = [word for word in shlex.split(text) if word.startswith("--")]
    declared = DECLARED[version]
    by_key = {option.key: knob for knob, option in OPTIONS.items()}

    for flag in flags:
        name, equals, _ = flag.removeprefix("--").partition("=")
        key = name.removeprefix("no-")
        if key in ("model", "kv-offloading-backend"):
            continue
        assert by_key[key] in line.knobs
        assert declared[key] != "no"
        assert not equals or declared[key] == "true_false"
        assert key == name or declared[key] == "on_off"
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    "version", ["0.6.6.post1", "0.8.5", "0.10.2", "0.16.0", "0.32.0"]
)
def test_only_what_the_table_of_knobs_has_can_be_written(version: str) -> None:
    """Swap space and the rest are written where vllm_knobs.csv has them, else refused."""
    row = published("vllm_knobs.csv")[version]
    policy = "v0" if row["swap_space"] == "works in v0" else "v1"
    has = {
        "swap_space": policy == "v0",
        "kv_offloading_size": row["kv_offloading_size"] == "yes",
        "watermark": row["watermark"].startswith("yes"),
        "kv_cache_gib": row["kv_cache_memory_bytes"] == "yes",
    }
    for knob, is_there in has.items():
        if is_there:
            text = serve_line(LLAMA, {knob: 0.5}, version=version, policy=policy)
            assert OPTIONS[knob].flag in text
        else:
            with pytest.raises(UsageError, match=OPTIONS[knob].flag):
                serve_line(LLAMA, {knob: 0.5}, version=version, policy=policy)


@pytest.mark.parametrize(
    ("version", "policy", "changed", "text"),
    [
        ("0.32", "v1", {}, f"vllm serve {LLAMA}"),
        (
            "0.32",
            "v1",
            {"enable_prefix_caching": False, "watermark": 0.05, "max_num_seqs": 512},
            f"vllm serve {LLAMA} --no-enable-prefix-caching --max-num-seqs 512"
            " --watermark 0.05",
        ),
        (
            "0.16",
            "v1",
            {"kv_offloading_size": 32.0},
            f"vllm serve {LLAMA} --kv-offloading-size 32",
        ),
        (
            "0.12",
            "v1",
            {"kv_offloading_size": 32.5},
            f"vllm serve {LLAMA} --kv-offloading-size 32.5"
            " --kv-offloading-backend native",
        ),
        ("0.32", "v1", {"kv_offloading_size": 0.0}, f"vllm serve {LLAMA}"),
        ("0.32", "v1", {"block_size": None}, f"vllm serve {LLAMA}"),
        (
            "0.10.2",
            "v0",
            {"swap_space": 8.0},
            f"VLLM_USE_V1=0 vllm serve {LLAMA} --swap-space 8",
        ),
        (
            "0.6.3",
            "v0",
            {"enable_chunked_prefill": False, "enable_prefix_caching": False},
            f"vllm serve {LLAMA} --enable-chunked-prefill=False",
        ),
        (
            "0.4.3",
            "v0",
            {"block_size": 32},
            f"python -m vllm.entrypoints.openai.api_server --model {LLAMA}"
            " --block-size 32",
        ),
    ],
)
def test_commands_are_these(
    version: str, policy: str, changed: dict[str, Any], text: str
) -> None:
    """Each version's own words for the same knobs, and nothing more."""
    assert serve_line(LLAMA, changed, version=version, policy=policy) == text


def test_what_is_kept_stays_as_it_was_written() -> None:
    """Quotes, variables and order are the user's; each option has a line of its own."""
    kept = ("--api-key", '"$KEY"', "--speculative-config", "'{\"n\": 3}'", "-O3")

    text = serve_line(
        LLAMA,
        {"block_size": 32},
        version="0.32",
        policy="v1",
        kept=kept,
        between=CONTINUED,
    )

    assert text.splitlines() == [
        f"vllm serve {LLAMA} \\",
        "  --block-size 32 \\",
        '  --api-key "$KEY" \\',
        "  --speculative-config '{\"n\": 3}' \\",
        "  -O3",
    ]


def test_a_backend_that_the_user_chose_is_left_alone() -> None:
    """No second ``--kv-offloading-backend`` is written beside lmcache."""
    kept = ("--kv-offloading-backend", "lmcache")

    text = serve_line(
        LLAMA, {"kv_offloading_size": 8}, version="0.12", policy="v1", kept=kept
    )

    assert text.count("--kv-offloading-backend") == 1


@pytest.mark.parametrize(
    ("version", "policy", "changed", "message"),
    [
        ("0.32", "v1", {"swap_space": 4}, "--swap-space belongs to policy v0"),
        (
            "0.32",
            "v1",
            {"num_cpu_blocks_override": 4},
            "--kv-offloading-size .v1. instead",
        ),
        ("0.19", "v1", {"watermark": 0.1}, "0.24.0, after 0.19; leave it out or give"),
    ],
)
def test_a_knob_that_is_not_there_is_refused(
    version: str, policy: str, changed: dict[str, Any], message: str
) -> None:
    """The message names the option, the version and what to do."""
    with pytest.raises(UsageError, match=message):
        serve_line(LLAMA, changed, version=version, policy=policy)


def test_a_knob_that_is_no_option_at_all_is_our_own_mistake() -> None:
    """A caller that passes the GPU has not taken it out."""
    with pytest.raises(AssertionError, match="no option for {'gpu'}"):
        serve_line(LLAMA, {"gpu": "H100-80GB"}, version="0.32", policy="v1")


@pytest.mark.parametrize(
    ("text", "knobs"),
    [
        ("-tp 2 -q=awq", {"tensor_parallel_size": 2, "quantization": "awq"}),
        ("--max_num_seqs=64", {"max_num_seqs": 64}),
        ("--max-model-len 32k", {"max_model_len": 32_000}),
        ("--max-model-len 32K", {"max_model_len": 32_768}),
        ("--max-num-batched-tokens 1M", {"max_num_batched_tokens": 2**20}),
        ("--max-num-batched-tokens 2.5k", {"max_num_batched_tokens": 2500}),
        ("--kv-cache-memory-bytes 10G", {"kv_cache_gib": 10.0}),
        ("--enable-chunked-prefill=False", {"enable_chunked_prefill": False}),
        ("--enable-chunked-prefill true", {"enable_chunked_prefill": True}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--enforce-eager --no-async-scheduling", {"enforce_eager": True}),
        ("--device-memory-utilization .5", {"gpu_memory_utilization": 0.5}),
        ("--kv-offloading-size 8 --kv-offloading-backend native", {}),
        ("--block-size 16 --block-size 32", {"block_size": 32}),
    ],
)
def test_options_are_read_in_all_their_forms(text: str, knobs: dict[str, Any]) -> None:
    """Short, with underscores, with units, switched off, and the last one wins."""
    line = parse_serve(f"vllm serve {LLAMA} {text}")

    assert line.kept == ()
    assert knobs.items() <= line.knobs.items()


@pytest.mark.parametrize(
    "start",
    [
        f"vllm serve {LLAMA}",
        f"vllm serve --model {LLAMA}",
        f"vllm serve --model={LLAMA}",
        f"/opt/venv/bin/vllm serve {LLAMA}",
        f"env HF_HOME=/tmp vllm serve {LLAMA}",
        f"python3.12 -m vllm.entrypoints.openai.api_server --model {LLAMA}",
    ],
)
def test_the_command_may_start_in_several_ways(start: str) -> None:
    """``vllm serve``, a path to it, or the module of old, with or without variables."""
    line = parse_serve(f"{start} \\\n  --max-num-seqs 8")

    assert (line.model, line.knobs) == (LLAMA, {"max_num_seqs": 8})


@pytest.mark.parametrize(("value", "policy"), [("0", "v0"), ("1", "v1")])
def test_the_variable_chooses_the_policy(value: str, policy: str) -> None:
    """``VLLM_USE_V1`` becomes a knob, other variables are kept."""
    line = parse_serve(f"CUDA_VISIBLE_DEVICES=0 VLLM_USE_V1={value} vllm serve {LLAMA}")

    assert line.knobs == {"policy": policy}
    assert line.environment == ("CUDA_VISIBLE_DEVICES=0",)


def test_what_is_not_modelled_is_kept_with_all_its_values() -> None:
    """JSON in quotes, several values and variables come back word for word."""
    text = (
        "--speculative-config '{\"a\": 1}' --lora-modules a=b c=d --seed -1 --api-key $K"
    )

    line = parse_serve(f"vllm serve {LLAMA} {text} --block-size 32 -pp 2")

    assert line.knobs == {"block_size": 32}
    assert " ".join(line.kept) == f"{text} -pp 2"


def test_knobs_are_those_that_a_run_takes() -> None:
    """Each knob that is read is a flag of an engine here."""
    assert set(OPTIONS) <= EngineFlags.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with ''; give it from vllm serve"),
        ("docker run vllm/vllm-openai", "begins with 'docker run'"),
        ("vllm bench serve", "begins with 'vllm bench'"),
        ("vllm serve", "names no model"),
        ("vllm serve --config a.yaml", "names no model"),
        ("vllm serve --model", "--model has no value"),
        ("VLLM_USE_V1=yes vllm serve m", "VLLM_USE_V1=yes is neither"),
        ("vllm serve m n", "'n' stands behind the model"),
        ("vllm serve m --block-size 16 n", "'n' stands behind --block-size 16"),
        ("vllm serve m --enforce-eager n", "'n' stands behind --enforce-eager"),
        ("vllm serve m --no-enable-prefix-caching n", "'n' stands behind --no-enable"),
        ("vllm serve m --block-size", "--block-size has no value"),
        ("vllm serve m --block-size --port 1", "--block-size has no value"),
        ("vllm serve m --block-size 1k", "--block-size is '1k'; it needs a whole number"),
        ("vllm serve m --swap-space nan", "--swap-space is 'nan'; it needs a number"),
        ("vllm serve m --max-model-len auto", "--max-model-len auto leaves"),
        ("vllm serve m --max-model-len 1.5K", "no decimals with K; write 1.5k"),
        ("vllm serve m --max-model-len x", "it needs a whole number"),
        ("vllm serve m --gpu-mem 0.9", "beginning of --gpu-memory-utilization; write it"),
        ("vllm serve m > log 2>&1 &", "goes on with '> log"),
        ("vllm serve m --hf-overrides '{", "has a quote that nothing closes at"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, message: str) -> None:
    """Each refusal names the word that it is about and what to do."""
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_serve(text)


def test_the_file_holds_the_knobs_and_the_line_what_is_kept() -> None:
    """A switch is turned off by a key of its own, as a false would be passed over."""
    changed = {
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "dtype": "float16",
        "swap_space": 8.0,
    }

    made = serve_yaml(
        LLAMA, changed, version="0.10.2", policy="v0", kept=("--api-key", "$K")
    )

    assert made.line == "VLLM_USE_V1=0 vllm serve --config serve.yaml --api-key $K"
    assert made.text == (
        f'model: "{LLAMA}"\n'
        'dtype: "float16"\n'
        "swap-space: 8\n"
        "no-enable-prefix-caching: true\n"
        "enforce-eager: true\n"
    )


def test_what_an_old_file_cannot_say_stands_on_the_line() -> None:
    """Up to 0.6.3 a file gives every key a value, and up to 0.8.2 it names no model."""
    changed = {"enable_prefix_caching": True, "enable_chunked_prefill": False}

    made = serve_yaml(LLAMA, changed, version="0.6.3", policy="v0")

    assert made.line == f"vllm serve {LLAMA} --config serve.yaml --enable-prefix-caching"
    assert made.text == 'enable-chunked-prefill: "False"\n'


def test_a_file_with_nothing_in_it_is_still_a_mapping() -> None:
    """An empty file would be None, and vLLM asks it for its items."""
    assert serve_yaml(LLAMA, {}, version="0.6.3", policy="v0").text == "{}\n"


def test_the_backend_stands_in_the_file_where_it_is_needed() -> None:
    """Up to 0.13 a size alone does nothing."""
    made = serve_yaml(LLAMA, {"kv_offloading_size": 8.0}, version="0.12", policy="v1")

    assert made.text.endswith('kv-offloading-size: 8\nkv-offloading-backend: "native"\n')


@pytest.mark.parametrize(
    ("version", "given", "message"),
    [
        ("0.5.5", {}, "vLLM 0.5.5 has no --config; it came with 0.6.0"),
        ("0.6.3", {"path": "serve.txt"}, "serve.txt must end in .yaml or .yml"),
        ("0.6.3", {"kept": ("--config=a.yaml",)}, "reads a --config already"),
    ],
)
def test_a_file_that_vllm_would_not_read_is_refused(
    version: str, given: dict[str, Any], message: str
) -> None:
    """No ``--config`` yet, one too many, or another kind of file."""
    with pytest.raises(UsageError, match=message):
        serve_yaml(LLAMA, {}, version=version, policy="v0", **given)
