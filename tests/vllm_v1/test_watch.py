"""What is noted of vLLM's own scheduler, which speaks to two model runners.

The newer runner, which the CPU build lacks, gets resumed requests among the new ones.
"""

import os
import random
from dataclasses import asdict
from importlib.util import find_spec
from itertools import count
from typing import Any

import pytest

from harness.request import Request
from harness.verify.installed_vllm import InstalledVllm
from harness.vllm_engine.child.book import Book
from harness.vllm_engine.child.watch_v1 import WatchV1
from results.record import StepRecord

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)


def requests() -> list[Request]:
    """Some that begin alike, some with two samples; together far too many."""
    rng = random.Random(5)
    made = []
    for number in range(12):
        prompt = ((number % 3, 12), (100 + number, rng.randrange(1, 20)))
        outputs = tuple(
            (1_000 + 10 * number + sample, rng.randrange(5, 30))
            for sample in range(1 + (number % 4 == 1))
        )
        made.append(
            Request(
                request_id=number,
                arrival_ns=0,
                prompt=prompt,
                num_prompt_tokens=sum(length for _, length in prompt),
                outputs=outputs,
            )
        )
    return made


def noted(*, is_newer: bool, is_async: bool) -> tuple[list[Any], list[StepRecord]]:
    """Records of requests and steps, with the clock left out."""
    driver = InstalledVllm(
        block_size=4,
        num_gpu_blocks=40,
        enable_prefix_caching=True,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=100,
        async_scheduling=is_async,
    )
    driver._scheduler.use_v2_model_runner = is_newer
    book, steps, ticks = Book(4), list[StepRecord](), count()
    watch = WatchV1(
        driver._scheduler,
        book,
        lambda: next(ticks),
        steps.append,
        block_bytes=1,
        version=driver.version,
    )
    for request in requests():
        book.arrived(request, 0)
        driver.add(request)
    for _ in range(400):
        driver.schedule()
        driver.commit()
    assert not driver.has_unfinished
    assert not watch.notes
    records = {record.request_id: record for record in book.take_changes()}
    return [asdict(records[number]) for number in sorted(records)], steps


@pytest.mark.parametrize("is_async", [False, True])
def test_both_runners_leave_the_same_notes(is_async: bool) -> None:
    """Cached tokens, preemptions and what they cost, by request and by step."""
    older, its_steps = noted(is_newer=False, is_async=is_async)
    newer, steps = noted(is_newer=True, is_async=is_async)

    assert newer == older
    assert steps == its_steps
    assert len(newer) == 12
    assert sum(record["num_preemptions"] for record in newer) > 2
    assert sum(record["num_recomputed_tokens"] for record in newer) > 0
    asked = [sum(n for _, n in request.outputs) for request in requests()]
    assert [record["num_output_tokens"] for record in newer] == asked
