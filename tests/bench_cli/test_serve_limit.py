"""Tests for :mod:`bench_cli.serve_limit`."""

import pytest

from bench_cli.serve_limit import FRONT_END, NOT_MODELLED, flags_not_checked, limits_of


@pytest.mark.parametrize(
    ("kept", "about"),
    [
        (("--speculative-config", "'{}'"), "speculative decoding"),
        (("--speculative_config.method", "ngram"), "speculative decoding"),
        (("-sc", "'{}'"), "speculative decoding"),
        (("--kv-transfer-config", '\'{"kv_role": "kv_both"}\''), "KV connectors"),
        (("--kv-transfer-config", '\'{"kv_role": "kv_consumer"}\''), "disaggregated"),
        (("--kv-transfer-config.kv_role", "kv_producer"), "disaggregated"),
        (("--kv-offloading-backend=lmcache",), "KV connectors"),
        (("-dp", "4"), "data parallelism"),
        (("--data-parallel-size", "4"), "data parallelism"),
        (("--enable-expert-parallel",), "expert parallelism"),
        (("-pp", "2"), "pipeline stages"),
        (("--decode-context-parallel-size=2",), "context parallelism"),
        (("-dcp", "2"), "context parallelism"),
        (("--enable-lora",), "LoRA"),
        (("--max-loras", "4"), "LoRA"),
        (("--limit-mm-per-prompt", "'{}'"), "multimodal input"),
        (("--cpu-offload-gb", "8"), "weights on the CPU"),
        (("-O3",), "compilation"),
        (("--num-scheduler-steps", "8"), "this way of scheduling"),
        (("--config", "a.yaml"), "options in that file"),
        (("--port", "8000"), FRONT_END),
        (("--never-heard-of", "1"), NOT_MODELLED),
    ],
)
def test_each_kept_option_says_how_it_limits_the_advice(
    kept: tuple[str, ...], about: str
) -> None:
    """One sentence an option, which begins with its name."""
    (sentence,) = limits_of(kept)

    assert sentence.startswith(f"{kept[0].partition('=')[0]}: {about}")


def test_options_with_one_limit_share_its_sentence_and_the_front_end_comes_last() -> None:
    """Nothing is said twice."""
    kept = ("--port", "1", "-dp", "2", "--api-key", "k", "-dp", "3", "--headless")

    first, last = limits_of(kept)

    assert first.startswith("-dp, --headless: data parallelism")
    assert last == f"--port, --api-key: {FRONT_END}"


def test_values_are_no_options() -> None:
    """A negative number is not spoken of."""
    assert len(limits_of(("--seed", "-1"))) == 1
    assert limits_of(()) == []


def test_what_no_version_is_asked_for_is_named() -> None:
    """Each option once, without its value; those of the front end are not among them."""
    kept = ("--port", "1", "-dp", "2", "--some-thing=3", "-dp", "3", "--seed", "-1")

    assert flags_not_checked(kept) == ["-dp", "--some-thing"]
