"""Stored runs as arms of a comparison, and what keeps them from being one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from results.comparison.arm import Arm, ArmRun
from results.comparison.comparable import Hindrance, hindrances
from results.goodput import Slo
from results.runs import find_run
from results.stored_run import StoredRun, load_run, names_missing_key


def load_stored(names: Sequence[str]) -> list[StoredRun]:
    """The runs that are meant, each as ``blockbench show`` finds it.

    Raises:
        RunFolderError: One is not there or cannot be read.
        UsageError: A run is named twice.
    """
    stored = [load_run(find_run(name)) for name in names]
    folders = [run.folder.resolve() for run in stored]
    for name, folder in zip(names, folders, strict=True):
        if folders.count(folder) > 1:
            raise UsageError(f"{name} is named twice; a run is no other than itself")
    return stored


def arms_of(
    stored: Sequence[StoredRun],
    slo: Slo | None,
    names_of_arms: Mapping[Path, str] | None = None,
) -> list[Arm]:
    """One arm a run; measured runs of one configuration are repeats of one arm.

    Args:
        stored: The runs, in the order of their arms.
        slo: Limits that all are judged by, instead of what each was run with.
        names_of_arms: What the arm of a folder is called, other than the folder.
    """
    limits = None if slo is None else slo.to_dict()
    keys = [_identity(place, run) for place, run in enumerate(stored)]
    first_place = {key: place for place, key in reversed(list(enumerate(keys)))}
    order = sorted(range(len(stored)), key=lambda place: first_place[keys[place]])
    names = _names([run.folder for run in stored])
    if names_of_arms is not None:
        called = [names_of_arms.get(run.folder) for run in stored]
        names = [given or name for given, name in zip(called, names, strict=True)]
    return [
        _arm(names[places[0]], [stored[place] for place in places], limits)
        for places in (list(g) for _, g in groupby(order, key=keys.__getitem__))
    ]


def _identity(place: int, run: StoredRun) -> str:
    """What repeats have in common; a simulated run has no repeats."""
    if run.info.source == "simulated":
        return str(place)
    config = {name: v for name, v in run.info.config.items() if name != "notes"}
    of_trace = [run.info.trace.get("content_hash"), run.info.trace["num_requests"]]
    return json.dumps([config, of_trace], sort_keys=True)


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names where they tell them apart, else as they were found."""
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(names) else [str(f) for f in folders]


def _arm(name: str, stored: Sequence[StoredRun], limits: Any) -> Arm:
    runs = [_arm_run(run, limits) for run in stored]
    return Arm(name=name, config=stored[0].info.config, runs=runs)


def _arm_run(stored: StoredRun, limits: Any) -> ArmRun:
    info = stored.info if limits is None else replace(stored.info, slo=limits)
    with names_missing_key(stored.folder):
        return ArmRun.of(
            info,
            stored.request_columns,
            stored.step_columns,
            folder=str(stored.folder),
            created_at=stored.run["created_at"],
            blockbench=str(stored.run["environment"].get("blockbench", "")),
        )


def refuse_incomparable(
    base: Arm, arms: Sequence[Arm], allowed: Sequence[Hindrance]
) -> list[str]:
    """What keeps arms from being compared and was allowed, as notes.

    Raises:
        UsageError: Something was not allowed; names it and what allows it.
    """
    found = [refusal for arm in arms if arm.runs for refusal in hindrances(base, arm)]
    refused = [refusal for refusal in found if refusal.hindrance not in allowed]
    if refused:
        messages = dict.fromkeys(refusal.message for refusal in refused)
        names = dict.fromkeys(refusal.hindrance.value for refusal in refused)
        raise UsageError(
            f"{'; '.join(messages)}: a difference would say little of the settings;"
            f" {' '.join(f'--allow {name}' for name in names)} compares them all the same"
        )
    return list(dict.fromkeys(refusal.message for refusal in found))
