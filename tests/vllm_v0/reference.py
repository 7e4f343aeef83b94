"""The real scheduler and block manager of vLLM 0.5.5, without torch.

They are pure Python. What they import but do not use on the paths recorded here (torch,
LoRA, multi-modal inputs ...) is replaced by stand-ins in ``sys.modules``, so load this
only in a process that does nothing else. ``python reference.py`` says whether it loads.
"""

import enum
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fetch import UNPACKED, VERSION


class MissingReferenceError(Exception):
    """vLLM's files, or a package that they import, are not in this venv."""


@dataclass
class CacheConfig:
    """What the scheduler reads of vLLM's class of this name."""

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    enable_prefix_caching: bool
    sliding_window: int | None = None


@dataclass
class SchedulerConfig:
    """What the scheduler reads of vLLM's class of this name."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    chunked_prefill_enabled: bool
    preemption_mode: str | None
    use_v2_block_manager: bool = False
    num_lookahead_slots: int = 0
    delay_factor: float = 0.0
    embedding_mode: bool = False
    num_scheduler_steps: int = 1
    send_delta_data: bool = False


@dataclass
class Clock:
    """The time that vLLM sees: one instant a scheduler call."""

    now: float = 0.0

    def time(self) -> float:
        """Stands for ``time.time``."""
        return self.now

    def perf_counter(self) -> float:
        """Stands for ``time.perf_counter``, which only feeds statistics."""
        return 0.0


class TableOrderedSet(dict[Any, None]):
    """A set that is walked in the order of insertion.

    vLLM frees the blocks of a table in the order of a set of objects, which depends on
    memory addresses. The recordings walk the table instead.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__()
        self.update(items)

    def update(self, items: Iterable[Any]) -> None:  # type: ignore[override]
        """Add items behind those there are."""
        super().update(dict.fromkeys(items))


@dataclass(frozen=True, slots=True)
class Reference:
    """vLLM's modules, by their names there, and the clock they look at."""

    scheduler: Any
    block_manager: Any
    evictor: Any
    sequence: Any
    sampling_params: Any
    clock: Clock


def load() -> Reference:
    """Load vLLM's modules.

    Raises:
        MissingReferenceError: They are not there.
    """
    if not UNPACKED.is_dir():
        raise MissingReferenceError(f"no vLLM {VERSION} in {UNPACKED}: make test-vllm")
    for package in ("msgspec", "typing_extensions"):
        if find_spec(package) is None:
            raise MissingReferenceError(f"no {package} in {sys.prefix}: make test-vllm")
    if "vllm.core.scheduler" not in sys.modules:
        _stand_in()
    scheduler = import_module("vllm.core.scheduler")
    block_manager = import_module("vllm.core.block_manager_v1")
    clock = Clock()
    scheduler.time = clock  # type: ignore[attr-defined]
    block_manager.set = TableOrderedSet  # type: ignore[attr-defined]
    return Reference(
        scheduler,
        block_manager,
        import_module("vllm.core.evictor_v1"),
        import_module("vllm.sequence"),
        import_module("vllm.sampling_params"),
        clock,
    )


def _stand_in() -> None:
    """Put stand-ins where vLLM's files look for what is not unpacked."""
    _module("torch", Tensor=_nothing("Tensor"), Generator=_nothing("Generator"))
    for package in ("", ".core", ".core.block", ".inputs", ".lora"):
        _package(f"vllm{package}")
    for package in ("prompt_adapter", "spec_decode"):
        _package(f"vllm.{package}")
    _module("vllm.inputs", LLMInputs=dict)
    _module("vllm.inputs.parse", is_valid_encoder_decoder_llm_inputs=lambda _: False)
    _module("vllm.logger", init_logger=lambda _: _Silent())
    for module, name in (
        ("lora.request", "LoRARequest"),
        ("pooling_params", "PoolingParams"),
        ("prompt_adapter.request", "PromptAdapterRequest"),
        ("spec_decode.metrics", "SpecDecodeWorkerMetrics"),
    ):
        _module(f"vllm.{module}", **{name: _nothing(name)})
    _module(
        "vllm.config",
        CacheConfig=CacheConfig,
        SchedulerConfig=SchedulerConfig,
        LoRAConfig=_nothing("LoRAConfig"),
    )
    _module("vllm.utils", **_pieces_of_utils())


def _pieces_of_utils() -> dict[str, Any]:
    """Two classes of ``vllm/utils.py``; the rest of that file wants torch and more."""
    text = (UNPACKED / "vllm" / "utils.py").read_text()
    names: dict[str, Any] = {"enum": enum}
    for first, behind in (
        ("class PyObjectCache:", "def is_hip()"),
        ("class Device(enum.Enum):", "\nclass Counter"),
    ):
        start = text.index(first)
        piece = text[start : text.index(behind, start)]
        exec(compile(piece, "vllm/utils.py", "exec"), names)
    unused = dict.fromkeys(
        (
            "STR_NOT_IMPL_ENC_DEC_SWA",
            "STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE",
            "cdiv",
            "chunk_list",
        )
    )
    return unused | {name: names[name] for name in ("PyObjectCache", "Device")}


class _Silent:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _nothing(name: str) -> type:
    return type(name, (), {})


def _module(name: str, **names: Any) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(names)
    return module


def _package(name: str) -> None:
    _module(name).__path__ = [str(UNPACKED.joinpath(*name.split(".")))]


if __name__ == "__main__":
    try:
        load()
    except MissingReferenceError as error:
        sys.exit(str(error))
