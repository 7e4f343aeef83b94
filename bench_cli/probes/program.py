"""Other programs, asked for a line or two."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program printed; ``failure`` says why, where there is nothing to read."""

    text: str = ""
    failure: str = ""


def ask(command: Sequence[str], *, timeout_s: float) -> Answer:
    """What a program prints on stdout, or why it does not.

    One that a driver holds cannot even be killed; it is left behind after a second.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        return Answer(failure=f"could not be started: {error.strerror or error}")
    try:
        text, complaint = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return Answer(failure=f"did not end within {timeout_s:g} s")
    finally:
        _end(process)
    if process.returncode:
        return Answer(failure=_why_it_ended(process.returncode, complaint or text))
    return Answer(text=text)


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _why_it_ended(code: int, complaint: str) -> str:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    lines = [words for line in complaint.splitlines() if (words := printable(line))]
    return f"{how}: {lines[-1]}" if lines else how


def printable(text: str) -> str:
    """The text as one short line without signs that steer a terminal."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(shown.split())[:200]
