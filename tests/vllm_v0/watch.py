"""Watch the real vLLM 0.5.5 scheduler as a running V0 engine's is watched.

``python watch.py SCENARIO OUT`` replays scenarios as ``record.py`` does; more pairs of
files may follow. Each line of OUT is a step's record, the last one holds the requests.
There is no model here: what the engine's outputs would say is made up from its sequences.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from record import Recorder, read_json, write_lines
from reference import MissingReferenceError, Reference, load

from harness.request import Request
from harness.vllm_engine.child.book import Book
from harness.vllm_engine.child.watch_v0 import WatchV0
from results.record import RequestRecord, StepRecord


class Watched(Recorder):
    """Replays a scenario under a watch."""

    def __init__(self, vllm: Reference, scenario: dict[str, Any]) -> None:
        super().__init__(vllm, scenario)
        self.steps: list[StepRecord] = []
        self.requests: dict[int, RequestRecord] = {}
        size = self.config["block_size"]
        self.book = Book(size)
        self.now_ns = 0
        self.watch = WatchV0(
            self.scheduler, self.book, self._tick, self.steps.append, size
        )

    def _tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def _add(self, request: Any) -> None:
        super()._add(request)
        ours = Request(
            request_id=request.request_id,
            arrival_ns=self.now_ns,
            prompt=((0, len(request.prompt)),),
            num_prompt_tokens=len(request.prompt),
            outputs=tuple((1, length) for length in request.lengths),
        )
        self.book.arrived(ours, self.now_ns)

    def _step(self, step: int) -> bool:
        ran = super()._step(step)
        row = self.rows[-1]
        names = dict.fromkeys([*(i for i, _ in row["prefill"]), *row["decode"]])
        self.watch.stepped([self._output(number, row) for number in names])
        for record in self.book.take_changes():
            self.requests[record.request_id] = record
        return ran

    def _output(self, number: int, row: dict[str, Any]) -> Any:
        """What vLLM's ``RequestOutput`` would say of a request."""
        request = self._requests[str(number)]
        seqs = sorted(request.group.get_seqs(), key=lambda s: request.sample_of[s.seq_id])
        outputs = [
            SimpleNamespace(
                token_ids=seq.get_output_token_ids(),
                finish_reason="length" if seq.is_finished() else None,
            )
            for seq in seqs
        ]
        return SimpleNamespace(
            request_id=str(number), outputs=outputs, finished=number in row["finished"]
        )


def main() -> None:
    """Watch the scenarios that the command line names."""
    files = [Path(arg) for arg in sys.argv[1:]]
    try:
        vllm = load()
    except MissingReferenceError as error:
        sys.exit(str(error))
    for scenario, out in zip(files[::2], files[1::2], strict=True):
        watched = Watched(vllm, read_json(scenario))
        watched.run()
        requests = [asdict(r) for _, r in sorted(watched.requests.items())]
        last = {"requests": requests, "counters": watched.watch.counters}
        write_lines(out, [*map(asdict, watched.steps), last])


if __name__ == "__main__":
    main()
