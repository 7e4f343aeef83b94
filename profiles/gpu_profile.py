"""What a GPU is: its memory, its rates, and the share of each that kernels reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.errors import ProfileError
from profiles.kernels import Kernels

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
        fraction: Median of the absolute relative errors of mean TPOT.
        num_rows: Published rows behind it.
        against: Which rows.
        ttft_fraction: The same of mean TTFT; None where no row has it.
        types: Of weights and KV cache that the rows had, such as ``fp8, KV fp8``.
    """

    fraction: float
    num_rows: int
    against: str
    ttft_fraction: float | None = None
    types: tuple[str, ...] = ("bfloat16, KV bfloat16",)

    def __str__(self) -> str:
        """The errors and what is behind them, for people."""
        ttft = self.ttft_fraction
        more = "" if ttft is None else f", of TTFT {100 * ttft:.0f} %"
        return (
            f"{100 * self.fraction:.0f} % of TPOT{more}, median over {self.num_rows}"
            f" rows: {self.against}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a GPU does in a second, at most, and how far kernels get.

    Rates are decimal (GB, TFLOP), dense, and of one direction.

    Attributes:
        bf16_tflop_per_s: That of fp16 on a GPU without bf16.
        fp8_tflop_per_s: None without fp8 arithmetic.
        pcie_gb_per_s: Rate of the bytes of pinned copies between CPU and GPU.
        nvlink_gb_per_s: Between GPUs of a host; that of PCIe without a link of their own.
        kernels: Shares of these rates, and latencies.
    """

    memory_bandwidth_gb_per_s: float
    bf16_tflop_per_s: float
    fp8_tflop_per_s: float | None = None
    pcie_gb_per_s: float
    nvlink_gb_per_s: float
    kernels: Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What somebody's measurements changed about a GPU's step times.

    Attributes:
        source: Whose measurements, of which model, and how well they are met.
        overhead: Figures of the engine's overhead that were fitted, by name.
        made_for: The engine that was measured: knobs of a run's configuration.
    """

    source: str
    overhead: Mapping[str, int]
    made_for: Mapping[str, str | int | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """One GPU as an engine meets it; each figure has an entry in ``sources``.

    Attributes:
        memory_gib: Total memory as vLLM and torch see it, less than the box says.
        compute_capability: Of CUDA; None for what is not NVIDIA's, or not known.
        rates: None where nobody knows them.
        known_error: Of step times on this GPU; None when never compared.
        is_unified: The host's memory is the same, as on Jetson or GB10.
        calibration: None for a GPU as it is published.
    """

    name: str
    aliases: tuple[str, ...]
    memory_gib: float
    compute_capability: tuple[int, int] | None
    rates: Rates | None
    known_error: KnownError | None
    sources: Mapping[str, str]
    is_unified: bool = False
    calibration: Calibration | None = None

    @property
    def is_host(self) -> bool:
        """Whether vLLM's CPU backend is meant."""
        return self.name == HOST

    @property
    def is_amd(self) -> bool:
        """Whether copies are AMD's."""
        return any(name.startswith("AMD ") for name in self.aliases)

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
        if self.calibration is not None:
            return f"calibrated: {self.calibration.source}"
        if self.known_error is None:
            return f"no published row was compared with step times of {self.name}"
        return f"known error {self.known_error}"

    @property
    def known_rates(self) -> Rates:
        """The rates, which step times need.

        Raises:
            ProfileError: Nobody knows them.
        """
        if self.rates is None:
            remedy = "give a .toml file with the rates as --gpu"
            if self.is_host:
                remedy = "name the GPU that will serve, such as --gpu H100-80GB"
            raise ProfileError(
                f"step times of {self.name} are not known; they need its rates of memory"
                f" and arithmetic; {remedy}"
            )
        return self.rates
