"""However vLLM's process ends, the run ends in bounded time, with the rows so far."""

import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.request import Request
from harness.vllm_engine import vigil
from harness.vllm_engine.spec import EngineSpec, read_task, write_task
from harness.vllm_engine.started import EngineDidNotStartError, StartedVllm
from harness.vllm_engine.vigil import Patience
from harness.workload import Workload
from results.measured import Measurement
from results.record import RequestStatus
from results.run_info import Ending

FAKE = Path(__file__).with_name("fake_child.py")
SOON = Patience(start_s=1.0, hang_after_s=0.5)


def workload() -> Workload:
    """Three requests."""
    return Workload.from_requests(
        [
            Request(
                request_id=number,
                arrival_ns=number * 1_000,
                prompt=((0, 16), (1 + number, 16)),
                num_prompt_tokens=32,
                outputs=((10 + number, 4),),
                extra_keys=("salt",) if number == 1 else (),
            )
            for number in range(3)
        ]
    )


@pytest.fixture
def engine() -> Callable[..., StartedVllm]:
    """Return a maker of engines whose child fails in a given way."""

    def engine(how: str, patience: Patience = SOON) -> StartedVllm:
        command = [sys.executable, str(FAKE), how]
        return StartedVllm(
            EngineSpec(warmup_requests=2), workload(), patience=patience, command=command
        )

    return engine


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_run_ends_well(engine: Callable[..., StartedVllm]) -> None:
    """Rows, outcome, counters and facts are what the child has said."""
    with engine("well") as vllm:
        vllm.start()
        assert vllm.measurement().unmeasured == ("steps.num_used_tokens",)
        run = vllm.replay()

    assert run.outcome.ending is Ending.COMPLETE
    assert run.wall_s == 1.5
    assert [r.num_cached_tokens for r in run.requests] == [16]
    assert run.requests[0].num_shared_tokens == 0
    measured = run.measurement
    assert measured.counters == {"preemptions": 0}
    assert measured.facts["num_gpu_blocks"] == 100
    assert measured.is_cold
    assert measured.warmup_requests == 2
    assert measured.notes == ("a note",)
    assert Measurement.from_dict(measured.to_dict()) == measured


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        (
            "killed",
            "vllm_crashed",
            "by SIGKILL, perhaps by the kernel",
        ),
        ("segfaults", "vllm_crashed", "by SIGSEGV"),
        ("hangs", "vllm_hung", "no step for 0.5 s"),
        ("fails", "vllm_out_of_memory", "RuntimeError: CUDA out of memory"),
    ],
)
def test_a_failure_keeps_the_rows(
    engine: Callable[..., StartedVllm], how: str, kind: str, said: str
) -> None:
    """What had finished is there; the others failed for the reason of the run."""
    began = time.monotonic()
    with engine(how) as vllm:
        vllm.start()
        run = vllm.replay()

    assert time.monotonic() - began < 10
    assert (run.outcome.ending, run.outcome.kind) == (Ending.DIED, kind)
    assert said in run.outcome.message
    assert [r.request_id for r in run.requests] == [0, 1, 2]
    statuses = [r.status for r in run.requests]
    assert statuses == [RequestStatus.FINISHED, *[RequestStatus.FAILED] * 2]
    assert run.requests[2].reason == f"the engine died: {kind}"
    assert not is_alive(vllm.pid)


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("no_start", "vllm_out_of_memory", "torch.OutOfMemoryError: CUDA out of memory"),
        ("start_hangs", "vllm_did_not_start", "no start within 1 s"),
        ("worker_fails", "vllm_out_of_memory", "torch.OutOfMemoryError: CUDA out of"),
    ],
)
def test_a_start_that_fails_says_why(
    engine: Callable[..., StartedVllm], how: str, kind: str, said: str
) -> None:
    """No run begins, and every request of the trace has failed for that reason."""
    with engine(how) as vllm:
        with pytest.raises(EngineDidNotStartError) as failed:
            vllm.start()
        run = vllm.never_ran(failed.value.outcome)
        assert vllm.log.exists()

    assert failed.value.outcome.kind == kind
    assert said in failed.value.outcome.message
    assert [r.status for r in run.requests] == [RequestStatus.FAILED] * 3
    assert not vllm.log.exists()
    assert not is_alive(vllm.pid)


def test_what_vllm_does_not_take_is_the_users_to_change(
    engine: Callable[..., StartedVllm],
) -> None:
    """An argument that it lacks is an error of usage, not a run that failed."""
    with engine("refuses") as vllm, pytest.raises(UsageError, match="--swap-space"):
        vllm.start()


@pytest.mark.parametrize("how", ["stops", "ignores"])
def test_a_stop_ends_the_run(
    engine: Callable[..., StartedVllm], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that was told to stop reports, or is ended after a while."""
    monkeypatch.setattr(vigil, "GRACE_S", 0.5)
    with engine(how, Patience(start_s=9, hang_after_s=60)) as vllm:
        vllm.start()
        run = vllm.replay(is_stopped=lambda: True)

    assert run.outcome.ending is Ending.INTERRUPTED
    assert len(run.requests) == 3
    assert run.requests[1].reason == "interrupted"


def test_a_start_that_was_stopped_leaves_nothing(
    engine: Callable[..., StartedVllm],
) -> None:
    """Ctrl-C while vLLM loads ends it."""
    with engine("start_hangs") as vllm, pytest.raises(KeyboardInterrupt):
        vllm.start(is_stopped=lambda: True)

    assert not is_alive(vllm.pid)


def test_a_python_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    """The error says which one, and what it needs."""
    python = tmp_path / "nothing"
    vllm = StartedVllm(EngineSpec(), workload(), python=python)

    with vllm, pytest.raises(UsageError, match=f"{python} cannot be run"):
        vllm.start()


def test_a_python_without_vllm_says_so() -> None:
    """The real child, where no vLLM is installed."""
    if find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    with (
        StartedVllm(EngineSpec(), workload()) as vllm,
        pytest.raises(UsageError, match="vLLM is not installed"),
    ):
        vllm.start()


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The child has the same requests, at the same times."""
    spec = EngineSpec(
        policy="v1", given={"block_size": 32}, engine_args=("--load-format", "dummy")
    )

    write_task(tmp_path, spec, workload())
    read_spec, read = read_task(tmp_path)

    assert read_spec == spec
    assert [read.request(i) for i in range(3)] == [
        workload().request(i) for i in range(3)
    ]
