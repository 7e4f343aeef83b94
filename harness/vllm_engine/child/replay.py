"""The loop: requests that are due go into vLLM's engine, and it makes steps."""

import gc
from typing import Any

import numpy as np

from harness.arrivals import ArrivalSource, MaxConcurrency, OpenLoop
from harness.request import Request
from harness.schedulers.batch import Dismissal
from harness.vllm_engine.child.book import Book
from harness.vllm_engine.child.channel import Channel
from harness.vllm_engine.child.client import Client, Clock
from harness.vllm_engine.child.engine import Vllm, changes_explained
from harness.vllm_engine.child.facts import block_bytes_of
from harness.vllm_engine.child.tier import drain, is_draining
from harness.vllm_engine.child.watch_v0 import WatchV0
from harness.vllm_engine.child.watch_v1 import WatchV1
from harness.vllm_engine.spec import EngineSpec
from harness.vllm_engine.tokens import TokenMaker
from harness.workload import Workload
from results.record import StepRecord

SEND_EVERY_NS = 250_000_000
WARMUP_PROMPT, WARMUP_OUTPUT = 200, 8
FIRST_WARMUP = 10**9
"""Requests before the run have numbers that no request of a trace has."""

IDLE_S = 0.1


class Replay:
    """A workload on its way through an engine.

    Args:
        vllm: The installed one.
        engine: Its engine, started.
        spec: How to load it.
        workload: What to send.
        facts: What the engine said of itself.
        channel: To the parent.
    """

    def __init__(
        self,
        vllm: Vllm,
        engine: Any,
        spec: EngineSpec,
        workload: Workload,
        facts: dict[str, Any],
        channel: Channel,
    ) -> None:
        self._vllm, self._engine, self._spec = vllm, engine, spec
        self._workload, self._facts, self._channel = workload, facts, channel
        self._is_v1 = facts["policy"] == "v1"
        self._tokens = TokenMaker(workload, facts["vocab_size"])
        self._continued = _continued(workload)
        self._clock = Clock()
        self._book = Book(facts["block_size"])
        self._steps: list[StepRecord] = []
        self._next_send_ns = 0
        self._num_refused = 0
        self._problems: dict[str, None] = {}
        self._is_cold: bool | None = None

    @property
    def can_replay_tokens(self) -> bool:
        """Whether the engine says the trace's own tokens."""
        return bool(self._facts.get("enable_trace_replay"))

    def warm_up(self) -> None:
        """Send a few prompts that nothing shares, then empty the prefix cache."""
        longest = max(1, self._facts["max_model_len"] - WARMUP_OUTPUT - 1)
        for number in range(self._spec.warmup_requests):
            length = min(longest, WARMUP_PROMPT * (number + 1))
            prompt = self._tokens.warm_up(number, length)
            name, params = str(FIRST_WARMUP + number), self._params([WARMUP_OUTPUT])
            self._add(name, prompt, params, {})
        while self._engine.has_unfinished_requests():
            self._engine.step()
        if self._is_v1:
            drain(self._engine)
        reset = getattr(self._engine, "reset_prefix_cache", None)
        if self._spec.warmup_requests and reset is not None:
            reset()

    def watch(self) -> dict[str, Any]:
        """Watch the engine from here on.

        Returns:
            What the parent is told at the start.

        Raises:
            ChangedVllmError: What is watched is not where it was.
        """
        with changes_explained(self._vllm.version):
            self._watch = self._watched()
            self._is_cold = self._watch.is_cold()
        return {"is_cold": self._is_cold, "unmeasured": list(self._watch.unmeasured)}

    def run(self) -> dict[str, Any]:
        """Send all and make steps until all is done, or the parent wants an end.

        Returns:
            What the parent is told at the end.
        """
        gc.collect()
        gc.freeze()
        clock = self._clock
        clock.restart()
        self._client = Client(self._source(), clock)
        try:
            while self._turn():
                pass
        finally:
            wall_ns = clock.now_ns()
            self._client.close()
            self._send()
        return self._end(wall_ns)

    # -- the loop ----------------------------------------------------------------------

    def _turn(self) -> bool:
        """Take what was sent, make a step; False at the end."""
        channel = self._channel
        if channel.stopped.is_set():
            return False
        for request in self._client.take():
            self._submit(request)
        channel.has_work = self._engine.has_unfinished_requests()
        if channel.has_work or (self._is_v1 and is_draining(self._engine)):
            self._step()
        self._report_done()
        if self._clock.now_ns() >= self._next_send_ns:
            self._send()
        return bool(channel.has_work) or self._client.wait(IDLE_S)

    def _step(self) -> None:
        outputs = self._engine.step()
        if isinstance(self._watch, WatchV0):
            self._watch.stepped(outputs)
        for output in outputs:
            if output.finished:
                self._learn(output)
        self._channel.num_progress = self._watch.num_steps

    def _learn(self, output: Any) -> None:
        """Let later prompts continue what was generated, as the cache has it."""
        request_id = int(str(output.request_id).partition("-")[0])
        runs = self._workload.outputs.runs(request_id)
        is_ours = self.can_replay_tokens and len(runs) == 1
        if request_id not in self._continued or is_ours:
            return
        for run, sample in zip(runs, output.outputs, strict=False):
            self._tokens.learn(run, list(sample.token_ids))

    def _report_done(self) -> None:
        for request, now_ns in self._book.done:
            self._client.on_finished(request, now_ns)
        self._book.done.clear()

    def _send(self) -> None:
        """Send the parent what is new."""
        requests, steps = self._book.take_changes(), self._steps
        self._steps = []
        self._next_send_ns = self._clock.now_ns() + SEND_EVERY_NS
        if requests or steps:
            # Records go on changing here while the writer's thread is at work.
            copies = [_copied(record) for record in requests]
            self._channel.send("rows", requests=copies, steps=steps)

    # -- requests ----------------------------------------------------------------------

    def _submit(self, request: Request) -> None:
        """Give a request to the engine, or note that it does not take it."""
        if request.num_prompt_tokens >= self._facts["max_model_len"] + (not self._is_v1):
            reason = Dismissal.PROMPT_TOO_LONG
            self._book.refused(request, self._clock.now_ns(), reason)
            return
        prompt = self._tokens.prompt(request)
        lengths = [length for _, length in request.outputs]
        params = self._params(lengths, request)
        self._book.arrived(request, self._clock.now_ns())
        try:
            self._add(str(request.request_id), prompt, params, self._extras(request))
        except ValueError as error:
            self._problems.setdefault(f"vLLM refused requests: {error}")
            self._book.forget(request.request_id)
            self._book.refused(request, self._clock.now_ns(), "refused")
            return
        if len(set(lengths)) > 1:
            self._watch.shorten(request)

    def _add(
        self, name: str, prompt: list[int], params: Any, extras: dict[str, Any]
    ) -> None:
        salt = extras.pop("cache_salt", None)
        inputs: dict[str, Any] = {"prompt_token_ids": prompt}
        if salt is not None:
            inputs["cache_salt"] = salt
        self._engine.add_request(name, inputs, params, **extras)

    def _extras(self, request: Request) -> dict[str, Any]:
        """What else the engine is told of a request."""
        extras: dict[str, Any] = {}
        if request.priority and self._facts.get("scheduling_policy") == "priority":
            extras["priority"] = request.priority
        if request.extra_keys and self._is_v1:
            extras["cache_salt"] = repr(request.extra_keys)
        elif request.extra_keys:
            self._problems.setdefault("V0 knows no cache salt: the trace's is left out")
        return extras

    def _params(self, lengths: list[int], request: Request | None = None) -> Any:
        module = self._vllm.module("sampling_params")
        options: dict[str, Any] = {}
        if self._is_v1:
            options["output_kind"] = module.RequestOutputKind.FINAL_ONLY
        if request is not None and request.n == 1 and self.can_replay_tokens:
            options["trace_decode_token_ids"] = self._tokens.output(request.outputs[0])
        return module.SamplingParams(
            n=len(lengths),
            temperature=self._spec.temperature,
            max_tokens=max(lengths),
            min_tokens=min(lengths),
            ignore_eos=True,
            detokenize=False,
            **options,
        )

    # -- before and after --------------------------------------------------------------

    def _source(self) -> ArrivalSource:
        source = OpenLoop(self._workload)
        limit = self._spec.max_concurrency
        return source if limit is None else MaxConcurrency(source, limit)

    def _watched(self) -> WatchV0 | WatchV1:
        """A watch on the engine's scheduler, whose steps wait to be sent."""
        engine, now_ns, on_step = self._engine, self._clock.now_ns, self._keep_step
        size = self._facts["block_size"]
        if not self._is_v1:
            scheduler = engine.scheduler
            if isinstance(scheduler, list):
                scheduler = scheduler[0]
            return WatchV0(scheduler, self._book, now_ns, on_step, size)
        scheduler = engine.engine_core.engine_core.scheduler
        num_ranks = int(self._facts["tensor_parallel_size"] or 1)
        num_bytes = (block_bytes_of(scheduler) or 0) * num_ranks
        return WatchV1(
            scheduler,
            self._book,
            now_ns,
            on_step,
            block_bytes=num_bytes,
            version=self._vllm.version,
        )

    def _keep_step(self, step: StepRecord) -> None:
        self._steps.append(step)

    def _end(self, wall_ns: int) -> dict[str, Any]:
        watch = self._watch
        return {
            "is_stopped": self._channel.stopped.is_set(),
            "wall_s": wall_ns / 1e9,
            "counters": watch.counters,
            "unmeasured": watch.unmeasured,
            "lateness_s": self._client.lateness_s(),
            "is_cold": self._is_cold,
            "recording_s": watch.num_recording_ns / 1e9,
            "notes": [*watch.notes, *self._problems, *self._notes_on_outputs()],
        }

    def _notes_on_outputs(self) -> list[str]:
        if self.can_replay_tokens:
            return []
        notes = [
            "outputs are the model's own tokens, as many as the trace says: this vLLM"
            " cannot be told what to generate on this device"
        ]
        if self._continued:
            notes.append(
                "prompts that continue an earlier output contain what was generated"
            )
        return notes


def _continued(workload: Workload) -> set[int]:
    """The requests of which some output stands in a prompt."""
    offsets = workload.outputs.offsets
    found = np.isin(workload.outputs.segments, workload.prompts.segments)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return set(rows[found].tolist())


def _copied(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
