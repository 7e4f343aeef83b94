"""Tests for :mod:`harness.tuning.space`: values that an engine takes, and steps."""

import pytest

from harness.tuning.space import Space, key_of, space_of, with_value

START = {
    "gpu_memory_utilization": 0.87,
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "swap_space": 4.0,
    "kv_offloading_size": 0.0,
    "watermark": 0.0,
}


@pytest.mark.parametrize(
    ("policy", "version", "has", "has_not"),
    [
        ("v0", "0.5.5", "swap_space", "kv_offloading_size"),
        ("v1", "0.10.2", "max_num_seqs", "kv_offloading_size"),
        ("v1", "0.16.0", "kv_offloading_size", "watermark"),
        ("v1", "0.32.0", "watermark", "swap_space"),
    ],
)
def test_a_space_has_what_the_version_has(
    policy: str, version: str, has: str, has_not: str
) -> None:
    """Options that came later, or belong to the other engine, are not searched."""
    choices = space_of(policy, version, START).choices

    assert has in choices
    assert has_not not in choices


def test_what_one_has_is_among_the_values() -> None:
    """In its place in the order, even if nobody would propose it."""
    values = space_of("v1", "0.32.0", START).choices["gpu_memory_utilization"]

    assert 0.87 in values
    assert list(values) == sorted(values)
    assert with_value(("auto", "fp8"), None) == (None, "auto", "fp8")
    assert with_value((32, 16), 16) == (16, 32)


def test_neighbours_are_one_step_away() -> None:
    """One knob at a time, none beyond the ends; none where there is no choice."""
    space = Space({"block_size": (16, 32, 64), "watermark": (0.0, 0.1)})

    found = space.neighbours({"block_size": 16, "watermark": 0.1})

    assert found == [
        {"block_size": 32, "watermark": 0.1},
        {"block_size": 16, "watermark": 0.0},
    ]
    assert Space({}).neighbours({}) == []
    assert Space({"block_size": (16,)}).neighbours({"block_size": 16}) == []
    assert Space({}).size == 1


def test_without_a_cache_there_is_no_tier() -> None:
    """Turning prefix caching off takes the tier with it: the one needs the other."""
    space = Space(
        {"enable_prefix_caching": (False, True), "kv_offloading_size": (0.0, 8.0)}
    )
    both = {"enable_prefix_caching": True, "kv_offloading_size": 8.0}

    off = space.changed(both, "enable_prefix_caching", False)

    assert off == {"enable_prefix_caching": False, "kv_offloading_size": 0.0}
    assert space.changed(both, "kv_offloading_size", 0.0) == both | {
        "kv_offloading_size": 0.0
    }
    assert both["kv_offloading_size"] == 8.0


def test_a_setting_is_the_same_in_any_order() -> None:
    """It is looked up by its values."""
    assert (
        key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1, "b": 3})
    )


def test_smaller_steps_have_room_for_fewer_sequences() -> None:
    """As vLLM has it by itself; more sequences with the same steps are as asked for."""
    space = Space(
        {"max_num_seqs": (16, 256, 1024), "max_num_batched_tokens": (512, 2048)}
    )
    knobs = {"max_num_seqs": 1024, "max_num_batched_tokens": 2048}

    smaller = space.changed(knobs, "max_num_batched_tokens", 512)

    assert smaller == {"max_num_seqs": 256, "max_num_batched_tokens": 512}
    assert space.changed(smaller, "max_num_seqs", 1024)["max_num_seqs"] == 1024
    assert space.changed(smaller, "max_num_batched_tokens", 2048)["max_num_seqs"] == 256
