"""Errors raised when a name, a version or a configuration cannot be used."""

import difflib
from collections.abc import Iterable
from typing import Any

MOST_NAMES = 20
"""Names that a message can hold."""


class ProfileError(Exception):
    """Base class of every error this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies be made, other processes' too, past the parameters of __init__."""
        return Exception.__new__, (type(self), *self.args), self.__dict__


class UnknownNameError(ProfileError):
    """No profile has this name; the message lists the nearest ones that exist."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], remedy: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        which = f"it must be one of {', '.join(self.known)}"
        if len(self.known) > MOST_NAMES:
            which = f"blockbench profiles list has the {len(self.known)} that are known"
        super().__init__(
            f"no {kind} is called {name!r}; {which};"
            f" did you mean {' or '.join(self.nearest)}?{remedy and f' Else {remedy}'}"
        )

    @property
    def nearest(self) -> tuple[str, ...]:
        """The known names most like the one asked for, best first, at least one."""
        by_lower = {known.lower(): known for known in self.known}
        close = difflib.get_close_matches(self.name.lower(), by_lower, n=2, cutoff=0.5)
        if not close:
            close = difflib.get_close_matches(self.name.lower(), by_lower, 1, 0.0)
        return tuple(by_lower[name] for name in close)


class CapacityError(ProfileError):
    """A configuration under which the engine could not start.

    Attributes:
        what_is: The state of things, with its figures.
        needed: What would have been needed instead.
        remedy: What to do about it.
    """

    def __init__(self, what_is: str, needed: str, remedy: str) -> None:
        self.what_is = what_is
        self.needed = needed
        self.remedy = remedy
        super().__init__(f"{what_is}; {needed}; {remedy}")
