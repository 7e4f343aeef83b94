"""How long KV blocks take between CPU and GPU: which calls copy them, and their cost."""

from dataclasses import dataclass
from typing import Literal

from profiles.errors import ProfileError
from profiles.vllm_version import VllmVersion, parse_version

FS_PER_NS = 10**6

CopyCall = Literal["each", "batch", "kernel"]
"""One ``cudaMemcpyAsync`` for each copy, one ``cuMemcpyBatchAsync`` for all of a
transfer, or a kernel of the GPU that reads the other side's memory itself.
"""

Cut = Literal["block", "layer", "key_and_value"]
"""What is contiguous and therefore one copy: a block of all layers, that of one layer,
or K or V of that.
"""

LEAST_KERNEL_COPIES = 16
"""Fewer go to ``cuMemcpyBatchAsync``.

Source: vLLM 0.23.0 ``v1/kv_offload/cpu/swap_blocks_triton.py`` ``MIN_N``.
"""

SMALL_BYTES = 28 * 1024
"""Below, a batch to the GPU is slow, and vLLM's kernel takes over.

Source: vLLM pull 42212 (a cliff at 24 to 28 KiB, H100); issue 57555 (the same on A30);
0.23.0 ``v1/kv_offload/cpu/swap_blocks_triton.py`` ``THRESHOLD_BYTES``.
"""

NUM_COPIES_AHEAD = 10_000
"""Copies of a batch that the host prepares before the GPU starts on any.

Source: transfer.csv, vLLM pull 42212, 64 KiB: with 10,000 copies 17 ms for 13 ms of
bytes, with 50,000 and more the bytes alone. Fewer than 10,000 were not published.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCost:
    """What one copy, one call and one byte cost between a GPU and its host.

    The cost of a copy adds to its bytes, it does not hide behind them: fitted to the
    same 13 rows, the sum is off by 1.7 % (median), the larger of the two by 10.7 %. The
    host's memory is pinned; copies of one direction follow one another.

    Attributes:
        gb_per_s: Decimal, of bytes alone, in one direction.
        copy_ns: A ``cudaMemcpyAsync`` beside its bytes.
        batch_ns: A call of ``cuMemcpyBatchAsync``.
        batch_copy_ns: Each of its first ``NUM_COPIES_AHEAD`` copies; the later ones are
            prepared while others run.
        small_copy_ns: A copy of under ``SMALL_BYTES`` to the GPU, in a batch.
        small_gb_per_s: Rate of the bytes of such copies.
        kernel_ns: A launch of the copy kernel.
        kernel_copy_ns: Each copy in it.
        share_both_ways: Of ``gb_per_s``, what each direction has while both are busy.
    """

    gb_per_s: float
    copy_ns: int
    batch_ns: int
    batch_copy_ns: int
    small_copy_ns: int
    small_gb_per_s: float
    kernel_ns: int
    kernel_copy_ns: int
    share_both_ways: float

    def copies_fs(
        self,
        num_blocks: int,
        block_bytes: int,
        num_parts: int,
        call: CopyCall,
        *,
        is_load: bool = True,
        is_both_ways: bool = False,
    ) -> int:
        """Femtoseconds of one transfer, from the call to the last byte.

        Args:
            num_blocks: Blocks of the transfer.
            block_bytes: Of all layers on this GPU.
            num_parts: Copies that a block is cut into (:meth:`CopyMethod.num_parts`).
            call: How they are copied (:meth:`CopyMethod.call`).
            is_load: To the GPU.
            is_both_ways: The other direction is busy all the while.
        """
        num_copies = num_blocks * num_parts
        if not num_copies:
            return 0
        num_bytes = num_blocks * block_bytes
        gb_per_s = self.gb_per_s * (self.share_both_ways if is_both_ways else 1)
        if call == "each":
            calls_ns = num_copies * self.copy_ns
        elif call == "kernel":
            calls_ns = self.kernel_ns + num_copies * self.kernel_copy_ns
        elif is_load and block_bytes < SMALL_BYTES * num_parts:
            calls_ns = self.batch_ns + num_copies * self.small_copy_ns
            gb_per_s = min(gb_per_s, self.small_gb_per_s)
        else:
            num_ahead = min(num_copies, NUM_COPIES_AHEAD)
            calls_ns = self.batch_ns + num_ahead * self.batch_copy_ns
        return calls_ns * FS_PER_NS + round(num_bytes / gb_per_s * FS_PER_NS)


H100_COPIES = CopyCost(
    gb_per_s=50.4,
    copy_ns=3450,
    batch_ns=15_600,
    batch_copy_ns=362,
    small_copy_ns=522,
    small_gb_per_s=8.25,
    kernel_ns=51_100,
    kernel_copy_ns=98,
    share_both_ways=0.89,
)
"""NVIDIA over PCIe Gen5 x16; another link is this with its own ``gb_per_s``.

Source: fitted by robust least squares of log times to a part of transfer.csv:
``gb_per_s`` and ``copy_ns``, vLLM blog of 2026-01-08 figure 3, 13 rows of one
``cudaMemcpyAsync`` per block, H100 to CPU, 4 KiB to 16 MiB; ``small_*`` and
``batch_copy_ns``, pull 42212, the rows of 8, 24 and 64 KiB, H100; ``batch_ns`` and
``kernel_*``, issue 57555, 14 ratios of 1 and 8 KiB, A30; ``share_both_ways``, the blog's
83.4 GB/s of both directions together, 2 MiB. How far it is from the other rows:
benchmarks/fidelity_copies.py.
"""

MI300X_COPIES = CopyCost(
    gb_per_s=41.2,
    copy_ns=9150,
    batch_ns=0,
    batch_copy_ns=9150,
    small_copy_ns=9150,
    small_gb_per_s=41.2,
    kernel_ns=H100_COPIES.kernel_ns,
    kernel_copy_ns=H100_COPIES.kernel_copy_ns,
    share_both_ways=H100_COPIES.share_both_ways,
)
"""AMD, where a batch costs what its copies do; a poor guide below 32 KiB.

Source: transfer.csv, vLLM pull 40549, the loop's rows of 128 and 512 KiB. Those of 4 and
8 KiB take 5.5 us a copy, 2.6 in a batch: another path, with no row to hold out. The
kernel and both directions at once are H100's.
"""


@dataclass(frozen=True, slots=True)
class CopyMethod:
    """How a version copies the blocks of a transfer.

    Attributes:
        cut: What is one copy.
        is_batch: One call takes all copies of a transfer.
        has_kernel: Small copies to the GPU are a kernel's.
    """

    cut: Cut
    is_batch: bool = False
    has_kernel: bool = False

    def num_parts(self, num_layers: int) -> int:
        """Copies that a block of ``num_layers`` layers is cut into."""
        parts = {"block": 1, "layer": num_layers, "key_and_value": 2 * num_layers}
        return parts[self.cut]

    def call(self, num_copies: int, copy_bytes: float, *, is_load: bool) -> CopyCall:
        """The call that takes a transfer of ``num_copies`` copies, equal in size."""
        if not self.is_batch:
            return "each"
        is_small = copy_bytes < SMALL_BYTES and num_copies >= LEAST_KERNEL_COPIES
        return "kernel" if self.has_kernel and is_load and is_small else "batch"


V0_SWAP = CopyMethod("key_and_value")
"""Source: vLLM 0.5.5 ``csrc/cache_kernels.cu`` ``swap_blocks``, called for K and for V of
each layer, with one ``cudaMemcpyAsync`` for each block.
"""

V1_METHODS = {
    VllmVersion(0, 11): CopyMethod("key_and_value"),
    VllmVersion(0, 12): CopyMethod("block"),
    VllmVersion(0, 20): CopyMethod("block", is_batch=True),
    VllmVersion(0, 23): CopyMethod("layer", is_batch=True, has_kernel=True),
}
"""First version with each, for ``OffloadingConnector`` and dense models on CUDA.

Source: vLLM 0.11.0 to 0.33.0 ``v1/kv_offload`` (``worker/cpu_gpu.py``, later
``cpu/gpu_worker.py``). 0.12.0: ``prefer_cross_layer_blocks`` (pull 27743). 0.20: 0.19.1
has ``swap_blocks``, 0.20.2 ``swap_blocks_batch`` (pull 38460). 0.23: the kernel (pull
42212; 0.21 and 0.22 were not looked at), and ``DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES``
names Llama, Mistral and Qwen3, whose runner has no blocks across layers.
"""

LAST_ACROSS_LAYERS = VllmVersion(0, 28)
"""Of models that stay with the first model runner, such as most with experts.

Source: vLLM 0.28.0 and 0.29.0 ``offloading_connector.py``; in the latter
``prefer_cross_layer_blocks`` is gone.
"""


def copy_method(
    policy: str, vllm_version: str, *, has_experts: bool = False
) -> CopyMethod:
    """How a version copies blocks between CPU and GPU.

    Args:
        policy: ``v0``, whose steps wait for swaps, or ``v1``, which offloads beside them.
        vllm_version: A release.
        has_experts: The model is a mixture of experts.

    Raises:
        ProfileError: No version, or one of policy v1 without ``OffloadingConnector``.
    """
    if policy == "v0":
        return V0_SWAP
    release = parse_version(vllm_version)
    since = [first for first in V1_METHODS if first <= release]
    if not since:
        raise ProfileError(
            f"vLLM {vllm_version} has no OffloadingConnector; it came with 0.11; give"
            " that or a later version"
        )
    method = V1_METHODS[max(since)]
    last = (LAST_ACROSS_LAYERS.major, LAST_ACROSS_LAYERS.minor)
    if has_experts and method.cut == "layer" and (release.major, release.minor) <= last:
        return CopyMethod("block", method.is_batch, method.has_kernel)
    return method
