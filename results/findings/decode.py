"""Whether decoding is slow because a few long sequences have to be read."""

from dataclasses import dataclass

import numpy as np

from results.columns import (
    BoolArray,
    Columns,
    FloatArray,
    computing_ns,
    durations_ns,
)
from results.findings.finding import Finding
from results.findings.run_view import RunView

MIN_READING = 0.5
"""Share of decode time from which on contexts decide it, rather than the weights."""

MIN_SHARE_OF_LONGEST = 0.5
"""Share of what is read from which on the longest requests decide it."""

LONGEST = 0.1
"""Share of the requests that are called the longest; others may be as long as these."""

MAX_LONGEST = 0.2
"""A length that makes them more than that is what is usual, and not among the longest."""

MIN_REQUESTS = 20
"""Fewer have no tenth to speak of."""

MIN_SAMPLES = 20
"""Fewer step times do not tell what they depend on."""

MIN_SPREAD = 0.01
"""Contexts must differ this much from what the number of sequences would predict."""

MIN_EXPLAINED = 0.5
"""Contexts must explain this much of what the number of sequences leaves open."""

MIN_STEPS = 0.01
"""Share of the decode steps that is enough for a mean of its own."""

MAX_COPIED = 0.01
"""Tokens copied per token read, below which copying cannot be what takes time."""


def find_decode(run: RunView) -> list[Finding]:
    """A few long sequences for whose sake every decode step takes long."""
    if run.knob("sliding_window") is not None:
        return []  # nobody reads more than the window
    decodes = _Decodes.of(run.steps)
    reading = decodes.reading
    if reading < MIN_READING:
        return []
    longest = _longest(run)
    if longest is None or longest.share_of_reads < MIN_SHARE_OF_LONGEST:
        return []
    busy_ns = float(durations_ns(run.steps).sum())
    is_most = reading * decodes.time_ns >= MIN_READING * busy_ns
    return [
        Finding(
            code="long_sequences",
            severity="warning" if is_most else "info",
            message=f"{longest.num_requests:,} of {longest.num_ran:,} requests, those of"
            f" {longest.shortest:,} tokens and more, account for"
            f" {100 * longest.share_of_reads:.0f} % of the contexts that decodes read,"
            f" and reading takes {100 * reading:.0f} % of the time of steps that only"
            f" decode{_step_times(run, longest.chosen)}{_copies(run, decodes)}",
            advice=_advice(run, longest),
        )
    ]


# -- decode steps ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Decodes:
    """The steps that only decode.

    Attributes:
        time_ns: How long they took, waiting for swaps left out.
        num_steps: How many they were.
        num_seqs: Sequences in them, summed over the steps.
        num_read: Context tokens that these attended to.
        token_ns: What one more of those adds to a step.
    """

    time_ns: float
    num_steps: float
    num_seqs: float
    num_read: float
    token_ns: float

    @classmethod
    def of(cls, steps: Columns) -> "_Decodes":
        """What the rows say of them."""
        chosen = _is_decode(steps)
        count, seqs = steps["num_steps"][chosen], steps["num_decode_seqs"][chosen]
        grown = seqs * count * (count - 1) / 2
        return cls(
            time_ns=float(computing_ns(steps)[chosen].sum()),
            num_steps=float(count.sum()),
            num_seqs=float((count * seqs).sum()),
            num_read=float((count * steps["num_context_tokens"][chosen] + grown).sum()),
            token_ns=_context_token_ns(steps),
        )

    @property
    def reading(self) -> float:
        """Share of their time that reading contexts takes."""
        if self.time_ns <= 0:
            return 0.0
        return min(self.num_read * self.token_ns / self.time_ns, 1.0)


def _is_decode(steps: Columns) -> BoolArray:
    decodes: BoolArray = steps["num_prefill_seqs"] == 0
    return decodes & (steps["num_decode_seqs"] > 0)


def _context_token_ns(steps: Columns) -> float:
    """Nanoseconds by which a context token lengthens a step; 0 if rows do not tell.

    Weighted least squares of step time = a + b * sequences + c * context tokens. Only c
    is asked for, so it is fitted to what constant and sequences leave of both sides.
    """
    seqs, context, time, weight = _samples(steps)
    if len(seqs) < MIN_SAMPLES:
        return 0.0
    root = np.sqrt(weight)
    known = np.column_stack((np.ones(len(seqs)), seqs)) * root[:, None]
    sides = np.column_stack((context, time)) * root[:, None]
    rest = sides - known @ np.linalg.lstsq(known, sides, rcond=None)[0]
    (of_context, of_both), (_, of_time) = rest.T @ rest
    is_spread = of_context > MIN_SPREAD**2 * (sides[:, 0] @ sides[:, 0])
    if not is_spread or of_both**2 < MIN_EXPLAINED * of_context * of_time:
        return 0.0
    return max(float(of_both / of_context), 0.0)


def _samples(steps: Columns) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Sequences, context tokens, nanoseconds and weight of steps that only decode.

    The first and the last step of each stretch stand for all of it. A first step that
    also copied blocks, or waited for copies, is left out.
    """
    count, seqs = steps["num_steps"], steps["num_decode_seqs"]
    context = steps["num_context_tokens"]
    copied = steps["num_swap_in_blocks"] + steps["num_swap_out_blocks"]
    copied = copied + steps["num_copy_on_write"] + steps["swap_ns"]
    weight = np.where(count > 1, count / 2, 1.0)
    first = _is_decode(steps) & (copied == 0)
    last = _is_decode(steps) & (count > 1)
    at_end = context + seqs * (count - 1)
    return (
        np.concatenate((seqs[first], seqs[last])),
        np.concatenate((context[first], at_end[last])),
        np.concatenate((steps["first_step_ns"][first], steps["last_step_ns"][last])),
        np.concatenate((weight[first], weight[last])),
    )


# -- requests ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Longest:
    """About the longest tenth of the requests that ran.

    Attributes:
        chosen: Which they are, ``(num_requests,)``.
        num_requests: How many.
        num_ran: Of how many.
        shortest: Tokens of the shortest of them, prompt and longest sample.
        longest_other: Tokens of the longest request besides them.
        share_of_reads: Their share of the context tokens that all decodes attended to.
    """

    chosen: BoolArray
    num_requests: int
    num_ran: int
    shortest: int
    longest_other: int
    share_of_reads: float


def _longest(run: RunView) -> _Longest | None:
    """The longest requests; None for too few, or too many of one length."""
    num_ran = int(run.is_admitted.sum())
    if num_ran < MIN_REQUESTS:
        return None
    requests = run.requests
    lengths = requests["num_prompt_tokens"] + requests["max_sample_tokens"]
    ran = np.sort(lengths[run.is_admitted])
    shortest = ran[-int(LONGEST * num_ran)]
    if np.sum(ran >= shortest) > MAX_LONGEST * num_ran:
        longer = ran[ran > shortest]
        if not len(longer):
            return None
        shortest = longer[0]
    chosen = run.is_admitted & (lengths >= shortest)
    num_longest = int(chosen.sum())
    reads = np.where(run.is_admitted, _tokens_read(requests), 0.0)
    return _Longest(
        chosen=chosen,
        num_requests=num_longest,
        num_ran=num_ran,
        shortest=int(shortest),
        longest_other=int(ran[-num_longest - 1]),
        share_of_reads=float(reads[chosen].sum() / max(reads.sum(), 1.0)),
    )


def _tokens_read(requests: Columns) -> FloatArray:
    """Context tokens that each request's decodes attend to, its samples taken as equal.

    The first token comes from the prefill; the one after it attends to the prompt and
    that token, and so on.
    """
    decoded = np.maximum(requests["num_output_tokens"] / requests["n"] - 1, 0)
    of_sample = decoded * requests["num_prompt_tokens"] + decoded * (decoded + 1) / 2
    read: FloatArray = of_sample * requests["n"]
    return read


# -- sentences ---------------------------------------------------------------------------


def _step_times(run: RunView, chosen: BoolArray) -> str:
    """How long a decode step takes while one of the chosen requests runs, and else.

    Empty where there are hardly any steps of one kind, or the difference tells nothing.
    """
    steps, decode = run.steps, _is_decode(run.steps)
    begun = np.sort(run.requests["first_token_ns"][chosen])
    ended = np.sort(run.requests["finished_ns"][chosen])
    start = steps["start_ns"]
    num_running = np.searchsorted(begun, start, "right")
    num_running = num_running - np.searchsorted(ended, start, "right")
    time = computing_ns(steps)
    means = []
    for part in (decode & (num_running > 0), decode & (num_running == 0)):
        count = float(steps["num_steps"][part].sum())
        if count <= MIN_STEPS * float(steps["num_steps"][decode].sum()):
            return ""
        means.append(float(time[part].sum()) / count / 1e6)
    beside, otherwise = means
    if beside <= otherwise:
        return ""
    return f": {beside:.3g} ms a step while one of them runs, {otherwise:.3g} otherwise"


def _copies(run: RunView, decodes: _Decodes) -> str:
    """That copy-on-write, which is often suspected, is not what takes the time."""
    if run.is_v1:
        return ""  # it copies nothing
    num_copies = run.steps.total("num_copy_on_write")
    moved = 2 * run.block_size * num_copies  # read and written
    if moved > MAX_COPIED * decodes.num_read:
        return ""
    return f"; copy-on-write is not the cause ({num_copies:,} blocks copied)"


def _advice(run: RunView, longest: _Longest) -> str:
    """Where to draw a line between the long requests and the others."""
    prompts = run.requests["num_prompt_tokens"]
    shortest = float(prompts[longest.chosen].min())
    limit = f"--max-model-len {longest.longest_other}, which is enough for the others"
    if shortest > prompts[run.is_admitted & ~longest.chosen].max():
        return (
            f"send prompts of {shortest:,.0f} tokens and more to a deployment of their"
            f" own, or refuse them with {limit}"
        )
    return f"limit the outputs of the longest, or cut them with {limit}"
