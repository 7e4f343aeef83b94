"""The requests of a workload as a server takes them, made ready before they are due."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson

from harness.request import Request
from harness.vllm_engine.server.detect import Server
from harness.vllm_engine.tokens import TokenMaker
from harness.workload import Workload

MOST_AHEAD_TOKENS = 2_000_000
MOST_AHEAD = 256
"""Prompts that are made ready at a time: a long one takes longer than a client may be
late, and all of a long trace do not fit into memory."""

WARMUP_OUTPUT_TOKENS = 8


class Bodies:
    """Bodies of completions, in the order in which they are needed.

    Prompts that continue an output are made when they are sent: by then it may be known
    what the server has generated.

    Attributes:
        num_unlearned: Outputs that later prompts continue and that the server kept to
            itself.
        returns_tokens: Generated token ids are asked for, as later prompts continue them.
        sends_priority: Requests carry the priority that the trace gives them.
    """

    def __init__(self, workload: Workload, server: Server, vocab_size: int) -> None:
        self._workload = workload
        self._server = server
        self._tokens = TokenMaker(workload, vocab_size)
        is_output = np.isin(workload.prompts.segments, workload.outputs.segments)
        first_runs = workload.prompts.offsets[:-1]
        self._continues = np.logical_or.reduceat(is_output, first_runs)
        self._continued = set(workload.prompts.segments[is_output].tolist())
        self.returns_tokens = bool(self._continued)
        self.num_unlearned = 0
        self.sends_priority = False
        self._ready: dict[int, Future[bytes]] = {}
        self._num_ahead_tokens = 0
        self._next = self._in_order()
        self._worker = ThreadPoolExecutor(1, "bodies")
        self._go_ahead()

    def close(self) -> None:
        """Stop making any."""
        self._worker.shutdown(cancel_futures=True)

    def body(self, request: Request, num_output_tokens: int) -> bytes:
        """The body of a request, made now if it is not ready."""
        made = self._taken(request)
        prompt = self._prompt(request) if made is None else made.result()
        self._go_ahead()
        head = orjson.dumps(self._knobs(request, num_output_tokens))
        return head[:-1] + b',"prompt":' + prompt + b"}"

    def drop(self, request: Request) -> None:
        """Forget a request that is not sent."""
        self._taken(request)
        self._go_ahead()

    def _taken(self, request: Request) -> Future[bytes] | None:
        made = self._ready.pop(request.request_id, None)
        if made is not None:
            self._num_ahead_tokens -= request.num_prompt_tokens
        return made

    def learn(self, request: Request, token_ids: dict[int, list[int]]) -> None:
        """Take note of what was generated, so that later prompts continue it."""
        for sample, run in enumerate(request.outputs):
            generated = token_ids.get(sample, ())
            self._tokens.learn(run, generated)
            self.num_unlearned += run[0] in self._continued and len(generated) < run[1]

    def warm_up(self, number: int, num_tokens: int, *, priority: int = 0) -> bytes:
        """A request that shares nothing with the workload."""
        knobs = self._sampling(WARMUP_OUTPUT_TOKENS, 1)
        if priority:
            knobs["priority"] = priority
        return orjson.dumps(knobs | {"prompt": self._tokens.warm_up(number, num_tokens)})

    def _in_order(self) -> Iterator[int]:
        order = np.argsort(self._workload.arrival_ns, kind="stable")
        return iter(order[~self._continues[order]].tolist())

    def _go_ahead(self) -> None:
        while (
            len(self._ready) < MOST_AHEAD and self._num_ahead_tokens < MOST_AHEAD_TOKENS
        ):
            request_id = next(self._next, None)
            if request_id is None:
                return
            request = self._workload.request(request_id)
            self._num_ahead_tokens += request.num_prompt_tokens
            self._ready[request_id] = self._worker.submit(self._prompt, request)

    def _prompt(self, request: Request) -> bytes:
        return orjson.dumps(self._tokens.prompt(request))

    def _knobs(self, request: Request, num_output_tokens: int) -> dict[str, Any]:
        knobs = self._sampling(num_output_tokens, request.n)
        keys = dict(zip(request.extra_keys[::2], request.extra_keys[1::2], strict=True))
        adapter, salt = keys.get("adapter"), keys.get("salt")
        if adapter in self._server.served:
            knobs["model"] = adapter
        elif adapter is not None:
            salt = f"adapter {adapter}, salt {salt}"
        if salt is not None:
            knobs["cache_salt"] = str(salt)
        if request.priority and self.sends_priority:
            knobs["priority"] = request.priority
        return knobs

    def _sampling(self, num_output_tokens: int, n: int) -> dict[str, Any]:
        knobs: dict[str, Any] = {
            "model": self._server.model,
            "max_tokens": num_output_tokens,
            "min_tokens": num_output_tokens,
            "ignore_eos": True,
            "temperature": 1.0 if n > 1 else 0.0,
            "n": n,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.returns_tokens:
            knobs["return_token_ids"] = True
        return knobs
