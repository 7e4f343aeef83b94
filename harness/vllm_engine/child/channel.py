"""The child's side of the pipe: events go out, orders come in.

An event is a line of JSON: an object with its kind under ``event``. The parent learns
from ``beat``, which comes every ``BEAT_S`` whatever the engine does, how many steps it
has made and whether it has work. A parent that is gone takes the child with it.
"""

import os
import signal
import sys
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import orjson

from harness.vllm_engine.shared_memory import remove, segments_of

BEAT_S = 0.5


class Channel:
    """Events to the parent, written by a thread so that nothing waits for the pipe.

    Attributes:
        go: Set once the parent lets the replay begin.
        stopped: Set once the parent wants it to end.
        num_progress: What has been got done, for the parent to see that something is.
        has_work: Whether the engine has requests.

    Args:
        fd: The pipe's end.
    """

    def __init__(self, fd: int) -> None:
        self.go, self.stopped = Event(), Event()
        self.num_progress = 0
        self.has_work = False
        self._fd = fd
        self._events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._writer = Thread(target=self._write, daemon=True)
        self._writer.start()
        self._closed = Event()
        Thread(target=self._beat, daemon=True).start()
        Thread(target=self._obey, daemon=True).start()

    def send(self, event: str, **values: Any) -> None:
        """Send an event; values are what orjson can write, dataclasses included."""
        self._events.put({"event": event} | values)

    def close(self) -> None:
        """Send what waits."""
        self._closed.set()
        self._events.put(None)
        self._writer.join()

    def _write(self) -> None:
        while (event := self._events.get()) is not None:
            line = memoryview(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE))
            while line:
                line = line[os.write(self._fd, line) :]

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            self.send("beat", num_progress=self.num_progress, has_work=self.has_work)

    def _obey(self) -> None:
        for line in sys.stdin:
            order = line.strip()
            if order == "go":
                self.go.set()
            elif order == "stop":
                self.stopped.set()
                self.go.set()
        if not self._closed.is_set():  # the parent is gone, and vLLM's workers go too
            remove(segments_of(os.getpgrp()))
            os.killpg(os.getpgrp(), signal.SIGKILL)
