"""What a probe of this machine reports."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a check ended; only a problem keeps blockbench from its work."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, and what to do about it.

    Attributes:
        name: Stable name for scripts.
        found: One sentence, without a full stop.
        advice: The remedy, as a command where there is one; empty if nothing is amiss.
        data: The facts behind the words, as strict JSON.
        when_amiss: How the check ended if there is advice.
    """

    name: str
    found: str
    advice: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    when_amiss: Status = Status.NOTE

    @property
    def status(self) -> Status:
        """Whether blockbench can work with what was found."""
        return self.when_amiss if self.advice else Status.OK

    def to_dict(self) -> dict[str, Any]:
        """The check as it stands in the document, its data beside its words."""
        return {
            "name": self.name,
            "status": self.status.value,
            "found": self.found,
            "advice": self.advice,
            **self.data,
        }
