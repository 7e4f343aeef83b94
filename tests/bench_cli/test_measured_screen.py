"""The lines of the screen that say how a run was measured."""

from typing import Any

import pytest

from bench_cli.measured_screen import care_line, facts_line, print_measurement
from results.measured import Measurement


def test_facts_are_in_one_line() -> None:
    """What the engine said of itself at its start."""
    facts = {
        "vllm_version": "0.32.0",
        "num_gpu_blocks": 512,
        "kv_cache_tokens": 8192,
        "attention_backend": "FLASH_ATTN",
        "gpu": "NVIDIA H100",
        "gpu_memory_gib": 79.6,
    }

    assert facts_line(facts) == (
        "measured: vLLM 0.32.0 · 512 blocks · 8.2k tokens · attention FLASH_ATTN"
        " · NVIDIA H100, 80 GiB"
    )
    assert facts_line({"device": "cpu"}) == "measured: cpu"
    assert facts_line({}) == ""


@pytest.mark.parametrize(
    ("is_cold", "said"),
    [(True, "cold cache, verified"), (False, "cache NOT cold"), (None, "state n/a")],
)
def test_the_state_of_the_cache_is_said(is_cold: bool | None, said: str) -> None:
    """Whether hits can be of something else than the trace."""
    assert said in care_line(Measurement(is_cold=is_cold).to_dict())


def test_lateness_and_warmup_are_said() -> None:
    """How far the client was behind, and what it had sent before."""
    late = {"p50": 0.0004, "p99": 0.002, "max": 0.012}
    known = Measurement(lateness_s=late, warmup_requests=4).to_dict()

    line = care_line(known)

    assert "warm-up of 4 requests" in line
    assert "client 400 us late in the median (p99 2.0 ms, max 12 ms)" in line
    assert "client lateness n/a" in care_line(Measurement().to_dict())


def test_notes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each note of a measurement has a line of its own."""
    from bench_cli.console import Screen

    known: dict[str, Any] = Measurement(notes=("first", "second")).to_dict()

    print_measurement(Screen(), known)

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[-2:] == ["first", "second"]
