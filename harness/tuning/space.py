"""What a search may choose from: the values of each knob that this engine accepts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.vllm_v1 import has_option, offered_block_sizes

Knobs = Mapping[str, Any]
"""Values of knobs by name; what is left out is as the start has it."""

Key = tuple[tuple[str, Any], ...]


def key_of(knobs: Knobs) -> Key:
    """A setting as something that can be looked up."""
    return tuple(sorted(knobs.items()))


CHOICES: dict[str, tuple[Any, ...]] = {
    "gpu_memory_utilization": (0.80, 0.85, 0.88, 0.90, 0.92, 0.94, 0.95, 0.96),
    "block_size": (16, 32, 64, 128),
    "max_num_seqs": (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
    "max_num_batched_tokens": (512, 1024, 2048, 4096, 8192, 16384, 32768),
    "enable_prefix_caching": (False, True),
}
"""For every engine."""

CHOICES_V0: dict[str, tuple[Any, ...]] = {
    "swap_space": (0.0, 4.0, 8.0, 16.0, 32.0, 64.0),
    "enable_chunked_prefill": (False, True),
}

CHOICES_V1: dict[str, tuple[Any, ...]] = {
    "kv_offloading_size": (0.0, 8.0, 16.0, 32.0, 64.0, 128.0),
    "watermark": (0.0, 0.01, 0.02, 0.05, 0.1),
}

SEARCHED_IF_NAMED = ("kv_cache_dtype", "tensor_parallel_size", "max_model_len")
"""Knobs that cost accuracy, GPUs or requests: somebody has to ask for them."""


COSTLY = ("kv_offloading_size", "swap_space", "tensor_parallel_size")
"""Knobs of which more takes memory of the host, or GPUs, that others could use."""


def is_dearer(knobs: Knobs, other: Knobs) -> bool:
    """Whether a setting takes more than another of something that costs."""
    return any(knobs[name] > other[name] for name in COSTLY if name in knobs)


def no_dearer(knobs: Knobs, other: Knobs) -> dict[str, Any]:
    """The setting with no more than another has of what costs."""
    least = {n: other[n] for n in COSTLY if n in knobs and knobs[n] > other[n]}
    return {**knobs, **least}


@dataclass(frozen=True, slots=True)
class Space:
    """Values of each knob that is searched, in order where they have one.

    Attributes:
        choices: At least two values a knob.
    """

    choices: Mapping[str, tuple[Any, ...]]

    def changed(self, knobs: Knobs, name: str, value: Any) -> dict[str, Any]:
        """The setting with another value of a knob, and what has to go with it.

        A batch has a token of each sequence at least; vLLM refuses more sequences.
        """
        setting = {**knobs, name: value}
        most = setting.get("max_num_seqs", 0)
        if name == "max_num_batched_tokens" and most > value:
            fitting = [v for v in self.choices.get("max_num_seqs", ()) if v <= value]
            setting["max_num_seqs"] = max(fitting, default=most)
        return self.settled(setting)

    def settled(self, knobs: Knobs) -> dict[str, Any]:
        """The setting, its tier left out where prefix caching is off: it needs that.

        Source: :func:`harness.config.resolve_config` refuses the one without the other.
        """
        name = "kv_offloading_size"
        is_caching = knobs.get("enable_prefix_caching", True)
        if is_caching or 0.0 not in self.choices.get(name, ()):
            return dict(knobs)
        return {**knobs, name: 0.0}

    def neighbours(self, knobs: Knobs) -> list[dict[str, Any]]:
        """The settings one step from these, one knob at a time, in the knobs' order."""
        found = []
        for name, values in self.choices.items():
            place = values.index(knobs[name])
            for other in (place - 1, place + 1):
                if 0 <= other < len(values):
                    found.append(self.changed(knobs, name, values[other]))
        return found

    def with_choice(self, name: str, value: Any) -> "Space":
        """The space with one more value of a knob."""
        choices = {**self.choices, name: with_value(self.choices[name], value)}
        return Space(choices)

    def without(self, *names: str) -> "Space":
        """The space with these knobs left as they are at the start."""
        return Space({n: values for n, values in self.choices.items() if n not in names})

    @property
    def size(self) -> int:
        """Number of settings."""
        size = 1
        for values in self.choices.values():
            size *= len(values)
        return size


def space_of(policy: str, version: str, start: Knobs) -> Space:
    """All that an engine of a version can be given, the start's values among them.

    Args:
        policy: ``v0`` or ``v1``.
        version: A release of vLLM.
        start: What the search begins from: a value of every knob there is.
    """
    choices = dict(CHOICES)
    choices |= CHOICES_V0 if policy == "v0" else CHOICES_V1
    if policy == "v1":
        for name in CHOICES_V1:
            if not has_option(name, version):
                del choices[name]
    offered = offered_block_sizes(version)
    if offered is not None:
        sizes = choices["block_size"]
        choices["block_size"] = tuple(size for size in sizes if size in offered)
    return Space({n: with_value(values, start[n]) for n, values in choices.items()})


def with_value(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """The values and one more, in order, None first."""
    return tuple(sorted({*values, value}, key=lambda each: (each is not None, each)))
