"""Making room: who loses its blocks, how, and what becomes of those who cannot."""

from allocators.block_space_manager import BlockSpaceManager
from allocators.sequence import SequenceStatus
from harness.schedulers.batch import Dismissal, Preempted, PreemptionMode
from harness.schedulers.call import Call, Member
from harness.schedulers.errors import SchedulerDiedError
from harness.schedulers.sampling import Sampling


class Preemption:
    """Takes the blocks of running groups, by recomputation or swapping.

    Args:
        block_manager: Whose blocks.
        sampling: Ends groups that cannot go on.
        mode: Forces one; ``None`` recomputes groups that count as one sequence and swaps
            the others.
        dies_like_vllm: Raise where vLLM's engine would die over one group, instead of
            giving that group up and going on.
    """

    def __init__(
        self,
        block_manager: BlockSpaceManager,
        sampling: Sampling,
        mode: PreemptionMode | None,
        dies_like_vllm: bool,
    ) -> None:
        self._block_manager = block_manager
        self._sampling = sampling
        self._mode = mode
        self._dies_like_vllm = dies_like_vllm

    def preempt(self, call: Call, member: Member) -> None:
        """Take a running group's blocks.

        Raises:
            SchedulerDiedError: vLLM's engine would die here.
        """
        mode = self._mode
        if mode is None:
            is_single = member.group.max_num_running_seqs == 1
            mode = PreemptionMode.RECOMPUTE if is_single else PreemptionMode.SWAP
        if mode is PreemptionMode.RECOMPUTE:
            self._recompute(call, member)
        else:
            self._swap_out(call, member)

    def dismiss(self, call: Call, member: Member, reason: Dismissal) -> None:
        """End a group over which vLLM's engine would die.

        Raises:
            SchedulerDiedError: It is to die here, too.
        """
        if self._dies_like_vllm:
            is_swap = reason is Dismissal.NO_CPU_BLOCKS
            kind = "no_cpu_swap_space" if is_swap else "vllm_assertion"
            raise SchedulerDiedError(kind, reason)
        self._sampling.end(member)
        call.dismiss(member, reason)

    def dismiss_swapped(self, call: Call, member: Member) -> None:
        """End a swapped group that can never come back.

        vLLM forgets its CPU blocks: they stay taken, and so they do here.
        """
        for seq in member.group.unfinished_seqs:
            seq.status = SequenceStatus.FINISHED
        call.dismiss(member, Dismissal.SWAP_IN_NEVER)

    def _recompute(self, call: Call, member: Member) -> None:
        running = member.group.seqs_with(SequenceStatus.RUNNING)
        if len(running) > 1:
            self.dismiss(call, member, Dismissal.RECOMPUTE_SEVERAL)
            return
        (seq,) = running
        decoded = seq.num_tokens - 1  # the newest token is not computed yet
        num_lost_tokens = seq.num_computed_tokens if seq.is_prefill else decoded
        seq.status = SequenceStatus.WAITING
        self._block_manager.free(seq)
        seq.num_computed_tokens, seq.is_prefill = 0, True
        call.recomputed.append(member)
        preempted = Preempted(member.request, num_lost_tokens)
        batch = call.batch
        batch.preempted_recompute = (*batch.preempted_recompute, preempted)

    def _swap_out(self, call: Call, member: Member) -> None:
        group = member.group
        if not self._block_manager.can_swap_out(group):
            self.dismiss(call, member, Dismissal.NO_CPU_BLOCKS)
            return
        call.batch.swap_out.extend(self._block_manager.swap_out(group))
        for seq in group.seqs_with(SequenceStatus.RUNNING):
            seq.status = SequenceStatus.SWAPPED
        call.swapped_out.append(member)
        batch = call.batch
        batch.preempted_swap = (*batch.preempted_swap, Preempted(member.request))
