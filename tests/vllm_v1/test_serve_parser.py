"""Commands and files that we write, read by the installed ``vllm serve``."""

import json
import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bench_cli.serve_line import serve_line, serve_yaml
from bench_cli.serve_reading import MODELLED_FLAGS, parse_serve
from profiles.serve_option import OPTIONS, why_not
from profiles.vllm_v1 import DEFAULT_V1_VERSION as VERSION

SCRIPT = Path(__file__).with_name("parse_serve.py")
LLAMA = "meta-llama/Llama-3.1-8B"
SETTINGS: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (4,),
    "dtype": ("auto", "float16", "bfloat16"),
    "quantization": ("fp8",),
    "kv_cache_dtype": ("auto", "fp8", "fp8_e5m2"),
    "gpu_memory_utilization": (0.873, 1.0),
    "num_gpu_blocks_override": (2500,),
    "kv_cache_gib": (10.5,),
    "block_size": (16, 48),
    "kv_offloading_size": (0.5, 64.0),
    "enable_prefix_caching": (True, False),
    "enable_chunked_prefill": (True, False),
    "max_model_len": (32768,),
    "max_num_seqs": (384,),
    "max_num_batched_tokens": (12288,),
    "long_prefill_token_threshold": (0, 2048),
    "watermark": (0.0, 0.025),
    "scheduling_policy": ("fcfs", "priority"),
    "async_scheduling": (True, False),
    "scheduler_reserve_full_isl": (True, False),
    "enforce_eager": (True, False),
}
CHANGES: list[dict[str, Any]] = [
    *({knob: value} for knob, values in SETTINGS.items() for value in values),
    {knob: values[-1] for knob, values in SETTINGS.items()},
]

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)


def asked(*args: str, commands: list[list[str]] | None = None) -> Any:
    """What the script prints last."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *args],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def expected(changed: dict[str, Any]) -> dict[str, Any]:
    """What vLLM is to have read, by its own names."""
    values = {OPTIONS[knob].vllm_name: value for knob, value in changed.items()}
    if "kv_cache_gib" in changed:
        values["kv_cache_memory_bytes"] = changed["kv_cache_gib"] * 2**30
    return values | {"model": LLAMA}


def words_of(command: str) -> list[str]:
    """What ``vllm`` is given."""
    program, *words = shlex.split(command)
    assert program == "vllm"
    return words


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What vLLM reads from all lines and all files, asked once."""
    folder = tmp_path_factory.mktemp("serve")
    lines, files = [], []
    for number, changed in enumerate(CHANGES):
        lines.append(serve_line(LLAMA, changed, version=VERSION, policy="v1"))
        path = folder / f"{number}.yaml"
        made = serve_yaml(LLAMA, changed, version=VERSION, policy="v1", path=str(path))
        path.write_text(made.text, encoding="utf-8")
        files.append(made.line)
    commands = ["vllm serve", *lines, *files]
    none, *found = asked(commands=[words_of(command) for command in commands])
    return {"none": [none], "line": found[: len(lines)], "file": found[len(lines) :]}


@pytest.mark.parametrize("way", ["line", "file"])
@pytest.mark.parametrize("place", range(len(CHANGES)), ids=lambda n: str(CHANGES[n])[:60])
def test_vllm_reads_what_we_wrote(
    read: dict[str, list[Any]], way: str, place: int
) -> None:
    """Each knob has our value, and every other option the one it has by itself."""
    found, by_itself = read[way][place], read["none"][0]
    assert isinstance(found, dict), found
    changed = expected(CHANGES[place])

    assert changed.items() <= found.items()
    others = {name: v for name, v in found.items() if name not in {*changed, "config"}}
    assert others == {name: by_itself.get(name) for name in others}


def test_everything_that_can_be_written_was_tried() -> None:
    """Each option of this version is among the settings, and no other."""
    offered = {
        knob
        for knob, option in OPTIONS.items()
        if not why_not(option, SETTINGS.get(knob, (1,))[0], VERSION, "v1")
    }

    assert offered == set(SETTINGS)


def test_units_are_read_as_vllm_reads_them() -> None:
    """Thousands in small letters, 1024 in large ones, with decimals in small ones."""
    texts = ["32k", "32K", "25.6k", "1m", "1M", "2G", "17"]
    commands = [["serve", "m", "--max-num-batched-tokens", text] for text in texts]

    found = [options["max_num_batched_tokens"] for options in asked(commands=commands)]

    ours = [parse_serve(f"vllm {' '.join(words)}").knobs for words in commands]
    assert [knobs["max_num_batched_tokens"] for knobs in ours] == found


def test_what_we_refuse_as_shortened_is_no_flag_of_vllms() -> None:
    """No flag of the installed vLLM is the beginning of one that is modelled."""
    flags = asked("flags")

    assert {option.flag for option in OPTIONS.values()} - set(flags) == {
        "--swap-space",
        "--preemption-mode",
    }
    assert not [
        (flag, ours)
        for flag in flags
        for ours in MODELLED_FLAGS
        if flag.startswith("--") and ours.startswith(flag) and ours != flag
    ]


def test_a_false_in_a_file_is_passed_over(tmp_path: Path) -> None:
    """So a switch is turned off by a key of its own, which is understood."""
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: m\nenable-prefix-caching: false\nno-async-scheduling: true\n",
        encoding="utf-8",
    )

    (found,) = asked(commands=[["serve", "--config", str(path)]])

    assert "enable_prefix_caching" not in found
    assert found["async_scheduling"] is False
