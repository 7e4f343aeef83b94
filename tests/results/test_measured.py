"""What a measured run knows, and how it says that nobody measured something."""

import json
from typing import Any

import pytest

from results.columns import Columns
from results.measured import Measurement, NotMeasuredError
from results.record import RequestRecord, StepRecord
from results.run_info import RunInfo

FULL: dict[str, Any] = {
    "unmeasured": ("num_swapped", "steps.num_cached_tokens", "requests.queued_ns"),
    "counters": {"preemptions": 3.0, "swap_in_blocks": None, "raw": {"vllm:x": 1.0}},
    "facts": {"vllm_version": "0.32.0", "num_gpu_blocks": 512},
    "lateness_s": {"p50": 0.001, "p99": 0.002, "max": 0.01},
    "is_cold": True,
    "warmup_requests": 4,
    "notes": ("hits of this version count twice",),
}


def test_survives_json() -> None:
    """What run.json says of a measurement is the same measurement again."""
    written = json.loads(json.dumps(Measurement(**FULL).to_dict()))

    assert Measurement.from_dict(written) == Measurement(**FULL)
    assert Measurement.from_dict(written).to_dict() == Measurement(**FULL).to_dict()


@pytest.mark.parametrize("name", ["unmeasured", "counters", "facts", "notes"])
def test_a_part_that_is_missing_is_named(name: str) -> None:
    """A damaged run.json is told from one of a version without measurements."""
    with pytest.raises(KeyError, match=name):
        Measurement.from_dict({key: v for key, v in FULL.items() if key != name})


def test_is_strict_json() -> None:
    """NaN is refused before the run, not when it is to be saved."""
    with pytest.raises(ValueError, match="Out of range"):
        Measurement(counters={"preemptions": float("nan")})


def test_names_of_one_table_or_of_both() -> None:
    """A bare name is unmeasured wherever it stands, a qualified one in its table."""
    known = Measurement(**FULL)

    assert known.unmeasured_in("requests") == {"num_swapped", "queued_ns"}
    assert known.unmeasured_in("steps") == {"num_swapped", "num_cached_tokens"}


def test_a_counter_that_is_not_there_is_not_zero() -> None:
    """What a version does not count is None, whether it is named or not."""
    known = Measurement(**FULL)

    assert known.counter("preemptions") == 3.0
    assert known.counter("swap_in_blocks") is None
    assert known.counter("offload_load_bytes") is None


@pytest.mark.parametrize(("median", "is_late"), [(0.005, False), (0.0051, True)])
def test_late_above_five_ms_in_the_median(median: float, is_late: bool) -> None:
    """The client is late from 5 ms on, in the median."""
    late = {"p50": median, "p99": 1.0, "max": 2.0}

    assert Measurement(lateness_s=late).is_late is is_late
    assert not Measurement().is_late


def test_an_unmeasured_column_cannot_be_read(make_step: Any) -> None:
    """Whatever is in its cells; the others can."""
    steps = Columns.of(StepRecord, [make_step()], {"num_swapped", "gap_ns"})

    for read in (steps.__getitem__, steps.total):
        with pytest.raises(NotMeasuredError, match="num_swapped was not measured"):
            read("num_swapped")
    with pytest.raises(NotMeasuredError, match="gap_ns"):
        steps.flat("gap_ns")
    assert steps["num_running"].tolist() == [1.0]
    assert steps.has("num_running", "num_waiting")
    assert not steps.has("num_running", "num_swapped")


def test_an_unmeasured_word_cannot_be_read(make_request: Any) -> None:
    """Columns of words are no exception."""
    requests = Columns.of(RequestRecord, [make_request()], {"reason"})

    with pytest.raises(NotMeasuredError) as caught:
        requests.is_equal("reason", "")
    assert caught.value.name == "reason"


def test_run_info_keeps_it(make_info: Any) -> None:
    """A run's measurement stands in run.json; older and simulated ones have none."""
    info = make_info(source="measured", measurement=Measurement(**FULL))
    written = json.loads(json.dumps(info.to_dict()))

    assert RunInfo.from_dict(written).measurement == Measurement(**FULL)
    del written["measurement"]
    assert RunInfo.from_dict(written).measurement is None
    assert RunInfo.from_dict(json.loads(json.dumps(make_info().to_dict()))) == make_info()
