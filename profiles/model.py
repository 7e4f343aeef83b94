"""Models by name: those that come along, and those that a user has the config.json of."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from profiles.architecture import ModelProfile
from profiles.errors import UnknownNameError
from profiles.layer import Experts, Mla, Module
from profiles.model_config import ModelConfigError, read_config
from profiles.quantization import Quantization

__all__ = [
    "Experts",
    "Mla",
    "ModelProfile",
    "Module",
    "Quantization",
    "known_models",
    "load_model",
]


def load_model(name: str) -> ModelProfile:
    """Return the profile of a Hugging Face id, of its part after the slash, or of a file.

    Args:
        name: A bundled model's; or the path of a config.json, of a folder with one, or of
            a .toml file with the keys of an entry of ``profiles/data/models.toml``.

    Raises:
        UnknownNameError: No profile has this name, whatever its case, and no file either.
        ProfileError: The file is there, and describes no model that is understood.
    """
    key = name.strip().lower()
    names = _names()
    if key in names:
        return _bundled(names[key])
    path = Path(name.strip()).expanduser()
    if key and (path.suffix in (".json", ".toml") or path.exists()):
        return _read_file(path / "config.json" if path.is_dir() else path)
    raise UnknownNameError("model", name, known_models())


def known_models() -> tuple[str, ...]:
    """Hugging Face ids of all bundled profiles, in the order of the data file."""
    return tuple(_entries())


@cache
def _entries() -> dict[str, dict[str, Any]]:
    text = (files("profiles") / "data" / "models.toml").read_text(encoding="utf-8")
    return {entry["name"]: entry for entry in tomllib.loads(text)["model"]}


@cache
def _names() -> dict[str, str]:
    """Id of each name in small letters, with and without its owner."""
    return {
        key: entry["name"]
        for entry in _entries().values()
        for key in _keys(entry["name"], *entry["aliases"])
    }


def _keys(*names: str) -> Iterator[str]:
    for name in names:
        yield name.lower()
        yield name.lower().split("/")[-1]


@cache
def _bundled(name: str) -> ModelProfile:
    return _from_entry(_entries()[name], source=None)


def _from_entry(entry: Mapping[str, Any], source: str | None) -> ModelProfile:
    """The profile of an entry, on top of the entry that it is ``like``."""
    config = entry["config"]
    if "like" in entry:
        config = {**_entries()[entry["like"]]["config"], **config}
    return read_config(config, name=entry["name"], source=source or entry["source"])


def _read_file(path: Path) -> ModelProfile:
    content = _parsed(path)
    if path.suffix == ".toml":
        return _from_entry(_only_entry(content, path), source=str(path))
    given = str(content.get("_name_or_path") or "")
    is_path = given.startswith((".", "/", "~")) or "\\" in given
    name = path.absolute().parent.name if not given or is_path else given
    return read_config(content, name=name, source=str(path))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        remedy = "give a config.json, a folder that holds it, or a bundled model"
        raise ModelConfigError(str(path), "the file", "cannot be read", remedy) from error
    except UnicodeDecodeError as error:
        raise ModelConfigError(
            str(path), "the file", "is not text", "give a config.json"
        ) from error
    try:
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise ModelConfigError(
            str(path), "the text", f"cannot be parsed: {error}", "mend it there"
        ) from error
    if not isinstance(content, dict):
        raise ModelConfigError(
            str(path), "the content", "is no table of keys", "give a config.json"
        )
    return content


def _only_entry(content: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The one entry of a user's file, under ``[[model]]`` or at its top."""
    entries = content.get("model", [content])
    if not isinstance(entries, list) or len(entries) != 1:
        raise ModelConfigError(
            str(path), "[[model]]", "is not one entry", "give a file with one model"
        )
    entry = entries[0] if isinstance(entries[0], dict) else {}
    for key, kind in (("name", str), ("config", dict)):
        if not isinstance(entry.get(key), kind):
            raise ModelConfigError(
                str(path), key, "is missing", "add name and a [config] table"
            )
    if entry.get("like", "") not in ("", *known_models()):
        raise UnknownNameError("model", str(entry["like"]), known_models())
    return {"aliases": (), **entry}
