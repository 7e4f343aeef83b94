"""Which of the two settings a running server has, as far as it says."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench_cli.tune_verify_side import Side, differing
from bench_cli.tune_words import shown

if TYPE_CHECKING:
    from bench_cli.tune_verify_plan import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Whose settings a server has.

    Attributes:
        side: What it is set beside.
        is_known: Whether it is the only one of the two that the server can have.
        reason: Why, in words.
    """

    side: Side
    is_known: bool
    reason: str


def side_of_server(found: "Verification") -> ServerSettings:
    """The side whose settings the server has; the present ones where it does not say.

    Only knobs in which the two differ tell them apart.
    """
    config = found.server_runs[0].info.config
    changed = [n for n, v in found.answer.knobs.items() if v != _start(found, n)]
    others = {side.name: _others(side, config, changed) for side in found.sides}
    fitting = [side for side in found.sides if not others[side.name]]
    said = [name for name in changed if config.get(name) is not None]
    current = found.sides[0]
    if len(found.sides) == 1:
        reason = "nothing is to be changed"
        return ServerSettings(side=current, is_known=True, reason=reason)
    if not fitting:
        told = ", ".join(f"{n} {shown(config[n])}" for n in said)
        reason = f"it has {told}, which neither has"
        return ServerSettings(side=current, is_known=False, reason=reason)
    if len(fitting) == 1:
        (side,) = fitting
        told = ", ".join(f"{n} {shown(config[n])}" for n in said)
        return ServerSettings(side=side, is_known=True, reason=f"it has {told}")
    reason = f"it does not say its {', '.join(changed)}"
    if found.asked.current is not None:
        reason += ", and --current says that these run"
    return ServerSettings(side=current, is_known=False, reason=reason)


def _start(found: "Verification", name: str) -> Any:
    return found.answer.question.start[name]


def _others(side: Side, config: Any, changed: list[str]) -> list[str]:
    found = differing(side.simulated.info.config, config)
    return [name for name in changed if name in found]


def other_side(found: "Verification", side: Side) -> Side | None:
    """The side that a server would have to be started anew for; None for none."""
    return next((each for each in found.sides if each is not side), None)
