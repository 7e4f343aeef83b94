"""What a replay can tell its user beyond the numbers."""

from harness.config import EngineConfig
from harness.engine import Ending, Outcome
from harness.recorder import Recorder
from harness.request import named
from harness.schedulers.batch import Dismissal, Dismissed
from harness.workload import Workload
from profiles.capacity import GIB
from profiles.model import load_model
from results.findings import Finding, Severity

NS_PER_S = 1_000_000_000
OVERLOAD = 0.2
"""Share of the arrival span that the queue may take to drain after the last arrival."""


class RunFindings:
    """Gathers findings when a run has ended.

    Attributes:
        num_lost_blocks: Blocks that nobody held and nobody could use.
    """

    def __init__(
        self,
        workload: Workload,
        config: EngineConfig,
        recorder: Recorder,
        outcome: Outcome,
        holders: str,
        is_closed_loop: bool = False,
    ) -> None:
        self.num_lost_blocks = 0
        self._workload = workload
        self._config = config
        self._recorder = recorder
        self._outcome = outcome
        self._holders = holders
        self._is_closed_loop = is_closed_loop

    def gather(self) -> list[Finding]:
        """The findings, those that cost requests first."""
        ending = self._outcome.ending
        found = [self._died()] if ending is Ending.DIED else []
        found += [self._stuck()] if ending is Ending.STUCK else []
        for reason in Dismissal:
            dismissed = [d for d in self._recorder.dismissed if d.reason is reason]
            if dismissed:
                found.append(self._dismissed(reason, dismissed))
        if ending is Ending.COMPLETE:
            found += self._overload()
        return found + self._cut_outputs() + self._lost_blocks()

    # -- the run as a whole ----------------------------------------------------------

    def _died(self) -> Finding:
        return Finding(
            code="vllm_would_die",
            severity="error",
            message=f"vLLM's engine would end here: {self._outcome.message}",
            advice="raise --max-num-batched-tokens, or do without chunked prefill for"
            " requests with n > 1",
        )

    def _stuck(self) -> Finding:
        return Finding(
            code="no_progress",
            severity="error",
            message=f"nothing could progress: {self._holders}",
            advice="give the pool more blocks, lower --watermark, or raise --max-num-seqs"
            " above the largest n",
        )

    def _overload(self) -> list[Finding]:
        """Whether a queue was left when the last request had come."""
        records = self._recorder.requests.values()
        arrivals = [record.arrival_ns for record in records]
        ends = [record.finished_ns for record in records if record.finished_ns]
        span_s = (max(arrivals) - min(arrivals)) / NS_PER_S
        drain_s = (max(ends, default=0) - max(arrivals)) / NS_PER_S
        if self._is_closed_loop or span_s < 60 or drain_s < OVERLOAD * span_s:
            return []
        return [
            Finding(
                code="overloaded",
                severity="warning",
                message=f"requests come faster than they are served: {drain_s:,.0f} s"
                f" after the last of {span_s:,.0f} s of arrivals the queue was still"
                " draining, so latencies grow with the length of the trace",
                advice="--tensor-parallel-size or a larger GPU; --speedup below 1 shows a"
                " lighter load",
            )
        ]

    def _lost_blocks(self) -> list[Finding]:
        if not self.num_lost_blocks:
            return []
        return [
            Finding(
                code="blocks_lost",
                severity="warning",
                message=f"{self.num_lost_blocks:,} blocks were lost to the pool by the"
                " end, as vLLM's v0 loses them when a group can never be swapped in, or"
                " when the last of several samples is recomputed",
                advice="a larger pool, so that nothing is preempted",
            )
        ]

    # -- requests --------------------------------------------------------------------

    def _dismissed(self, reason: Dismissal, dismissed: list[Dismissed]) -> Finding:
        ids = named(d.request.request_id for d in dismissed)
        count = f"{len(dismissed):,} request{'s' if len(dismissed) > 1 else ''} ({ids})"
        if reason is Dismissal.EXCEEDS_KV_CAPACITY:
            return self._exceeds_capacity(count, dismissed)
        if reason is Dismissal.NO_CPU_BLOCKS:
            return self._swap_space_short(count, dismissed)
        code, severity, message, advice = _SENTENCES[reason]
        return Finding(
            code=code,
            severity=severity,
            message=f"{count} {message}",
            advice=advice.format(longest=max(d.num_tokens for d in dismissed)),
        )

    def _exceeds_capacity(self, count: str, dismissed: list[Dismissed]) -> Finding:
        config = self._config
        longest = max(d.num_tokens for d in dismissed)
        needed = -(-longest // config.block_size) + int(
            config.watermark * config.num_gpu_blocks
        )
        return Finding(
            code="exceeds_kv_capacity",
            severity="warning",
            message=f"{count} did not fit into the pool, or no longer: the longest came"
            f" to {longest:,} tokens and needs {needed:,} blocks with the watermark, the"
            f" pool has {config.num_gpu_blocks:,}",
            advice="raise --gpu-memory-utilization or --tensor-parallel-size, or send"
            " such requests elsewhere",
        )

    def _swap_space_short(self, count: str, dismissed: list[Dismissed]) -> Finding:
        """Name the swap space that holds the largest group at its full length."""
        config = self._config
        block_size = config.block_size
        num_blocks = 0
        for request in (d.request for d in dismissed):
            shared = request.num_prompt_tokens // block_size
            private = sum(
                -(-(request.num_prompt_tokens + n) // block_size) - shared
                for _, n in request.outputs
            )
            num_blocks = max(num_blocks, shared + private)
        block_bytes = load_model(config.model).block_bytes(
            block_size, config.tensor_parallel_size
        )
        gib = -(-num_blocks * block_bytes // GIB)
        held = config.num_cpu_blocks * block_bytes // GIB
        return Finding(
            code="swap_space_short",
            severity="error",
            message=f"{count} had to make room and the {config.num_cpu_blocks:,} CPU"
            f" blocks had none for them; vLLM's engine ends there. The largest alone"
            f" needs {num_blocks:,} blocks, {num_blocks * block_bytes / GIB:.1f} GiB",
            advice=f"at least --swap-space {max(gib, held + 1)}, and no"
            " --num-cpu-blocks-override",
        )

    def _cut_outputs(self) -> list[Finding]:
        limit = self._config.max_model_len
        lengths = self._workload.output_tokens
        num_cut = sum(
            record.num_output_tokens < int(lengths[record.request_id])
            for record in self._recorder.requests.values()
            if record.max_sample_tokens
        )
        if not num_cut:
            return []
        requests = "1 request" if num_cut == 1 else f"{num_cut:,} requests"
        return [
            Finding(
                code="outputs_cut",
                severity="info",
                message=f"{requests} reached max_model_len ({limit:,} tokens) before all"
                " their output",
                advice="raise --max-model-len if the model allows it",
            )
        ]


_SENTENCES: dict[Dismissal, tuple[str, Severity, str, str]] = {
    Dismissal.PROMPT_TOO_LONG: (
        "prompt_too_long",
        "warning",
        "with prompts longer than max_model_len were refused",
        "the longest has {longest:,} tokens; raise --max-model-len if the model allows"
        " it",
    ),
    Dismissal.TOO_LONG_FOR_A_STEP: (
        "too_long_for_a_step",
        "error",
        "came to more tokens than a step may have, and were ended when they were to be"
        " recomputed",
        "the longest came to {longest:,} tokens; raise --max-num-batched-tokens or use"
        " --enable-chunked-prefill",
    ),
    Dismissal.SWAP_IN_NEVER: (
        "swap_in_never",
        "error",
        "swapped out and too large ever to come back; vLLM ends them without a result",
        "a larger pool, or a smaller n",
    ),
    Dismissal.RECOMPUTE_SEVERAL: (
        "recompute_several",
        "error",
        "had several samples running when they were to be recomputed; vLLM's engine ends"
        " there",
        "leave --preemption-mode out, so that groups with n > 1 are swapped",
    ),
    Dismissal.RECOMPUTE_FIRST: (
        "recompute_first_sample",
        "error",
        "had to recompute their first sample after others had finished; vLLM's engine"
        " ends there",
        "--preemption-mode swap",
    ),
}
