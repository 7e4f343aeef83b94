"""What is set otherwise in two arms, in words."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.comparison.arm import Arm
    from results.comparison.comparison import ArmResult

MOST_NAMED = 6
"""Knobs on the screen; ``--json`` has all."""


def settings_of(base: "Arm", result: "ArmResult") -> str:
    """What differs from the baseline; empty where the names of both arms tell it."""
    if not (_is_named_by_folder(base) or _is_named_by_folder(result.arm)):
        return ""
    configs = base.config, result.arm.config
    changes = [
        f"{knob} {' -> '.join(_value(config.get(knob)) for config in configs)}"
        for knob in result.differs
    ]
    if len(changes) > MOST_NAMED:
        changes[MOST_NAMED:] = [f"{len(changes) - MOST_NAMED} more, see --json"]
    return f"settings: {', '.join(changes) or 'the same'}"


def _is_named_by_folder(arm: "Arm") -> bool:
    return any(arm.name in (run.folder, Path(run.folder).name) for run in arm.runs)


def _value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "not set", True: "on", False: "off"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
