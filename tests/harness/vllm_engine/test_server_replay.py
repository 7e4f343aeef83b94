"""Tests for :mod:`harness.vllm_engine.server.replay`, against a server of our own."""

import importlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.config import resolve_config
from harness.replay import replay
from harness.request import Request
from harness.traces import open_trace
from harness.traces.generation import GenerateOptions, generate_trace
from harness.vllm_engine.measured_run import MeasuredRun
from harness.vllm_engine.server.cold import most_findable
from harness.vllm_engine.server.options import ServerOptions
from harness.vllm_engine.server.replay import measurement_at_start, replay_on_server
from harness.workload import Workload
from results.record import RequestStatus
from results.run_info import Ending

sys.path.append(str(Path(__file__).parent))
fake: Any = importlib.import_module("fake_server")


def workload(tmp_path: Path, **options: Any) -> Workload:
    """A trace with sharing, made up."""
    plain = {"num_requests": 20, "input_len": 40, "output_len": 5, "prefix_len": 48}
    path = tmp_path / "trace.jsonl"
    generate_trace(path, GenerateOptions(**plain | options), force=True)
    return open_trace(path)


def request(number: int, at_s: float = 0.0, **fields: Any) -> Request:
    plain: dict[str, Any] = {
        "request_id": number,
        "arrival_ns": round(at_s * 1e9),
        "prompt": ((2 * number, 40),),
        "num_prompt_tokens": 40,
        "outputs": ((2 * number + 1, 4),),
    }
    return Request(**plain | fields)


@contextmanager
def running(**how: Any) -> Iterator[Any]:
    with fake.serving(fake.FakeServer(**how)) as server:
        yield server


def once_another_was_sent(server: Any, act: Callable[[], None]) -> None:
    """Let something happen to a server in the middle of the run that comes."""
    num_sent = len(server.bodies)

    def wait() -> None:
        while len(server.bodies) == num_sent:
            time.sleep(0.01)
        act()

    threading.Thread(target=wait, daemon=True).start()


def run(server: Any, requests: Workload | list[Request], **options: Any) -> MeasuredRun:
    if not isinstance(requests, Workload):
        requests = Workload.from_requests(requests)
    return replay_on_server(requests, ServerOptions(url=server.url, **options))


def test_all_that_a_server_shows(tmp_path: Path) -> None:
    """Requests, tokens, hits and counters are those that the server has seen."""
    trace = workload(tmp_path, request_rate=40)
    with running() as server:
        done = run(server, trace)

    rows, known = list(done.requests), done.measurement
    assert done.outcome.ending is Ending.COMPLETE
    assert {row.status for row in rows} == {RequestStatus.FINISHED}
    assert [row.num_output_tokens for row in rows] == trace.output_tokens.tolist()
    assert known.counters["prompt_tokens"] == trace.input_tokens.sum()
    assert known.counters["prefix_cache_hit_tokens"] == sum(
        row.num_cached_tokens for row in rows
    )
    assert known.facts["num_gpu_blocks"] == 1001
    assert known.facts["vllm_version"] == "0.32.0"
    assert known.facts["policy"] == "v1"
    assert known.is_cold
    assert not known.notes
    num_gaps = sum(count for step in done.steps for count in step.gap_count)
    assert num_gaps == sum(row.num_output_tokens - 1 for row in rows)


def test_hits_are_those_of_a_simulation(tmp_path: Path) -> None:
    """One request at a time finds what v1 finds, conversations included."""
    trace = workload(tmp_path, num_requests=30, turns=3, num_prefixes=2)
    config = resolve_config(
        model="meta-llama/Llama-3.1-8B",
        gpu="H100-80GB",
        policy="v1",
        num_gpu_blocks_override=1001,
        block_size=16,
        max_model_len=4096,
    )
    simulated = replay(trace, config, max_concurrency=1)
    with running() as server:
        done = run(server, trace, max_concurrency=1)

    found = [row.num_cached_tokens for row in done.requests]
    assert found == [row.num_cached_tokens for row in simulated.requests]
    assert sum(found) > 0
    assert all(body["return_token_ids"] for body in server.bodies)


def test_latency_begins_when_a_request_is_due() -> None:
    """Requests are sent at their times, and TTFT counts from those."""
    with running(token_s=0.02) as server:
        done = run(server, [request(0), request(1, 0.3)])

    first, second = done.requests
    assert (first.arrival_ns, second.arrival_ns) == (0, 300_000_000)
    assert 0.2 < server.sent_at[1] - server.sent_at[0] < 2
    for row in (first, second):
        assert row.first_token_ns is not None
        assert 20e6 <= row.first_token_ns - row.arrival_ns < 2e9
        assert row.finished_ns is not None
        assert row.finished_ns - row.first_token_ns >= 60e6
    assert done.measurement.lateness_s is not None
    assert 0 <= done.measurement.lateness_s["p50"] < 1


def test_turns_wait_for_the_one_before() -> None:
    """A turn is due its delay after the end of the turn that it follows."""
    trace = Workload.from_requests(
        [request(0), request(1)], parent=[-1, 0], delay_ns=[0, 200_000_000]
    )
    with running(token_s=0.02) as server:
        first, second = run(server, trace).requests

    assert first.finished_ns is not None
    assert second.arrival_ns == first.finished_ns + 200_000_000


def test_most_at_a_time() -> None:
    """Requests that are held back are due when a place is free."""
    with running(token_s=0.02) as server:
        rows = list(
            run(server, [request(i) for i in range(4)], max_concurrency=2).requests
        )

    ends = sorted(row.finished_ns or 0 for row in rows[:2])
    assert [row.arrival_ns for row in rows[2:]] == ends


def test_samples_are_asked_for_together() -> None:
    """Samples are one request with a temperature, and their tokens are counted."""
    shared = {"outputs": ((10, 4), (11, 6))}
    with running() as server:
        done = run(server, [request(0, **shared)])

    (body,) = server.bodies
    assert (body["n"], body["max_tokens"], body["min_tokens"]) == (2, 6, 6)
    assert body["temperature"] > 0
    assert body["ignore_eos"]
    assert done.requests[0].num_output_tokens == 12
    assert "1 requests have samples of several lengths" in done.measurement.notes[0]


def test_salts_and_adapters_keep_apart() -> None:
    """A salt is sent on; an adapter that is not served becomes one, else a model."""
    keys = [("salt", "a"), ("adapter", "lora"), ("adapter", "sql")]
    requests = [request(i, prompt=((0, 40),), extra_keys=k) for i, k in enumerate(keys)]
    with running(models=("tiny", "sql")) as server:
        done = run(server, requests, max_concurrency=1)

    assert [row.num_cached_tokens for row in done.requests] == [0, 0, 0]
    assert [body["model"] for body in server.bodies] == ["tiny", "tiny", "sql"]


@pytest.mark.parametrize(
    ("how", "are_sent", "told"),
    [
        ({"tells_policy": True, "scheduling_policy": "priority"}, True, ""),
        ({"tells_policy": True}, False, "policy is fcfs; start it with --scheduling"),
        ({"refuses_priority": True}, False, "(400: Got priority 1 but Priority"),
        ({}, True, "does not say whether it goes by them"),
    ],
)
def test_priorities_go_to_a_server_that_takes_them(
    how: dict[str, Any], are_sent: bool, told: str
) -> None:
    """A server that refuses them, or goes by arrival, gets none, and a note says so."""
    with running(**how) as server:
        done = run(server, [request(0), request(1, priority=-3)])

    sent = [body.get("priority") for body in server.bodies[-2:]]
    assert sorted(sent, key=str) == ([-3, None] if are_sent else [None, None])
    assert done.outcome.ending is Ending.COMPLETE
    assert [told in note for note in done.measurement.notes] == ([True] if told else [])
    assert done.measurement.counters["prompt_tokens"] == 80
    if "tells_policy" in how:
        policy = how.get("scheduling_policy", "fcfs")
        assert done.measurement.facts["scheduling_policy"] == policy


def test_a_trace_without_priorities_asks_for_nothing() -> None:
    """No request more than there are, and no look at the server's configuration."""
    with running(tells_policy=True) as server:
        run(server, [request(0)])

    assert len(server.bodies) == 1
    assert not any("server_info" in path for _, path in server.seen)


def test_too_long_for_the_model() -> None:
    """A prompt that the model cannot take is rejected unsent, an output is cut."""
    long = {"prompt": ((0, 100),), "num_prompt_tokens": 100}
    cut = {"outputs": ((5, 90),)}
    with running(max_model_len=100) as server:
        done = run(server, [request(0, **long), request(1, **cut), request(2)])

    rows = list(done.requests)
    assert rows[0].status is RequestStatus.REJECTED
    assert rows[0].reason == "prompt_too_long"
    assert rows[1].num_output_tokens == 60
    assert rows[2].status is RequestStatus.FINISHED
    assert done.outcome.ending is Ending.COMPLETE
    assert "1 outputs were cut" in done.measurement.notes[0]


@pytest.mark.parametrize("odd", [0, -1, 4096.5, "4096", True, [4096], None, 2**70])
def test_a_longest_length_that_is_none_is_unknown(odd: Any) -> None:
    """Requests are sent as long as the trace has them: the server may refuse them."""
    with running(max_model_len=odd) as server:
        done = run(server, [request(0)])

    assert done.requests[0].status is RequestStatus.FINISHED
    assert "max_model_len" not in done.measurement.facts


def test_refusal_of_a_request_is_no_end() -> None:
    """What the server refuses is rejected with its words, and the run goes on."""
    long = {"prompt": ((0, 60),), "num_prompt_tokens": 60}
    with running(max_model_len=None, refuses_above=50) as server:
        done = run(server, [request(0, **long), request(1)])

    rows = list(done.requests)
    assert rows[0].status is RequestStatus.REJECTED
    assert rows[0].reason == "prompt_too_long"
    assert rows[1].status is RequestStatus.FINISHED
    assert any("maximum context length" in note for note in done.measurement.notes)


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        ("500", "server_error", "EngineCore died"),
        ("error_event", "server_error", "EngineCore died"),
        ("429", "server_error", "--max-concurrency"),
        ("no_json", "server_error", "no JSON"),
        ("other_json", "server_error", "other JSON than vLLM's completions"),
        ("drop", "server_lost", "broke off after 2 chunks"),
        ("cut_stream", "server_lost", "without its last event"),
        ("no_answer", "server_lost", "closed the connection"),
        ("hang", "server_unresponsive", "no token came from it for 2 s"),
        ("empty_events", "server_unresponsive", "no token came from it for 2 s"),
        ("endless", "server_error", "25 tokens have come, and max_tokens asked for 4"),
    ],
)
def test_fault_in_the_middle(fault: str, kind: str, told: str) -> None:
    """Each fault ends the run in bounded time, and what there was is kept."""
    requests = [request(i, 0.02 * i) for i in range(30)]
    hang_after_s = 2.0 if kind == "server_unresponsive" else 30.0
    started = time.monotonic()
    with running(fault=fault, fault_at=5) as server:
        done = run(server, requests, hang_after_s=hang_after_s, max_concurrency=1)

    rows = list(done.requests)
    assert time.monotonic() - started < 12
    assert (done.outcome.ending, done.outcome.kind) == (Ending.DIED, kind)
    assert told in done.outcome.message
    assert [row.status for row in rows[:5]] == [RequestStatus.FINISHED] * 5
    assert rows[5].status is RequestStatus.FAILED
    assert rows[5].reason == f"the engine died: {kind}"
    assert len(rows) == 30
    assert done.measurement.counters["finished_requests"] >= 5


def test_connection_is_tried_again_before_the_first_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that breaks before an answer is made again, and a note says so."""
    client = importlib.import_module("harness.vllm_engine.server.client")
    monkeypatch.setattr(client, "RETRY_AFTER_S", (0.3, 0.3, 0.3))
    with running(fault="no_answer", fault_at=1) as server:
        threading.Timer(0.5, setattr, (server, "fault", "")).start()
        done = run(server, [request(0), request(1)], max_concurrency=1)

    assert done.outcome.ending is Ending.COMPLETE
    assert 1 <= len(server.bodies) - 2 <= 3
    assert any("had to be tried again" in note for note in done.measurement.notes)


def test_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing listens the run ends with words, and no request was sent."""
    client = importlib.import_module("harness.vllm_engine.server.client")
    monkeypatch.setattr(client, "RETRY_AFTER_S", (0.01, 0.01, 0.01))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = replay_on_server(
            Workload.from_requests([request(0)]), ServerOptions(url=url)
        )

    assert done.outcome.kind == "server_lost"
    assert "start the server, or correct --url" in done.outcome.message
    assert done.requests[0].reason == "the engine died: server_lost before it arrived"


def _talks(answer: bytes) -> Iterator[str]:
    """A port on which something else than HTTP answers; or takes and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connections.append(connection)
                if answer:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


def test_something_else_on_that_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """What speaks no HTTP, or serves no models, is told from a server of vLLM."""
    with running(is_other=True) as server:
        done = run(server, [request(0)])
    assert done.outcome.kind == "server_error"
    assert "is no OpenAI-compatible server" in done.outcome.message

    for url in _talks(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"):
        options = ServerOptions(url=url)
        done = replay_on_server(Workload.from_requests([request(0)]), options)
    assert done.outcome.kind == "server_error"
    assert "another program" in done.outcome.message


def test_port_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that takes a connection and says nothing is not waited for for ever."""
    client = importlib.import_module("harness.vllm_engine.server.client")
    monkeypatch.setattr(client.ServerClient.get, "__kwdefaults__", {"timeout_s": 0.2})
    for url in _talks(b""):
        options = ServerOptions(url=url)
        done = replay_on_server(Workload.from_requests([request(0)]), options)

    assert done.outcome.kind == "server_unresponsive"
    assert "did not answer GET /health within 0.2 s" in done.outcome.message


def test_wrong_key_and_wrong_model() -> None:
    """Both are said before anything is sent, without showing the key."""
    with running(api_key="sk-right") as server:
        done = run(server, [request(0)], api_key="sk-wrong")
        right = run(server, [request(0)], api_key="sk-right")
    assert done.outcome.kind == "server_error"
    assert "VLLM_API_KEY" in done.outcome.message
    assert "sk-wrong" not in done.outcome.message
    assert "[key]" in done.outcome.message
    assert right.outcome.ending is Ending.COMPLETE

    with running() as server:
        done = run(server, [request(0)], model="gpt-9")
    assert "no model 'gpt-9'; it serves tiny" in done.outcome.message
    assert not server.bodies


def test_no_key_is_sent_without_one() -> None:
    """Without a key there is no header that a netrc could have filled."""
    with running() as server:
        run(server, [request(0)])

    assert server.authorizations == {None}


def test_warm_up_is_apart() -> None:
    """Warm-up requests share nothing with the run and are in no figure of it."""
    with running() as server:
        done = run(server, [request(0), request(1)], warmup_requests=3)

    assert len(server.bodies) == 5
    firsts = {tuple(body["prompt"][:16]) for body in server.bodies}
    assert len(firsts) == 5
    assert len(done.requests) == 2
    assert done.measurement.warmup_requests == 3
    assert done.measurement.counters["prompt_tokens"] == 80


def test_warm_up_without_an_answer() -> None:
    """A server that stops there is unresponsive, as it would be in the run."""
    with running(fault="hang") as server:
        done = run(server, [request(0)], hang_after_s=0.5, warmup_requests=1)

    assert (done.outcome.ending, done.outcome.kind) == (
        Ending.DIED,
        "server_unresponsive",
    )
    assert "warm-up was not answered within 0.5 s" in done.outcome.message
    assert done.requests[0].status is RequestStatus.FAILED


def test_who_stops_a_warm_up_does_not_wait_for_it() -> None:
    """The server may never answer."""
    stop = threading.Event()
    with running(fault="hang") as server:
        threading.Timer(0.5, stop.set).start()
        done = replay_on_server(
            Workload.from_requests([request(0)]),
            ServerOptions(url=server.url, warmup_requests=1),
            is_stopped=stop.is_set,
        )

    assert done.outcome.ending is Ending.INTERRUPTED
    assert done.wall_s < 5


@pytest.mark.parametrize(
    ("how", "before", "is_cold"),
    [
        ({"can_reset": True}, True, True),
        ({"can_reset": False}, False, True),  # it has seen no prompt at all
        ({"can_reset": False}, True, False),
        ({"can_reset": False, "tells_cached": False}, True, False),
    ],
)
def test_cold_cache_is_verified(how: dict[str, Any], before: bool, is_cold: bool) -> None:
    """A cache that had the prompts before is emptied, or told by what is found."""
    requests = [request(i) for i in range(3)]
    with running(**how) as server:
        if before:
            run(server, requests)
        done = run(server, requests)

    assert done.measurement.is_cold is is_cold
    if not is_cold:
        assert "was not cold" in done.measurement.notes[0]


def test_order_of_the_server_is_no_warm_cache() -> None:
    """A request that finds what a later one has put there proves nothing."""
    alike = [request(i, prompt=((0, 40),)) for i in range(2)]
    trace = Workload.from_requests([*alike, request(2)])
    most = most_findable(trace)

    assert most is not None
    assert most.tolist() == [40, 40, 0]


def test_cold_cache_that_nobody_knows(tmp_path: Path) -> None:
    """Without a reset, and with other prompts before, nobody can say."""
    with running(can_reset=False) as server:
        run(server, [request(9)])
        done = run(server, [request(0)])

    assert done.measurement.is_cold is None
    assert "not known to be cold" in done.measurement.notes[0]


def test_what_a_server_does_not_show_is_unmeasured() -> None:
    """Without metrics and cached tokens those columns must not be read."""
    with running(has_metrics=False, tells_cached=False, version=None) as server:
        done = run(server, [request(0)])
    unseen = done.measurement.unmeasured

    assert "requests.num_cached_tokens" in unseen
    assert "steps.num_running" in unseen
    assert "steps.num_used_blocks" in unseen
    assert "steps.gap_ns" not in unseen
    assert done.measurement.counters == {}
    assert any("no metrics of vLLM" in note for note in done.measurement.notes)
    assert set(unseen) <= set(measurement_at_start(ServerOptions(url="h:1")).unmeasured)


def test_metrics_of_v0() -> None:
    """Swapped requests of a V0 server are in the rows."""
    with running(is_v0=True, version="0.6.3", token_s=0.05) as server:
        done = run(server, [request(i, 0.05 * i) for i in range(4)], sample_period_s=0.1)

    assert done.measurement.facts["policy"] == "v0"
    assert "steps.num_swapped" not in done.measurement.unmeasured
    assert {step.num_swapped for step in done.steps} == {2}
    assert max(step.num_running for step in done.steps) > 0


def test_restart_and_others_are_noted() -> None:
    """Counters of a server that began anew say nothing; others' requests are told of."""
    requests = [request(0), request(1, 0.6)]
    with running() as server:
        run(server, [request(7)])
        once_another_was_sent(server, server.restart)
        done = run(server, requests)
    assert any("started anew" in note for note in done.measurement.notes)
    assert done.measurement.counters["prompt_tokens"] is None

    with running() as server:
        server.num_waiting = 2
        once_another_was_sent(server, lambda: server.count("request_success", 5))
        done = run(server, requests)
    assert "2 requests of others" in done.measurement.notes[0]
    assert "more requests than the run sent" in done.measurement.notes[1]


def test_several_tokens_in_a_chunk() -> None:
    """Tokens are counted as the server does, and a note says what a gap is."""
    with running(tokens_a_chunk=2) as server:
        done = run(server, [request(0)])

    assert done.requests[0].num_output_tokens == 4
    assert any(
        "several tokens came in a chunk" in note for note in done.measurement.notes
    )


def test_counter_that_disagrees_is_noted() -> None:
    """A counter of hits other than what the answers say is told with what is known."""
    requests = [request(0), request(1, 0.5)]
    with running() as server:
        once_another_was_sent(server, lambda: server.count("prefix_cache_hits", 64))
        done = run(server, requests)

    assert "64 tokens of hits, its answers 0" in done.measurement.notes[0]
    assert done.requests[1].num_cached_tokens == 0


def test_who_stops_it_keeps_the_rows() -> None:
    """A run that somebody stops ends at once, with what there was."""
    stop = threading.Event()
    requests = [request(i, 0.05 * i) for i in range(100)]
    with running() as server:
        threading.Timer(0.6, stop.set).start()
        done = replay_on_server(
            Workload.from_requests(requests),
            ServerOptions(url=server.url),
            is_stopped=stop.is_set,
        )

    statuses = [row.status for row in done.requests]
    assert done.outcome.ending is Ending.INTERRUPTED
    assert 3 < statuses.count(RequestStatus.FINISHED) < 30
    assert done.wall_s < 3
    assert done.requests[99].reason == "interrupted before it arrived"


@pytest.mark.parametrize("odd", ["x", -3, 1e300, [1], {"cached_tokens": "x"}, 5])
def test_odd_figures_of_an_answer_are_unknown(odd: Any) -> None:
    """What a server adds to an answer cannot end a run; tokens are then its chunks."""
    usage = {"completion_tokens": "x", "prompt_tokens_details": odd}
    extra = {"usage": usage, "metrics": {"queue_time_ms": odd}, "error": None}
    with running(extra_of_last=extra) as server:
        done = run(server, [request(0), request(1)])

    assert done.outcome.ending is Ending.COMPLETE
    assert [row.num_output_tokens for row in done.requests] == [4, 4]
    assert "requests.num_cached_tokens" in done.measurement.unmeasured


def test_more_tokens_than_asked_for_are_noted() -> None:
    """An answer that ends, though late, ends no run."""
    with running(extra_of_last={"usage": {"completion_tokens": 6}}) as server:
        done = run(server, [request(0), request(1)])

    assert done.outcome.ending is Ending.COMPLETE
    assert "2 outputs are longer than asked for" in done.measurement.notes


def test_configuration_that_is_no_number_is_unknown() -> None:
    """A run whose server says something else of its blocks is a run."""
    with running(block_size_text="auto", usage=float("nan")) as server:
        done = run(server, [request(0), request(1)])

    assert done.outcome.ending is Ending.COMPLETE
    assert "block_size" not in done.measurement.facts
    assert {step.num_used_blocks_end for step in done.steps} == {0}


def test_odd_buckets_end_no_run() -> None:
    """A bound that is no number is left out of what the server's histogram tells."""
    odd = 'vllm:time_to_first_token_seconds_bucket{le="many"} 5'
    with running(more_metrics=odd) as server:
        done = run(server, [request(0), request(1)])

    assert done.outcome.ending is Ending.COMPLETE
    assert done.measurement.facts["server_histograms"]["ttft_s"]["num"] == 2


def test_samples_of_metrics_make_rows() -> None:
    """Rows follow each other without a gap; blocks are those of the usage."""
    with running(usage=0.5, token_s=0.05) as server:
        done = run(server, [request(i, 0.1 * i) for i in range(5)], sample_period_s=0.1)

    rows = list(done.steps)
    assert len(rows) >= 4
    assert rows[0].start_ns == 0
    assert all(a.end_ns == b.start_ns for a, b in pairwise(rows))
    assert {row.num_used_blocks for row in rows} == {500}
