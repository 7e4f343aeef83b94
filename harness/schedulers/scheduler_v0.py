"""The scheduler that vLLM had before V1: three queues, swap and recompute.

Source: behaviour of vLLM 0.5.5 (``vllm/core/scheduler.py``), recorded in
tests/data/golden; docs/v0.md states the rules.
"""

from collections.abc import Iterable

from allocators.block_space_manager import AllocStatus, BlockSpaceManager
from allocators.sequence import Sequence, SequenceGroup, SequenceStatus
from harness.request import Request
from harness.schedulers.batch import (
    Batch,
    CacheState,
    Dismissal,
    Finished,
    PreemptionMode,
    Scheduled,
    TransferId,
)
from harness.schedulers.batch_shape import shape_of
from harness.schedulers.budget import Budget
from harness.schedulers.call import Call, Entry, Member
from harness.schedulers.errors import SchedulerDiedError
from harness.schedulers.growth import grow, num_plain_steps
from harness.schedulers.preemption import Preemption
from harness.schedulers.queues import Queues, cache_state, describe_holders
from harness.schedulers.sampling import Sampling


class SchedulerV0:
    """Decides batches as vLLM 0.5.5 does, over a :class:`BlockSpaceManager`.

    It plans each step from the tokens of the last: one batch in flight, as in vLLM.

    Args:
        block_manager: Its blocks.
        max_num_seqs: Sequences a step.
        max_num_batched_tokens: Tokens a step.
        max_model_len: Longest sequence, prompt and output.
        enable_chunked_prefill: Mix decodes with parts of prefills.
        preemption_mode: Forces one; ``None`` recomputes groups of one, swaps others.
        dies_like_vllm: Raise where vLLM's engine would die over one request, instead of
            giving that request up and going on.
    """

    def __init__(
        self,
        block_manager: BlockSpaceManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = False,
        preemption_mode: PreemptionMode | None = None,
        dies_like_vllm: bool = False,
    ) -> None:
        self.block_manager = block_manager
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.enable_chunked_prefill = enable_chunked_prefill
        self.queues = Queues()
        self._members: dict[int, Member] = {}
        self._sampling = Sampling(block_manager, max_model_len)
        self._preemption = Preemption(
            block_manager, self._sampling, preemption_mode, dies_like_vllm
        )
        self._step = 0

    # -- requests come and go --------------------------------------------------------

    def add(self, request: Request) -> None:
        """Put a request at the end of the waiting queue."""
        member = self._members[request.request_id] = self._sampling.begin(request)
        self.queues.waiting.append(member)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits, runs or is swapped out."""
        return bool(self.queues)

    # -- one call --------------------------------------------------------------------

    def schedule(self) -> Batch:
        """Decide the next step.

        Raises:
            SchedulerDiedError: vLLM's engine would die here.
        """
        self._step += 1
        budget = Budget(self.max_num_batched_tokens, self.max_num_seqs)
        call = Call(Batch(), budget)
        if self.enable_chunked_prefill:
            entries = self._in_chunked_mode(call)
        else:
            entries = self._in_default_mode(call)
        if budget.is_exceeded:
            raise SchedulerDiedError(
                "vllm_assertion",
                f"a step took {budget.num_tokens} tokens and {budget.num_seqs} sequences,"
                f" more than max_num_batched_tokens={budget.max_tokens} or"
                f" max_num_seqs={budget.max_seqs}",
            )
        for dismissed in call.batch.dismissed:
            del self._members[dismissed.request.request_id]
        call.batch.scheduled = [entry for _, entry in entries]
        self._use_cache(entries)
        call.batch.shape = shape_of(call.batch, [member.group for member, _ in entries])
        return call.batch

    def _in_default_mode(self, call: Call) -> list[Entry]:
        """Prefills alone if any can start, else decodes and swap-ins."""
        groups = [member.group for member in self.queues.running]
        call.budget.num_seqs = sum(group.max_num_running_seqs for group in groups)
        if not self.queues.swapped:
            self._admit_waiting(call)
        if not call.prefills:
            self._continue_running(call)
            if not call.batch.num_preempted:
                self._bring_back_swapped(call)
        entries = call.prefills + call.decodes + call.swapped_decodes
        self._requeue(call, entries)
        return entries

    def _in_chunked_mode(self, call: Call) -> list[Entry]:
        """Decodes and unfinished prefills first, then swap-ins, then new prefills."""
        self._continue_running(call)
        if not call.batch.num_preempted:
            self._bring_back_swapped(call)
        self._admit_waiting(call)
        decodes = call.decodes + call.continuing
        swapped = call.swapped_decodes + call.swapped_prefills
        self._requeue(call, call.prefills + decodes + swapped)
        prefills = call.prefills + call.continuing + call.swapped_prefills
        return prefills + call.decodes + call.swapped_decodes

    def _requeue(self, call: Call, entries: list[Entry]) -> None:
        self.queues.waiting.extendleft(call.recomputed)
        self.queues.running.extend(member for member, _ in entries)
        self.queues.swapped.extend(call.swapped_out)

    def _use_cache(self, entries: list[Entry]) -> None:
        """Mark accesses, look up what prefills may skip, then mark what gets computed."""
        manager = self.block_manager
        if not manager.enable_caching:
            return
        for member, entry in entries:
            running = member.group.seqs_with(SequenceStatus.RUNNING)
            for seq in running:
                manager.access(seq, self._step)
            if entry.is_prefill:
                entry.num_computed_blocks = manager.num_computed_blocks(running[0])
                self._count_hit(member, entry, running[0].num_computed_tokens)
        for member, _ in entries:
            manager.mark_blocks_as_computed(member.group.seqs)

    def _count_hit(self, member: Member, entry: Scheduled, start: int) -> None:
        """Find out how much of a prefill's chunk lies in what the cache had at admission.

        Later chunks would find blocks that this very prefill was said to compute. One
        token of a chunk is always computed.
        """
        if entry.is_admission:
            num_blocks = entry.num_computed_blocks
            member.num_cached_tokens = num_blocks * self.block_manager.block_size
        num_cached_tokens = min(member.num_cached_tokens - start, entry.num_tokens - 1)
        entry.num_cached_tokens = max(0, num_cached_tokens)

    # -- the three passes ------------------------------------------------------------

    def _admit_waiting(self, call: Call) -> None:
        """Admit waiting groups in order, up to the first that has to wait on."""
        while self.queues.waiting:
            member = self.queues.waiting[0]
            group = member.group
            num_tokens = self._num_new_tokens(call, group, SequenceStatus.WAITING)
            status = self.block_manager.can_allocate(group)
            if num_tokens > self._prompt_limit:
                self._dismiss_first(call, Dismissal.TOO_LONG_FOR_A_STEP)
            elif status is AllocStatus.NEVER:
                self._dismiss_first(call, Dismissal.EXCEEDS_KV_CAPACITY)
            elif status is AllocStatus.LATER or not call.budget.admits(
                num_tokens, group.max_num_running_seqs
            ):
                if status is AllocStatus.LATER:
                    num_needed = self.block_manager.num_admission_blocks(group)
                    call.refuse(num_needed, self.block_manager.num_room_blocks)
                break
            elif group.is_prefill and len(group.seqs) > 1:
                self._preemption.dismiss(
                    call, self.queues.waiting.popleft(), Dismissal.RECOMPUTE_FIRST
                )
            else:
                self.queues.waiting.popleft()
                call.budget.take(num_tokens, group.max_num_running_seqs)
                self._admit(call, member, num_tokens)

    def _dismiss_first(self, call: Call, reason: Dismissal) -> None:
        """End the first waiting group."""
        member = self.queues.waiting.popleft()
        self._sampling.end(member)
        call.dismiss(member, reason)

    def _admit(self, call: Call, member: Member, num_tokens: int) -> None:
        self.block_manager.allocate(member.group)
        for seq in member.group.seqs_with(SequenceStatus.WAITING):
            seq.status = SequenceStatus.RUNNING
        entry = self._entry(member, num_tokens, is_prefill=True)
        entry.is_admission = True
        call.prefills.append((member, entry))

    def _continue_running(self, call: Call) -> None:
        """Let running groups go on; whoever finds no block preempts from the end."""
        while self.queues.running:
            member = self.queues.running[0]
            group = member.group
            num_tokens = self._num_new_tokens(call, group, SequenceStatus.RUNNING)
            if num_tokens == 0:
                break
            self.queues.running.popleft()
            if not self._make_room(call, member):
                continue
            self._append_slots(call, group)
            num_seqs = group.max_num_running_seqs if self.enable_chunked_prefill else 0
            call.budget.take(num_tokens, num_seqs)
            target = call.continuing if group.is_prefill else call.decodes
            target.append((member, self._entry(member, num_tokens, group.is_prefill)))

    def _make_room(self, call: Call, member: Member) -> bool:
        """Preempt until the group can grow; False if it had to go itself."""
        while not self.block_manager.can_append_slots(member.group):
            victim = self.queues.running.pop() if self.queues.running else member
            self._preemption.preempt(call, victim)
            if victim is member:
                return False
        return True

    def _bring_back_swapped(self, call: Call) -> None:
        """Bring swapped groups back in order, up to the first that has to wait on."""
        while self.queues.swapped:
            member = self.queues.swapped[0]
            group = member.group
            status = self.block_manager.can_swap_in(group)
            if status is AllocStatus.LATER and not self.enable_chunked_prefill:
                # In default mode nobody is admitted before those who were swapped out.
                num_needed = self.block_manager.num_swap_in_blocks(group)
                call.refuse(num_needed, self.block_manager.num_room_blocks)
            if status is AllocStatus.NEVER:
                self._preemption.dismiss_swapped(call, self.queues.swapped.popleft())
                continue
            swapped = group.seqs_with(SequenceStatus.SWAPPED)
            num_tokens = _num_uncut_tokens(swapped)
            num_seqs = group.max_num_running_seqs
            if status is AllocStatus.LATER or not call.budget.admits(
                num_tokens, num_seqs
            ):
                break
            self.queues.swapped.popleft()
            call.batch.swap_in.extend(self.block_manager.swap_in(group))
            for seq in swapped:
                seq.status = SequenceStatus.RUNNING
            self._append_slots(call, group)
            call.budget.take(num_tokens, num_seqs)
            is_prefill = group.is_prefill
            target = call.swapped_prefills if is_prefill else call.swapped_decodes
            target.append((member, self._entry(member, num_tokens, is_prefill)))

    # -- pieces of the passes --------------------------------------------------------

    @property
    def _prompt_limit(self) -> int:
        if self.enable_chunked_prefill:
            return self.max_model_len
        return min(self.max_model_len, self.max_num_batched_tokens)

    def _num_new_tokens(
        self, call: Call, group: SequenceGroup, status: SequenceStatus
    ) -> int:
        """Tokens that sequences in this state want, one alone cut to the budget."""
        seqs = group.seqs_with(status)
        num_tokens = _num_uncut_tokens(seqs)
        if self.enable_chunked_prefill and len(seqs) == 1:
            return min(num_tokens, call.budget.tokens_left)
        return num_tokens

    def _entry(self, member: Member, num_tokens: int, is_prefill: bool) -> Scheduled:
        group = member.group
        running = group.seqs_with(SequenceStatus.RUNNING)
        samples = True
        if group.is_prefill:
            seq = running[0]
            samples = num_tokens + seq.num_computed_tokens >= seq.num_tokens
        return Scheduled(
            member.request,
            num_tokens if is_prefill else 1,
            len(running),
            is_prefill,
            samples,
        )

    def _append_slots(self, call: Call, group: SequenceGroup) -> None:
        for seq in group.seqs_with(SequenceStatus.RUNNING):
            call.batch.copy_on_write.extend(self.block_manager.append_slots(seq))

    # -- a step has run --------------------------------------------------------------

    def commit(self, batch: Batch) -> list[Finished]:
        """Take in the tokens sampled in the batch's last step; who finished."""
        finished = []
        for entry in batch.scheduled:
            member = self._members[entry.request.request_id]
            group = member.group
            for seq in group.seqs:
                if seq.is_prefill and not seq.is_finished:
                    seq.num_computed_tokens += entry.num_tokens
                    seq.is_prefill = seq.num_computed_tokens != seq.num_tokens
            if entry.samples:
                self._sampling.sample(member)
            if group.is_finished:
                lengths = tuple(seq.num_output_tokens for seq in group.seqs)
                finished.append(Finished(member.request, lengths))
        if finished:
            self.queues.drop_finished()
            for done in finished:
                del self._members[done.request.request_id]
        return finished

    # -- steps between decisions -----------------------------------------------------

    def max_repeat(self, batch: Batch) -> int:
        """Further calls in a row that would decide the latest batch again.

        Waiting and swapped groups were tried in the call that made the batch; as free
        blocks only become fewer while it repeats, they would be refused again.
        """
        if not batch.is_plain_decode or len(batch.scheduled) != len(self.queues.running):
            return 0
        seqs = self._running_seqs(batch)
        if not seqs or any(s.is_prefill or self._sampling.has_twin(s) for s in seqs):
            return 0
        limit = min(map(self._sampling.num_tokens_left, seqs))
        largest = max(entry.num_seqs for entry in batch.scheduled)
        return num_plain_steps(seqs, self.block_manager, largest, limit) - 1

    def repeat(self, batch: Batch, num_steps: int) -> None:
        """Do what ``num_steps`` further calls would decide: the same batch, grown."""
        grow(self._running_seqs(batch), self.block_manager, num_steps)

    def batch_seqs(self, batch: Batch) -> list[tuple[int, list[Sequence]]]:
        """Running sequences of a batch, ``(request_id, sequences)`` in its order."""
        ids = [entry.request.request_id for entry in batch.scheduled]
        return [
            (i, self._members[i].group.seqs_with(SequenceStatus.RUNNING)) for i in ids
        ]

    def _running_seqs(self, batch: Batch) -> list[Sequence]:
        return [seq for _, seqs in self.batch_seqs(batch) for seq in seqs]

    def transfers_done(self, transfers: Iterable[TransferId]) -> None:
        """Nothing: v0 copies in front of a step, never beside it."""

    @property
    def num_used_blocks(self) -> int:
        """GPU blocks that sequences hold."""
        manager = self.block_manager
        return manager.gpu_allocator.num_blocks - manager.num_free_gpu_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Free GPU blocks whose content could still be reused."""
        return self.block_manager.gpu_allocator.num_cached_blocks

    @property
    def num_evictions(self) -> int:
        """Cached GPU blocks given up since the run began."""
        return self.block_manager.gpu_allocator.num_evictions

    @property
    def num_regretted_evictions(self) -> int:
        """Of these, how many were allocated again for the same content."""
        return self.block_manager.gpu_allocator.num_regretted_evictions

    def sample_lengths(self, request_id: int) -> tuple[int, ...]:
        """Tokens that each sample of an unfinished request has."""
        group = self._members[request_id].group
        return tuple(seq.num_output_tokens for seq in group.seqs)

    def state(self) -> CacheState:
        """Queues and pool as they are now; costs the length of the running queue."""
        return cache_state(self.block_manager, self.queues)

    def holders(self) -> str:
        """Who is in which queue and how many blocks are free, for people."""
        return describe_holders(self.block_manager, self.queues)

    def check_invariants(self) -> None:
        """Raise AssertionError unless every block is free or owned, and counted right."""
        self.block_manager.check_invariants()

    def close(self) -> int:
        """Take every block back, check that all are free; how many had been lost."""
        for member in self.queues.take_all():
            self._sampling.end(member)
        self._members.clear()
        manager = self.block_manager
        num_lost = manager.reclaim()
        manager.check_invariants()
        assert manager.num_free_gpu_blocks == manager.gpu_allocator.num_blocks
        assert manager.num_free_cpu_blocks == manager.cpu_allocator.num_blocks
        return num_lost


def _num_uncut_tokens(seqs: list[Sequence]) -> int:
    """Tokens the sequences want: the rest of a prefill, one for a decode."""
    return sum(
        seq.num_tokens - seq.num_computed_tokens if seq.is_prefill else 1 for seq in seqs
    )
