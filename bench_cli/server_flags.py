"""The flags that say where a running server is, and how it is spoken to."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.vllm_engine.server.options import ServerOptions

KEY_VARIABLES = ("VLLM_API_KEY", "OPENAI_API_KEY")
"""Where the key is looked for, first come first served. No flag takes it: flags are seen
by every user of a machine, and kept by the shell."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Root of an OpenAI-compatible vLLM server, as http://localhost:8000.",
    ),
]
ApiModel = Annotated[
    str | None,
    typer.Option(
        "--api-model",
        metavar="NAME",
        help="Model to ask the server for; the first that it serves by default.",
    ),
]
Warmup = Annotated[
    int,
    typer.Option(
        "--warmup", min=0, help="Requests sent before the run, in no figure of it."
    ),
]
HangAfter = Annotated[
    str,
    typer.Option(
        "--hang-after",
        metavar="TIME",
        help="The run ends after so long without a byte on any request.",
    ),
]
VocabSize = Annotated[
    int | None,
    typer.Option(
        "--vocab-size",
        min=2,
        help="Prompts have token ids below this; 10000 by default.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """Where a server is and how it is spoken to; None where not given."""

    url: Url = None
    api_model: ApiModel = None
    warmup: Warmup = 0
    hang_after: HangAfter = "60s"
    vocab_size: VocabSize = None

    def options(
        self, *, max_concurrency: int | None = None, block_size: int | None = None
    ) -> "ServerOptions":
        """How the server is spoken to, the key from the environment.

        Raises:
            UsageError: There is no URL, or it cannot be used.
        """
        from bench_cli.quantity import parse_duration
        from harness.errors import UsageError
        from harness.vllm_engine.server.options import DEFAULT_VOCAB_SIZE, ServerOptions

        if not self.url:
            raise UsageError("which server? add --url http://HOST:PORT")
        return ServerOptions(
            url=self.url,
            model=self.api_model,
            api_key=api_key(),
            vocab_size=self.vocab_size or DEFAULT_VOCAB_SIZE,
            hang_after_s=parse_duration(self.hang_after),
            warmup_requests=self.warmup,
            max_concurrency=max_concurrency,
            block_size=block_size or 16,
        )


def api_key() -> str | None:
    """The key of the environment; None where there is none."""
    for name in KEY_VARIABLES:
        if key := os.environ.get(name, "").strip():
            return key
    return None
