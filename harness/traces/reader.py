"""What a reader of one trace format offers, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from harness.run_columns import IntArray, RunColumns
from harness.traces.bad_row import BadRows
from harness.traces.source import TraceSource
from harness.workload import ExtraKeys, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """The good rows of a trace, in file order, times as the file counts them.

    Attributes are those of :class:`~harness.workload.Workload`; None stands for a
    column that the format does not have.
    """

    arrival_ns: IntArray
    prompts: RunColumns
    outputs: RunColumns
    has_sharing: bool
    is_generated: bool = False
    parent: IntArray | None = None
    delay_ns: IntArray | None = None
    priority: IntArray | None = None
    extra_keys: Mapping[int, ExtraKeys] = field(default_factory=dict)
    notes: Sequence[str] = ()


class TraceReader(Protocol):
    """Reads one format.

    Attributes:
        name: What ``--format`` calls it.
        first_line: How such a file begins, for people.
    """

    name: str
    first_line: str

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Whether a file with these first lines is of this format."""

    def read(self, source: TraceSource, bad_rows: BadRows) -> TraceColumns:
        """The rows of the file; what cannot be used goes to ``bad_rows``."""


def arranged(
    columns: TraceColumns,
    *,
    name: str,
    format_name: str,
    content_hash: str,
    skipped_by_reason: Mapping[str, int],
) -> Workload:
    """A workload of these rows: by time, then row; the earliest arrival at 0."""
    count = len(columns.arrival_ns)
    zeros = np.zeros(count, dtype=np.int64)
    workload = Workload(
        name=name,
        format=format_name,
        content_hash=content_hash,
        arrival_ns=columns.arrival_ns,
        prompts=columns.prompts,
        outputs=columns.outputs,
        parent=zeros - 1 if columns.parent is None else columns.parent,
        delay_ns=zeros if columns.delay_ns is None else columns.delay_ns,
        priority=zeros if columns.priority is None else columns.priority,
        extra_keys=columns.extra_keys,
        has_sharing=columns.has_sharing,
        is_generated=columns.is_generated,
        skipped_by_reason=dict(skipped_by_reason),
        notes=tuple(columns.notes) + _sorting_note(columns.arrival_ns),
    )
    return workload.take(np.argsort(columns.arrival_ns, kind="stable"))


def _sorting_note(arrival_ns: IntArray) -> tuple[str, ...]:
    num_late = int((np.diff(arrival_ns) < 0).sum())
    if not num_late:
        return ()
    return (
        f"rows were not in time order ({num_late:,} earlier than the row before):"
        " sorted by time, then row",
    )
