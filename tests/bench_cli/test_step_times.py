"""Tests for step times in ``blockbench profiles show MODEL --gpu GPU``."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from bench_cli.exit_code import ExitCode
from bench_cli.step_time_screen import (
    OVERHEADS,
    PARTS,
    overhead_of,
    plot_step_times,
    step_time_document,
)
from harness.config import resolve_config
from harness.engine_clock import EngineClock, engine_clock, prefill_shape
from harness.timing import build_step_time
from profiles.engine_overhead import EngineOverhead
from profiles.gpu import KnownError
from profiles.step_time import BatchShape, RooflineStepTime, StepParts

BLOCKBENCH = Path(sys.executable).with_name("blockbench")
PNG_HEAD = b"\x89PNG\r\n\x1a\n"

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]

LLAMA = ("profiles", "show", "Llama-3.1-8B", "--gpu", "H100-80GB")
VERSION = ("--vllm-version", "0.32.0")
FS_PER_MS = 1e12


@pytest.fixture
def document(call: Call) -> Callable[..., dict[str, Any]]:
    """A caller that gives back the JSON document."""

    def document(*args: object) -> dict[str, Any]:
        code, out, err = call("profiles", "show", *VERSION, *args, "--json")
        assert (code, err) == (ExitCode.FINE, "")
        return json.loads(out)  # type: ignore[no-any-return]

    return document


def step_time_of_run(**flags: Any) -> RooflineStepTime:
    """Step times of a run of Llama-3.1-8B on H100."""
    given = {"model": "Llama-3.1-8B", "gpu": "H100-80GB", "vllm_version": "0.32.0"}
    return build_step_time(resolve_config(**(given | flags)))


def clock(**flags: Any) -> EngineClock:
    """The clock of Llama-3.1-8B on H100, but for the flags."""
    given = {"model": "Llama-3.1-8B", "gpu": "H100-80GB", "vllm_version": "0.32.0"}
    return engine_clock(**(given | flags))


@pytest.mark.parametrize(
    ("flags", "knobs"),
    [
        ((), {}),
        (("-tp", 2), {"tensor_parallel_size": 2}),
        (("--no-async-scheduling",), {"async_scheduling": False}),
        (("--enforce-eager",), {"enforce_eager": True}),
        (("--vllm-version", "0.6.3"), {"vllm_version": "0.6.3"}),
        (("--kv-cache-dtype", "fp8"), {"kv_cache_dtype": "fp8"}),
    ],
)
def test_figures_are_those_of_a_run(
    document: Any, flags: tuple[object, ...], knobs: dict[str, Any]
) -> None:
    """Each decode, prefill and share is what RooflineStepTime says of that batch."""
    found = document("Llama-3.1-8B", "--gpu", "H100-80GB", *flags)
    expected = step_time_of_run(**knobs)

    assert found["overhead"] == asdict(expected.overhead)
    assert [(e["num_seqs"], e["context_len"]) for e in found["decodes"]] == [
        (num_seqs, context_len)
        for num_seqs in (1, 8, 32, 64, 128, 256)
        for context_len in (1024, 4096, 16_384, 65_536)
    ]
    assert [e["num_tokens"] for e in found["prefills"]] == [512, 2048, 8192]
    for entry in (*found["decodes"], found["parts"]["decode"]):
        num_seqs = entry["num_seqs"]
        shape = BatchShape(0, 0, 0, num_seqs, num_seqs * entry["context_len"])
        check_entry(entry, expected.parts(shape))
    for entry in (*found["prefills"], found["parts"]["prefill"]):
        n = entry["num_tokens"]
        shape = BatchShape(n, n * (n + 1) // 2, 1, 0, 0, num_prefill_context_tokens=n)
        check_entry(entry, expected.parts(shape))


def check_entry(entry: dict[str, Any], parts: StepParts) -> None:
    """The entry has the time of these parts, and the share of each."""
    assert entry["step_ms"] == parts.total_fs / FS_PER_MS
    assert list(entry["shares"].values()) == [part / parts.total_fs for part in parts]
    assert sum(entry["shares"].values()) == pytest.approx(1)


def test_a_prompt_attends_to_itself() -> None:
    """Of three tokens the first attends to one, the last to three, and all are read."""
    assert prefill_shape(3) == BatchShape(3, 6, 1, 0, 0, num_prefill_context_tokens=3)


def test_types_change_step_times(document: Any) -> None:
    """Weights and a cache of one byte are read faster, and the document names them."""
    args = ("Llama-3.1-8B", "--gpu", "H100-80GB")
    plain = document(*args)
    small = document(*args, "--quantization", "fp8", "--kv-cache-dtype", "fp8")

    for entry, faster in zip(plain["decodes"], small["decodes"], strict=True):
        assert faster["step_ms"] < entry["step_ms"]
    assert small["config"]["quantization"] == small["config"]["kv_cache_dtype"] == "fp8"


def test_the_version_decides_on_asynchronous_scheduling(call: Call) -> None:
    """Version 0.11 of vLLM waits for each step unless told not to, and 0.32 does not."""
    for version, is_async in (("0.11.0", False), ("0.32.0", True)):
        found = json.loads(call(*LLAMA, "--vllm-version", version, "--json")[1])
        expected = step_time_of_run(vllm_version=version).overhead

        assert found["config"]["async_scheduling"] == is_async
        assert found["overhead"] == asdict(expected)


def test_lengths_beyond_the_models_are_left_out(document: Any) -> None:
    """Llama 2 takes 4,096 tokens, so that longer contexts and prompts have no entry."""
    found = document("Llama-2-7b-hf", "--gpu", "A100-80GB")

    assert {entry["context_len"] for entry in found["decodes"]} == {1024, 4096}
    assert [entry["num_tokens"] for entry in found["prefills"]] == [512, 2048]


def test_what_no_memory_holds_is_timed(document: Any) -> None:
    """Llama-3.1-70B needs two H100, and its steps on one are timed all the same."""
    found = document("Llama-3.1-70B", "--gpu", "H100-80GB")

    assert found["decodes"][0]["step_ms"] > 20


def test_weights_without_room_are_noted(document: Any) -> None:
    """Steps can be timed of what cannot start; 405B in 16 bits takes 756 GiB."""
    alone = document("meta-llama/Llama-3.1-405B", "--gpu", "H100-80GB")["notes"]
    shared = document("meta-llama/Llama-3.1-70B", "--gpu", "H100-80GB", "-tp", 2)["notes"]

    assert [note for note in alone if note.startswith("the weights take 756.0 GiB")]
    assert not [note for note in shared if note.startswith("the weights")]


def test_windows_are_noted(document: Any) -> None:
    """Half of gpt-oss's layers attend to 128 tokens, and nothing is timed by that."""
    (note,) = document("gpt-oss-20b", "--gpu", "H100-80GB")["notes"]

    assert note.startswith("12 of 24 layers of openai/gpt-oss-20b attend to no more than")


def test_the_screen_has_all_of_it(call: Call) -> None:
    """Tables by batch and by prompt, parts, overhead and what stands behind them."""
    code, out, err = call(*LLAMA, "-tp", 2, *VERSION)
    words = " ".join(out.split())

    assert (code, err) == (ExitCode.FINE, "")
    for text in (
        "meta-llama/Llama-3.1-8B on 2 x H100-80GB, as vLLM 0.32.0 (v1)",
        "sequences 1,024 tokens 4,096 tokens 16,384 tokens 65,536 tokens",
        "share 64 decodes of 2,048 a prompt of 2,048",
        "all-reduce",
        "small kernels",
        clock().evidence,
    ):
        assert text in words
    assert "copies" not in words, "a part that takes no time has no row"


def test_a_table_has_a_row_a_step(call: Call) -> None:
    """As CSV 24 decodes and three prefills, each with its time and all shares."""
    out = call(*LLAMA, *VERSION, "--table", "csv")[1]
    rows = list(csv.DictReader(io.StringIO(out)))
    entry = step_time_document(clock())["decodes"][5]

    assert [row["phase"] for row in rows] == ["decode"] * 24 + ["prefill"] * 3
    assert (rows[5]["num_seqs"], rows[5]["context_len"]) == ("8", "4096")
    assert float(rows[5]["step_ms"]) == entry["step_ms"]
    assert {name: float(rows[5][name]) for name in PARTS} == entry["shares"]


def test_each_part_and_overhead_has_its_words() -> None:
    """Nothing that the model of steps knows is missing on the screen."""
    assert [f"{name}_fs" for name in PARTS] == list(StepParts._fields)
    assert [*OVERHEADS, "source"] == [field.name for field in fields(EngineOverhead)]


def test_overhead_is_that_in_force() -> None:
    """Launches count without CUDA graphs, and further GPUs where there are some."""
    figures = {"source": "rows", "layer_ns": 20_000, "launch_ns": 1_500_000}
    overhead = dict.fromkeys(OVERHEADS, 0) | figures
    overhead |= {"shared_seq_ns": 5_000, "rank_ns": 7_000}
    config = {"enforce_eager": False, "tensor_parallel_size": 1}
    more = {"enforce_eager": True, "tensor_parallel_size": 2}

    assert overhead_of({"config": config, "overhead": overhead}) == (
        "20 µs a layer; from rows"
    )
    assert overhead_of({"config": more, "overhead": overhead}) == (
        "20 µs a layer, 1.5 ms a layer at least, 5 µs more a sequence with several GPUs,"
        " 7 µs a GPU but the first; from rows"
    )


def with_known_error(found: EngineClock, error: KnownError) -> EngineClock:
    """The same on a GPU with such an error."""
    gpu = replace(found.step_time.gpu, known_error=error)
    return replace(found, step_time=RooflineStepTime(found.step_time.model, gpu))


def test_the_known_error_is_said(tmp_path: Path) -> None:
    """Where rows were compared, document and plot have the sentence of their error."""
    error = KnownError(0.0625, 17, "rows of a test", ttft_fraction=0.125)
    found = with_known_error(clock(), error)
    document = step_time_document(found)
    plot_step_times(found, document, tmp_path / "x.svg")

    assert document["known_error"]["fraction"] == 0.0625
    assert document["known_error"]["num_rows"] == 17
    assert document["evidence"] == f"known error {error}"
    assert f"Simulated. Known error {error}." in (tmp_path / "x.svg").read_text("utf-8")


@pytest.mark.parametrize(
    "flags", [{"model": "Mixtral-8x7B-v0.1"}, {"quantization": "fp8"}]
)
def test_an_error_of_other_models_is_not_claimed(flags: dict[str, str]) -> None:
    """Rows of dense models in bf16 say nothing of experts, nor of weights in fp8."""
    found = with_known_error(clock(**flags), KnownError(0.0625, 17, "rows of a test"))

    assert step_time_document(found)["known_error"] is None
    assert found.evidence.startswith("no published row of a model such as")


def test_plots_are_drawn_by_the_script(tmp_path: Path) -> None:
    """A PNG of some size and an SVG with what was timed in its text."""
    for suffix in ("png", "svg"):
        done = subprocess.run(
            [BLOCKBENCH, *LLAMA, *VERSION, "--plot", f"steps.{suffix}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.rstrip().endswith(f"drew steps.{suffix}")
    png = (tmp_path / "steps.png").read_bytes()
    svg = (tmp_path / "steps.svg").read_text("utf-8")

    assert png.startswith(PNG_HEAD)
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    assert width > 1000
    assert height > 500
    assert len(png) > 20_000
    for text in ("meta-llama/Llama-3.1-8B on H100-80GB", "0.32.0", "65,536", "prefill"):
        assert text in svg
    assert sorted(path.name for path in tmp_path.iterdir()) == ["steps.png", "steps.svg"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "SVG"])
def test_the_same_is_drawn_alike(call: Call, tmp_path: Path, suffix: str) -> None:
    """The same bytes whenever it is drawn, and nothing beside the document on stdout."""
    first, second = (tmp_path / f"{name}.{suffix}" for name in "ab")
    for path in (first, second):
        code, out, err = call(*LLAMA, *VERSION, "--json", "--plot", path)
        assert (code, err) == (ExitCode.FINE, "")
        assert json.loads(out)["kind"] == "step_times"

    assert first.read_bytes() == second.read_bytes() != b""


def test_the_users_own_style_changes_nothing(tmp_path: Path) -> None:
    """A matplotlibrc in the folder is not obeyed."""
    plots = []
    for rc in ("", "axes.linewidth: 9\nxtick.color: red\nsvg.hashsalt: x\n"):
        (tmp_path / "matplotlibrc").write_text(rc)
        command = [str(BLOCKBENCH), *LLAMA, *VERSION, "--plot", "x.svg", "--force"]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
        plots.append((tmp_path / "x.svg").read_bytes())

    assert plots[0] == plots[1]


def test_any_name_can_be_drawn(call: Call, tmp_path: Path) -> None:
    """Dollars begin no formula, and a letter without a glyph warns nobody."""
    folder = tmp_path / "a$\\x$ 模型"
    folder.mkdir()
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 256,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    plot = tmp_path / "x.svg"
    args = ("profiles", "show", folder, "--gpu", "H100", *VERSION, "--plot", plot)
    code, out, err = call(*args, "--json")

    assert (code, err) == (ExitCode.FINE, "")
    assert [entry["num_tokens"] for entry in json.loads(out)["prefills"]] == [256]
    assert "a$\\x$ 模型" in plot.read_text("utf-8")


def test_a_file_stays_unless_forced(call: Call, refuse: Refuse, tmp_path: Path) -> None:
    """What is there is kept, and --force replaces it."""
    path = tmp_path / "x.png"
    path.write_text("mine")

    assert "is there already" in refuse(2, *LLAMA, "--plot", path)
    assert path.read_text() == "mine"
    assert call(*LLAMA, *VERSION, "--json", "--plot", path, "--force")[0] == 0
    assert path.read_bytes().startswith(PNG_HEAD)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*LLAMA, "--plot", "x.jpg"), "must end in one of .png, .svg, .pdf"),
        ((*LLAMA, "--plot", "png"), "must end in one of .png, .svg, .pdf"),
        ((*LLAMA, "--plot", ""), "it is empty; name what to write"),
        ((*LLAMA, "--plot", "no/x.png"), "no, where --plot is to draw, is no folder"),
        ((*LLAMA, "--plot", "dir.png"), "dir.png is a folder; name a file"),
        ((*LLAMA, "--plot", "x" * 300 + ".png"), "cannot be written: File name too"),
        ((*LLAMA, "--force"), "--force replaces the file that --plot names"),
        ((*LLAMA[:3], "--plot", "x.png"), "--plot is about step times, which need a"),
        ((*LLAMA[:3], "-tp", 2), "--tensor-parallel-size is about step times"),
        ((*LLAMA[:3], "--no-async-scheduling"), "--async-scheduling is about step"),
        (("profiles", "show", "A100", "--gpu", "H100"), "A100-80GB is a GPU, and so is"),
        (("profiles", "show", "Lama", "--gpu", "H100"), "no model is called 'Lama'"),
        (("profiles", "show", "Llama-3.1-8B", "--gpu", "H1"), "no GPU is called 'H1'"),
        (("profiles", "show", "Llama-3.1-8B", "--gpu", "CPU"), "step times of CPU are"),
        ((*LLAMA, "--policy", "v0", "--async-scheduling"), "belongs to policy v1"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    refuse: Refuse, tmp_path: Path, args: tuple[object, ...], words: str
) -> None:
    """One line says what is wrong and what to do, and nothing is printed or drawn."""
    (tmp_path / "dir.png").mkdir()

    assert words in refuse(2, *args)


def test_without_matplotlib_the_extra_is_named(
    refuse: Refuse, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--plot names what to install, and without it nothing is missing."""
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert 'pip install "blockbench[plot]"' in refuse(2, *LLAMA, "--plot", "x.svg")
    assert call(*LLAMA)[0] == ExitCode.FINE
