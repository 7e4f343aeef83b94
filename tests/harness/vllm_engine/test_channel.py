"""The child's side of the pipe: signs of life, orders, and an end with its parent."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

CHILD = """
import sys, time
from harness.vllm_engine.child.channel import Channel
channel = Channel(int(sys.argv[1]))
channel.num_progress, channel.has_work = 7, True
channel.go.wait()
channel.send("going", is_stopped=channel.stopped.is_set())
channel.stopped.wait()
channel.send("stopping")
channel.close()
"""

Start = Callable[[], tuple[subprocess.Popen[bytes], Any]]


@pytest.fixture
def start() -> Start:
    """Return a starter of a child in a group of its own; it gives the pipe's lines."""

    def start() -> tuple[subprocess.Popen[bytes], Any]:
        ours, theirs = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(theirs)],
            stdin=subprocess.PIPE,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)
        return child, os.fdopen(ours, "rb")

    return start


def test_orders_are_obeyed_and_signs_of_life_come(start: Start) -> None:
    """A beat tells what was got done; go and stop do what they say."""
    child, lines = start()
    with lines, child:
        assert child.stdin is not None
        beat = json.loads(lines.readline())
        assert beat == {"event": "beat", "num_progress": 7, "has_work": True}
        child.stdin.write(b"go\nstop\n")
        child.stdin.flush()
        said = [json.loads(line)["event"] for line in lines]

    assert [event for event in said if event != "beat"] == ["going", "stopping"]
    assert child.returncode == 0


def test_a_child_ends_with_its_parent(start: Start) -> None:
    """When nobody can give orders any more, the whole group goes."""
    child, lines = start()
    with lines:
        assert json.loads(lines.readline())["event"] == "beat"
        assert child.stdin is not None
        child.stdin.close()

        assert child.wait(10) == -9
