"""What is noted of V1's scheduler; a few objects stand in for vLLM's.

The real one is watched in tests/vllm_v1/test_engine_vllm.py.
"""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from harness.request import Request
from harness.vllm_engine.child.book import Book
from harness.vllm_engine.child.engine import ChangedVllmError
from harness.vllm_engine.child.watch_v1 import WatchV1
from results.record import RequestStatus, StepRecord

USABLE = 9


class Scheduler:
    """Says what it was told to say, with the attributes that vLLM's has."""

    def __init__(self) -> None:
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.requests: dict[str, Any] = {}
        self.connector = None
        pool = SimpleNamespace(
            num_gpu_blocks=USABLE + 1,
            get_num_free_blocks=lambda: USABLE - 3,
            cached_block_hash_to_block={},
            _maybe_evict_cached_block=lambda block: block > 0,
        )
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)
        self.says: list[Any] = []

    def add(self, name: str, num_tokens: int) -> Any:
        """Add a request."""
        request = SimpleNamespace(
            request_id=name,
            num_tokens=num_tokens,
            num_computed_tokens=0,
            max_tokens=100,
            status=SimpleNamespace(name="RUNNING"),
        )
        self.requests[name] = request
        return request

    def schedule(self) -> Any:
        """The next thing to say."""
        return self.says.pop(0)

    def update_from_output(self, output: Any, result: Any) -> Any:
        """What was handed in."""
        return result


def output(scheduled: dict[str, int], new: dict[str, int], again: dict[str, int]) -> Any:
    """A call's output: tokens, and those computed before by who is new and who is not."""
    return SimpleNamespace(
        total_num_scheduled_tokens=sum(scheduled.values()),
        num_scheduled_tokens=scheduled,
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=n) for name, n in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(again),
            num_computed_tokens=list(again.values()),
            resumed_req_ids=set(),
        ),
        kv_connector_metadata=None,
    )


def tokens(*names: str, finished: tuple[str, ...] = (), hits: int = 0) -> Any:
    """What a step brought: a token each."""
    outputs = [
        SimpleNamespace(
            request_id=name,
            new_token_ids=[5],
            finish_reason="length" if name in finished else None,
        )
        for name in names
    ]
    stats = SimpleNamespace(queries=40, hits=hits)
    return {
        0: SimpleNamespace(
            outputs=outputs, scheduler_stats=SimpleNamespace(prefix_cache_stats=stats)
        )
    }


class Watched:
    """A watched scheduler with one request of two samples, named as vLLM names them."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.book = Book(16)
        self.steps: list[StepRecord] = []
        ticks = count(10, 10)
        self.watch = WatchV1(
            self.scheduler,
            self.book,
            lambda: next(ticks),
            self.steps.append,
            block_bytes=1,
            version="9.9",
        )
        self.request = Request(
            request_id=7,
            arrival_ns=0,
            prompt=((0, 40),),
            num_prompt_tokens=40,
            outputs=((1, 2), (2, 3)),
        )
        self.book.arrived(self.request, 1)

    def step(self, says: Any, brings: Any) -> None:
        """A call and what it brings."""
        self.scheduler.says.append(says)
        said = self.scheduler.schedule()
        self.scheduler.update_from_output(said, brings)


def test_a_request_is_followed_through_its_samples() -> None:
    """Cached tokens of the first, preemption, recomputation, gaps and the end."""
    watched = Watched()
    scheduler, names = watched.scheduler, ("0_7-ab12", "1_7-ab12")
    first, second = (scheduler.add(name, 40) for name in names)
    scheduler.running = [first, second]

    new = {names[0]: 16, names[1]: 32}
    watched.step(output(dict(zip(names, (24, 8), strict=True)), new, {}), tokens(*names))
    first.num_computed_tokens = second.num_computed_tokens = 40
    first.num_tokens = second.num_tokens = 41
    second.status = SimpleNamespace(name="PREEMPTED")
    watched.step(
        output({names[0]: 1}, {}, {names[0]: 40}), tokens(names[0], finished=names[:1])
    )
    second.status = SimpleNamespace(name="RUNNING")
    scheduler.running = [second]
    resumed = output({names[1]: 9}, {}, {names[1]: 32})
    resumed.scheduled_cached_reqs.resumed_req_ids = {names[1]}
    watched.step(resumed, tokens(names[1], finished=names[1:], hits=16))

    (record,) = watched.book.take_changes()
    assert record.num_cached_tokens == 16
    assert record.num_preemptions == 1
    assert record.num_recompute_cached_tokens == 32
    assert record.num_recomputed_tokens == 8
    assert (record.num_output_tokens, record.max_sample_tokens) == (4, 2)
    assert record.status is RequestStatus.FINISHED
    assert [s.num_prefill_tokens for s in watched.steps] == [32, 0, 9]
    assert [s.num_decode_seqs for s in watched.steps] == [0, 1, 0]
    assert [s.num_preempted_recompute for s in watched.steps] == [0, 1, 0]
    assert [s.num_used_blocks for s in watched.steps] == [3, 3, 3]
    assert [sum(s.gap_count) for s in watched.steps] == [0, 1, 1]
    counters = watched.watch.counters
    assert counters["preemptions"] == 1
    assert counters["prefix_cache_hit_tokens"] == 16
    assert counters["external_prefix_cache_hit_tokens"] is None
    assert counters["finished_requests"] == 1


def test_samples_get_their_own_lengths() -> None:
    """Although vLLM knows one length for all of them."""
    watched = Watched()
    names = ("0_7-ab12", "1_7-ab12")
    samples = [watched.scheduler.add(name, 40) for name in ("3-cd34", *names)]

    watched.watch.shorten(watched.request)

    assert [sample.max_tokens for sample in samples] == [100, 2, 3]


def test_evictions_are_counted_where_they_happen() -> None:
    """Each block that gives its content up, with the step for which it does."""
    watched = Watched()
    pool = watched.scheduler.kv_cache_manager.block_pool
    watched.scheduler.add("7-ab", 40)
    assert [pool._maybe_evict_cached_block(block) for block in (1, 0, 2)] == [
        True,
        False,
        True,
    ]

    watched.step(output({"7-ab": 40}, {"7-ab": 0}, {}), tokens())

    assert watched.steps[0].num_evictions == 2


def test_a_pool_is_cold_when_nothing_can_be_found() -> None:
    """A hash that is left, or a block that is held, is warm."""
    watched = Watched()
    pool = watched.scheduler.kv_cache_manager.block_pool
    assert not watched.watch.is_cold()

    pool.get_num_free_blocks = lambda: USABLE
    assert watched.watch.is_cold()

    pool.cached_block_hash_to_block = {"hash": 1}
    assert not watched.watch.is_cold()


def test_a_changed_vllm_is_named() -> None:
    """What is missing, in which version, and what to do."""
    watched = Watched()
    watched.scheduler.says.append(SimpleNamespace())

    with pytest.raises(ChangedVllmError, match=r"vLLM 9.9 .*total_num_scheduled_tokens"):
        watched.scheduler.schedule()
