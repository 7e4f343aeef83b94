"""Tests of watching a server, and of the workload that is made from it."""

import importlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import ConfigError, UsageError
from harness.traces import open_trace
from harness.vllm_engine.server.detect import Server
from harness.vllm_engine.server.fault import ServerFaultError
from harness.vllm_engine.server.metrics import Snapshot
from harness.vllm_engine.server.observation import Observation
from harness.vllm_engine.server.observe import observe
from harness.vllm_engine.server.observed_findings import find_observed
from harness.vllm_engine.server.observed_workload import write_workload
from harness.vllm_engine.server.options import ServerOptions

sys.path.append(str(Path(__file__).parent))
fake: Any = importlib.import_module("fake_server")

SERVER = Server(model="m", served=("m",), config={"enable_prefix_caching": True})


def seen_of(*looks: dict[str, Any], server: Server = SERVER) -> Observation:
    """An observation of a server in these states, one second after another."""
    seen = Observation(server)
    for number, look in enumerate(looks):
        told = fake.FakeServer(started_at=look.pop("started_at", 1.0))
        for name in ("num_running", "num_waiting", "usage", "is_v0"):
            setattr(told, name, look.pop(name, getattr(told, name)))
        told.histograms = look.pop("histograms", {})
        told.counters = look
        seen.take(Snapshot.of(told.metrics_text(), number * 10**9))
    return seen


def lengths(prompts: list[float], outputs: list[float]) -> dict[str, list[float]]:
    return {"request_prompt_tokens": prompts, "request_generation_tokens": outputs}


def codes(seen: Observation) -> list[str]:
    return [finding.code for finding in find_observed(seen)]


def test_arrivals_are_those_that_left_and_those_that_stayed() -> None:
    """Each request counts once, where it came: running, waiting or finished since."""
    seen = seen_of(
        {"num_running": 3, "request_success": 10},
        {"num_running": 5, "num_waiting": 1, "request_success": 10},  # 3 came
        {"num_running": 1, "request_success": 15},  # all left, none came
        {"num_running": 1, "request_success": 17},  # 2 came and left
    )

    assert seen.arrivals().tolist() == [3, 0, 2]


def test_a_look_between_two_counts_adds_nobody() -> None:
    """A request seen as finished and still as running is one request."""
    seen = seen_of(
        {"num_running": 1, "request_success": 0},
        {"num_running": 1, "request_success": 1},
        {"num_running": 0, "request_success": 1},
        {"num_running": 1, "request_success": 1},
    )

    assert seen.arrivals().sum() == 1


def test_lives_of_a_server_are_added() -> None:
    """A server that was started anew goes on counting where it left off."""
    seen = seen_of(
        {"num_preemptions": 5, "started_at": 1.0},
        {"num_preemptions": 8, "started_at": 1.0},
        {"num_preemptions": 1, "started_at": 2.0},
        {"num_preemptions": 3, "started_at": 2.0},
    )

    assert seen.num_restarts == 1
    assert seen.counter("preemptions") == 5
    assert "server_restarted" in codes(seen)


def test_workload_has_the_rates_and_lengths_that_were_seen(tmp_path: Path) -> None:
    """Arrivals lie where they were counted; lengths have the buckets and the mean."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(21, 900, 400).tolist()
    outputs = rng.integers(3, 60, 400).tolist()
    seen = seen_of(
        {},
        {"request_success": 300, "histograms": lengths(prompts[:300], outputs[:300])},
        {"request_success": 300, "histograms": lengths(prompts[:300], outputs[:300])},
        {"request_success": 400, "histograms": lengths(prompts, outputs)},
    )
    path = tmp_path / "seen.jsonl"

    assert write_workload(path, seen, seed=3) == 400
    made = open_trace(path)
    assert not made.has_sharing
    assert made.is_generated
    assert "no sharing information" in made.notes[0]
    arrived_s = made.arrival_ns / 1e9
    assert (arrived_s < 1).sum() == 300
    assert not ((arrived_s > 1.1) & (arrived_s < 1.9)).any()
    assert 2.9 < made.duration_s < 3
    for drawn, true in ((made.input_tokens, prompts), (made.output_tokens, outputs)):
        assert drawn.mean() == pytest.approx(np.mean(true), rel=0.01)
        for bound in fake.HISTOGRAM_BOUNDS["request_prompt_tokens"]:
            assert abs((drawn <= bound).sum() - (np.array(true) <= bound).sum()) <= 1
    assert len(set(made.prompts.segments.tolist())) == 400


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """A workload is determined by what was seen and the seed."""
    seen = seen_of(
        {}, {"request_success": 50, "histograms": lengths([30.0] * 50, [7.0] * 50)}
    )
    paths = [tmp_path / name for name in "abc"]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        write_workload(path, seen, seed=seed)

    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    with pytest.raises(UsageError, match="exists"):
        write_workload(paths[0], seen)


def test_few_requests_have_the_lengths_of_earlier_ones(tmp_path: Path) -> None:
    """Where few finished meanwhile, lengths since the server's start tell more."""
    before = lengths([30.0] * 99, [7.0] * 99)
    after = lengths([30.0] * 99 + [900.0], [7.0] * 99 + [80.0])
    seen = seen_of({"histograms": before}, {"request_success": 1, "histograms": after})
    write_workload(tmp_path / "t", seen)

    assert (
        "100 requests that finished since the server was started"
        in (open_trace(tmp_path / "t").notes[0])
    )


def test_nothing_can_be_made_of_no_traffic(tmp_path: Path) -> None:
    """Without a request there is no workload, and no file."""
    seen = seen_of({}, {})
    with pytest.raises(ConfigError, match="watch longer"):
        write_workload(tmp_path / "t", seen)

    assert not (tmp_path / "t").exists()
    assert codes(seen) == ["no_traffic"]


def test_findings_of_pressure() -> None:
    """Preemptions, and waiting with a full cache, are told with a remedy."""
    full = {"num_waiting": 4, "num_running": 9, "usage": 0.99}
    seen = seen_of({**full}, {**full, "num_preemptions": 7, "request_success": 100})
    found = {finding.code: finding for finding in find_observed(seen)}

    assert list(found) == ["preemptions", "waiting_for_blocks"]
    assert "7 preemptions, 7 for 100 finished" in found["preemptions"].message
    assert "--gpu-memory-utilization" in found["waiting_for_blocks"].advice


def test_findings_of_room() -> None:
    """Waiting beside an empty cache is a limit, not a lack of blocks."""
    roomy = {"num_waiting": 4, "num_running": 9, "usage": 0.2}
    seen = seen_of({**roomy}, {**roomy, "request_success": 100})
    assert codes(seen) == ["waiting_with_room"]

    idle = seen_of({"usage": 0.1}, {"usage": 0.2, "request_success": 5})
    assert codes(idle) == ["kv_cache_idle"]


def test_findings_of_a_growing_queue() -> None:
    """A queue that grows all the time is more traffic than the server can take."""
    looks = [{"num_waiting": n, "num_running": 9, "usage": 0.7} for n in range(60)]
    assert "not_keeping_up" in codes(seen_of(*looks))


def test_findings_of_waiting() -> None:
    """Where most of TTFT is the queue, that is said."""
    times = {
        "time_to_first_token_seconds": [0.5] * 30,
        "request_queue_time_seconds": [0.4] * 30,
    }
    seen = seen_of({}, {"request_success": 30, "histograms": times, "usage": 0.6})
    assert codes(seen) == ["ttft_is_waiting"]


@pytest.mark.parametrize(
    ("hits", "code"), [(10, "few_hits"), (600, "many_hits"), (100, None)]
)
def test_findings_of_hits(hits: int, code: str | None) -> None:
    """Few hits and many are told; what lies between needs no words."""
    counters = {"prefix_cache_queries": 1000, "prefix_cache_hits": hits}
    seen = seen_of({}, {"request_success": 30, "usage": 0.6, **counters})
    assert codes(seen) == ([] if code is None else [code])


def test_findings_of_v0_and_of_no_caching() -> None:
    """Swapped requests, and caching that is off, are told."""
    v0 = {"is_v0": True, "usage": 0.6, "request_success": 30}
    server = Server(model="m", served=(), config={"enable_prefix_caching": False})
    seen = seen_of({**v0}, {**v0, "request_success": 60}, server=server)
    assert codes(seen) == ["swapping", "prefix_caching_off"]


def test_nothing_but_looks_is_sent() -> None:
    """A server that is watched gets GETs of what it is and of its metrics."""
    with fake.serving(fake.FakeServer(api_key="sk-1")) as server:
        options = ServerOptions(url=server.url, sample_period_s=0.1)
        seen = observe(options, duration_s=0.5)

    assert {method for method, _ in server.seen} == {"GET"}
    paths = {path for _, path in server.seen}
    assert paths == {"/health", "/metrics", "/v1/models", "/version"}
    assert len(seen.looks) == 6
    assert seen.duration_s == pytest.approx(0.5, abs=0.2)
    assert not seen.fault


def test_who_stops_it_keeps_what_was_seen() -> None:
    """Watching ends at once where somebody wants that."""
    stop = threading.Event()
    threading.Timer(0.4, stop.set).start()
    with fake.serving(fake.FakeServer()) as server:
        options = ServerOptions(url=server.url, sample_period_s=0.1)
        seen = observe(options, duration_s=60, is_stopped=stop.is_set)

    assert seen.is_interrupted
    assert 2 <= len(seen.looks) <= 8


def test_server_that_goes_away_is_waited_for() -> None:
    """A server without an answer is waited for so long and no longer."""
    with fake.serving(fake.FakeServer()) as server:
        options = ServerOptions(url=server.url, sample_period_s=0.1, hang_after_s=0.5)
        threading.Timer(0.3, setattr, (server, "has_metrics", False)).start()
        threading.Timer(0.6, setattr, (server, "has_metrics", True)).start()
        back = observe(options, duration_s=1.0)
        threading.Timer(0.3, setattr, (server, "has_metrics", False)).start()
        started = time.monotonic()
        gone = observe(options, duration_s=60)

    assert back.num_missed > 0
    assert not back.fault
    assert time.monotonic() - started < 5
    assert gone.fault_kind == "server_unresponsive"
    assert codes(gone)[0] == "server_unresponsive"


def test_nothing_to_look_at() -> None:
    """A server without metrics of vLLM is refused."""
    with fake.serving(fake.FakeServer(has_metrics=False)) as server:
        options = ServerOptions(url=server.url)
        with pytest.raises(ServerFaultError, match="no metrics of vLLM at"):
            observe(options, duration_s=1)
