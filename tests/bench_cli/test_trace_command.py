"""Tests for ``blockbench trace``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench_cli.commands.trace import trace_app
from harness.errors import TraceError, UsageError

ROW = '{"timestamp": 1, "input_length": 40, "output_length": 2, "hash_ids": [1]}\n'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace of four equal requests and a bad one."""
    path = tmp_path / "mine.jsonl"
    path.write_text(ROW * 4 + "{\n")
    return path


def _run(*arguments: object) -> Any:
    return CliRunner().invoke(trace_app, [str(argument) for argument in arguments])


def test_inspect_prints_one_document(trace: Path) -> None:
    """With --json, stdout is one JSON document with the agreed keys."""
    result = _run("inspect", trace, "--json", "--skip-bad-rows", "--block-size", 10)

    document = json.loads(result.stdout)

    assert result.exit_code == 0
    assert document["num_requests"] == 4
    assert document["num_skipped"] == 1
    assert document["skipped_by_reason"] == {"not valid JSON": 1}
    assert document["format"] == "mooncake"
    assert document["duration_s"] == 0
    assert document["has_sharing"] is True
    assert document["ideal_hit_rate"] == 0.75
    for key in ("input_tokens", "output_tokens"):
        assert set(document[key]) == {"mean", "p50", "p90", "p99", "max"}


def test_inspect_is_readable(trace: Path) -> None:
    """Without --json, a person sees name, counts, hit rate and skipped rows."""
    result = _run("inspect", trace, "--skip-bad-rows", "--block-size", 10)

    assert "mine.jsonl · mooncake" in result.stdout
    assert "4, and 1 bad row skipped: 1 not valid JSON" in result.stdout
    assert "75 % of full blocks of 10 tokens" in result.stdout
    assert "generated" not in result.stdout


def test_inspect_of_lengths_only_claims_no_hits(tmp_path: Path) -> None:
    """A trace without sharing shows n/a for hits, and null in JSON."""
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,9,5")

    assert "n/a (the trace does not say" in _run("inspect", path).stdout
    document = json.loads(_run("inspect", path, "--json").stdout)
    assert document["ideal_hit_rate"] is None


def test_bad_trace_raises_for_main(trace: Path) -> None:
    """A bad row leaves the command as a TraceError, which main turns into words."""
    result = _run("inspect", trace)

    assert isinstance(result.exception, TraceError)


def test_generated_trace_says_so(tmp_path: Path) -> None:
    """Generate writes a trace with its options; inspect calls it generated."""
    path = tmp_path / "made.jsonl"
    made = _run(
        "generate", "--num-requests", 8, "--turns", 2, "--n", 2, "--prefix-len", 16,
        "--input-len", 32, "--output-len", 8, "--range-ratio", 0.5, "--seed", 3,
        "--request-rate", 2, "--burstiness", "inf", "-o", path,
    )  # fmt: skip

    shown = _run("inspect", path)

    assert (made.exit_code, made.stdout) == (0, "")
    header = json.loads(path.read_text().splitlines()[0])
    assert header["generated"]["turns"] == 2
    assert header["generated"]["burstiness"] == "inf"
    assert "generated" in shown.stdout.splitlines()[0]


@pytest.mark.parametrize(("count", "words"), [(1, "1 request"), (2, "2 requests")])
def test_generate_says_how_many(tmp_path: Path, count: int, words: str) -> None:
    """One request is not several."""
    made = _run("generate", "--num-requests", count, "-o", tmp_path / "made.jsonl")

    assert made.stderr.endswith(f": {words}\n")


def test_generate_writes_to_no_empty_name() -> None:
    """An empty -o is refused, not taken for the folder one is in."""
    result = _run("generate", "-o", "", "--force")

    assert result.exit_code == 2
    assert "it is empty; name what to write" in result.stderr


def test_generate_keeps_what_is_there(trace: Path) -> None:
    """An existing file is a usage error that names --force."""
    result = _run("generate", "-o", trace)

    assert isinstance(result.exception, UsageError)
    assert "--force" in str(result.exception)


@pytest.mark.parametrize(
    "flags", [["--num-requests", 0], ["--turns", 0], ["--n", 0], ["--input-len", 0], []]
)
def test_impossible_flag_is_a_usage_error(tmp_path: Path, flags: list[object]) -> None:
    """A count below 1, or no file to write to, exits with 2."""
    output = ["-o", tmp_path / "made.jsonl"] if flags else []

    assert _run("generate", *flags, *output).exit_code == 2


def test_installed_script_has_the_commands(trace: Path) -> None:
    """The installed script reports a bad row in one line and exits with 3."""
    script = Path(sys.executable).with_name("blockbench")

    done = subprocess.run(
        [script, "trace", "inspect", trace], capture_output=True, text=True
    )

    assert done.returncode == 3
    assert done.stdout == ""
    assert "mine.jsonl:5: not valid JSON" in done.stderr
    assert "--skip-bad-rows" in done.stderr
    assert "Traceback" not in done.stderr
