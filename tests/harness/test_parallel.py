"""Tests for :mod:`harness.parallel`: tasks in processes that nothing leaves behind."""

import importlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import task_process
from harness.errors import EngineError, TraceError, UsageError
from harness.parallel import Progress, ReplayPool, default_jobs
from harness.schedulers.errors import SchedulerDiedError
from profiles.errors import CapacityError, ProfileError, UnknownNameError
from profiles.model_config import ModelConfigError
from results.errors import ResultsError, RunFolderError

sys.path.append(str(Path(__file__).parent))
tasks: Any = importlib.import_module("parallel_tasks")

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")


@pytest.fixture
def pool() -> Iterator[ReplayPool]:
    """Two processes at most."""
    with ReplayPool(2, preload=["pytest", "parallel_tasks"]) as pool:
        yield pool
    assert multiprocessing.active_children() == []


class Seen:
    """What a map told of its progress."""

    def __init__(self) -> None:
        self.all: list[Sequence[Progress]] = []

    def __call__(self, progress: Sequence[Progress]) -> None:
        self.all.append(progress)

    def num_begun(self) -> int:
        return sum(task.done > 0 for task in self.all[-1]) if self.all else 0


def test_results_are_in_order_of_the_arguments(pool: ReplayPool) -> None:
    """A task that ends sooner than the one before it does not change places with it."""
    results = pool.map(tasks.double, [0, 1, 2, 3, 4], labels=list("abcde"))

    assert [result[0] for result in results if result] == [0, 2, 4, 6, 8]


def test_no_more_processes_than_jobs_or_arguments(pool: ReplayPool) -> None:
    """One argument starts one process of two; five have the two that there may be."""
    one = pool.map(tasks.double, [0], labels=["a"])
    assert len(multiprocessing.active_children()) == 1
    five = pool.map(tasks.double, [0, 0, 0, 0, 0], labels=list("abcde"))

    assert len({result[1] for result in five}) == 2
    assert one[0][1] in {result[1] for result in five}  # it is kept from map to map
    assert os.getpid() not in {result[1] for result in five}


def test_nothing_to_do_takes_no_process(pool: ReplayPool) -> None:
    """No arguments have no results, and start nothing."""
    assert pool.map(tasks.double, [], labels=[]) == []
    assert multiprocessing.active_children() == []


def test_without_a_server_processes_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the platform cannot fork from one, tasks run all the same."""
    monkeypatch.setattr(task_process, "get_all_start_methods", lambda: ["spawn"])

    with ReplayPool(1) as pool:
        assert pool.map(tasks.double, [1], labels=["a"])[0][0] == 2
        assert "Spawn" in type(multiprocessing.active_children()[0]).__name__


def test_progress_is_told_while_tasks_run_and_at_the_end(pool: ReplayPool) -> None:
    """Each task's counts arrive under its label, whichever process has it."""
    seen = Seen()

    pool.map(tasks.double, [1, 2, 3], labels=list("abc"), on_progress=seen)

    assert seen.all[0] == tuple(Progress(label=label) for label in "abc")
    assert seen.all[-1] == tuple(
        Progress(label=label, done=n, total=10, is_finished=True)
        for n, label in enumerate("abc", 1)
    )


def test_stop_ends_running_tasks_and_begins_no_other(pool: ReplayPool) -> None:
    """Those that run give their results; the third was never begun and has None."""
    seen = Seen()

    results = pool.map(
        tasks.until_stopped,
        ["a", "b", "c"],
        labels=list("abc"),
        on_progress=seen,
        is_stopped=lambda: seen.num_begun() == 2,
    )

    assert results == ["a", "b", None]
    assert [task.is_finished for task in seen.all[-1]] == [True, True, False]


def test_stopped_pool_can_be_used_again(pool: ReplayPool) -> None:
    """A stop is for one map."""
    first = pool.map(tasks.double, [1, 2], labels=["a", "b"], is_stopped=lambda: True)
    then = pool.map(tasks.double, [3], labels=["c"])

    assert first == [None, None]
    assert then[0] is not None


ERRORS = [
    TraceError("t.jsonl", "no rows", "add some", line=3),
    UsageError("two flags"),
    SchedulerDiedError("no_cpu_swap_space", "it died"),
    ProfileError("no profile"),
    UnknownNameError("GPU", "H10", ["H100", "A100"]),
    CapacityError("0 blocks", "1 is needed", "take a larger GPU"),
    ModelConfigError("config.json", "hidden_size", "is missing", "add it"),
    ResultsError("no results"),
    RunFolderError("no run"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_our_errors_survive_another_process(error: Exception) -> None:
    """Type, text and attributes are the same afterwards."""
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_exception_of_a_task_reaches_the_caller(pool: ReplayPool) -> None:
    """As itself, and where it was raised as a note; no process is left."""
    with pytest.raises(TraceError, match=r"t.jsonl:3: no rows; add some") as caught:
        pool.map(tasks.fail, [None, ERRORS[0]], labels=["a", "b"])

    assert "parallel_tasks.py" in caught.value.__notes__[0]
    assert multiprocessing.active_children() == []
    assert pool.map(tasks.double, [1], labels=["a"])[0] is not None


def test_error_that_cannot_be_restored_is_told(pool: ReplayPool) -> None:
    """Its name and text come as a RuntimeError."""
    with pytest.raises(RuntimeError, match=r"ChattyError: too much to say \(7\)"):
        pool.map(tasks.fail_chattily, ["a"], labels=["a"])


def test_result_that_does_not_pickle_is_an_error(pool: ReplayPool) -> None:
    """Rather than a process that waits for ever."""
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pool.map(tasks.return_lambda, ["a"], labels=["a"])


def test_argument_that_does_not_pickle_is_an_error(pool: ReplayPool) -> None:
    """The task that runs already is stopped, and nobody is left."""
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pool.map(tasks.until_stopped, ["a", lambda: None], labels=["a", "b"])

    assert multiprocessing.active_children() == []


def test_interrupt_of_the_caller_ends_the_tasks(pool: ReplayPool) -> None:
    """Whatever on_progress raises passes through, and takes the processes along."""
    seen = Seen()

    def interrupt(progress: Sequence[Progress]) -> None:
        seen(progress)
        if seen.num_begun() == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.map(tasks.until_stopped, "ab", labels="ab", on_progress=interrupt)

    assert multiprocessing.active_children() == []


def test_task_that_does_not_stop_is_killed(
    pool: ReplayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When another failed, it has so long and no longer."""
    monkeypatch.setattr("harness.parallel.GRACE_S", 0.2)
    started_s = time.monotonic()

    def interrupt(progress: Sequence[Progress]) -> None:
        if progress[0].done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.map(tasks.never_ask, ["a"], labels=["a"], on_progress=interrupt)

    assert multiprocessing.active_children() == []
    assert time.monotonic() - started_s < 5


@POSIX
def test_killed_process_is_named_with_the_remedy(pool: ReplayPool) -> None:
    """The error says on what it worked, the signal, and what to do."""
    with pytest.raises(EngineError) as caught:
        pool.map(tasks.die, ["other", "victim"], labels=["v0", "v1"])

    assert str(caught.value) == (
        "the process that worked on v1 ended with signal 9, perhaps for want of memory;"
        " each process needs memory for a replay of its own; run fewer jobs at a time"
    )
    assert multiprocessing.active_children() == []


@POSIX
def test_process_killed_while_idle_is_an_error(pool: ReplayPool) -> None:
    """The next map finds out; the one after it has a new process."""
    pid = pool.map(tasks.double, [1], labels=["a"])[0][1]
    process = next(p for p in multiprocessing.active_children() if p.pid == pid)
    os.kill(pid, signal.SIGKILL)
    process.join(5)

    with pytest.raises(EngineError, match="worked on b ended with signal 9"):
        pool.map(tasks.double, [1], labels=["b"])

    assert pool.map(tasks.double, [1], labels=["c"])[0][1] != pid


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    """A pool at work, in a process group of its own; it leaves no file behind."""
    with (
        tempfile.TemporaryDirectory() as folder,  # a socket's path must be short
        subprocess.Popen(
            [sys.executable, tasks.__file__, *getattr(request, "param", ())],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": folder},
            start_new_session=True,
        ) as script,
    ):
        assert script.stdout is not None
        assert script.stdout.readline() == "at work\n"
        yield script
        script.kill()
        assert os.listdir(folder) == []


@POSIX
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_to_the_whole_group_is_the_parents(
    script: "subprocess.Popen[str]", name: str
) -> None:
    """The parent stops the tasks and has their results; nothing is printed but them."""
    os.killpg(script.pid, getattr(signal, name))

    assert script.communicate(timeout=10) == ("['a', 'b']\n", "")


@POSIX
@pytest.mark.parametrize("script", [["early"]], indirect=True)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_while_the_server_starts_harms_nothing(
    script: "subprocess.Popen[str]", name: str
) -> None:
    """Tasks can be begun afterwards, and no traceback is printed."""
    os.killpg(script.pid, getattr(signal, name))

    output, errors = script.communicate(timeout=10)

    assert output.endswith("['a', 'b']\n")
    assert errors == ""


@POSIX
@pytest.mark.parametrize("script", [["never_ask"]], indirect=True)
def test_nobody_outlives_a_killed_parent(script: "subprocess.Popen[str]") -> None:
    """Every process it started lets go of its stdout, busy as they were."""
    killed_s = time.monotonic()
    script.kill()

    assert script.communicate(timeout=10) == ("", "")  # at its end: nobody holds it
    assert time.monotonic() - killed_s < 2


def test_jobs_by_default_are_the_cpus_of_this_process() -> None:
    """Never none, and never more than the machine has."""
    assert 1 <= default_jobs() <= (os.cpu_count() or 1)


def test_no_jobs_are_refused() -> None:
    """The message says how many there may be."""
    with pytest.raises(
        UsageError, match="0 jobs were asked for; a replay needs at least 1"
    ):
        ReplayPool(0)


def test_counters_are_cheap() -> None:
    """A million questions whether to stop take well below a second."""
    board = task_process.Board(multiprocessing.get_context("spawn"), 1)
    started_s = time.perf_counter()
    for _ in range(100_000):
        board.is_stopped()

    assert time.perf_counter() - started_s < 0.1
