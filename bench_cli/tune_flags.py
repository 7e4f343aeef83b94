"""Flags of ``blockbench tune``: what is wanted, and what may be chosen."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from bench_cli import options
from harness.tuning.choice import ObjectiveName, Routing

if TYPE_CHECKING:
    from results.goodput import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFlags:
    """What was asked on the command line, besides the engine and the load.

    Attributes:
        slo: Limits, as text; None for none.
        objective: What is wanted most; None for what the limits suggest.
        space: Values to choose from, as text; None for all there is.
        budget: As ``60s`` or ``40trials``.
        current: The present command; None for the version's defaults.
        replicas: That share the load.
        routing: How they share it.
        shared_gpu: Others need the GPU too.
        host_memory_gib: Of the machine that will serve; None if not known.
    """

    slo: options.SloText = None
    objective: Annotated[
        ObjectiveName | None,
        typer.Option("--objective", help="goodput with --slo, else ttft or throughput."),
    ] = None
    space: Annotated[
        str | None,
        typer.Option(
            "--space",
            metavar="KNOB=VALUES,…",
            help="Values to choose from: block_size=16|32, max_num_seqs=64..1024.",
        ),
    ] = None
    budget: Annotated[
        str, typer.Option("--budget", help="Of the search: 60s, 5min or 40trials.")
    ] = "40trials"
    current: Annotated[
        str | None,
        typer.Option(
            "--current", metavar="COMMAND", help='Present command: "vllm serve …".'
        ),
    ] = None
    replicas: Annotated[
        int, typer.Option("--replicas", min=1, help="Share the load among so many.")
    ] = 1
    routing: Annotated[
        Routing, typer.Option("--routing", help="How replicas share it.")
    ] = Routing.ROUND_ROBIN
    shared_gpu: Annotated[
        bool, typer.Option("--shared-gpu", help="Take as little GPU memory as does.")
    ] = False
    host_memory_gib: options.HostMemoryGib = None

    def limits(self) -> "Slo | None":
        """The SLO.

        Raises:
            UsageError: The text cannot be read.
        """
        from bench_cli.quantity import parse_slo

        return None if self.slo is None else parse_slo(self.slo)
