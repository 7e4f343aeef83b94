"""What vLLM printed, read for the line that says what went wrong."""

import re
from pathlib import Path

MOST_READ = 2**20
MOST_QUOTED = 300

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TELLING = re.compile(
    r"^(?:\(\S+ pid=\d+\) )?(?:\w+ [\d: -]+\[\S+\] )?[\w.]*(?:Error|Exception)\b"
)
_PERHAPS = re.compile(r"error|out of memory|killed|cannot|failed", re.IGNORECASE)
_CHATTER = re.compile(r"\b(?:INFO|DEBUG) [\d-]+ ")
_NO_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|No available memory for the cache blocks"
    r"|less than desired GPU memory utilization|KV cache is needed, which is larger"
    r"|can't allocate memory|DefaultCPUAllocator",
    re.IGNORECASE,
)
_WITHOUT_CAUSE = re.compile(
    r"(?:WorkerProc|Engine core) initialization failed|Executor failed|\bcancelled\b"
)
"""Of a process that only knows that another failed, which has said why before.

Source: vLLM 0.32.0, ``v1/executor/multiproc_executor.py``, ``v1/engine/utils.py``.
"""

_BACKEND = re.compile(r"Using (?:the )?([\w./ -]+?)(?: attention)? backend\b")


def read_log(path: Path) -> list[str]:
    """The last lines of a log, without colours; none where there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_READ))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [_COLOUR.sub("", line).rstrip() for line in text.splitlines()]


def last_telling_line(lines: list[str]) -> str:
    """The last line that names an error, or may; nothing where none does.

    One that only says that another process failed counts where there is no other.
    """
    candidates = [line for line in reversed(lines) if not _CHATTER.search(line)]
    causes = [line for line in candidates if has_cause(line)]
    for those in (causes, candidates):
        for pattern in (_TELLING, _PERHAPS):
            for line in those:
                if pattern.search(line):
                    return quoted(line)
    return ""


def has_cause(message: str) -> bool:
    """Whether an error says what went wrong, rather than that something did elsewhere."""
    return _WITHOUT_CAUSE.search(message) is None


def quoted(text: str) -> str:
    """The text in one line, cut where it gets long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_QUOTED else f"{line[: MOST_QUOTED - 2]} …"


def is_out_of_memory(text: str) -> bool:
    """Whether a message is about memory that is not there."""
    return _NO_MEMORY.search(text) is not None


def attention_backend(lines: list[str]) -> str | None:
    """The backend that vLLM said it uses; None where it did not say."""
    for line in lines:
        found = _BACKEND.search(line)
        if found and re.search("attention|attn|flash", line, re.IGNORECASE):
            return found[1].removeprefix("AttentionBackendEnum.")
    return None
