"""Random operations over a simulated KV memory: every sequence reads what it wrote."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allocators.block import Device, PhysicalTokenBlock
from allocators.block_hash import PrefixHashes, PrefixIndex
from allocators.block_space_manager import AllocStatus, BlockSpaceManager
from allocators.sequence import Sequence, SequenceGroup, SequenceStatus

BLOCK_SIZE, NUM_BLOCKS = 4, 14
PROMPTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=3
)
PICK = st.integers(0, 100)
Token = tuple[int, int]


class PagedMemory(RuleBasedStateMachine):
    """Admits, grows, forks, swaps and frees groups; writes and copies real slots."""

    enable_caching = False
    is_content_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockSpaceManager(
            BLOCK_SIZE, NUM_BLOCKS, NUM_BLOCKS, 0.1, self.enable_caching
        )
        self.index = PrefixIndex()
        self.groups: list[SequenceGroup] = []
        self.tokens: dict[int, list[Token]] = {}
        self.prompts: dict[int, PrefixHashes] = {}
        self.memory: dict[tuple[Device, int], list[Any]] = {}
        self.num_seqs = 0
        self.now = 0

    # -- the memory ------------------------------------------------------------------

    def slots(self, block: PhysicalTokenBlock) -> list[Any]:
        key = (block.device, block.block_number)
        return self.memory.setdefault(key, [None] * BLOCK_SIZE)

    def copy(self, pairs: list[tuple[int, int]], source: Device, target: Device) -> None:
        before = {a: list(self.memory[source, a]) for a, _ in pairs}
        for a, b in pairs:
            self.memory[target, b] = list(before[a])

    def write(self, seq: Sequence, position: int) -> None:
        block = self.manager.block_tables[seq.seq_id][position // BLOCK_SIZE]
        self.slots(block)[position % BLOCK_SIZE] = self.tokens[seq.seq_id][position]

    # -- sequences -------------------------------------------------------------------

    def new_seq(self, prompt: list[Token], hashes: PrefixHashes) -> Sequence:
        seq_id = self.num_seqs
        self.num_seqs += 1
        self.tokens[seq_id] = list(prompt)
        self.prompts[seq_id] = hashes
        output = hashes.extended(~(1000 + seq_id), 1000)
        return Sequence(seq_id, len(prompt), output, max_output_tokens=1000)

    def sample(self, seq: Sequence) -> None:
        self.tokens[seq.seq_id].append((1000 + seq.seq_id, seq.num_output_tokens))
        seq.num_output_tokens += 1

    def with_status(self, status: SequenceStatus) -> list[SequenceGroup]:
        return [g for g in self.groups if g.seqs[0].status is status]

    # -- operations ------------------------------------------------------------------

    @rule(runs=PROMPTS, n=st.integers(1, 3))
    def admit(self, runs: list[Token], n: int) -> None:
        prompt = [(segment, i) for segment, length in runs for i in range(length)]
        hashes = PrefixHashes(self.index, self.index.root(), runs)
        seq = self.new_seq(prompt, hashes)
        group = SequenceGroup(seq.seq_id, [seq], n)
        needed, free = -(-len(prompt) // BLOCK_SIZE), self.manager.num_free_gpu_blocks
        status = self.manager.can_allocate(group)
        assert (status is AllocStatus.OK) == (free - needed >= 1)
        assert (status is AllocStatus.NEVER) == (NUM_BLOCKS - needed < 1)
        if status is not AllocStatus.OK:
            return
        self.manager.allocate(group)
        seq.status = SequenceStatus.RUNNING
        self.now += 1
        self.manager.access(seq, self.now)
        first = self.manager.num_computed_blocks(seq) * BLOCK_SIZE
        for position in range(first, len(prompt)):
            self.write(seq, position)
        self.manager.mark_blocks_as_computed([seq])
        self.groups.append(group)
        children = [self.new_seq(prompt, hashes) for _ in range(n - 1)]
        for child in children:
            child.status = SequenceStatus.RUNNING
            self.manager.fork(seq, child)
            group.seqs.append(child)
        for each in group.seqs:
            self.sample(each)

    @precondition(lambda self: self.with_status(SequenceStatus.RUNNING))
    @rule(pick=PICK)
    def decode(self, pick: int) -> None:
        running = self.with_status(SequenceStatus.RUNNING)
        group = running[pick % len(running)]
        if not self.manager.can_append_slots(group):
            return
        self.now += 1
        for seq in group.seqs:
            copies = self.manager.append_slots(seq)
            self.copy(copies, Device.GPU, Device.GPU)
        for seq in group.seqs:
            self.write(seq, seq.num_tokens - 1)
            self.manager.access(seq, self.now)
        self.manager.mark_blocks_as_computed(group.seqs)
        for seq in group.seqs:
            self.sample(seq)

    @precondition(lambda self: self.with_status(SequenceStatus.RUNNING))
    @rule(pick=PICK)
    def swap_out(self, pick: int) -> None:
        running = self.with_status(SequenceStatus.RUNNING)
        group = running[pick % len(running)]
        if not self.manager.can_swap_out(group):
            return
        self.copy(self.manager.swap_out(group), Device.GPU, Device.CPU)
        for seq in group.seqs:
            seq.status = SequenceStatus.SWAPPED

    @precondition(lambda self: self.with_status(SequenceStatus.SWAPPED))
    @rule(pick=PICK)
    def swap_in(self, pick: int) -> None:
        swapped = self.with_status(SequenceStatus.SWAPPED)
        group = swapped[pick % len(swapped)]
        if self.manager.can_swap_in(group) is not AllocStatus.OK:
            return
        self.copy(self.manager.swap_in(group), Device.CPU, Device.GPU)
        self.now += 1
        for seq in group.seqs:
            seq.status = SequenceStatus.RUNNING
            self.manager.access(seq, self.now)

    @precondition(lambda self: self.groups)
    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        group = self.groups.pop(pick % len(self.groups))
        for seq in group.seqs:
            seq.status = SequenceStatus.FINISHED
            self.manager.free(seq)

    # -- what must hold --------------------------------------------------------------

    @invariant()
    def every_block_is_free_or_owned(self) -> None:
        self.manager.check_invariants()

    @precondition(lambda self: self.is_content_safe)
    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for group in self.groups:
            for seq in group.seqs:
                table = self.manager.block_tables[seq.seq_id]
                flat = [slot for block in table for slot in self.slots(block)]
                written = self.tokens[seq.seq_id][: seq.num_tokens - 1]
                assert flat[: len(written)] == written

    def teardown(self) -> None:
        for group in self.groups:
            for seq in group.seqs:
                self.manager.free(seq)
        assert self.manager.num_free_gpu_blocks == NUM_BLOCKS
        assert self.manager.num_free_cpu_blocks == NUM_BLOCKS


class CachedPagedMemory(PagedMemory):
    """The same with prefix caching, until something is swapped.

    From then on vLLM 0.5.5 itself does not keep contents apart (docs/v0.md): a block in
    use that is named by a half-filled prefix is swapped onto, whatever else it holds.
    """

    enable_caching = True

    @rule(pick=PICK)
    @precondition(lambda self: self.with_status(SequenceStatus.RUNNING))
    def swap_out(self, pick: int) -> None:
        self.is_content_safe = False
        super().swap_out(pick)


@pytest.mark.parametrize("machine", [PagedMemory, CachedPagedMemory])
def test_random_operations(machine: type[PagedMemory]) -> None:
    """No sequence of operations loses a block or lets one sequence spoil another."""
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=150, stateful_step_count=40, deadline=None),
    )
