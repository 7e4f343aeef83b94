"""Token ids agree exactly where contents do."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.request import NOBODY_ELSES, Request, Run
from harness.vllm_engine.tokens import TokenMaker
from harness.workload import Workload

RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=5)


def workload_of(prompts: Sequence[Sequence[Run]]) -> Workload:
    """Requests with these prompts and an output of their own each."""
    return Workload.from_requests(
        [
            Request(
                request_id=number,
                arrival_ns=0,
                prompt=tuple(prompt),
                num_prompt_tokens=sum(length for _, length in prompt),
                outputs=((100 + number, 8),),
            )
            for number, prompt in enumerate(prompts)
        ]
    )


def contents(prompt: Sequence[Run]) -> list[tuple[int, int]]:
    """A prompt token by token: segment and position."""
    return [(segment, i) for segment, length in prompt for i in range(length)]


@given(st.lists(RUNS, min_size=2, max_size=6), st.sampled_from([256, 32_000, 151_936]))
def test_equal_content_has_equal_ids_and_segments_differ(
    prompts: list[list[Run]], vocab_size: int
) -> None:
    """Tokens are equal where content is, and at one position no two segments agree."""
    workload = workload_of(prompts)
    maker = TokenMaker(workload, vocab_size)
    ids: dict[tuple[int, int], int] = {}

    for number, prompt in enumerate(prompts):
        tokens = maker.prompt(workload.request(number))
        for content, token in zip(contents(prompt), tokens, strict=True):
            assert ids.setdefault(content, token) == token
            assert 0 <= token < vocab_size

    for (segment, position), token in ids.items():
        others = {t for (s, p), t in ids.items() if p == position and s != segment}
        assert token not in others


def test_what_is_nobody_elses_is_shared_by_nobody() -> None:
    """Two runs without a name differ, in one prompt and in two."""
    prompt = ((NOBODY_ELSES, 16), (NOBODY_ELSES, 16))
    workload = workload_of([prompt, prompt])
    maker = TokenMaker(workload, 512)

    first, second = (maker.prompt(workload.request(number)) for number in (0, 1))

    parts = [first[:16], first[16:], second[:16], second[16:]]
    assert len({part[0] for part in parts}) == 4


def test_a_prompt_continues_what_was_generated() -> None:
    """An output that the engine has made is what a later prompt contains."""
    workload = workload_of([((0, 4),), ((0, 4), (100, 8), (1, 2))])
    maker = TokenMaker(workload, 512)
    generated = list(range(200, 208))

    maker.learn((100, 8), generated)

    assert maker.prompt(workload.request(1))[4:12] == generated


def test_what_was_sent_stays_as_it_was() -> None:
    """Content that stood in a prompt does not change when it is generated later."""
    workload = workload_of([((0, 4),), ((0, 4), (100, 8))])
    maker = TokenMaker(workload, 512)
    sent = maker.prompt(workload.request(1))

    maker.learn((100, 8), list(range(200, 208)))

    assert maker.prompt(workload.request(1)) == sent


def test_warm_up_begins_like_no_prompt() -> None:
    """What is sent before the run shares no first token with it."""
    workload = workload_of([((number, 4),) for number in range(20)])
    maker = TokenMaker(workload, 512)

    firsts = {maker.prompt(workload.request(number))[0] for number in range(20)}

    assert firsts.isdisjoint({maker.warm_up(number, 4)[0] for number in range(4)})


def test_a_tiny_vocabulary_is_refused() -> None:
    """With a handful of ids prompts could not differ."""
    with pytest.raises(UsageError, match="vocabulary of 8 tokens"):
        TokenMaker(workload_of([((0, 4),)]), 8)
