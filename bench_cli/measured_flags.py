"""Flags of runs on a real engine: vLLM started here, or a server that runs."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_cli.engine_flags import EngineFlags
from bench_cli.engine_options import Engine
from bench_cli.server_key import api_key

if TYPE_CHECKING:
    from harness.vllm_engine.server.options import ServerOptions
    from harness.vllm_engine.spec import EngineSpec
    from harness.vllm_engine.vigil import Patience

DEFAULT_WARMUP = 4
NOT_VLLMS = ("gpu", "policy", "engine", "vllm_version", "enforce_eager")
"""Flags of an engine that vLLM does not have, or that are passed on otherwise."""

real_engine_option = partial(typer.Option, rich_help_panel="Real engines")
"""An option under that heading of the help."""

VllmPython = Annotated[
    Path | None,
    real_engine_option(
        "--vllm-python",
        metavar="PATH",
        help="Engine vllm: a Python with vLLM and blockbench; this one by default.",
    ),
]
EngineArgs = Annotated[
    list[str] | None,
    real_engine_option(
        "--engine-args",
        metavar="ARGS",
        help='Engine vllm: more flags of vllm serve, as "--load-format dummy"; may be'
        " repeated.",
    ),
]
Url = Annotated[
    str | None,
    real_engine_option(
        "--url", help="Engine server: where it is, as http://localhost:8000."
    ),
]
ApiModel = Annotated[
    str | None,
    real_engine_option(
        "--api-model",
        metavar="NAME",
        help="Engine server: the model to ask for; the only one it serves by default.",
    ),
]
VocabSize = Annotated[
    int | None,
    real_engine_option(
        "--vocab-size",
        min=32,
        help="Engine server: prompts have token ids below this; 10000 by default.",
    ),
]
Repeats = Annotated[
    int | None,
    real_engine_option(
        "--repeats", min=1, help="Real engines: measure so many times; 1."
    ),
]
Warmup = Annotated[
    int | None,
    real_engine_option(
        "--warmup", min=0, help="Real engines: requests before, in no figure; 4."
    ),
]
BesideSim = Annotated[
    bool,
    real_engine_option(
        "--beside-sim",
        help="Engine vllm: say whether sim decides the same, given the same steps.",
    ),
]
HangAfter = Annotated[
    str | None,
    real_engine_option(
        "--hang-after",
        metavar="TIME",
        help="Real engines: give up one that gets nothing done for so long, as 5m.",
    ),
]
StartTimeout = Annotated[
    str | None,
    real_engine_option(
        "--start-timeout",
        metavar="TIME",
        help="Engine vllm: give up a start that takes longer; 30m.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFlags:
    """How a real engine is reached and loaded; None where not given."""

    vllm_python: VllmPython = None
    engine_args: EngineArgs = None
    url: Url = None
    api_model: ApiModel = None
    vocab_size: VocabSize = None
    repeats: Repeats = None
    warmup: Warmup = None
    hang_after: HangAfter = None
    start_timeout: StartTimeout = None
    beside_sim: BesideSim = False

    def refuse_others(
        self, engines: Sequence[Engine], asked_by: str = "--engine"
    ) -> None:
        """Refuse flags that none of these engines has.

        Args:
            engines: Which are asked for.
            asked_by: The flag that asks for them.

        Raises:
            UsageError: Names one, and the engine that it belongs to.
        """
        from harness.errors import UsageError

        for field in fields(self):
            owners = _OWNERS.get(field.name, (Engine.VLLM, Engine.SERVER))
            is_given = getattr(self, field.name) not in (None, False)
            if is_given and not any(engine in owners for engine in engines):
                flag = f"--{field.name.replace('_', '-')}"
                named = " or ".join(f"{asked_by} {owner.value}" for owner in owners)
                raise UsageError(f"{flag} belongs to {named}; add that, or leave it out")
        if Engine.SERVER in engines and self.url is None:
            raise UsageError(
                f"{asked_by} server needs the server's address; add --url, as in"
                " --url http://localhost:8000"
            )

    @property
    def num_warmups(self) -> int:
        """Requests before the run."""
        return DEFAULT_WARMUP if self.warmup is None else self.warmup

    def words(self) -> tuple[str, ...]:
        """The words of ``--engine-args``, as a shell would pass them.

        Raises:
            UsageError: A quote is open.
        """
        from harness.errors import UsageError

        try:
            return tuple(w for text in self.engine_args or () for w in shlex.split(text))
        except ValueError as error:
            raise UsageError(
                f"--engine-args cannot be read: {error}; write it as a shell would have"
                ' it, as --engine-args "--load-format dummy"'
            ) from error

    def patience(self) -> "Patience":
        """How long vLLM may get nothing done.

        Raises:
            UsageError: A time that cannot be read.
        """
        from bench_cli.quantity import parse_duration
        from harness.vllm_engine.vigil import Patience

        given = {"hang_after_s": self.hang_after, "start_s": self.start_timeout}
        return Patience(
            **{n: parse_duration(text) for n, text in given.items() if text is not None}
        )

    def spec(self, flags: EngineFlags, max_concurrency: int | None) -> "EngineSpec":
        """What vLLM is told: the flags that were given, and no others.

        Raises:
            UsageError: A flag that vLLM does not have.
        """
        from harness.vllm_engine.spec import EngineSpec

        return EngineSpec(
            policy=flags.knobs()["policy"],
            vllm_version=flags.vllm_version,
            given=given_to_vllm(flags),
            engine_args=self.words(),
            max_concurrency=max_concurrency,
            warmup_requests=self.num_warmups,
        )

    def server(self, max_concurrency: int | None) -> "ServerOptions":
        """Where the server is; the key for it comes from the environment.

        Raises:
            UsageError: A URL or a time that cannot be read.
        """
        from bench_cli.quantity import parse_duration
        from harness.vllm_engine.server.options import ServerOptions

        assert self.url is not None, "refuse_others comes first"
        given: dict[str, Any] = {"model": self.api_model}
        if self.vocab_size is not None:
            given["vocab_size"] = self.vocab_size
        if self.hang_after is not None:
            given["hang_after_s"] = parse_duration(self.hang_after)
        return ServerOptions(
            url=self.url,
            api_key=api_key(),
            warmup_requests=self.num_warmups,
            max_concurrency=max_concurrency,
            **given,
        )


_OWNERS = {
    "vllm_python": (Engine.VLLM,),
    "engine_args": (Engine.VLLM,),
    "start_timeout": (Engine.VLLM,),
    "beside_sim": (Engine.VLLM,),
    "url": (Engine.SERVER,),
    "api_model": (Engine.SERVER,),
    "vocab_size": (Engine.SERVER,),
}


def given_to_vllm(flags: EngineFlags) -> dict[str, Any]:
    """The knobs that were given, by the names of vLLM's own arguments.

    Raises:
        UsageError: One that vLLM does not have.
    """
    from harness.errors import UsageError

    knobs = {n: v for n, v in flags.knobs().items() if v is not None}
    given = {n: v for n, v in knobs.items() if n not in NOT_VLLMS}
    if given["tensor_parallel_size"] == 1:
        del given["tensor_parallel_size"]
    if flags.enforce_eager:
        given["enforce_eager"] = True
    if "num_cpu_blocks_override" in given:
        raise UsageError(
            "vLLM has no --num-cpu-blocks-override; give --swap-space (v0) or"
            " --kv-offloading-size (v1) in GiB"
        )
    if "kv_cache_gib" in given:
        given["kv_cache_memory_bytes"] = int(given.pop("kv_cache_gib") * 2**30)
    return given
