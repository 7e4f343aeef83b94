"""What a GPU is: its memory, its rates, and the share of each that kernels reach."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.errors import ProfileError

HOST = "CPU"
"""The name of vLLM's CPU backend; its memory is that of the machine it is asked on."""

FIRST_WITH_BF16 = (8, 0)
"""Compute capability. Source: CUDA C++ programming guide, arithmetic of bfloat16."""

FIRST_WITH_FP8_CACHE = (8, 0)
"""Below 8.9 only FlashInfer reads it; Triton's attention and FlashAttention refuse.

Source: vLLM 0.32.0 ``v1/attention/backends``.
"""


@dataclass(frozen=True, slots=True)
class KnownError:
    """How far predictions were from published figures that the fit had not seen.

    Attributes:
        fraction: Median of the absolute relative errors.
        num_rows: Published rows behind it.
        against: Which rows.
    """

    fraction: float
    num_rows: int
    against: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a GPU does in a second, at most, and the share of it that kernels reach.

    Rates are decimal (GB, TFLOP), dense, and of one direction; an efficiency is the
    share of the rate named beside it.

    Attributes:
        bf16_tflop_per_s: That of fp16 on a GPU without bf16.
        fp8_tflop_per_s: None without fp8 arithmetic.
        pcie_gb_per_s: Rate of a large pinned copy between CPU and GPU.
        copy_overhead_ns: Cost of one ``cudaMemcpyAsync`` beside its bytes.
        nvlink_gb_per_s: Between GPUs of a host; that of PCIe without a link of their own.
        attention_latency_ns: Attention of a layer before it reads any context.
        all_reduce_latency_ns: One all-reduce of an empty message.
    """

    memory_bandwidth_gb_per_s: float
    bf16_tflop_per_s: float
    fp8_tflop_per_s: float | None = None
    pcie_gb_per_s: float
    copy_overhead_ns: int
    nvlink_gb_per_s: float
    memory_efficiency: float
    compute_efficiency: float
    attention_memory_efficiency: float
    attention_compute_efficiency: float
    attention_latency_ns: int
    nvlink_efficiency: float
    all_reduce_latency_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """One GPU as an engine meets it; each figure has an entry in ``sources``.

    The figures of ``rates`` can be read from the profile itself; all of these raise
    :class:`ProfileError` on a GPU whose rates nobody knows.

    Attributes:
        memory_gib: Total memory as vLLM and torch see it, less than the box says.
        compute_capability: Of CUDA; None for what is not NVIDIA's, or not known.
        rates: None where nobody knows them.
        known_error: Of step times on this GPU; None when never compared.
        is_unified: The host's memory is the same, as on Jetson or GB10.
    """

    name: str
    aliases: tuple[str, ...]
    memory_gib: float
    compute_capability: tuple[int, int] | None
    rates: Rates | None
    known_error: KnownError | None
    sources: Mapping[str, str]
    is_unified: bool = False

    @property
    def is_host(self) -> bool:
        """Whether vLLM's CPU backend is meant."""
        return self.name == HOST

    @property
    def has_bf16(self) -> bool:
        """Whether it computes in bf16; taken to where the capability is not known."""
        return self.compute_capability is None or (
            self.compute_capability >= FIRST_WITH_BF16
        )

    @property
    def takes_fp8_cache(self) -> bool:
        """Whether vLLM 0.32 has attention for it that reads a KV cache of fp8."""
        return self.compute_capability is None or (
            self.compute_capability >= FIRST_WITH_FP8_CACHE
        )

    @property
    def evidence(self) -> str:
        """What stands behind its step times, in one sentence."""
        if self.rates is None:
            return f"step times of {self.name} are not known"
        if self.known_error is None:
            return f"no published row was compared with step times of {self.name}"
        error = self.known_error
        return (
            f"step times checked against {error.num_rows} published rows, median error"
            f" {100 * error.fraction:.1f} % ({error.against})"
        )

    @property
    def known_rates(self) -> Rates:
        """The rates, which step times need.

        Raises:
            ProfileError: Nobody knows them.
        """
        if self.rates is None:
            raise ProfileError(
                f"step times of {self.name} are not known; they need its rates of memory"
                " and arithmetic; calibrate, or give a .toml file with the rates as --gpu"
            )
        return self.rates

    @property
    def memory_bandwidth_gb_per_s(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.memory_bandwidth_gb_per_s

    @property
    def bf16_tflop_per_s(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.bf16_tflop_per_s

    @property
    def pcie_gb_per_s(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.pcie_gb_per_s

    @property
    def copy_overhead_ns(self) -> int:
        """As in :class:`Rates`."""
        return self.known_rates.copy_overhead_ns

    @property
    def nvlink_gb_per_s(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.nvlink_gb_per_s

    @property
    def memory_efficiency(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.memory_efficiency

    @property
    def compute_efficiency(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.compute_efficiency

    @property
    def attention_memory_efficiency(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.attention_memory_efficiency

    @property
    def attention_compute_efficiency(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.attention_compute_efficiency

    @property
    def attention_latency_ns(self) -> int:
        """As in :class:`Rates`."""
        return self.known_rates.attention_latency_ns

    @property
    def nvlink_efficiency(self) -> float:
        """As in :class:`Rates`."""
        return self.known_rates.nvlink_efficiency

    @property
    def all_reduce_latency_ns(self) -> int:
        """As in :class:`Rates`."""
        return self.known_rates.all_reduce_latency_ns
