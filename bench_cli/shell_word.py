"""A shell command cut into words, each beside the text that it was written as."""

import re
import shlex
from dataclasses import dataclass

from harness.errors import UsageError

_WORD = re.compile(r"""(?:[^\s'"\\;&|<>()]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
_CONTINUED = re.compile(r"\\\r?\n")
_NEGATIVE_NUMBER = re.compile(r"-\.?\d")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command.

    Attributes:
        raw: As it was written, quotes and all.
        value: What a program gets, variables left as they are.
    """

    raw: str
    value: str

    @classmethod
    def read(cls, raw: str) -> "Word":
        """The word that a text without spaces outside its quotes stands for."""
        return cls(raw, "".join(shlex.split(raw)))

    @property
    def is_flag(self) -> bool:
        """Whether an option begins with it; a negative number is none."""
        return self.value.startswith("-") and not _NEGATIVE_NUMBER.match(self.value)


def words_of(command: str) -> list[Word]:
    """The words of one command, which may go on over lines that end with a backslash.

    Raises:
        UsageError: A quote is open, or the shell would do more than run one command.
    """
    text = _CONTINUED.sub("", command)
    words = []
    place = _end_of_space(text, 0)
    while place < len(text):
        found = _WORD.match(text, place)
        if found is None:
            raise UsageError(_problem(text[place:]))
        words.append(Word.read(found[0]))
        place = _end_of_space(text, found.end())
    return words


def _end_of_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _problem(rest: str) -> str:
    if rest[0] in "'\"\\":
        return f"the command has a quote that nothing closes at {rest[:20]!r}; close it"
    return (
        f"the command goes on with {rest[:20]!r}, which is for the shell; give the one"
        " command that starts vLLM, and quote what belongs to it"
    )
