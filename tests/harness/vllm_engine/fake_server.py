"""A server that answers as vLLM does, with a prefix cache and faults planted in it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = (
    "500",
    "error_event",
    "drop",
    "hang",
    "cut_stream",
    "no_json",
    "other_json",
    "429",
    "no_answer",
    "endless",
    "empty_events",
)


@dataclass
class FakeServer:
    """What it serves, and what goes wrong with it.

    Attributes:
        models: Names that it serves.
        max_model_len: Longest prompt plus output; None: it does not say.
        refuses_above: The same, whatever it says.
        version: What /version says; None: there is none.
        api_key: Asked for on /v1 where given.
        block_size: Of its prefix cache.
        num_gpu_blocks: Of its pool.
        is_v0: Its metrics have the names of V0.
        has_metrics: There are any.
        can_reset: POST /reset_prefix_cache is there.
        tells_cached: Usage has cached tokens.
        token_s: Time between two tokens.
        fault: One of ``FAULTS``, on completion number ``fault_at`` (from 0) and later.
        is_other: Something else than a vLLM answers.
        extra_of_last: Goes into the last event of each answer.
        block_size_text: What its metrics say of its blocks, if not their size.
        more_metrics: Follows them.
        scheduling_policy: What it goes by.
        refuses_priority: It takes none, as V0 without that policy.
        tells_policy: It is in development mode and says what it goes by.
    """

    models: tuple[str, ...] = ("tiny",)
    max_model_len: Any = 4096
    refuses_above: int = 10**9
    version: str | None = "0.32.0"
    api_key: str | None = None
    block_size: int = 16
    num_gpu_blocks: int = 1001
    is_v0: bool = False
    has_metrics: bool = True
    can_reset: bool = True
    tells_cached: bool = True
    token_s: float = 0.001
    fault: str = ""
    fault_at: int = 0
    is_other: bool = False
    extra_of_last: dict[str, Any] = field(default_factory=dict)
    block_size_text: str = ""
    more_metrics: str = ""
    scheduling_policy: str = "fcfs"
    refuses_priority: bool = False
    tells_policy: bool = False
    tokens_a_chunk: int = 1
    preemptions_a_request: int = 0
    seen: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    counters: dict[str, float] = field(default_factory=dict)
    num_running: int = 0
    num_waiting: int = 0
    usage: float = 0.0
    cache: set[int] = field(default_factory=set)
    started_at: float = field(default_factory=time.time)
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @property
    def longest(self) -> int:
        """Longest prompt plus output that it takes."""
        known = self.max_model_len
        return known if type(known) is int and known > 0 else 10**9

    def restart(self) -> None:
        """Begin anew: counters at 0, nothing in the cache."""
        with self.lock:
            self.counters.clear()
            self.cache.clear()
            self.started_at += 1

    def count(self, name: str, number: float = 1) -> None:
        """Raise a counter."""
        self.counters[name] = self.counters.get(name, 0) + number

    def lookup(self, tokens: list[int], salt: str) -> int:
        """Leading tokens of a prompt that are cached, whole blocks, never all of it."""
        hits = 0
        for end in range(self.block_size, len(tokens), self.block_size):
            if hash((salt, *tokens[:end])) not in self.cache:
                break
            hits = end
        return hits

    def keep(self, tokens: list[int], salt: str) -> None:
        """Cache the full blocks of a sequence."""
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            self.cache.add(hash((salt, *tokens[:end])))

    def metrics_text(self) -> str:
        """What /metrics says."""
        labels = f'engine="0",model_name="{self.models[0]}"'
        block_size = self.block_size_text or self.block_size
        gauge = "gpu_cache_usage_perc" if self.is_v0 else "kv_cache_usage_perc"
        rows = [
            f"vllm:num_requests_running{{{labels}}} {self.num_running}",
            f"vllm:num_requests_waiting{{{labels}}} {self.num_waiting}",
            f"vllm:{gauge}{{{labels}}} {self.usage}",
            f'vllm:cache_config_info{{block_size="{block_size}",cache_dtype="auto",'
            f'enable_prefix_caching="True",gpu_memory_utilization="0.9",'
            f'num_cpu_blocks="None",num_gpu_blocks="{self.num_gpu_blocks}",'
            f'sliding_window="None"}} 1.0',
            f"process_start_time_seconds {self.started_at}",
        ]
        if self.is_v0:
            rows.append(f"vllm:num_requests_swapped{{{labels}}} 2")
            rows.append(f"vllm:cpu_cache_usage_perc{{{labels}}} 0.25")
        names = ["num_preemptions", "prompt_tokens", "generation_tokens"]
        if not self.is_v0:
            names += ["prefix_cache_queries", "prefix_cache_hits"]
        rows += [
            f"vllm:{name}_total{{{labels}}} {self.counters.get(name, 0)}"
            for name in names
        ]
        rows.append(
            f'vllm:request_success_total{{{labels},finished_reason="length"}}'
            f" {self.counters.get('request_success', 0)}"
        )
        for name, bounds in HISTOGRAM_BOUNDS.items():
            rows += self._histogram(name, bounds, labels)
        return "\n".join([*rows, self.more_metrics]) + "\n"

    def _histogram(self, name: str, bounds: list[float], labels: str) -> Iterator[str]:
        with self.lock:
            values = list(self.histograms.get(name, ()))
        for bound in [*bounds, float("inf")]:
            text = "+Inf" if bound == float("inf") else str(bound)
            num_below = sum(value <= bound for value in values)
            yield f'vllm:{name}_bucket{{{labels},le="{text}"}} {num_below}'
        yield f"vllm:{name}_sum{{{labels}}} {sum(values)}"
        yield f"vllm:{name}_count{{{labels}}} {len(values)}"

    histograms: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        with self.lock:
            self.histograms.setdefault(name, []).append(value)


HISTOGRAM_BOUNDS: dict[str, list[float]] = {
    "time_to_first_token_seconds": [0.001, 0.01, 0.1, 1.0],
    "inter_token_latency_seconds": [0.001, 0.01, 0.1],
    "request_queue_time_seconds": [0.001, 0.01, 0.1, 1.0],
    "request_prompt_tokens": [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000],
    "request_generation_tokens": [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
    "request_params_n": [1, 2, 5],
}


@contextmanager
def serving(server: FakeServer) -> Iterator[FakeServer]:
    """Let the server answer on a free port, which its ``url`` then names."""
    handler = type("Handler", (_Handler,), {"fake": server})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        server.released.set()
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    fake: FakeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def handle(self) -> None:
        """Answer, unless the client has gone."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError, ValueError):
            self.close_connection = True

    def do_GET(self) -> None:
        """What the server is, and its metrics."""
        fake = self.fake
        fake.seen.append(("GET", self.path))
        fake.authorizations.add(self.headers.get("Authorization"))
        answers: dict[str, Callable[[], Any]] = {
            "/health": lambda: {},
            "/v1/models": lambda: {
                "object": "list",
                "data": [
                    {"id": m, "max_model_len": fake.max_model_len} for m in fake.models
                ],
            },
        }
        if fake.version is not None:
            answers["/version"] = lambda: {"version": fake.version}
        if fake.tells_policy:
            scheduler = {"policy": fake.scheduling_policy}
            config = {"vllm_config": {"scheduler_config": scheduler}}
            answers["/server_info?config_format=json"] = lambda: config
        if fake.is_other:
            self._answer(200, b"<html>a shop</html>", "text/html")
        elif self.path == "/metrics" and fake.has_metrics:
            self._answer(200, fake.metrics_text().encode(), "text/plain")
        elif self.path.startswith("/v1") and not self._has_key():
            self._json(401, {"error": f"Unauthorized {self.headers['Authorization']}"})
        elif self.path in answers:
            self._json(200, answers[self.path]())
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """A completion, or the cache is emptied."""
        fake = self.fake
        fake.seen.append(("POST", self.path))
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/reset_prefix_cache") and fake.can_reset:
            fake.cache.clear()
            self._json(200, {"success": True})
        elif self.path != "/v1/completions":
            self._json(404, {"detail": "Not Found"})
        elif not self._has_key():
            self._json(401, {"error": "Unauthorized"})
        else:
            self._complete(json.loads(text))

    def _has_key(self) -> bool:
        key = self.fake.api_key
        return key is None or self.headers.get("Authorization") == f"Bearer {key}"

    def _complete(self, body: dict[str, Any]) -> None:
        fake = self.fake
        with fake.lock:
            number = len(fake.bodies)
            fake.bodies.append(body)
            fake.sent_at.append(time.monotonic())
        fault = fake.fault if number >= fake.fault_at else ""
        if fault == "500":
            self._json(500, {"error": {"message": "EngineCore died", "code": 500}})
        elif fault == "429":
            self._json(429, {"detail": "slow down"})
        elif fault == "no_answer":
            self.close_connection = True
        elif fake.refuses_priority and body.get("priority"):
            said = f"Got priority {body['priority']} but Priority scheduling is not on."
            self._json(400, {"message": said})
        elif len(body["prompt"]) + body["max_tokens"] > min(
            fake.refuses_above, fake.longest
        ):
            self._json(400, {"message": "This model's maximum context length is less"})
        else:
            self._stream(body, fault)

    def _stream(self, body: dict[str, Any], fault: str) -> None:
        fake, prompt, n = self.fake, body["prompt"], body.get("n", 1)
        salt = body.get("cache_salt", "") + body["model"]
        with fake.lock:
            fake.num_running += 1
            cached = fake.lookup(prompt, salt)
            fake.keep(prompt, salt)
            fake.count("prefix_cache_queries", len(prompt))
            fake.count("prefix_cache_hits", cached)
            fake.count("num_preemptions", fake.preemptions_a_request)
        try:
            self._send_stream(body, fault, prompt, n, salt, cached)
        finally:
            with fake.lock:
                fake.num_running -= 1

    def _send_stream(
        self,
        body: dict[str, Any],
        fault: str,
        prompt: list[int],
        n: int,
        salt: str,
        cached: int,
    ) -> None:
        fake = self.fake
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        outputs: list[list[int]] = [[] for _ in range(n)]
        size = fake.tokens_a_chunk
        for position in range(0, body["max_tokens"], size):
            if fault and position >= 2 and self._go_wrong(fault):
                return
            time.sleep(fake.token_s)
            for sample in range(n):
                new = [
                    (7 * len(prompt) + 3 * at + sample) % 97
                    for at in range(position, min(position + size, body["max_tokens"]))
                ]
                outputs[sample] += new
                choice: dict[str, Any] = {"index": sample, "text": "x"}
                if body.get("return_token_ids"):
                    choice["token_ids"] = new
                self._event({"choices": [choice]})
        usage: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": n * body["max_tokens"],
        }
        if fake.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        with fake.lock:
            for output in outputs:
                fake.keep([*prompt, *output[:-1]], salt)
            fake.count("prompt_tokens", len(prompt))
            fake.count("generation_tokens", n * body["max_tokens"])
            fake.count("request_success", n)
        fake.note("request_prompt_tokens", len(prompt))
        fake.note("request_generation_tokens", body["max_tokens"])
        fake.note("time_to_first_token_seconds", 0.005)
        self._event({"choices": [], "usage": usage} | fake.extra_of_last)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _go_wrong(self, fault: str) -> bool:
        """Whether the stream is over."""
        if fault == "error_event":
            self._event({"error": {"message": "EngineCore died", "code": 500}})
        elif fault == "no_json":
            self._chunk(b"data: {not json\n\n")
        elif fault == "other_json":
            self._event({"choices": [1]})
        elif fault == "hang":
            self.fake.released.wait()
        elif fault == "cut_stream":
            self._chunk(b"")
            return True
        while fault in ("endless", "empty_events"):
            choices = [{"index": 0, "text": "x"}] if fault == "endless" else []
            self._event({"choices": choices})  # until the client has gone
            time.sleep(self.fake.token_s)
        self.close_connection = True
        return True

    def _event(self, document: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, document: dict[str, Any]) -> None:
        self._answer(status, json.dumps(document).encode(), "application/json")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
