"""The child's loop, with an engine that only behaves as vLLM's does."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.request import Request
from harness.vllm_engine.child import tier
from harness.vllm_engine.child.replay import Replay
from harness.vllm_engine.spec import EngineSpec
from harness.workload import Workload

FACTS = {"policy": "v1", "vocab_size": 2_000, "block_size": 16, "max_model_len": 512}


class FakeEngine:
    """An engine whose copies to its tier take a few steps more than its requests.

    Args:
        num_copies: Steps that they take; for ever with a large number.
        has_tier: There is an offload tier at all.
    """

    def __init__(self, num_copies: int = 0, *, has_tier: bool = True) -> None:
        self.num_copies = num_copies
        self.events: list[str] = []
        scheduler = SimpleNamespace(
            connector=object() if has_tier else None,
            has_requests=lambda: self.num_copies > 0,
        )
        core = SimpleNamespace(scheduler=scheduler)
        self.engine_core = SimpleNamespace(engine_core=core)

    def has_unfinished_requests(self) -> bool:
        return False

    def step(self) -> list[Any]:
        self.events.append("step")
        self.num_copies -= 1
        return []

    def reset_prefix_cache(self) -> None:
        self.events.append(f"reset, {max(self.num_copies, 0)} left")

    def add_request(self, name: str, *_: Any, **__: Any) -> None:
        self.events.append("add")


def requests() -> Workload:
    """Two conversations of two turns; the first turn of one has two samples."""
    first = ((10, 4),), ((20, 4), (21, 4))
    made = [
        Request(
            request_id=number,
            arrival_ns=0,
            prompt=((number, 16),),
            num_prompt_tokens=16,
            outputs=outputs,
        )
        for number, outputs in enumerate(first)
    ]
    made += [
        Request(
            request_id=2 + number,
            arrival_ns=0,
            prompt=((number, 16), outputs[0], (30 + number, 4)),
            num_prompt_tokens=24,
            outputs=((40 + number, 4),),
        )
        for number, outputs in enumerate(first)
    ]
    return Workload.from_requests(made)


@pytest.fixture
def replay_on() -> Callable[..., Any]:
    """Return what makes a replay on an engine."""
    params = SimpleNamespace(
        RequestOutputKind=SimpleNamespace(FINAL_ONLY=0), SamplingParams=dict
    )
    vllm = SimpleNamespace(module=lambda name: params, version="0")

    def replay_on(engine: FakeEngine, **facts: Any) -> Any:
        spec = EngineSpec(warmup_requests=2)
        return Replay(
            vllm,  # type: ignore[arg-type]
            engine,
            spec,
            requests(),
            FACTS | facts,
            SimpleNamespace(),  # type: ignore[arg-type]
        )

    return replay_on


def test_the_cache_is_reset_once_nothing_holds_its_blocks(
    replay_on: Callable[..., Any],
) -> None:
    """Copies of the warm-up's blocks end first: without that it would not be cold."""
    engine = FakeEngine(3)

    replay_on(engine).warm_up()

    assert engine.events == ["add", "add", "step", "step", "step", "reset, 0 left"]


def test_copies_that_never_end_are_not_waited_for_for_ever(
    replay_on: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run then says that its cache was not cold."""
    monkeypatch.setattr(tier, "DRAIN_S", 0.1)
    engine = FakeEngine(10**9)

    replay_on(engine).warm_up()

    assert engine.events[-1].startswith("reset, 9")


def test_an_engine_without_a_tier_makes_no_step_more(
    replay_on: Callable[..., Any],
) -> None:
    """Nor does V0, which has no such scheduler."""
    for engine, facts in ((FakeEngine(3, has_tier=False), {}), (FakeEngine(3), V0)):
        replay_on(engine, **facts).warm_up()

        assert "step" not in engine.events


V0 = {"policy": "v0"}


def output(number: int, *samples: list[int]) -> Any:
    """What an engine has generated for a request."""
    outputs = [SimpleNamespace(token_ids=sample) for sample in samples]
    return SimpleNamespace(request_id=f"{number}-ab12", outputs=outputs)


@pytest.mark.parametrize("replays", [True, False])
def test_prompts_continue_what_was_generated_unless_it_was_told(
    replay_on: Callable[..., Any], replays: bool
) -> None:
    """VLLM says the trace's tokens of requests with one sample, and of no others."""
    run = replay_on(FakeEngine(), enable_trace_replay=replays)
    tokens, plan = run._tokens, requests()
    ours = tokens.output((10, 4))

    run._learn(output(0, [5, 6, 7, 8]))
    run._learn(output(1, [1, 2, 3, 4], [4, 3, 2, 1]))

    assert tokens.prompt(plan.request(2))[16:20] == (ours if replays else [5, 6, 7, 8])
    assert tokens.prompt(plan.request(3))[16:20] == [1, 2, 3, 4]
