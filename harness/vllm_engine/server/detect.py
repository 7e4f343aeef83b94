"""What a running server is: its models, version, cache, and where it has no metrics."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.vllm_engine.server.client import Answer, ServerClient
from harness.vllm_engine.server.fault import (
    Fault,
    ServerFaultError,
    error_of_status,
    shortened,
)
from harness.vllm_engine.server.metrics import MOST, Snapshot
from harness.vllm_engine.server.options import ServerOptions

KNOBS = (
    "block_size",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "sliding_window",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "kv_offloading_size",
)
"""What of ``cache_config_info`` is a knob of ours, by the same name."""

_NOT_OURS = "another program answers on that port, or --url lacks a part of its path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server as it describes itself.

    Attributes:
        model: The name to ask for.
        served: All names that it serves, adapters included.
        max_model_len: Longest prompt plus output; None where it does not say.
        version: Of vLLM; None where it does not say.
        config: What its metrics say of its cache, by vLLM's names.
        num_engines: Engines behind it (data parallel).
        policy: ``v0`` or ``v1``; None where nothing tells them apart.
        has_metrics: It has metrics of vLLM.
    """

    model: str
    served: tuple[str, ...]
    max_model_len: int | None = None
    version: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    num_engines: int = 1
    policy: str | None = None
    has_metrics: bool = False

    @property
    def block_size(self) -> int | None:
        """Tokens in a block."""
        return _whole(self.config.get("block_size"))

    @property
    def num_usable_blocks(self) -> int | None:
        """Blocks that one engine's sequences can hold; v1 sets block 0 aside."""
        blocks = _whole(self.config.get("num_gpu_blocks"))
        return None if blocks is None else blocks - (self.policy == "v1")

    @property
    def is_caching(self) -> bool | None:
        """Prefix caching is on; None where it does not say."""
        return self.config.get("enable_prefix_caching")

    def facts(self) -> dict[str, Any]:
        """What is known for sure, by the names of facts and knobs."""
        blocks, size = self.num_usable_blocks, self.block_size
        known = {
            "model": self.model,
            "max_model_len": self.max_model_len,
            "vllm_version": self.version,
            "policy": self.policy,
            "num_engines": self.num_engines,
            "kv_cache_dtype": self.config.get("cache_dtype"),
            "kv_cache_tokens": None if blocks is None or size is None else blocks * size,
            **{name: _no_text(self.config.get(name)) for name in KNOBS},
        }
        return {name: value for name, value in known.items() if value is not None}


async def detect(client: ServerClient, options: ServerOptions) -> Server:
    """Ask a server what it is; four GETs.

    Raises:
        ServerFaultError: It cannot be reached, is none, wants another key, or does not
            have the model.
    """
    await client.connect()
    models = _models(await client.get("/v1/models"), client.url, options)
    model = _chosen(models, options.model)
    found = models[model].get("max_model_len")
    return await _described(client, tuple(models), model, _whole(found))


async def watched(client: ServerClient, options: ServerOptions) -> Server:
    """The same of a server that is only looked at: its metrics need no key.

    Raises:
        ServerFaultError: It cannot be reached, or has no metrics of vLLM.
    """
    await client.connect()
    if await look(client) is None:
        raise ServerFaultError(
            Fault.ERROR,
            f"there are no metrics of vLLM at {client.url}/metrics; {_NOT_OURS}",
        )
    try:
        models = _models(await client.get("/v1/models"), client.url, options)
    except ServerFaultError:  # it wants a key, or only the metrics are let through
        models = {}
    model = next(iter(models), "")
    found = models.get(model, {}).get("max_model_len")
    return await _described(client, tuple(models), model, _whole(found))


async def _described(
    client: ServerClient,
    served: tuple[str, ...],
    model: str,
    max_model_len: int | None,
) -> Server:
    metrics = await look(client)
    config = metrics.config_info() if metrics else []
    version = _version(await client.get("/version"))
    return Server(
        model=model,
        served=served,
        max_model_len=max_model_len,
        version=version,
        config=config[0] if config else {},
        num_engines=max(len(config), 1),
        policy=policy_of(version, metrics),
        has_metrics=metrics is not None,
    )


async def look(
    client: ServerClient, *, brief: bool = False, timeout_s: float = 10.0
) -> Snapshot | None:
    """The metrics of this moment; None where the server has none of vLLM's.

    Raises:
        ServerFaultError: It does not answer.
    """
    asked_ns = time.perf_counter_ns()
    answer = await client.get("/metrics", timeout_s=timeout_s)
    if answer.status != 200:
        return None
    try:
        snapshot = Snapshot.of(answer.body.decode(), asked_ns, brief=brief)
    except ValueError:
        return None
    return snapshot if snapshot.has_vllm else None


def policy_of(version: str | None, metrics: Snapshot | None) -> str | None:
    """Which engine decides, by version, and between 0.8 and 0.10 by what it counts."""
    release = _release(version)
    if release is not None and not (0, 8) <= release < (0, 11):
        return "v0" if release < (0, 8) else "v1"
    if metrics is None:
        return None
    if metrics.counter("prefix_cache_query_tokens") is not None:
        return "v1"
    return "v0" if metrics.gauge("cpu_cache_usage") is not None else None


def _release(version: str | None) -> tuple[int, int] | None:
    parts = (version or "").removeprefix("v").split(".")
    numbers = [int(part) for part in parts[:2] if part.isdecimal()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def _models(
    answer: Answer, url: str, options: ServerOptions
) -> dict[str, dict[str, Any]]:
    """What is served, by name, in the server's order."""
    if answer.status != 200 and answer.status != 404:
        error = error_of_status(answer.status, answer.body, secret=options.api_key)
        if isinstance(error, ServerFaultError):
            raise error
    document = answer.json()
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        raise ServerFaultError(
            Fault.ERROR,
            f"{url} is no OpenAI-compatible server: to GET /v1/models it answered"
            f" {answer.status} {shortened(answer.content_type)}; {_NOT_OURS}",
        )
    return {str(m["id"]): m for m in data if isinstance(m, dict) and "id" in m}


def _chosen(models: Mapping[str, Any], wanted: str | None) -> str:
    names = ", ".join(list(models)[:8]) or "none"
    if wanted is None and models:
        return next(iter(models))
    if wanted not in models:
        raise ServerFaultError(
            Fault.ERROR,
            f"the server has no model {wanted!r}; it serves {shortened(names)}: name"
            " one of them with --api-model",
        )
    return str(wanted)


def _version(answer: Answer) -> str | None:
    document = answer.json() if answer.status == 200 else None
    version = document.get("version") if isinstance(document, dict) else None
    return version if isinstance(version, str) else None


def _no_text(value: object) -> object:
    """A number or a truth, as all our knobs there are."""
    return None if isinstance(value, str) else value


def _whole(value: object) -> int | None:
    """A number of tokens or blocks; None where that is none of which there could be."""
    return value if type(value) is int and 0 < value <= MOST else None
