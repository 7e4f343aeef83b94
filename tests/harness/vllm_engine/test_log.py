"""The line of a log that says what went wrong."""

from pathlib import Path

import pytest

from harness.vllm_engine.log import (
    attention_backend,
    is_out_of_memory,
    last_telling_line,
    quoted,
    read_log,
)

CHATTER = "(EngineCore pid=7) INFO 11-30 15:21:35 [core.py:402] init engine failed not"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], ""),
        ([CHATTER], ""),
        (
            ["ValueError: no such thing", "  File x.py", CHATTER],
            "ValueError: no such thing",
        ),
        (
            ["torch.OutOfMemoryError: CUDA out of memory", "bye"],
            "torch.OutOfMemoryError: ",
        ),
        (["Fatal Python error: Segmentation fault", "", CHATTER], "Fatal Python error"),
        (["something failed here", CHATTER], "something failed here"),
        (
            ["ValueError: why", "Exception: WorkerProc initialization failed"],
            "ValueError",
        ),
        (["Exception: WorkerProc initialization failed"], "Exception: WorkerProc"),
    ],
)
def test_the_last_line_that_names_an_error_tells(lines: list[str], told: str) -> None:
    """Errors come before what may be one; chatter never counts."""
    assert last_telling_line(lines).startswith(told)
    assert bool(last_telling_line(lines)) == bool(told)


@pytest.mark.parametrize(
    ("text", "is_memory"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("ValueError: No available memory for the cache blocks. Try increasing", True),
        ("Free memory on device is less than desired GPU memory utilization", True),
        (
            "To serve at least one request, 4.0 GiB KV cache is needed, which is larger",
            True,
        ),
        ("OSError: Repo id must be in the form", False),
    ],
)
def test_want_of_memory_is_told_apart(text: str, is_memory: bool) -> None:
    """VLLM has several words for it."""
    assert is_out_of_memory(text) is is_memory


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        (
            "INFO Using Flash Attention backend on V1 engine.",
            "Flash Attention",
        ),
        ("INFO [cuda.py:1] Using FLASH_ATTN attention backend out of", "FLASH_ATTN"),
        ("INFO Using AttentionBackendEnum.FLASHINFER backend.", "FLASHINFER"),
        ("INFO Using LBHNC KV cache layout.", None),
        ("INFO Using gloo backend for groups", None),
    ],
)
def test_the_attention_backend_is_read(line: str, backend: str | None) -> None:
    """As vLLM says it; other backends are none."""
    assert attention_backend([line]) == backend


def test_colours_and_missing_files_do_no_harm(tmp_path: Path) -> None:
    """A log is read without its colours; one that is not there is empty."""
    path = tmp_path / "vllm.log"
    assert read_log(path) == []

    path.write_bytes(b"\x1b[31mValueError\x1b[0m: red\n")

    assert read_log(path) == ["ValueError: red"]


def test_a_long_quotation_is_cut() -> None:
    """It stays one line of a few hundred characters."""
    text = quoted("a\n b " + "x" * 1_000)

    assert text.startswith("a b xxx")
    assert len(text) <= 300
