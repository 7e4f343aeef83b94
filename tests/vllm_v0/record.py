"""Record what the real vLLM 0.5.5 scheduler decides.

``python record.py SCENARIO ROWS_OUT`` replays a scenario, in the formats of docs/v0.md;
more pairs of files may follow. Names that end in .gz are compressed.
"""

import gzip
import json
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reference import CacheConfig, MissingReferenceError, Reference, SchedulerConfig, load

Row = dict[str, Any]
SEGMENT_TOKENS = 1_000_000
STUCK_AFTER_CALLS = 8


class Request:
    """A request of the scenario, and which of its samples each sequence writes."""

    def __init__(self, spec: dict[str, Any], segments: dict[str, int]) -> None:
        self.request_id: int = spec["id"]
        self.lengths: list[int] = spec["output_tokens"]
        self.prompt = [
            segment * SEGMENT_TOKENS + position
            for segment, num_tokens in spec["prompt"]
            for position in range(num_tokens)
        ]
        self.segments = [
            segments.setdefault(f"o{self.request_id}.{sample}", len(segments))
            for sample in range(len(self.lengths))
        ]
        self.sample_of: dict[int, int] = {}
        self.group: Any = None


class Recorder:
    """Replays a scenario, one scheduler call a step, and keeps a row of each.

    ``error`` is what vLLM raised where it died. ``is_cut`` tells that ``max_rows`` were
    reached.
    """

    def __init__(self, vllm: Reference, scenario: dict[str, Any]) -> None:
        self.vllm = vllm
        self.config = config = scenario["config"]
        self.rows: list[Row] = []
        self.error: Exception | None = None
        self.is_cut = False
        self.scheduler = vllm.scheduler.Scheduler(
            SchedulerConfig(
                config["max_num_batched_tokens"],
                config["max_num_seqs"],
                config["max_model_len"],
                config["chunked_prefill"],
                config["preemption_mode"],
            ),
            CacheConfig(
                config["block_size"],
                config["num_gpu_blocks"],
                config["num_cpu_blocks"],
                config["enable_prefix_caching"],
            ),
            None,
        )
        self.blocks = self.scheduler.block_manager
        self.blocks.watermark_blocks = int(config["watermark"] * config["num_gpu_blocks"])
        self._requests: dict[str, Request] = {}
        self._num_seqs = 0
        names = scenario["segments"]
        self._segments = {name: number for number, name in enumerate(names)}
        self._pending = deque(sorted(scenario["requests"], key=lambda r: r["step"]))

    # -- the run ---------------------------------------------------------------------

    def run(self, max_rows: int | None = None) -> list[Row]:
        """Replay to the end, or until vLLM dies or gets stuck; the rows."""
        step = num_idle = 0
        while self._pending or self.scheduler.has_unfinished_seqs():
            if step and not self.scheduler.has_unfinished_seqs():
                step = max(step, self._pending[0]["step"])
            self._admit(step)
            try:
                ran = self._step(step)
            except (AssertionError, RuntimeError) as error:  # here vLLM's engine dies
                self.error = error
                self.rows.append({"step": step, "error": _kind(error)})
                break
            waits = self.scheduler.has_unfinished_seqs()
            num_idle = num_idle + 1 if waits and not ran else 0
            if not self._pending and num_idle >= STUCK_AFTER_CALLS:
                self.rows.append({"step": step, "error": "stuck"})
                break
            step += 1
            if max_rows is not None and len(self.rows) >= max_rows:
                self.is_cut = True
                break
        return self.rows

    def _admit(self, step: int) -> None:
        self.vllm.clock.now = step
        while self._pending and self._pending[0]["step"] <= step:
            self._add(Request(self._pending.popleft(), self._segments))

    def _add(self, request: Request) -> None:
        inputs = {"prompt_token_ids": request.prompt}
        block_size = self.config["block_size"]
        seq = self.vllm.sequence.Sequence(self._new_id(), inputs, block_size)
        request.sample_of[seq.seq_id] = 0
        n = len(request.lengths)
        params = self.vllm.sampling_params.SamplingParams(n=n, best_of=n, temperature=1.0)
        name = str(request.request_id)
        arrival = self.vllm.clock.now
        request.group = self.vllm.sequence.SequenceGroup(name, [seq], arrival, params)
        self._requests[name] = request
        self.scheduler.add_seq_group(request.group)

    def _new_id(self) -> int:
        self._num_seqs += 1
        return self._num_seqs - 1

    def _step(self, step: int) -> bool:
        """Make one call and take in its tokens; whether anything ran or was ignored."""
        metadata, outputs = self.scheduler.schedule()
        scheduled = list(outputs.scheduled_seq_groups)
        self.rows.append(row := self._decisions(step, metadata, outputs))
        for entry, meta in zip(scheduled, metadata, strict=True):
            entry.seq_group.update_num_computed_tokens(entry.token_chunk_size)
            if meta.do_sample:
                self._sample(self._requests[meta.request_id])
        groups = [entry.seq_group for entry in scheduled]
        self.scheduler.free_finished_seq_groups()
        done = [int(group.request_id) for group in groups if group.is_finished()]
        row["finished"] = row["ignored"] + done
        row["free_gpu_end"] = self.blocks.get_num_free_gpu_blocks()
        row["free_cpu_end"] = self.blocks.get_num_free_cpu_blocks()
        return bool(groups or outputs.ignored_seq_groups)

    def _decisions(self, step: int, metadata: list[Any], outputs: Any) -> Row:
        """The row as far as it is known before the step runs."""
        entries = outputs.scheduled_seq_groups[: outputs.num_prefill_groups]
        prefills = list(zip(entries, metadata, strict=False))
        decodes = metadata[len(prefills) :]
        return {
            "step": step,
            "prefill": [[int(m.request_id), e.token_chunk_size] for e, m in prefills],
            "decode": [int(meta.request_id) for meta in decodes],
            "swap_in": [list(pair) for pair in outputs.blocks_to_swap_in],
            "swap_out": [list(pair) for pair in outputs.blocks_to_swap_out],
            "copy_on_write": [list(pair) for pair in outputs.blocks_to_copy],
            "ignored": [int(group.request_id) for group in outputs.ignored_seq_groups],
            "preempted": outputs.preempted,
            "computed_blocks": [
                [int(m.request_id), len(m.computed_block_nums)]
                for _, m in prefills
                if m.computed_block_nums
            ],
            "free_gpu": self.blocks.get_num_free_gpu_blocks(),
            "free_cpu": self.blocks.get_num_free_cpu_blocks(),
            "waiting": len(self.scheduler.waiting),
            "running": len(self.scheduler.running),
            "swapped": len(self.scheduler.swapped),
            "tables": [
                [int(m.request_id), [list(t) for t in m.block_tables.values()]]
                for m in metadata
            ],
        }

    def prompt_lengths(self) -> dict[int, int]:
        """Tokens of the prompts that have arrived, by request."""
        return {r.request_id: len(r.prompt) for r in self._requests.values()}

    # -- tokens ----------------------------------------------------------------------

    def _sample(self, request: Request) -> None:
        """Give each running sequence a token, as vLLM's output processor does.

        The first token of several samples forks the prompt's sequence, which goes on as
        sample 0; a child that one token ends is never known to the block manager.
        """
        running = self.vllm.sequence.SequenceStatus.RUNNING
        parents = request.group.get_seqs(status=running)
        children = self._fork(request)
        for seq in [*parents, *children]:
            self._append(request, seq)
        for child in children:
            request.group.add(child)
            if not child.is_finished():
                self.scheduler.fork_seq(parents[0], child)
        for parent in parents:
            if parent.is_finished():
                self.scheduler.free_seq(parent)

    def _fork(self, request: Request) -> list[Any]:
        if len(request.sample_of) == len(request.lengths):
            return []
        (parent,) = request.group.get_seqs()
        children = [parent.fork(self._new_id()) for _ in request.lengths[1:]]
        for sample, child in enumerate(children, start=1):
            request.sample_of[child.seq_id] = sample
        return children

    def _append(self, request: Request, seq: Any) -> None:
        sample = request.sample_of[seq.seq_id]
        segment = request.segments[sample]
        token = segment * SEGMENT_TOKENS + seq.get_output_len()
        seq.append_token_id(token, {token: self.vllm.sequence.Logprob(0.0)})
        is_last = seq.get_output_len() >= request.lengths[sample]
        if is_last or seq.get_len() >= self.config["max_model_len"]:
            seq.status = self.vllm.sequence.SequenceStatus.FINISHED_LENGTH_CAPPED


def _kind(error: Exception) -> str:
    is_swap = isinstance(error, RuntimeError) and "CPU swap space" in str(error)
    return "no_cpu_swap_space" if is_swap else "vllm_assertion"


def read_json(path: Path) -> Any:
    """A JSON document, gzipped or not."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def write_lines(path: Path, documents: Iterable[Any]) -> None:
    """One JSON document a line, the same bytes each time."""
    lines = (json.dumps(document, separators=(",", ":")) for document in documents)
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def main() -> None:
    """Record the scenarios that the command line names."""
    files = [Path(arg) for arg in sys.argv[1:]]
    if not files or len(files) % 2:
        sys.exit("usage: python record.py SCENARIO ROWS_OUT [SCENARIO ROWS_OUT ...]")
    try:
        vllm = load()
    except MissingReferenceError as error:
        sys.exit(str(error))
    for scenario, rows in zip(files[::2], files[1::2], strict=True):
        recorder = Recorder(vllm, read_json(scenario))
        write_lines(rows, recorder.run())
        if recorder.error is not None:
            print(f"{scenario}: vLLM ended with {recorder.error!r}", file=sys.stderr)


if __name__ == "__main__":
    main()
