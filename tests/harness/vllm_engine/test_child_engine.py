"""What the child makes of an installed vLLM; none is imported here."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.vllm_engine.child.engine import Vllm


def arguments(*, fails: bool = False, speculative: object = None, **known: Any) -> Any:
    """Engine arguments that become this configuration, or none."""

    def create_engine_config(context: object) -> Any:
        if fails:
            raise ValueError("trace replay requires Model Runner V2")
        return SimpleNamespace(speculative_config=speculative)

    return SimpleNamespace(create_engine_config=create_engine_config, **known)


@pytest.mark.parametrize(
    ("given", "replays"),
    [
        (arguments(enable_trace_replay=False), True),
        (arguments(enable_trace_replay=False, fails=True), False),
        (arguments(enable_trace_replay=False, speculative="ngram"), False),
        (arguments(), False),  # a version without it
    ],
)
def test_tokens_are_told_where_vllm_takes_them(given: Any, replays: bool) -> None:
    """Not on every device, nor beside speculative decoding, nor in every version."""
    vllm: Any = SimpleNamespace()
    found = Vllm._replaying(vllm, given, context=None)

    assert (found is not None) == replays
    assert found is None or found.enable_trace_replay
    assert not getattr(given, "enable_trace_replay", False)
