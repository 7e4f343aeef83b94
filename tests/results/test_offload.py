"""Tests for :mod:`results.offload`."""

import random
from collections import Counter
from collections.abc import Callable
from functools import cached_property

import pytest

from harness.arrivals import OpenLoop
from harness.config import resolve_config
from harness.engine import Engine
from harness.recorder import Recorder
from harness.replay import build_executor, build_scheduler
from harness.request import Request
from harness.schedulers.batch import Batch
from harness.schedulers.scheduler_v1 import SchedulerV1
from harness.workload import Workload
from results.columns import Columns
from results.offload import OffloadTraffic, block_bytes_of_all_ranks, has_offload_tier
from results.record import StepRecord
from results.run_info import RunInfo

MakeInfo = Callable[..., RunInfo]


class TransferCounter(Recorder):
    """Counts the blocks of all copies, by whether they are stores."""

    def scheduled(self, batch: Batch, now_ns: int) -> None:
        """Count before recording."""
        for transfer in batch.transfers:
            self.num_blocks[transfer.is_store] += transfer.num_blocks
        super().scheduled(batch, now_ns)

    @cached_property
    def num_blocks(self) -> Counter[bool]:
        """Blocks copied: to the GPU under False, to the CPU under True."""
        return Counter()


@pytest.mark.parametrize(
    ("policy", "num_cpu_blocks", "expected"),
    [("v1", 5, True), ("v1", 0, False), ("v0", 5, False)],
)
def test_cpu_blocks_of_v1_are_a_tier(
    make_info: MakeInfo, policy: str, num_cpu_blocks: int, expected: bool
) -> None:
    """Those of v0 are swap space."""
    info = make_info({"num_cpu_blocks": num_cpu_blocks}, policy=policy)

    assert has_offload_tier(info) is expected


def test_block_of_the_tier_has_the_parts_of_all_gpus(make_info: MakeInfo) -> None:
    """4 GPUs of 1 MiB each make 4 MiB."""
    assert block_bytes_of_all_ranks(make_info({"tensor_parallel_size": 4})) == 4 * 2**20
    assert block_bytes_of_all_ranks(make_info()) == 2**20


@pytest.mark.parametrize("is_async", [False, True])
def test_traffic_is_what_the_tier_itself_counted(is_async: bool) -> None:
    """Stores, loads and evictions follow from the rows of steps alone."""
    draw = random.Random(7)
    requests = []
    for i in range(200):
        prompt = ((draw.randrange(12), 16 * draw.randint(1, 30)), (1000 + i, 20))
        requests.append(
            Request(
                request_id=i,
                arrival_ns=i * 20_000_000,
                prompt=prompt,
                num_prompt_tokens=sum(length for _, length in prompt),
                outputs=((5000 + i, draw.randint(1, 60)),),
            )
        )
    config = resolve_config(
        model="meta-llama/Llama-3.1-8B",
        gpu="H100-80GB",
        vllm_version="0.32.0",
        max_model_len=1024,
        num_gpu_blocks_override=100,
        num_cpu_blocks_override=120,
        async_scheduling=is_async,
    )
    scheduler = build_scheduler(config)
    assert isinstance(scheduler, SchedulerV1)
    assert scheduler.offloading is not None
    recorder = TransferCounter(scheduler, block_size=16)
    Engine(
        OpenLoop(Workload.from_requests(requests)),
        scheduler,
        build_executor(config),
        recorder,
        num_in_flight=2 if is_async else 1,
    ).run()

    traffic = OffloadTraffic.of(Columns.of(StepRecord, recorder.steps))

    tier = scheduler.offloading.tier
    assert traffic.num_stored == recorder.num_blocks[True] > 0
    assert traffic.num_loaded == recorder.num_blocks[False] > 0
    assert traffic.num_evictions == tier.num_evictions > 0
    assert traffic.num_kept == tier.num_used_blocks
