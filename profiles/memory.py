"""Where the memory of a GPU goes before the KV cache gets the rest.

docs/capacity.md says what each term rests on, and docs/fidelity.md how far it is off.
"""

from dataclasses import dataclass, replace

from profiles.gpu import GpuProfile
from profiles.model import ModelProfile
from profiles.pipeline import stages
from profiles.vllm_v1 import subtracts_cuda_graphs
from profiles.vllm_version import VllmVersion, parse_version
from profiles.weights import weight_bytes

GIB = 2**30

SAMPLER_BYTES_PER_LOGIT = 38.3
"""Logits, their fp32 copy, and what sorting them for top-k and top-p takes, per logit.

Source: memory.csv, vLLM 0.11.0 on H100 at 1,024 sequences: 4.76 GiB for a vocabulary of
128,256, 5.56 and 5.64 for 151,936 and 7.38 for 201,088 are 38.2 to 38.4 bytes each, once
the hidden vectors of 8,192 tokens are taken off.
"""

NON_TORCH_GIB = 0.13
"""CUDA context and libraries on one GPU. Source: memory.csv, four rows (0.13, 0.14)."""

NON_TORCH_PARALLEL_GIB = 0.54
"""The same with NCCL. Source: memory.csv, Qwen3-32B at TP 2, the one row there is."""

CUDA_GRAPH_GIB = 0.55
"""Graphs of the default batch sizes. Source: the median of five servers that printed what
their graphs took: 0.1, 0.39, 0.55, 0.62 and 3.17 GiB (memory.csv, kv_ground_truth.csv).
"""

MAX_EXPERT_TOKENS = 32768
"""Most tokens that experts work on at a time.

Source: vLLM ``VLLM_FUSED_MOE_CHUNK_SIZE``.
"""

FIRST_WITH_SAMPLED_CHUNKS = VllmVersion(0, 8)
"""Before, a profiling run of chunked prefills sampled nothing.

Source: vllm issue 10517 (peak 15.05 GiB with chunks of 512 beside 14.99 of weights) and
the OCI page (0.22 GiB with chunks of 2,048): both what the MLP alone takes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What an engine is started with, as far as memory depends on it.

    Attributes:
        max_num_batched_tokens: Most tokens of a step.
        vllm_version: Whose memory profiling is in force.
        enforce_eager: No CUDA graphs are captured.
        num_draft_layers: Layers with a KV cache that a draft head adds (EAGLE: 1).
    """

    block_size: int
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vllm_version: str
    enable_chunked_prefill: bool = True
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enforce_eager: bool = False
    num_draft_layers: int = 0

    @property
    def num_gpus(self) -> int:
        """GPUs of the engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory of one rank, in GiB.

    Attributes:
        total_gib: What the engine may use: memory times utilization.
        cuda_graph_gib: What the graphs take.
        is_graph_counted: The engine takes that off before it sizes the KV cache.
        host_blocks_gib: CPU blocks, where the host has no memory of its own.
        correction_gib: What a measured KV cache was larger than the estimate.
    """

    total_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graph_gib: float
    is_graph_counted: bool
    host_blocks_gib: float = 0.0
    correction_gib: float = 0.0

    @property
    def kv_cache_gib(self) -> float:
        """What is left for the KV cache; below 0 where it does not fit."""
        used = self.weights_gib + self.activation_gib + self.non_torch_gib
        used += self.cuda_graph_gib if self.is_graph_counted else 0.0
        used += self.host_blocks_gib
        return self.total_gib - used + self.correction_gib

    def corrected(self, kv_cache_gib: float) -> "Budget":
        """The same with a KV cache that was measured."""
        correction = self.correction_gib + kv_cache_gib - self.kv_cache_gib
        return replace(self, correction_gib=correction)


def budgets(
    model: ModelProfile, gpu: GpuProfile, deployment: Deployment
) -> tuple[Budget, ...]:
    """The memory of a rank of each pipeline stage.

    Raises:
        CapacityError: The layers or heads cannot be shared out like that.
    """
    of_stages = stages(model, deployment.pipeline_parallel_size)
    return tuple(
        Budget(
            total_gib=gpu.memory_gib * deployment.gpu_memory_utilization,
            weights_gib=weight_bytes(
                model,
                tensor_parallel_size=deployment.tensor_parallel_size,
                layers=layers,
                has_embedding=layers == of_stages[0],
                has_head=layers == of_stages[-1],
            )
            / GIB,
            activation_gib=activation_gib(
                model, deployment, is_sampling=layers == of_stages[-1]
            ),
            non_torch_gib=(
                NON_TORCH_GIB if deployment.num_gpus == 1 else NON_TORCH_PARALLEL_GIB
            ),
            cuda_graph_gib=0.0 if deployment.enforce_eager else CUDA_GRAPH_GIB,
            is_graph_counted=subtracts_cuda_graphs(deployment.vllm_version),
        )
        for layers in of_stages
    )


def activation_gib(
    model: ModelProfile, deployment: Deployment, *, is_sampling: bool = True
) -> float:
    """Peak of the profiling run: a layer's MLP for all tokens, or the sampler.

    Args:
        model: Its widths and vocabulary.
        deployment: Its batch limits.
        is_sampling: The rank has the language head.
    """
    peaks = [_mlp_bytes(model, deployment)]
    if is_sampling and _samples(deployment):
        peaks.append(_sampler_bytes(model, deployment))
    return max(peaks) / GIB


def _samples(deployment: Deployment) -> bool:
    is_new = parse_version(deployment.vllm_version) >= FIRST_WITH_SAMPLED_CHUNKS
    return is_new or not deployment.enable_chunked_prefill


def _sampler_bytes(model: ModelProfile, deployment: Deployment) -> float:
    """All rows of logits, beside the hidden vectors that they came from."""
    num_tokens = deployment.max_num_batched_tokens
    num_rows = min(deployment.max_num_seqs, num_tokens)
    hidden_bytes = num_tokens * model.hidden_size * model.bytes_per_param
    return SAMPLER_BYTES_PER_LOGIT * num_rows * model.vocab_size + hidden_bytes


def _mlp_bytes(model: ModelProfile, deployment: Deployment) -> float:
    """Gate, up and their product of all tokens, beside three hidden vectors of each.

    Experts do so for each token as often as it has experts, and hold their outputs too.

    Source: vllm issue 10517 (Llama-3.1-8B): 2.07 GiB at 20,000 tokens, 2.99 at 29,000.
    """
    size, num_tokens = deployment.tensor_parallel_size, deployment.max_num_batched_tokens
    hidden = 3 * model.hidden_size
    widths = [num_tokens * (3 * model.intermediate_size / size + hidden)]
    if model.experts is not None:
        experts = model.experts
        per_expert = 3 * experts.intermediate_size / size + model.hidden_size
        num_rows = min(num_tokens, MAX_EXPERT_TOKENS) * experts.num_experts_per_token
        widths.append(num_rows * per_expert + num_tokens * hidden)
    return max(widths) * model.bytes_per_param
