"""One thing that a run taught about its configuration: a sentence with a remedy."""

from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the user should know, and what to do about it.

    Attributes:
        code: Stable name for scripts, in snake case.
        severity: ``error`` when the run could not do what was asked, ``warning`` when
            it lost time or requests, ``info`` otherwise.
        message: One sentence, with the figures that support it.
        advice: The remedy, as a flag where there is one; may be empty.
    """

    code: str
    severity: Severity
    message: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """The finding as it stands in the summary document."""
        return asdict(self)
