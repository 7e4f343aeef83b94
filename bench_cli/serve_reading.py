"""Reads the command that starts vLLM."""

import math
import re
from typing import Any

from bench_cli.serve_line import API_SERVER, BACKEND_FLAG, ServeLine
from bench_cli.shell_word import Word, words_of
from harness.errors import UsageError
from profiles.serve_option import GIB, OPTIONS, ServeOption

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_SIZE = re.compile(r"(\d{1,18})(\.\d{1,18})?([kKmMgGtT])")
_MULTIPLES = {
    **{"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
    **{"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
}
_POLICIES = {"0": "v0", "1": "v1"}
_SWITCHED = {"true": True, "false": False}

_OPTION_BY_FLAG = {
    flag: option for option in OPTIONS.values() for flag in (option.flag, *option.others)
}
_SWITCHED_OFF = {
    f"--no-{option.key}": option for option in OPTIONS.values() if option.kind == "switch"
}
MODELLED_FLAGS = ("--model", BACKEND_FLAG, *_OPTION_BY_FLAG, *_SWITCHED_OFF)
"""All that is read and not kept."""

_Group = tuple[Word, list[Word]]
"""An option and the words up to the next one."""


def parse_serve(text: str) -> ServeLine:
    """Read ``vllm serve MODEL …``, or the same through ``python -m``.

    Options may be written ``--a=b`` or ``--a b``, with underscores for dashes, or short.
    What is not modelled is kept, with all that follows it up to the next option. The
    version is not known here, so that options of all versions are taken.

    Raises:
        UsageError: It is no such command, or a value of an option that is modelled
            cannot be read; the message names it.
    """
    environment, policy, words, is_serve = _begin(words_of(text))
    model = None
    if is_serve and words and not words[0].is_flag:
        model = words.pop(0).value
    knobs: dict[str, Any] = {} if policy is None else {"policy": policy}
    kept: list[str] = []
    for flag, values in _groups(words):
        name, texts = _name_and_values(flag, values)
        if name == "--model":
            model = _only(name, texts)
        elif name in _OPTION_BY_FLAG or name in _SWITCHED_OFF:
            knob, value = _knob(name, texts)
            knobs[knob] = value
        elif (name, texts) != (BACKEND_FLAG, ["native"]):
            _refuse_shortened(name)
            kept += [flag.raw, *(word.raw for word in values)]
    if not model:
        raise UsageError(
            "the command names no model (one in a --config file is not read); write it"
            " behind vllm serve, as vllm serve meta-llama/Llama-3.1-8B"
        )
    return ServeLine(
        model=model, knobs=knobs, kept=tuple(kept), environment=tuple(environment)
    )


def _begin(words: list[Word]) -> tuple[list[str], str | None, list[Word], bool]:
    """Variables, the policy among them, the words that follow, and whether by serve."""
    environment, policy = [], None
    rest = list(words)
    while rest and (rest[0].value == "env" or _ASSIGNMENT.match(rest[0].value)):
        word = rest.pop(0)
        name, _, value = word.value.partition("=")
        if name == "VLLM_USE_V1":
            policy = _policy(word.value, value)
        elif name != "env":
            environment.append(word.raw)
    start = [word.value for word in rest[:3]]
    program = start[0].rpartition("/")[2] if start else ""
    if program == "vllm" and start[1:2] == ["serve"]:
        return environment, policy, rest[2:], True
    is_python = re.fullmatch(r"python[\d.]*", program) is not None
    if is_python and start[1:] == ["-m", API_SERVER]:
        return environment, policy, rest[3:], False
    raise UsageError(
        f"the command begins with {' '.join(start[:2])!r}; give it from vllm serve (or"
        f" python -m {API_SERVER}) on, as 'vllm serve meta-llama/Llama-3.1-8B"
        " --max-num-seqs 256'"
    )


def _policy(word: str, value: str) -> str:
    if value not in _POLICIES:
        raise UsageError(f"{word} is neither VLLM_USE_V1=0 nor VLLM_USE_V1=1; give one")
    return _POLICIES[value]


def _groups(words: list[Word]) -> list[_Group]:
    groups: list[_Group] = []
    for word in words:
        if word.is_flag:
            groups.append((word, []))
        elif groups:
            groups[-1][1].append(word)
        else:
            raise UsageError(_stray(word.value, "the model"))
    return groups


def _stray(value: str, before: str) -> str:
    return (
        f"{value!r} stands behind {before} and belongs to no option; take it out, or put"
        " the model right behind vllm serve"
    )


def _name_and_values(flag: Word, values: list[Word]) -> tuple[str, list[str]]:
    """The option's name with dashes, and the values given to it."""
    name, equals, first = flag.value.partition("=")
    if name.startswith("--"):
        before, dot, after = name.partition(".")
        name = before.replace("_", "-") + dot + after
    texts = [word.value for word in values]
    return name, [first, *texts] if equals else texts


def _refuse_shortened(name: str) -> None:
    """Refuse what argparse would complete, so that no option stands there twice."""
    full = [flag for flag in MODELLED_FLAGS if flag.startswith(name) and flag != name]
    if name.startswith("--") and len(name) > 2 and full:
        raise UsageError(
            f"{name} is the beginning of {' and of '.join(full)}; write it in full"
        )


def _only(name: str, texts: list[str]) -> str:
    if not texts or not texts[0]:
        raise UsageError(f"{name} has no value; give one behind it, or leave it out")
    if len(texts) > 1:
        raise UsageError(_stray(texts[1], f"{name} {texts[0]}"))
    return texts[0]


def _knob(name: str, texts: list[str]) -> tuple[str, Any]:
    if name in _SWITCHED_OFF:
        if texts:
            raise UsageError(_stray(texts[0], name))
        return _SWITCHED_OFF[name].knob, False
    option = _OPTION_BY_FLAG[name]
    if option.kind == "switch":
        return option.knob, _switched(name, texts)
    return option.knob, _value(option, name, _only(name, texts))


def _switched(name: str, texts: list[str]) -> bool:
    if not texts:
        return True
    if len(texts) > 1 or texts[0].lower() not in _SWITCHED:
        raise UsageError(_stray(texts[-1], name))
    return _SWITCHED[texts[0].lower()]


def _value(option: ServeOption, name: str, text: str) -> Any:
    if option.kind == "text":
        return text
    if option.kind == "number":
        return _number(name, text)
    if option.kind == "whole":
        return _whole(name, text)
    size = _size(name, text)
    return size / GIB if option.knob == "kv_cache_gib" else size


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name} is {text!r}; it needs a number, as {name} 0.9")
    return number


def _whole(name: str, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        raise UsageError(f"{name} is {text!r}; it needs a whole number, as {name} 16")
    return int(text)


def _size(name: str, text: str) -> int:
    """A whole number; k, m, g, t multiply by powers of 1000, K, M, G, T of 1024.

    Source: ``human_readable_int`` in ``utils/argparse_utils.py`` of vLLM 0.32.0.
    """
    if text.lower() in ("auto", "-1"):
        raise UsageError(
            f"{name} {text} leaves the number to vLLM; give the one that it printed when"
            " it started"
        )
    found = _SIZE.fullmatch(text)
    if found is None:
        return _whole(name, text)
    whole, decimals, unit = found[1], found[2] or "", found[3]
    if unit.islower():
        return int(float(whole + decimals) * _MULTIPLES[unit])
    if decimals:
        raise UsageError(
            f"{name} is {text!r}; vLLM takes no decimals with {unit}; write"
            f" {whole}{decimals}{unit.lower()}, which counts in thousands"
        )
    return int(whole) * _MULTIPLES[unit]
