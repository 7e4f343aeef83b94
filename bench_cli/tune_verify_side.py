"""The two settings that ``tune --verify`` runs: each as vLLM is told, and as it went."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine, Policy
from bench_cli.measured_flags import MeasuredFlags
from bench_cli.serve_line import BACKEND_FLAG
from bench_cli.shell_word import Word
from bench_cli.tune_line import kept_of
from profiles.default_engine import has_both_engines
from profiles.serve_option import needs_offloading_backend

if TYPE_CHECKING:
    from bench_cli.tune_question import Asked
    from harness.tuning.trial import Trial
    from results.comparison.arm import Arm, ArmRun

CURRENT, ADVISED = "current", "advised"

SERVER_ONLY = re.compile(
    r"-asc|--(no-)?(api-key|api-server-count|host|port|uds|root-path|grpc.*|headless"
    r"|config|ssl-.*|h11-.*|uvicorn-.*|disable-uvicorn-.*|allow-credentials"
    r"|allowed-(origins|methods|headers)|middleware|chat-template.*|response-role"
    r"|trust-request-.*|default-chat-template-kwargs|tool-.*|enable-auto-tool-choice"
    r"|exclude-tools-when-tool-choice-none|(en|dis)able-log-(requests|outputs|deltas)"
    r"|max-log-len|log-config-file|log-error-stack|disable-(fastapi-docs|access-log-.*)"
    r"|disable-frontend-multiprocessing|enable-(prompt-tokens-details|offline-docs"
    r"|per-request-metrics|server-load-tracking|force-include-usage|request-id-headers"
    r"|ssl-refresh|tokenizer-info-endpoint|flash-late-interaction|scale-out)"
    r"|return-tokens-as-token-ids|tokens-only|lora-modules|prompt-adapters"
    r"|sse-keep-alive-interval|fingerprint-.*|cohere-.*|anthropic-.*"
    r"|dp-supervisor-.*|data-parallel-supervisor-port)"
)
"""Options that ``vllm serve`` has beside those of its engine, which runs alone here.

Source: the parsers of ``ServeSubcommand`` and ``EngineArgs`` of vLLM 0.32.0; some that
older versions had.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Side:
    """One of the two settings.

    Attributes:
        name: ``current`` or ``advised``.
        line: The command that starts vLLM with it.
        options: Values of options that are not the version's own, by knob.
        trial: Its replay, of the requests that are measured.
        runs: The same requests on the real engine, once or more.
        folders: Where these were saved, and one that failed.
        failure: What became of an engine that did not last, as a finding; else None.
    """

    name: str
    line: str
    options: Mapping[str, Any]
    trial: "Trial"
    runs: "list[ArmRun]" = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    failure: dict[str, Any] | None = None

    @property
    def simulated(self) -> "ArmRun":
        """The replay as a run."""
        assert self.trial.run is not None, "it was replayed to its end"
        return self.trial.run

    @property
    def in_words(self) -> str:
        """What people call it."""
        return f"the {'present' if self.name == CURRENT else self.name} settings"

    def arm(self) -> "Arm":
        """What was measured, as one side of a comparison."""
        from results.comparison.arm import Arm

        return Arm(name=self.name, config=self.runs[0].info.config, runs=self.runs)


def engine_flags(
    asked: "Asked", options: Mapping[str, Any], vllm_version: str | None
) -> EngineFlags:
    """A setting as ``run --engine vllm`` takes it.

    Args:
        asked: Whose model and policy it is.
        options: Values of options, by knob.
        vllm_version: That the installed one has to be; None for any.
    """
    given = {n: v for n, v in options.items() if v is not None}
    if not given.get("kv_offloading_size"):
        given.pop("kv_offloading_size", None)  # no tier, which is what 0 GiB means
    start = asked.start
    decides = start.policy == "v0" or has_both_engines(start.vllm_version)
    return EngineFlags(
        model=start.model if asked.current is None else asked.current.model,
        engine=Engine.VLLM,
        policy=Policy(start.policy) if decides else None,
        vllm_version=vllm_version,
        **given,
    )


def with_kept(
    measured: MeasuredFlags, asked: "Asked", options: Mapping[str, Any]
) -> MeasuredFlags:
    """The flags with what is kept of the present command, before what was asked for."""
    kept = split_kept(kept_of(asked))[0]
    if options.get("kv_offloading_size"):
        is_told = any(Word.read(raw).value.startswith(BACKEND_FLAG) for raw in kept)
        if needs_offloading_backend(asked.start.vllm_version) and not is_told:
            kept = [*kept, BACKEND_FLAG, "native"]
    before = [" ".join(kept)] if kept else []
    return replace(measured, engine_args=[*before, *(measured.engine_args or ())])


def split_kept(kept: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words of options that an engine without a server takes, and flags of the others."""
    taken: list[str] = []
    left_out: list[str] = []
    is_taken = True
    for word in map(Word.read, kept):
        if word.is_flag:
            flag = word.value.partition("=")[0]
            is_taken = SERVER_ONLY.fullmatch(flag.replace("_", "-")) is None
            if not is_taken:
                left_out.append(flag)
        if is_taken:
            taken.append(word.raw)
    return taken, left_out


@contextmanager
def variables(environment: Sequence[str]) -> Iterator[None]:
    """Have variables that stand before a command in force, as ``NAME=value``."""
    pairs = [Word.read(raw).value.partition("=") for raw in environment]
    before = {name: os.environ.get(name) for name, _, _ in pairs}
    os.environ.update({name: value for name, _, value in pairs})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


COMPARED = (
    "block_size",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "kv_cache_dtype",
    "kv_offloading_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "watermark",
    "async_scheduling",
    "scheduling_policy",
    "long_prefill_token_threshold",
    "scheduler_reserve_full_isl",
    "tensor_parallel_size",
    "gpu_memory_utilization",
)
"""Knobs that both the simulation and an engine say."""


def differing(
    simulated: Mapping[str, Any], measured: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What a real engine has otherwise than the simulation, of what it says at all."""
    names = list(COMPARED)
    if simulated.get("source_of_num_gpu_blocks") != "estimated":
        names.remove("gpu_memory_utilization")  # it decides nothing
    found = {}
    for name in names:
        ours, theirs = (
            _plain(name, config.get(name)) for config in (simulated, measured)
        )
        if theirs is not None and ours != theirs:
            found[name] = {"simulated": ours, "measured": theirs}
    return found


def _plain(name: str, value: Any) -> Any:
    """A value such that equal settings have equal ones."""
    if name == "kv_cache_dtype" and value is None:
        return "auto"
    if isinstance(value, float):
        return round(value, 6)
    return value
