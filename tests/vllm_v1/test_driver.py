"""What only vLLM itself can show of the class that drives it."""

import os
from importlib.util import find_spec
from typing import Any

import pytest

from harness.errors import UsageError
from harness.request import Request
from harness.verify.installed_vllm import InstalledVllm

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)


def vllm(**knobs: Any) -> InstalledVllm:
    plain = {
        "block_size": 4,
        "num_gpu_blocks": 50,
        "enable_prefix_caching": True,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 100,
        "max_model_len": 100,
    }
    return InstalledVllm(**plain | knobs)


def request(number: int, num_tokens: int = 9, **fields: Any) -> Request:
    fields = {"arrival_ns": 0, "outputs": ((100 + number, 3),)} | fields
    return Request(
        request_id=number,
        prompt=((0, num_tokens),),
        num_prompt_tokens=num_tokens,
        **fields,
    )


def finish(driver: InstalledVllm) -> list[int | str]:
    """What finishes within twenty calls, which are more than enough."""
    finished = []
    for _ in range(20):
        driver.schedule()
        finished += driver.commit()[0]
    assert not driver.has_unfinished
    return finished


def test_samples_are_requests_named_as_vllm_names_them() -> None:
    """Two samples of a request run as two requests that share the full blocks."""
    driver = vllm()
    driver.add(request(7, outputs=((100, 1), (101, 2))))

    row = driver.schedule()

    assert row["scheduled"] == [["0_7", 9], ["1_7", 1]]
    assert row["new"] == [["0_7", 0], ["1_7", 8]]
    assert driver.commit()[0] == ["0_7"]


@pytest.mark.parametrize(
    ("keys", "others"),
    [
        (("salt", "a"), ()),
        (("adapter", 3), ("adapter", -5)),
        (("salt", "a"), ("adapter", "a")),
        (("adapter", "a", "salt", "b"), ("salt", "b")),
    ],
)
def test_blocks_of_another_salt_or_adapter_are_not_found(
    keys: tuple[str | int, ...], others: tuple[str | int, ...]
) -> None:
    """A request finds the blocks of its equal, not those of another salt or adapter."""
    driver = vllm()
    driver.add(request(0, extra_keys=keys))
    driver.add(request(1, extra_keys=keys))
    driver.add(request(2, extra_keys=others))

    assert driver.schedule()["new"] == [[0, 0], [1, 8], [2, 0]]


def test_the_token_ids_of_far_segments_are_distinct() -> None:
    """Segments are told apart however long they are and however many there are."""
    driver = vllm(max_num_batched_tokens=20)
    driver.add(request(0))
    far = Request(
        request_id=1,
        arrival_ns=0,
        prompt=((2_000_000, 9),),
        num_prompt_tokens=9,
        outputs=((3, 1),),
    )
    driver.add(far)

    assert driver.schedule()["new"] == [[0, 0], [1, 0]]


def test_the_caller_may_say_which_transfers_ended() -> None:
    """A store that is not reported goes on, whatever its steps would have been."""
    driver = vllm(num_cpu_blocks=20, num_gpu_blocks=4)
    driver.add(request(0, outputs=((100, 1),)))
    driver.schedule()
    (store,) = driver.pending_transfers
    driver.commit(transfers_done=[])
    for _ in range(3):
        driver.schedule()
        driver.commit(transfers_done=[])
    unreported = driver.pending_transfers
    driver.schedule()
    driver.commit(transfers_done=[store.job_id])

    assert unreported == [store]
    assert (store.is_store, store.num_blocks, store.request_id) == (True, 2, "0")
    assert driver.pending_transfers == []


def test_what_vllm_cannot_do_is_refused_in_words() -> None:
    """A policy that this vLLM does not know names the version and the reason."""
    with pytest.raises(UsageError, match=r"vLLM \d.*cannot be driven.*lottery"):
        vllm(scheduling_policy="lottery")


def test_everything_finishes_with_steps_in_flight() -> None:
    """With asynchronous scheduling the last tokens are handed in too."""
    driver = vllm(async_scheduling=True)
    driver.add(request(0))
    driver.add(request(1))

    assert finish(driver) == [0, 1]
