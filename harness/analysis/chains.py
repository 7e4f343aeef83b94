"""The same requests said more briefly, so that a replay has less to look at.

Traces name prompts by blocks of 512 tokens or so, and a block mostly comes after the
same block wherever it appears: such segments become one. What is done for each run of a
prompt is then done for a handful instead of dozens. And content that appears once in a
workload needs no name by which it could be found again.
"""

from dataclasses import dataclass, replace

import numpy as np

from harness.request import NOBODY_ELSES
from harness.run_columns import IntArray, RunColumns
from harness.workload import Workload


def with_long_runs(workload: Workload) -> Workload:
    """The same workload in as few runs as chaining gives; prompts agree just as before.

    A segment joins the one before it if it never follows another, nor the same one cut
    to another length. One segment at most joins a given one; outputs stay as they are.
    """
    prompts = workload.prompts
    if len(prompts.segments) == len(prompts):
        return workload
    chains = _Chains.of(prompts, workload.outputs)
    return replace(workload, prompts=chains.joined(prompts))


def without_names(workload: Workload) -> Workload:
    """The same workload; segments that appear once in it are ``NOBODY_ELSES``.

    The samples of a request share its prompt, which counts as often as there are.
    """
    prompts, outputs = workload.prompts, workload.outputs
    both = np.concatenate((prompts.segments, outputs.segments))
    _, index, counts = np.unique(both, return_inverse=True, return_counts=True)
    is_shared = counts[index] > 1
    num_in_prompts = len(prompts.segments)
    has_samples = np.diff(outputs.offsets) > 1
    is_shared[:num_in_prompts] |= np.repeat(has_samples, np.diff(prompts.offsets))
    named = np.where(is_shared, both, NOBODY_ELSES)
    return replace(
        workload,
        prompts=replace(prompts, segments=named[:num_in_prompts]),
        outputs=replace(outputs, segments=named[num_in_prompts:]),
    )


@dataclass(frozen=True, slots=True)
class _Chains:
    """Where each run's segment stands in its chain.

    Attributes:
        head: Segment that the chain begins with, ``(num_runs,)``.
        start: Tokens of the chain before the run's segment, ``(num_runs,)``.
    """

    head: IntArray
    start: IntArray

    @classmethod
    def of(cls, prompts: RunColumns, outputs: RunColumns) -> "_Chains":
        """The chains of all prompts."""
        segments, index = np.unique(prompts.segments, return_inverse=True)
        lengths = prompts.lengths.astype(np.int64)
        is_first = np.zeros(len(index), dtype=np.bool_)
        is_first[prompts.offsets[:-1]] = True
        before = np.where(is_first, -1, np.roll(index, 1))
        longest = np.zeros(len(segments), dtype=np.int64)
        np.maximum.at(longest, index, lengths)
        # A segment that is cut where another follows it is no link of a chain.
        is_link = ~is_first & (np.roll(lengths, 1) == longest[before])
        links = _followed(index, np.where(is_link, before, -1), len(segments))
        is_output = np.isin(segments, outputs.segments)
        links[is_output | is_output[links]] = -1
        links = _first_follower(links)
        head, start = _positions(links, longest)
        return cls(segments[head[index]], start[index])

    def joined(self, prompts: RunColumns) -> RunColumns:
        """The prompts, one run a stretch of a chain."""
        is_begin = self.start == 0
        begins = np.flatnonzero(is_begin)
        ends = np.append(begins[1:], len(is_begin)) - 1
        lengths = self.start[ends] + prompts.lengths[ends]
        num_before = np.concatenate(([0], np.cumsum(is_begin)))
        offsets = num_before[prompts.offsets]
        return RunColumns(offsets, self.head[begins], lengths.astype(np.int32))


def _followed(index: IntArray, before: IntArray, num_segments: int) -> IntArray:
    """The one segment that each segment ever follows, or -1, ``(num_segments,)``."""
    least = np.full(num_segments, num_segments, dtype=np.int64)
    most = np.full(num_segments, -1, dtype=np.int64)
    np.minimum.at(least, index, before)
    np.maximum.at(most, index, before)
    followed: IntArray = np.where(least == most, most, -1)
    return followed


def _first_follower(links: IntArray) -> IntArray:
    """The same with one follower left for each segment; a chain has no branches."""
    linked = np.flatnonzero(links >= 0)
    _, first = np.unique(links[linked], return_index=True)
    kept = np.full_like(links, -1)
    kept[linked[first]] = links[linked[first]]
    return kept


def _positions(links: IntArray, longest: IntArray) -> tuple[IntArray, IntArray]:
    """Head of each segment's chain and tokens before it, by doubling the links' reach."""
    here = np.arange(len(links))
    head = np.where(links >= 0, links, here)
    start = np.where(links >= 0, longest[head], 0)
    while (head[head] != head).any():
        start = start + start[head]
        head = head[head]
    return head, start
