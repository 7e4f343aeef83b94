"""Runs that checks look at: each is made once, by the first check that needs it."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

import results
from cuda_checks.command import Done, blockbench_command, run_command
from cuda_checks.machine import Machine, Watched, watched
from cuda_checks.model import DUMMY
from cuda_checks.plan import CheckFailedError, CheckSkippedError, TimeIsUpError, Turn

Device = Literal["cuda", "cpu"]
Words = tuple[object, ...]

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # lets a client empty the prefix cache
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # else nvcc compiles what no request here uses
}
HANG_AFTER_S = 25
CLOSING_S = 4.0
"""Of a check's time, what is left for the end of a run that took too long to start."""

DECIDED = (
    "num_cached_tokens",
    "num_preemptions",
    "num_recomputed_tokens",
    "num_recompute_cached_tokens",
    "num_output_tokens",
)
"""Columns that hold what a scheduler decided of a request."""

LOG_LINES = 30


@dataclass(frozen=True, slots=True)
class Leg:
    """A run that was made.

    Attributes:
        done: The command.
        run: What its run.json holds.
        requests: A row a request.
        watched: What nvidia-smi said meanwhile.
    """

    done: Done
    run: dict[str, Any]
    requests: pd.DataFrame
    watched: Watched

    @property
    def measurement(self) -> dict[str, Any]:
        """What is known of it besides its rows."""
        found: dict[str, Any] = self.run["measurement"]
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """What the engine said of itself."""
        found: dict[str, Any] = self.measurement["facts"]
        return found

    @property
    def config(self) -> dict[str, Any]:
        """Every knob that was in force."""
        found: dict[str, Any] = self.run["config"]
        return found

    @property
    def decided(self) -> pd.DataFrame:
        """What was decided of each request."""
        return self.requests[list(DECIDED)]

    def totals(self) -> dict[str, int]:
        """Sums of what was decided."""
        return {name: int(self.requests[name].sum()) for name in DECIDED}


@dataclass(slots=True)
class Session:
    """What all checks share.

    Attributes:
        device: What is checked.
        machine: Where.
        folder: For traces, models and runs.
    """

    device: Device
    machine: Machine
    folder: Path
    _made: dict[str, "Leg | CheckFailedError"] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        """GPUs are checked."""
        return self.device == "cuda"

    def blockbench(self, *words: object, env: Mapping[str, str] | None = None) -> Done:
        """Run a command of ours in the folder, without a network."""
        command = [*blockbench_command(), *words]
        return run_command(command, folder=self.folder, env=OFFLINE | dict(env or {}))

    def python(self, program: str) -> Done:
        """Run a program with this interpreter, which has vLLM."""
        return run_command([sys.executable, "-P", "-c", program], folder=self.folder)

    def document(self, *words: object) -> dict[str, Any]:
        """What a command of ours prints with ``--json``.

        Raises:
            CheckFailedError: It failed.
        """
        done = self.blockbench(*words, "--json")
        if done.code:
            raise CheckFailedError(f"blockbench {words[0]}: {done.complaint}")
        return done.document()

    def trace(self, name: str, **options: object) -> Path:
        """A trace of conversations that begin alike, by ``blockbench trace generate``."""
        path = self.folder / f"{name}.jsonl"
        given = [w for n, v in options.items() for w in (f"--{n.replace('_', '-')}", v)]
        done = self.blockbench("trace", "generate", "-o", path.name, "--force", *given)
        if done.code:
            raise CheckFailedError(f"blockbench trace generate: {done.complaint}")
        return path

    # -- runs ----------------------------------------------------------------------------

    def once(self, name: str, make: Callable[[], Leg]) -> Leg:
        """The run of this name, made now if it was not; its failure is kept as well.

        Raises:
            CheckFailedError: It failed, now or before.
        """
        found = self._made.get(name)
        if found is None:
            gone = f"the run {name!r} was not done in time, in the check that began it"
            self._made[name] = CheckFailedError(gone)
            try:
                found = make()
            except (CheckFailedError, CheckSkippedError, TimeIsUpError) as error:
                if not isinstance(error, TimeIsUpError):
                    gone = f"the run {name!r}: {error}"
                    self._made[name] = CheckFailedError(gone)
                raise
            self._made[name] = found
        if isinstance(found, CheckFailedError):
            raise CheckSkippedError(str(found))
        return found

    def measure(
        self,
        turn: Turn,
        name: str,
        trace: Path,
        model: Path,
        *flags: object,
        env: Mapping[str, str] | None = None,
    ) -> Leg:
        """Replay on vLLM; give its start up early enough to hear why.

        Raises:
            CheckFailedError: It did not come to its end.
        """
        start_s = max(turn.left_s - CLOSING_S, 1.0)
        waits = ("--start-timeout", f"{start_s:.0f}s", "--hang-after", f"{HANG_AFTER_S}s")
        passed = ("--engine-args", DUMMY)
        words = ("run", trace.name, "--engine", "vllm", "--model", model.name)
        with watched(is_cuda=self.is_cuda) as seen:
            done = self.blockbench(
                *words, *passed, *flags, *waits, "-o", name, "--json", "--force", env=env
            )
        return self.load(turn, name, done, seen)

    def load(self, turn: Turn, name: str, done: Done, seen: Watched) -> Leg:
        """A run that was saved, and which has come to its end.

        Raises:
            CheckFailedError: It has not; the end of vLLM's log is in the figures.
        """
        if done.code:
            turn.figures["log"] = self.log_tail(name)
            raise CheckFailedError(done.complaint)
        stored = results.load(self.folder / name)
        run = json.loads((self.folder / name / "run.json").read_text(encoding="utf-8"))
        return Leg(done, run, stored.requests, seen)

    def simulate(self, name: str, trace: Path, model: Path, *flags: object) -> Leg:
        """Replay in our own policy, with these flags."""
        words = ("run", trace.name, "--model", model.name, "--policy", "v1")
        done = self.blockbench(*words, *flags, "-o", name, "--json", "--force")
        if done.code:
            raise CheckFailedError(f"the simulation beside it: {done.complaint}")
        return self.load(Turn(1.0), name, done, Watched())

    def log_tail(self, name: str) -> list[str]:
        """The last lines of vLLM's log in a run's folder."""
        try:
            text = (self.folder / name / "vllm.log").read_text(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-LOG_LINES:]

    def shorten(self, text: str) -> str:
        """Text for others: without the names of this machine's folders."""
        places = {
            str(self.folder): "FOLDER",
            sys.prefix: "PYTHON",
            sys.base_prefix: "PYTHON",
            str(Path(__file__).resolve().parents[2]): "BLOCKBENCH",
            os.path.expanduser("~"): "~",
        }
        for place, word in places.items():
            if len(place) > 1:
                text = text.replace(place, word)
        return text
