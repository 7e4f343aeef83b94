"""Options of ``vllm serve`` that set a knob: which version has them, and in what form."""

from dataclasses import dataclass
from typing import Any, Literal

from profiles.vllm_v1 import (
    CHUNKING_OPTIONAL_SINCE,
    OFFLOADING_BACKEND_ASSUMED_SINCE,
    OPTION_SINCE,
    offered_block_sizes,
)
from profiles.vllm_version import (
    V0_OPTION_SINCE,
    VllmVersion,
    offered_kv_cache_dtypes,
    parse_version,
)

Kind = Literal["text", "whole", "size", "number", "switch"]
"""``size`` is a whole number that may be written as 32k."""

SwitchForm = Literal["on", "true_false", "on_off"]
"""What a switch takes: itself only, ``--option=False``, or ``--no-option``."""

SERVE_SINCE = VllmVersion(0, 5, 2)
"""First with ``vllm serve``. Source: tests/data/published/vllm_serve_options.csv."""

CONFIG_SINCE = VllmVersion(0, 6)
"""First whose ``vllm serve`` takes ``--config``. Source: the same table."""

CONFIG_SWITCHES_SINCE = VllmVersion(0, 6, 4)
"""First whose ``--config`` file can set a switch: ``true`` gives the option by itself.

A ``false`` is passed over by all of them: 0.28.0 and later look for ``--no-option`` among
the options of ``vllm`` itself, not of ``vllm serve``. ``no-option: true`` is understood.

Source: ``vllm/utils.py`` and ``utils/argparse_utils.py`` of 0.6.0 to 0.33.0.
"""

CONFIG_MODEL_SINCE = VllmVersion(0, 8, 3)
"""First that takes the model from its ``--config`` file.

Source: ``vllm/utils.py`` and ``entrypoints/cli/serve.py`` of 0.8.2 and 0.8.3.
"""

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOption:
    """An option of ``vllm serve`` and the knob that it sets.

    Attributes:
        knob: As ``resolve_config`` calls it.
        name: As vLLM calls it, where that is another name.
        kind: How its value is written.
        others: Flags that mean the same and are read only.
        policies: Those whose engine does something with it.
    """

    knob: str
    kind: Kind
    name: str = ""
    others: tuple[str, ...] = ()
    policies: tuple[str, ...] = ("v0", "v1")

    @property
    def vllm_name(self) -> str:
        """The name that vLLM gives it."""
        return self.name or self.knob

    @property
    def key(self) -> str:
        """The name as it stands in a config file."""
        return self.vllm_name.replace("_", "-")

    @property
    def flag(self) -> str:
        """The name as it stands on the command line."""
        return f"--{self.key}"

    def since(self, policy: str) -> VllmVersion | None:
        """First version whose engine heeds it; None where all that are known do."""
        table = OPTION_SINCE if policy == "v1" else V0_OPTION_SINCE
        return table.get(self.vllm_name)


_V0, _V1 = ("v0",), ("v1",)

OPTIONS = {
    option.knob: option
    for option in (
        ServeOption(knob="tensor_parallel_size", kind="whole", others=("-tp",)),
        ServeOption(knob="dtype", kind="text"),
        ServeOption(knob="quantization", kind="text", others=("-q",)),
        ServeOption(knob="kv_cache_dtype", kind="text"),
        ServeOption(
            knob="gpu_memory_utilization",
            kind="number",
            others=("--device-memory-utilization",),
        ),
        ServeOption(knob="num_gpu_blocks_override", kind="whole"),
        ServeOption(knob="kv_cache_gib", kind="size", name="kv_cache_memory_bytes"),
        ServeOption(knob="block_size", kind="whole"),
        ServeOption(knob="swap_space", kind="number", policies=_V0),
        ServeOption(knob="preemption_mode", kind="text", policies=_V0),
        ServeOption(knob="kv_offloading_size", kind="number", policies=_V1),
        ServeOption(knob="enable_prefix_caching", kind="switch"),
        ServeOption(knob="enable_chunked_prefill", kind="switch"),
        ServeOption(knob="max_model_len", kind="size"),
        ServeOption(knob="max_num_seqs", kind="whole"),
        ServeOption(knob="max_num_batched_tokens", kind="size"),
        ServeOption(knob="long_prefill_token_threshold", kind="whole", policies=_V1),
        ServeOption(knob="watermark", kind="number", policies=_V1),
        ServeOption(knob="scheduling_policy", kind="text"),
        ServeOption(knob="async_scheduling", kind="switch", policies=_V1),
        ServeOption(knob="scheduler_reserve_full_isl", kind="switch", policies=_V1),
        ServeOption(knob="enforce_eager", kind="switch"),
    )
}
"""By knob, in the order in which a command names them."""

_ON_OFF_SINCE = {
    "enable_prefix_caching": VllmVersion(0, 6, 5),
    "enable_chunked_prefill": VllmVersion(0, 8, 5),
    "enforce_eager": VllmVersion(0, 9),
}
_TRUE_FALSE_SINCE = {"enable_chunked_prefill": VllmVersion(0, 5, 3)}


def switch_form(option: ServeOption, version: str) -> SwitchForm:
    """How a version's parser takes a switch; ``on`` only where off is the default.

    Source: tests/data/published/vllm_serve_options.csv.
    """
    assert option.kind == "switch", f"{option.knob} is no switch"
    release = parse_version(version)
    if release >= _ON_OFF_SINCE.get(option.knob, release):
        return "on_off"
    since = _TRUE_FALSE_SINCE.get(option.knob)
    return "on" if since is None or release < since else "true_false"


def why_not(option: ServeOption, value: Any, version: str, policy: str) -> str:
    """Why a version cannot be given a value of an option; empty where it can."""
    if policy not in option.policies:
        return (
            f"{option.flag} belongs to policy {option.policies[0]}, and vLLM {version}"
            f" is to run {policy}"
        )
    since = option.since(policy)
    if since is not None and parse_version(version) < since:
        return f"{option.flag} came to {policy} with vLLM {since}, after {version}"
    return _why_not_value(option, value, version, policy)


def _why_not_value(option: ServeOption, value: Any, version: str, policy: str) -> str:
    never_unchunked = policy == "v1" and parse_version(version) < CHUNKING_OPTIONAL_SINCE
    if option.knob == "enable_chunked_prefill" and not value and never_unchunked:
        return (
            f"vLLM {version} chunks prefills in v1 whatever {option.flag} says;"
            f" {CHUNKING_OPTIONAL_SINCE} is the first that heeds it"
        )
    offered: tuple[Any, ...] | None = None
    if option.knob == "block_size":
        offered = offered_block_sizes(version)
    elif option.knob == "kv_cache_dtype":
        offered = offered_kv_cache_dtypes(version)
    if offered is not None and value not in offered:
        listed = ", ".join(map(str, offered))
        return f"vLLM {version} has no {option.flag} {value}; it has {listed}"
    return ""


def needs_offloading_backend(version: str) -> bool:
    """Whether ``--kv-offloading-size`` needs ``--kv-offloading-backend native`` too.

    Nothing else is needed: vLLM turns its hybrid cache manager off by itself where the
    tier cannot work with it. Source: ``config/vllm.py`` of 0.11.1 to 0.33.0.
    """
    return parse_version(version) < OFFLOADING_BACKEND_ASSUMED_SINCE
