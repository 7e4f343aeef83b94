"""Tests for :mod:`harness.verify.scenario`: files that are no recordings."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import TraceError, UsageError
from harness.verify.golden import verify_scenario

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "golden"
NAME = "v0_random_06"
NAME_V1 = "v1_random_27"


def recorded(name: str) -> dict[str, Any]:
    """A recorded scenario."""
    path = GOLDEN / f"{name}.scenario.json.gz"
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


@pytest.fixture
def scenario() -> dict[str, Any]:
    """Return a small recorded scenario."""
    return recorded(NAME)


@pytest.fixture
def scenario_v1() -> dict[str, Any]:
    """Return a small recorded scenario of v1."""
    return recorded(NAME_V1)


def verify(
    folder: Path, scenario: Any, rows: bytes | None = None, name: str = NAME
) -> None:
    """Write both files and compare."""
    scenario_path, rows_path = folder / "s.json", folder / "r.jsonl"
    scenario_path.write_text(json.dumps(scenario))
    if rows is None:
        rows = gzip.decompress((GOLDEN / f"{name}.rows.jsonl.gz").read_bytes())
    rows_path.write_bytes(rows)
    assert verify_scenario(scenario_path, rows_path).identical


@pytest.mark.parametrize(
    "key", ["block_size", "num_gpu_blocks", "watermark", "preemption_mode"]
)
def test_knob_that_is_missing_is_named(
    tmp_path: Path, scenario: dict[str, Any], key: str
) -> None:
    """A scenario without one of its knobs is refused by that knob's name."""
    del scenario["config"][key]

    with pytest.raises(TraceError, match=f"it lacks '{key}'"):
        verify(tmp_path, scenario)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_size", 0),
        ("num_gpu_blocks", 10**12),
        ("num_cpu_blocks", -1),
        ("max_num_seqs", 1.5),
        ("preemption_mode", "both"),
        ("preemption_mode", []),
        ("enable_prefix_caching", "no"),
        ("chunked_prefill", 1),
        ("watermark", -1),
        ("watermark", 10**30),
        ("watermark", None),
        ("watermark", True),
    ],
)
def test_knob_that_means_nothing_is_refused(
    tmp_path: Path, scenario: dict[str, Any], key: str, value: object
) -> None:
    """A knob of the wrong kind or size is named with what it must be."""
    scenario["config"][key] = value

    with pytest.raises(TraceError, match=f"{key} in config is .*, must be "):
        verify(tmp_path, scenario)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", "a"),
        ("step", None),
        ("step", -1),
        ("output_tokens", []),
        ("output_tokens", ["x"]),
        ("output_tokens", [0]),
        ("prompt", [[0, -5]]),
        ("prompt", [[0]]),
        ("prompt", []),
        ("prompt", [5]),
        ("prompt", None),
        ("id", True),
        ("priority", "high"),
        ("cache_salt", [1]),
    ],
)
def test_request_that_means_nothing_is_refused(
    tmp_path: Path, scenario: dict[str, Any], key: str, value: object
) -> None:
    """A request with impossible lengths or times is told by its place in the file."""
    scenario["requests"][3][key] = value

    with pytest.raises(TraceError, match="not a recorded scenario: .*request 3 "):
        verify(tmp_path, scenario)


@pytest.mark.parametrize(
    "document",
    [42, None, [], {}, {"policy": "v0"}, {"policy": "v0", "config": []}],
)
def test_json_of_another_kind_is_no_recording(tmp_path: Path, document: object) -> None:
    """What is JSON and no scenario is refused in words, not in Python's."""
    with pytest.raises(TraceError, match=r"s.json: .*(must be an object|it lacks '\w+')"):
        verify(tmp_path, document)


@pytest.mark.parametrize("kept", [[], [0, 1, 1]])
def test_requests_are_some_and_each_once(
    tmp_path: Path, scenario: dict[str, Any], kept: list[int]
) -> None:
    """No request, or two with one id, make it no recording."""
    scenario["requests"] = [scenario["requests"][i] for i in kept]

    with pytest.raises(TraceError, match="no requests, or two with one id"):
        verify(tmp_path, scenario)


@pytest.mark.parametrize("key", ["scheduler_reserve_full_isl", "async_scheduling"])
def test_knob_of_v1_that_is_missing_is_named(
    tmp_path: Path, scenario_v1: dict[str, Any], key: str
) -> None:
    """A scenario of v1 without one of its knobs is refused by that knob's name."""
    del scenario_v1["config"][key]

    with pytest.raises(TraceError, match=f"it lacks '{key}'"):
        verify(tmp_path, scenario_v1, name=NAME_V1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scheduling_policy", "lifo"),
        ("sliding_window", -1),
        ("async_scheduling", "no"),
        ("long_prefill_token_threshold", 0.5),
        ("offload_blocks", "many"),
        ("chunked_prefill", None),
    ],
)
def test_knob_of_v1_that_means_nothing_is_refused(
    tmp_path: Path, scenario_v1: dict[str, Any], key: str, value: object
) -> None:
    """A knob of the wrong kind or size is named with what it must be."""
    scenario_v1["config"][key] = value

    with pytest.raises(TraceError, match=f"{key} in config is .*, must be "):
        verify(tmp_path, scenario_v1, name=NAME_V1)


def test_rows_of_the_other_policy_are_no_recording(
    tmp_path: Path, scenario_v1: dict[str, Any]
) -> None:
    """Rows of v0 beside a scenario of v1 lack what every row of v1 has."""
    with pytest.raises(TraceError, match="r.jsonl:1: a row of v1 lacks free, "):
        verify(tmp_path, scenario_v1, name=NAME)


@pytest.mark.parametrize("policy", ["v2", None, 1])
def test_policy_that_is_not_there_is_said(
    tmp_path: Path, scenario: dict[str, Any], policy: object
) -> None:
    """A recording of a policy that there is not is refused in words."""
    scenario["policy"] = policy

    with pytest.raises(UsageError, match="policy is .*; scenarios of v0 and v1 can"):
        verify(tmp_path, scenario)


def test_rows_with_keys_taken_out_are_no_recording(
    tmp_path: Path, scenario: dict[str, Any]
) -> None:
    """What is not recorded cannot be identical: the missing keys are named."""
    with pytest.raises(TraceError, match="r.jsonl:1: a row of v0 lacks computed_blocks"):
        verify(tmp_path, scenario, b'{"step": 0}\n')


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (b"", "holds no rows"),
        (b"\n\n", "holds no rows"),
        (b"[1]\n", "no step"),
        (b"{", r"r.jsonl:1: not JSON: .*\(column 2\); .*one a line, with --rows"),
        (b'{"step": true}', "no step"),
        (b"\x1f\x8b\x08\x00garbage", "packed data ends or breaks"),
    ],
)
def test_rows_that_are_none_are_refused(
    tmp_path: Path, scenario: dict[str, Any], rows: bytes, message: str
) -> None:
    """Empty, damaged or foreign rows are an error that says so."""
    with pytest.raises(TraceError, match=message):
        verify(tmp_path, scenario, rows)
