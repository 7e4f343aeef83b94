"""``make cuda-check``: its times, what it makes of failures, and the file it writes."""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_cli.probes.accelerator import Gpu
from profiles.model import load_model
from profiles.weights import weight_bytes

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))
checks: Any = importlib.import_module("cuda_checks.checks")
command: Any = importlib.import_module("cuda_checks.command")
machine: Any = importlib.import_module("cuda_checks.machine")
memory: Any = importlib.import_module("cuda_checks.memory_checks")
model: Any = importlib.import_module("cuda_checks.model")
plan: Any = importlib.import_module("cuda_checks.plan")
report: Any = importlib.import_module("cuda_checks.report")
session: Any = importlib.import_module("cuda_checks.session")
small: Any = importlib.import_module("cuda_checks.small_checks")

SIX_MINUTES_S = 360
GIB = 2**30


def fake(name: str, run: Any, limit_s: float = 5.0, least_s: float = 0.0) -> Any:
    """A check that needs nothing."""
    return plan.Check(name=name, title=name, run=run, limit_s=limit_s, least_s=least_s)


def fine(turn: Any) -> None:
    turn.figures["seen"] = 1


def fails(turn: Any) -> None:
    turn.figures["seen"] = 2
    raise plan.CheckFailedError("it is not so")


def has_a_bug(_: Any) -> None:
    dict[str, int]()["gone"]


def cannot(_: Any) -> None:
    raise plan.CheckSkippedError("not here")


def hangs(_: Any) -> None:
    time.sleep(30)


def swallows(_: Any) -> None:
    """Handle any error, as a library does."""
    while True:
        try:
            time.sleep(30)
        except Exception:
            continue


def test_no_check_stops_the_others() -> None:
    """Failures, bugs and hangs end a check, keep its figures, and the next one runs."""
    runs = (fails, has_a_bug, hangs, swallows, cannot, fine)
    planned = [fake(run.__name__, run, limit_s=0.6) for run in runs]
    seen: list[Any] = []

    began_s = time.monotonic()
    results = plan.run_plan(planned, total_s=20, on_result=seen.append)

    verdicts = ["failed", "failed", "timed_out", "timed_out", "skipped", "passed"]
    assert [result.verdict for result in results] == verdicts
    assert [result.reason for result in results] == [
        "it is not so",
        "KeyError: 'gone'",
        "not done in 1 s",
        "not done in 1 s",
        "not here",
        "",
    ]
    assert [r.figures for r in (results[0], results[5])] == [{"seen": 2}, {"seen": 1}]
    assert "has_a_bug" in results[1].traceback
    assert [result.is_bad for result in results] == [True] * 4 + [False] * 2
    assert seen == results
    assert time.monotonic() - began_s < 10


def test_all_together_end_in_time() -> None:
    """Checks that hang one after another end at the limit of all; the last get none."""
    planned = [fake(f"hang {number}", hangs) for number in range(4)]

    began_s = time.monotonic()
    results = plan.run_plan(planned, total_s=1.5)

    assert 1.0 < time.monotonic() - began_s < 3
    assert results[0].verdict == "timed_out"
    assert (results[3].verdict, results[3].reason) == (
        "skipped",
        "no time was left for it",
    )


@given(
    times=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12),
    used=st.floats(0, 1),
)
def test_what_is_kept_free_is_there(times: list[tuple[int, int]], used: float) -> None:
    """Each check gets its least time, whatever those before it used of theirs."""
    planned = [fake("a", fine, least + more, least) for least, more in times]
    left_s = float(sum(least for least, _ in times))

    for place, check in enumerate(planned):
        limit_s = plan.time_for(check, planned[place + 1 :], left_s)
        assert check.least_s - 1e-6 <= limit_s <= min(check.limit_s, left_s) + 1e-6
        left_s -= used * limit_s


def test_who_cannot_run_keeps_nothing_free() -> None:
    """The time of a check that needs a second GPU is the others', where there is none."""
    last = fake("last", fine, 50, 50)

    assert plan.time_for(fake("first", fine, 90, 5), [last], 100) == 50
    last = replace(last, why_not="one GPU")
    assert plan.time_for(fake("first", fine, 90, 5), [last], 100) == 90


def test_ctrl_c_ends_the_check_and_the_others_are_not_begun() -> None:
    """What was found until then is still reported."""
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    results = plan.run_plan(
        [fake(n, r) for n, r in (("a", hangs), ("b", fine))], total_s=9
    )

    assert [(r.verdict, r.reason) for r in results] == [
        ("failed", "interrupted"),
        ("skipped", "interrupted"),
    ]


def test_a_command_ends_with_its_check(tmp_path: Path) -> None:
    """Whatever a command has started is gone when the time of the check is up."""
    script = "sleep 60 & echo $! > pid; wait"

    def run(_: Any) -> None:
        command.run_command(["sh", "-c", script], folder=tmp_path)

    result = plan.run_check(fake("a", run), 1.0)

    assert result.verdict == "timed_out"
    assert result.seconds < 4
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


def on(gpus: int, device: str = "cuda") -> list[Any]:
    """The plan of a machine with so many GPUs."""
    gpu = Gpu("NVIDIA H100 80GB HBM3", 80 * GIB, "570.1")
    host = machine.Machine((gpu,) * gpus, "", True)
    planned: list[Any] = checks.plan(session.Session(device, host, Path("unused")))
    return planned


def test_an_offload_tier_fits_into_the_shared_memory_that_there_is() -> None:
    """A container has 64 MiB unless somebody gave it more; it is checked there too."""
    sizes = [8 * GIB, 2 * GIB, 2 * GIB - 1, 64 * 2**20, 0, None]

    assert [memory.tier_for(size)[0] for size in sizes] == [
        *["wide"] * 2,
        *["tiny"] * 3,
        "wide",
    ]


def test_two_gpus_need_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check says how a container gets it, rather than fail."""
    monkeypatch.setattr(small, "free_shm_bytes", lambda: 64 * 2**20)

    assert "--shm-size" in on(2)[-1].why_not
    assert "needs two GPUs" in on(1)[-1].why_not


@pytest.mark.parametrize(
    ("kind", "message", "verdict"),
    [
        ("vllm_out_of_memory", "OutOfMemoryError: CUDA out of memory", "passed"),
        ("vllm_did_not_start", "RuntimeError: the KV cache", "passed"),
        ("vllm_did_not_start", "no start within 41 s", "failed"),
        ("vllm_crashed", "by SIGSEGV", "failed"),
    ],
)
def test_a_start_that_is_slow_says_nothing_of_memory(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
    message: str,
    verdict: str,
) -> None:
    """Only an end for want of memory passes, with its exit code."""
    shared = session.Session("cpu", machine.Machine((), "", True), tmp_path)
    done = command.Done(5, 1.0, "", f"error: {message}")
    outcome = {"kind": kind, "message": message}
    monkeypatch.setattr(memory, "outcome_of", lambda folder: outcome)
    monkeypatch.setattr(memory, "exact_trace", lambda session: Path("exact.jsonl"))
    monkeypatch.setattr(session.Session, "blockbench", lambda *_, **__: done)

    result = plan.run_check(
        fake("memory", lambda turn: memory.absurd_kv_cache(shared, turn)), 60.0
    )

    assert result.verdict == verdict, result


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_the_plan_fits_into_six_minutes(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    """With what it takes to end the last; and all have their least time in it."""
    monkeypatch.setattr(small, "free_shm_bytes", lambda: None)
    planned, total_s = on(gpus), checks.TOTAL_S["cuda"]

    assert total_s + 2 * command.GRACE_S < SIX_MINUTES_S
    assert sum(check.least_s for check in planned if not check.why_not) <= total_s
    assert all(0 < check.least_s <= check.limit_s for check in planned)
    two = planned[-1]
    assert (two.name, bool(two.why_not)) == ("tp", gpus == 1)


def test_a_cpu_has_the_checks_that_need_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others say what they need, and nothing is left out of the report."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    planned = on(0, "cpu")
    here = [check.name for check in planned if not check.why_not]

    assert here == [
        "machine",
        "start",
        "exact",
        "timed",
        "replay",
        "server",
        "memory",
        "tp",
    ]
    assert {c.why_not for c in planned if c.name not in here} == {"needs CUDA"}
    total_s = checks.TOTAL_S["cpu"]
    assert sum(c.least_s for c in planned if c.name in here) <= total_s


def made_once(failing: Exception | BaseException) -> list[str]:
    """Ask three times for a run that fails so; what each asking ends with."""
    shared = session.Session("cpu", machine.Machine((), "", True), Path("unused"))
    calls: list[int] = []

    def make() -> Any:
        calls.append(1)
        raise failing

    ends = []
    for _ in range(3):
        try:
            shared.once("exact", make)
        except BaseException as error:
            ends.append(f"{type(error).__name__}: {error}")
    assert len(calls) == 1
    return ends


def test_a_run_that_failed_is_not_made_again() -> None:
    """The check that made it failed; those that need it are skipped and say why."""
    because = "CheckSkippedError: the run 'exact'"

    assert made_once(plan.CheckFailedError("no memory")) == [
        "CheckFailedError: no memory",
        f"{because}: no memory",
        f"{because}: no memory",
    ]
    late = f"{because} was not done in time, in the check that began it"
    assert made_once(plan.TimeIsUpError()) == ["TimeIsUpError: ", late, late]


def test_the_report_names_no_folder_and_is_whole(tmp_path: Path) -> None:
    """Home, folders and addresses are left out, figures JSON has not are null."""
    shared = session.Session("cuda", machine.Machine((), "", True), tmp_path)
    home = os.path.expanduser("~")
    result = plan.Result(
        name="start",
        title="a",
        verdict=plan.Verdict.FAILED,
        reason=f"no {home}/x and no {tmp_path}/y at 10.1.2.3:80",
        figures={"a": float("nan"), 3: (1, Path(sys.prefix)), "log": [f"{sys.prefix}/z"]},
    )
    whole = report.document([result], device="cuda", machine={}, wall_s=1.0, limit_s=2.0)
    file = tmp_path / "report.json"
    report.write_report(file, whole, shared.shorten)

    sent = json.loads(file.read_text())
    assert report.problems_of(sent) == []
    assert not sent["ok"]
    (check,) = sent["checks"]
    assert check["reason"] == "no ~/x and no FOLDER/y at ADDRESS:80"
    assert check["figures"]["a"] is None
    assert check["figures"]["log"] == ["PYTHON/z"]
    assert report.problems_of(sent | {"kind": "run"}) == ["run 1 is no cuda_check"]
    assert report.problems_of({"kind": "cuda_check"})
    broken = sent | {"checks": [check | {"verdict": "odd"}]}
    assert report.problems_of(broken) == ["check 0: verdict 'odd'"]


def test_readings_of_each_gpu() -> None:
    """Rises are from the first reading, links the fastest; half a line is no reading."""
    seen = machine.Watched()
    seen.read("0, 500, 1, 16\n1, 20, 1, 8\n0, 900, 5, 16\n1, 20, [N/A], 8\n0, 7")

    assert seen.rises() == {"0": 400 * 2**20, "1": 0}
    assert seen.pcie_link == {"0": (5, 16), "1": (1, 8)}


def test_the_model_fits_the_gpu() -> None:
    """Most of the memory is left to the KV cache; one that tells nothing gets least."""
    sizes = [80 * GIB, 24 * GIB, 15 * GIB, 8 * GIB, None]

    assert [model.big_model_for(size) for size in sizes] == [
        "Llama-3.1-8B",
        *["Llama-3.2-3B"] * 2,
        *["Llama-3.2-1B"] * 2,
    ]


def test_shapes_are_those_of_the_profiles(tmp_path: Path) -> None:
    """The configurations that we write give the weights of the real models."""
    for name, shape in model.BIG.items():
        folder = model.write_model(tmp_path / name, shape)
        ours, real = (
            weight_bytes(load_model(each)) for each in (str(folder), f"meta-llama/{name}")
        )
        assert ours == real, name


def script(*flags: str, path: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, str(BENCHMARKS / "cuda_check.py"), *flags]
    env = os.environ | {"PATH": path}
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=60)


def test_without_a_gpu_or_vllm_the_script_says_so(tmp_path: Path) -> None:
    """Exit code 2, what is missing, and how it is had; no file is written."""
    file = tmp_path / "cuda_check.json"

    done = script("-o", str(file), path=str(tmp_path))

    assert done.returncode == 2
    assert done.stderr.startswith(("error: vLLM is not installed", "error: no CUDA GPU"))
    assert not file.exists()
