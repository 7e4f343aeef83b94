"""What is known of a run besides its rows: configuration, trace, and how it ended."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from results.measured import Measurement, NotMeasuredError, Table


class Ending(StrEnum):
    """How a run ended, or that it has not.

    ``COMPLETE``: every request left in its own way. ``STUCK``: nothing could go on.
    ``DIED``: the engine did. ``INTERRUPTED``: somebody stopped it. ``KILLED``: its
    process is gone, and what it had recorded is left. ``RUNNING``: it is under way.
    """

    COMPLETE = "complete"
    STUCK = "stuck"
    DIED = "died"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    RUNNING = "running"


MEASURED_KINDS = (
    "vllm_crashed",
    "vllm_out_of_memory",
    "vllm_hung",
    "vllm_did_not_start",
    "server_lost",
    "server_error",
    "server_unresponsive",
)
"""How a real engine can fail; each is a finding of that code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, as far as its rows do not tell.

    Attributes:
        ending: How.
        kind: For ``DIED``: ``no_cpu_swap_space`` or ``vllm_assertion``, and of a measured
            run what ``MEASURED_KINDS`` holds; else empty.
        message: For ``DIED``: what vLLM would have tripped over, or what happened to it;
            else empty.
        holders: Who was in which queue and how many blocks were free, for people.
        num_lost_blocks: Blocks that nobody held and nobody could use at the end.
    """

    ending: Ending = Ending.COMPLETE
    kind: str = ""
    message: str = ""
    holders: str = ""
    num_lost_blocks: int = 0

    @property
    def reason(self) -> str:
        """Why requests were left unfinished, in a few words."""
        return {
            Ending.STUCK: "nothing could progress",
            Ending.DIED: f"the engine died: {self.kind}",
            Ending.INTERRUPTED: "interrupted",
            Ending.KILLED: "the run was killed",
            Ending.RUNNING: "the run is under way",
        }.get(self.ending, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What is known of a run besides its rows; all of it is strict JSON.

    It can be made before the run, so that nothing unfit for JSON is found only after it.

    Attributes:
        source: ``simulated`` or ``measured``.
        engine: ``sim``, ``torch``, ``vllm`` or ``server``.
        policy: ``v0`` or ``v1``.
        config: Every knob as resolved, and by flag how requests were chosen and timed;
            holds ``num_gpu_blocks``, ``num_cpu_blocks``, ``block_size``, ``block_bytes``,
            ``watermark`` and ``enable_prefix_caching``, which are None where an engine
            does not say how it is configured.
        trace: What is known of it, ``TRACE_KEYS`` at least. ``is_observed`` where the
            prompts were those of real traffic, so that hits are real whatever is known
            of what they share.
        slo: What goodput is counted under, as ``Slo.to_dict`` writes it; None for none.
        outcome: How it ended.
        wall_s: Seconds that the run itself took; None while that is not known.
        measurement: What is known of a measured run besides; None for simulated ones.
    """

    source: str
    engine: str
    policy: str
    config: Mapping[str, Any]
    trace: Mapping[str, Any]
    slo: Mapping[str, float] | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome(ending=Ending.RUNNING))
    wall_s: float | None = None
    measurement: Measurement | None = None

    def __post_init__(self) -> None:
        json.dumps((self.config, self.trace, self.slo), allow_nan=False)

    @property
    def complete(self) -> bool:
        """Every request left in its own way."""
        return self.outcome.ending is Ending.COMPLETE

    @property
    def is_caching(self) -> bool:
        """Prefix caching is on.

        Raises:
            NotMeasuredError: Nobody knows.
        """
        is_caching = self.config["enable_prefix_caching"]
        if is_caching is None:
            raise NotMeasuredError("enable_prefix_caching")
        return bool(is_caching)

    @property
    def is_measured(self) -> bool:
        """A real engine ran."""
        return self.source == "measured"

    def unmeasured_in(self, table: Table) -> frozenset[str]:
        """The columns of a table that must not be read."""
        if self.measurement is None:
            return frozenset()
        return self.measurement.unmeasured_in(table)

    def counter(self, name: str) -> float | None:
        """A counter of the engine over the whole run; None where there is none such."""
        return None if self.measurement is None else self.measurement.counter(name)

    @property
    def is_closed_loop(self) -> bool:
        """Requests wait for others to finish, so that no queue grows in the engine."""
        return self.config.get("max_concurrency") is not None

    def to_dict(self) -> dict[str, Any]:
        """The fields as they stand in run.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, run: Mapping[str, Any]) -> "RunInfo":
        """The fields as they stand in run.json, whatever else that holds.

        Raises:
            KeyError, TypeError, ValueError: Something is missing or of another kind.
        """
        ended = dict(_mapping(run["outcome"]))
        return cls(
            source=run["source"],
            engine=run["engine"],
            policy=run["policy"],
            config=_mapping(run["config"]),
            trace=_mapping(run["trace"]),
            slo=None if run["slo"] is None else _mapping(run["slo"]),
            outcome=Outcome(**{**ended, "ending": Ending(ended["ending"])}),
            wall_s=run["wall_s"],
            measurement=_measurement(run.get("measurement")),
        )


def _measurement(known: object) -> Measurement | None:
    """None in runs that nobody measured, and in those of versions without it."""
    return None if known is None else Measurement.from_dict(_mapping(known))


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no JSON object")
    return value
