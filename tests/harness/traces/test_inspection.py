"""Tests for :mod:`harness.traces.inspection`."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.request import Request, Run
from harness.traces.inspection import ideal_hit_rate, inspect_workload
from harness.workload import Workload

RUNS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5
).map(tuple)
ROWS = st.lists(
    st.tuples(
        RUNS,
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=2),
        st.sampled_from([(), ("salt", "x")]),
    ),
    min_size=1,
    max_size=12,
)


def _workload(
    rows: Sequence[tuple[tuple[Run, ...], list[Run], tuple[str, ...]]],
) -> Workload:
    return Workload.from_requests(
        [
            Request(
                request_id=i,
                arrival_ns=i,
                prompt=prompt,
                num_prompt_tokens=sum(length for _, length in prompt),
                outputs=tuple(outputs),
                extra_keys=extra_keys,
            )
            for i, (prompt, outputs, extra_keys) in enumerate(rows)
        ]
    )


def _tokens(runs: tuple[Run, ...]) -> list[tuple[int, int]]:
    return [(segment, i) for segment, length in runs for i in range(length)]


def _naive_hit_rate(workload: Workload, block_size: int) -> float | None:
    seen: set[tuple[object, ...]] = set()
    num_hits = num_blocks = 0
    for i in range(len(workload)):
        request = workload.request(i)
        prompt = _tokens(request.prompt)
        ends = range(block_size, len(prompt) + 1, block_size)
        num_blocks += len(ends)
        num_hits += sum((request.extra_keys, *prompt[:end]) in seen for end in ends)
        for output in request.outputs:
            cached = prompt + _tokens((output,))[:-1]
            for end in range(1, len(cached) + 1):
                seen.add((request.extra_keys, *cached[:end]))
    return num_hits / num_blocks if num_blocks else None


@given(ROWS, st.integers(1, 7))
def test_hit_rate_agrees_with_counting_tokens(
    rows: list[tuple[tuple[Run, ...], list[Run], tuple[str, ...]]], block_size: int
) -> None:
    """The walk over runs counts the same hits as a set of all token prefixes."""
    workload = _workload(rows)

    assert ideal_hit_rate(workload, block_size) == _naive_hit_rate(workload, block_size)


def test_conversation_hits_its_own_output() -> None:
    """A next turn finds prompt and output of the turn before, less the last token."""
    first, output = ((0, 8),), (1, 8)
    second = ((0, 8), (1, 8), (2, 4))
    workload = _workload([(first, [output], ()), (second, [(3, 1)], ())])

    assert ideal_hit_rate(workload, 4) == 3 / 7


def test_unknown_sharing_has_no_rate() -> None:
    """A trace that does not say which prompts begin alike has no hit rate, not 0."""
    workload = _workload([(((0, 8),), [(1, 2)], ())])
    unknown = Workload(
        **{
            name: getattr(workload, name)
            for name in Workload.__dataclass_fields__
            if name != "has_sharing"
        },
        has_sharing=False,
    )

    assert inspect_workload(unknown)["ideal_hit_rate"] is None


def test_document_has_the_figures() -> None:
    """Lengths are summed up over requests, outputs over all samples, as numpy does."""
    rows = [(((i, i + 1),), [(50, i + 1), (60, 2)], ()) for i in range(40)]

    document = inspect_workload(_workload(rows), block_size=4)

    lengths = np.arange(1, 41)
    assert document["num_requests"] == 40
    assert document["input_tokens"] == {
        "mean": 20.5,
        "p50": 20.5,
        "p90": pytest.approx(np.percentile(lengths, 90)),
        "p99": pytest.approx(np.percentile(lengths, 99)),
        "max": 40,
    }
    assert document["output_tokens"]["mean"] == 22.5


def test_block_size_zero_is_refused() -> None:
    """A block holds at least one token."""
    with pytest.raises(UsageError, match="block size is 0"):
        inspect_workload(_workload([(((0, 1),), [(1, 1)], ())]), block_size=0)
