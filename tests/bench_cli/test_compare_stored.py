"""Tests for ``blockbench compare RUN RUN...`` and ``--baseline``.

Most runs are written as the store writes them, with latencies that are made up.
"""

import inspect
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.record import RequestRecord, RequestStatus, StepRecord
from results.run_info import Ending, Outcome, RunInfo
from results.store import RunStore

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]
Write = Callable[..., str]
Document = dict[str, Any]

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_1000.jsonl"
TINY = (EXAMPLE, "--limit", 12, "--vllm-version", "0.32.0", "--max-model-len", 4096)
CONFIG = {
    "policy": "v0",
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "H100-80GB",
    "vllm_version": "0.6.3",
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.9,
    "swap_space": 4.0,
    "block_size": 16,
    "block_bytes": 2**21,
    "gpu_memory_gib": 80.0,
    "watermark": 0.01,
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 4096,
    "preemption_mode": None,
    "num_gpu_blocks": 100,
    "num_cpu_blocks": 50,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "limit": None,
    "slice": None,
    "notes": [],
}
TRACE = {
    "name": "chat.jsonl",
    "format": "blockbench",
    "num_requests": 200,
    "num_skipped": 0,
    "duration_s": 199.0,
    "has_sharing": True,
    "is_generated": False,
    "content_hash": "a" * 64,
    "notes": [],
}
S = 1_000_000_000


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a writer of runs into ``.blockbench/runs``: name and changes to the name.

    One request a second has a TTFT around ``ttft_s``, drawn by ``seed``, which a measured
    run has all the longer or shorter, by 3 %; ``minute`` is when it began.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def write(
        name: str,
        *,
        ttft_s: float = 0.2,
        seed: int = 0,
        minute: int = 0,
        config: Document | None = None,
        trace: Document | None = None,
        ending: Ending = Ending.COMPLETE,
        **fields: Any,
    ) -> str:
        known = TRACE | (trace or {})
        info = RunInfo(
            **{"source": "simulated", "engine": "sim", "policy": "v0", "wall_s": 1.0}
            | fields,
            config=CONFIG | (config or {}),
            trace=known,
            outcome=Outcome(ending=ending),
        )
        rng = np.random.default_rng(seed)
        drift = rng.normal(1, 0.03) if info.source == "measured" else 1.0
        drawn = np.random.default_rng(99).gamma(4, 0.25, known["num_requests"])
        requests = [_request(i, t) for i, t in enumerate(ttft_s * drift * drawn)]
        folder = Path(".blockbench", "runs", name)
        began = noon + timedelta(minutes=minute)
        with RunStore(name, info, output=folder, created_at=began) as store:
            store.save(info, requests, [_step(known["num_requests"])], None)
        return name

    return write


def _request(number: int, ttft_s: float) -> RequestRecord:
    first_ns = number * S + int(ttft_s * S)
    return RequestRecord(
        request_id=number,
        arrival_ns=number * S,
        queued_ns=number * S,
        num_prompt_tokens=100,
        num_output_tokens=5,
        max_sample_tokens=5,
        first_scheduled_ns=number * S,
        first_token_ns=first_ns,
        finished_ns=first_ns + S // 10,
        status=RequestStatus.FINISHED,
    )


def _step(num_requests: int) -> StepRecord:
    counts = dict.fromkeys(inspect.signature(StepRecord).parameters, 0)
    counts.pop("gap_ns")
    counts.pop("gap_count")
    counts.update(end_ns=num_requests * S, num_steps=1, num_used_blocks=50)
    counts.update(num_used_blocks_end=50, num_used_tokens=700)
    return StepRecord(**counts)


def repeats(write: Write, name: str, minutes: Iterable[int], **changes: Any) -> list[str]:
    """Measured runs of one configuration, begun at these minutes."""
    changes = {"source": "measured", "engine": "vllm"} | changes
    return [
        write(f"{name}-{i}", minute=minute, seed=hash_of(name, i), **changes)
        for i, minute in enumerate(minutes)
    ]


def hash_of(name: str, number: int) -> int:
    """A seed for each run, the same every time."""
    return sum(map(ord, name)) * 100 + number


def document_of(call: Call, *args: object, code: int = 0) -> Document:
    """What ``compare --json`` prints."""
    ended, out, err = call("compare", *args, "--json")
    assert ended == code, err
    document: Document = json.loads(out, parse_constant=pytest.fail)
    return document


def metrics_of(document: Document) -> dict[str, Document]:
    """The metrics of the one arm beside the baseline, by name."""
    return {metric["name"]: metric for metric in document["metrics"]}


def test_first_run_is_the_baseline(call: Call, write: Write) -> None:
    """Two stored runs are compared in the order in which they are named."""
    slow, fast = write("slow"), write("fast", ttft_s=0.1, config={"max_num_seqs": 9})

    document = document_of(call, slow, fast)

    assert document["baseline"] == "slow"
    assert [arm["name"] for arm in document["arms"]] == ["slow", "fast"]
    arm = document["arms"][1]
    assert (arm["verdict"], arm["differs"]) == ("better", ["max_num_seqs"])
    assert arm["folders"] == [".blockbench/runs/fast"]
    assert metrics_of(document)["ttft_p50"]["relative"] == pytest.approx(-0.5, abs=1e-6)
    assert metrics_of(document)["ttft_p50"]["evidence"] == "requests"


def test_what_is_set_otherwise_is_named(call: Call, write: Write) -> None:
    """Names of folders do not tell it, so that a line does, with both values."""
    write("old")
    write("new", config={"max_num_seqs": 64, "swap_space": None, "watermark": 0.05})
    write("same")

    _, out, _ = call("compare", "old", "new", "same")

    lines = [line.strip() for line in out.splitlines() if "settings: " in line]
    assert lines == [
        "settings: max_num_seqs 256 -> 64, swap_space 4 -> not set, watermark 0.01 ->"
        " 0.05",
        "settings: the same",
    ]


def test_many_settings_are_counted(call: Call, write: Write) -> None:
    """The screen names a few of them."""
    write("old")
    write("new", config={f"knob_{number}": number for number in range(9)})

    _, out, _ = call("compare", "old", "new")

    assert "knob_5 not set -> 5, 3 more, see --json\n" in out


def test_last_and_parts_of_names_are_runs(call: Call, write: Write) -> None:
    """Runs are found as ``show`` finds them."""
    write("a-slow")
    write("b-fast", ttft_s=0.1, minute=1)

    document = document_of(call, "slow", "last")

    assert [arm["name"] for arm in document["arms"]] == ["a-slow", "b-fast"]


def test_stored_arms_equal_replayed_arms(call: Call, write: Write) -> None:
    """What was compared once gives the same figures when its runs are compared again."""
    before = document_of(call, *TINY)
    folders = [arm["folders"][0] for arm in before["arms"]]

    after = document_of(call, *folders)

    for metric in (*before["metrics"], *after["metrics"]):
        metric.update(arm="", baseline="", reason="")
    assert after["metrics"] == before["metrics"]
    assert after["arms"][1]["verdict"] == before["arms"][1]["verdict"]


@pytest.mark.parametrize(
    ("changes", "words", "allow"),
    [
        (
            {"trace": {"content_hash": "b" * 64}},
            "one and other replayed files of other content",
            ["trace"],
        ),
        (
            {"trace": {"name": "code.jsonl", "num_requests": 150}},
            "one replayed 200 requests of chat.jsonl, other 150 requests of code.jsonl",
            ["trace"],
        ),
        (
            {"config": {"slice": "0:200"}},
            "other 200 requests of chat.jsonl (0:200)",
            ["trace"],
        ),
        (
            {"config": {"gpu": "A100-80GB"}},
            "gpu is H100-80GB in one, A100-80GB in other",
            ["hardware"],
        ),
        (
            {"config": {"tensor_parallel_size": 2}},
            "tensor_parallel_size is 1 in one, 2 in other",
            ["hardware"],
        ),
        (
            {"config": {"model": "Qwen/Qwen3-8B"}},
            "model is meta-llama/Llama-3.1-8B in one, Qwen/Qwen3-8B in other",
            ["model"],
        ),
        ({"ending": Ending.INTERRUPTED}, "other was interrupted", ["unfinished"]),
        (
            {"config": {"gpu": "A100-80GB", "model": "Qwen/Qwen3-8B"}},
            "--allow hardware --allow model compares them all the same",
            ["hardware", "model"],
        ),
    ],
)
def test_what_differs_besides_settings_is_refused(
    call: Call, write: Write, changes: Document, words: str, allow: list[str]
) -> None:
    """Code 2 and words, with what allows it; allowed, it is compared, with a note."""
    one, other = write("one"), write("other", **changes)

    code, out, err = call("compare", one, other)
    allowed = document_of(call, one, other, *[f"--allow={name}" for name in allow])

    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    for name in allow:
        assert f"--allow {name}" in err
    assert len(allowed["notes"]) == len(allow)
    assert allowed["notes"][0] in err


def test_each_hindrance_is_allowed_by_its_own_name(call: Call, write: Write) -> None:
    """To allow another trace is not to allow another GPU."""
    one, other = write("one"), write("other", config={"gpu": "A100-80GB"})

    code, _, err = call("compare", one, other, "--allow", "trace")

    assert code == 2
    assert "--allow hardware compares" in err


def test_other_requests_are_never_judged(call: Call, write: Write) -> None:
    """Allowed or not, what differs between traces is no finding about settings."""
    one, other = write("one"), write("other", ttft_s=0.1, trace={"num_requests": 100})

    document = document_of(call, one, other, "--allow", "trace")

    assert document["arms"][1]["verdict"] == "not tested"
    assert {metric["verdict"] for metric in document["metrics"]} == {"not tested"}
    assert {metric["interval"] for metric in document["metrics"]} == {None}


def test_another_load_is_a_knob(call: Call, write: Write) -> None:
    """Runs at other times of the same requests need no leave."""
    one, other = write("one"), write("other", config={"speedup": "2"})

    document = document_of(call, one, other)

    assert document["arms"][1]["differs"] == ["speedup"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["one"],
            "there is nothing to compare: it is one run; name another, or a --base",
        ),
        (["last"], "there is nothing to compare: it is one run"),
        (["one", "one"], "one is named twice; a run is no other than itself"),
        (["one", ".blockbench/runs/one"], "is named twice"),
        (["one", "--baseline", "one"], "one is named twice"),
        (["one", "two"], "'two' is no run folder and no run in .blockbench/runs"),
        (
            ["one", "one", "--vary", "block_size=1,2"],
            "leave --vary and the flags of engi",
        ),
        (["one", "two", "--jobs", "2"], "stored runs are compared as they ran"),
        (["one", "two", "--limit", "2"], "or name a trace file to replay"),
        (["one", "two", "--gpu", "A100-80GB"], "stored runs are compared as they ran"),
    ],
)
def test_runs_that_make_no_two_sides_are_refused(
    refuse: Refuse, write: Write, args: list[str], words: str
) -> None:
    """One error in words, and nothing on stdout."""
    write("one")

    assert words in refuse(2, "compare", *args)


def test_damaged_run_is_refused_in_words(refuse: Refuse, write: Write) -> None:
    """The error names the file."""
    write("one")
    path = Path(".blockbench", "runs", write("two"), "run.json")
    path.write_text(path.read_text()[:100])

    assert "two/run.json is damaged" in refuse(2, "compare", "one", "two")


def test_real_difference_between_repeats_is_found(call: Call, write: Write) -> None:
    """Five runs a side, in turn: a quarter less is beyond what runs differ by."""
    off = repeats(write, "off", range(0, 10, 2))
    on = repeats(
        write, "on", range(1, 10, 2), ttft_s=0.15, config={"enable_prefix_caching": True}
    )

    document = document_of(call, *off, *on)

    found = metrics_of(document)
    ttft = found["ttft_p50"]
    assert document["source"] == "measured"
    assert [arm["num_runs"] for arm in document["arms"]] == [5, 5]
    assert [len(arm["folders"]) for arm in document["arms"]] == [5, 5]
    assert document["arms"][1]["verdict"] == "better"
    assert (ttft["verdict"], ttft["evidence"]) == ("better", "repeats")
    assert ttft["interval"][0] < ttft["difference"] < ttft["interval"][1] < 0
    assert ttft["relative"] == pytest.approx(-0.25, abs=0.1)
    assert document["notes"] == []


def test_value_of_repeats_is_their_mean(call: Call, write: Write) -> None:
    """Whatever order the runs are named in, an arm has all runs of its settings."""
    off = repeats(write, "off", range(0, 8, 2))
    on = repeats(write, "on", range(1, 8, 2), config={"max_num_seqs": 9})
    turns = [run for pair in zip(off, on, strict=True) for run in pair]

    document = document_of(call, *turns)

    alone = [json.loads(call("show", run, "--json")[1]) for run in off]
    means = [run["latency_s"]["ttft"]["p50"] for run in alone]
    assert [arm["num_runs"] for arm in document["arms"]] == [4, 4]
    assert metrics_of(document)["ttft_p50"]["values"][0] == pytest.approx(
        sum(means) / 4, rel=1e-12
    )


def test_difference_that_repeats_do_not_support_is_none(call: Call, write: Write) -> None:
    """Equal settings but for a knob without effect: no difference found."""
    off = repeats(write, "off", range(0, 8, 2))
    same = repeats(write, "same", range(1, 8, 2), config={"max_num_seqs": 9})

    document = document_of(call, *off, *same)

    ttft = metrics_of(document)["ttft_p50"]
    assert ttft["difference"] != 0
    assert ttft["interval"][0] < 0 < ttft["interval"][1]
    assert ttft["verdict"] == "no difference found"
    assert ttft["reason"].endswith("is chance here")
    assert document["arms"][1]["verdict"] == "no difference found"


@pytest.mark.parametrize("num_runs", [1, 4])
def test_single_measured_run_is_not_tested(
    call: Call, write: Write, num_runs: int
) -> None:
    """However many there are of the other side, one run does not tell of others."""
    (off,) = repeats(write, "off", [0])
    on = repeats(write, "on", range(1, 1 + num_runs), config={"max_num_seqs": 9})

    document = document_of(call, off, *on)

    ttft = metrics_of(document)["ttft_p50"]
    assert document["arms"][1]["verdict"] == "not tested"
    assert (ttft["verdict"], ttft["evidence"]) == ("not tested", "single")
    assert ttft["reason"] == "one measured run does not tell what others would show"


def test_repeats_that_did_not_alternate_are_noted(call: Call, write: Write) -> None:
    """All of one side before all of the other: drift would look like a difference."""
    off = repeats(write, "off", range(4))
    late = repeats(write, "late", range(10, 14), config={"max_num_seqs": 9})

    (note,) = document_of(call, *off, *late)["notes"]

    assert note.startswith(
        "all runs of off-0 and of late-0 were made one after the other"
    )
    assert note.endswith("alternate them")


def test_repeats_alone_are_nothing_to_compare(refuse: Refuse, write: Write) -> None:
    """Runs of one configuration are one arm."""
    runs = repeats(write, "off", range(4))

    assert "nothing to compare: all have the same settings" in refuse(2, "compare", *runs)


def test_measured_and_simulated_runs_are_set_side_by_side(
    call: Call, write: Write
) -> None:
    """A simulated run is exact, so repeats of the other side are enough."""
    simulated = write("sim", config={"max_num_seqs": 9})
    measured = repeats(write, "real", range(5), ttft_s=0.3)

    document = document_of(call, simulated, *measured)

    ttft = metrics_of(document)["ttft_p50"]
    assert document["source"] == "mixed"
    assert (ttft["verdict"], ttft["evidence"]) == ("worse", "repeats")


def test_baseline_goes_before_the_runs(call: Call, write: Write) -> None:
    """--baseline names the first side, whatever runs are compared with it."""
    write("old"), write("new", ttft_s=0.1, config={"max_num_seqs": 9})
    write("newer", ttft_s=0.4, config={"max_num_seqs": 8})

    document = document_of(call, "new", "newer", "--baseline", "old")

    assert document["baseline"] == "old"
    assert [arm["verdict"] for arm in document["arms"]] == [None, "better", "worse"]


def test_baseline_may_have_repeats(call: Call, write: Write) -> None:
    """Repeated, it names measured runs of one configuration, and no others."""
    off = repeats(write, "off", range(0, 8, 2))
    on = repeats(write, "on", range(1, 8, 2), ttft_s=0.1, config={"max_num_seqs": 9})
    named = [part for run in off for part in ("--baseline", run)]

    document = document_of(call, *on, *named)
    code, out, err = call("compare", on[0], *named, "--baseline", on[1])

    assert document["arms"][0]["num_runs"] == 4
    assert document["arms"][1]["verdict"] == "better"
    assert (code, out) == (2, "")
    assert "--baseline names off-0 and on-1, which are no repeats of one measured" in err


@pytest.fixture
def baseline(call: Call, write: Write) -> str:
    """Return a stored run of a dozen requests of the bundled trace, with an SLO."""
    code, _, err = call("run", *TINY, "--slo", "ttft=30ms", "-o", ".blockbench/runs/old")
    assert code == 0, err
    return "old"


def test_trace_is_compared_with_a_stored_run(call: Call, baseline: str) -> None:
    """With nothing to vary there is one arm, ``now``; equal flags change nothing."""
    document = document_of(call, *TINY, "--baseline", baseline)

    assert [arm["name"] for arm in document["arms"]] == ["old", "now"]
    assert document["arms"][1]["verdict"] == "no difference found"
    assert {m["difference"] for m in document["metrics"]} == {0.0}
    assert document["arms"][0]["summary"]["goodput"] is not None
    assert metrics_of(document)["goodput_fraction"]["verdict"] == "no difference found"


def test_values_are_compared_with_a_stored_run(call: Call, baseline: str) -> None:
    """With --vary each value is an arm, and one that cannot start spoils nothing."""
    document = document_of(
        call, *TINY, "--baseline", baseline, "--vary", "block_size=24,16,32"
    )

    names = [arm["name"] for arm in document["arms"]]
    assert names == ["old", "block_size=24", "block_size=16", "block_size=32"]
    assert document["arms"][1]["error"].startswith("block_size is 24")
    assert document["arms"][2]["verdict"] == "no difference found"


def test_baseline_of_another_trace_is_refused(call: Call, baseline: str) -> None:
    """A part of the trace is another one; --allow trace shows figures all the same."""
    fewer = (EXAMPLE, "--limit", 11, *TINY[3:])

    code, out, err = call("compare", *fewer, "--baseline", baseline)

    assert (code, out) == (2, "")
    assert "old replayed 12 requests of chat_1000.jsonl, now 11 requests of" in err
    document = document_of(call, *fewer, "--baseline", baseline, "--allow", "trace")
    assert document["arms"][1]["verdict"] == "not tested"


def test_conditions_guard_against_a_baseline(call: Call, baseline: str) -> None:
    """As in CI: code 0 where nothing changed, 6 where a limit is broken."""
    guard = ("--baseline", baseline, "--fail-if", "ttft_p99>+10%,e2e_mean>+10%")

    assert call("compare", *TINY, *guard)[0] == 0
    code, out, _ = call("compare", *TINY, *guard, "--gpu", "A100-80GB")
    assert (code, out) == (2, "")
    slower = ("--gpu", "A100-80GB", "--allow", "hardware")
    code, out, _ = call("compare", *TINY, *guard, *slower)
    assert code == 6
    assert "x e2e_mean>+10% (now): " in out


def test_condition_of_repeats_needs_their_support(call: Call, write: Write) -> None:
    """A change that is chance fails nothing; one that is not fails."""
    off = repeats(write, "off", range(0, 8, 2))
    same = repeats(write, "same", range(1, 8, 2), config={"max_num_seqs": 9})
    slow = repeats(write, "slow", range(1, 8, 2), ttft_s=0.3, config={"max_num_seqs": 8})
    guard = ("--fail-if", "ttft_p50>+0.01%,ttft_p50<-0.01%")

    chance = document_of(call, *off, *same, *guard)
    real = document_of(call, *off, *slow, *guard, code=6)

    assert not chance["gate"]["failed"]
    messages = [c["message"] for c in chance["gate"]["conditions"]]
    assert sum("; that is chance: " in message for message in messages) == 1
    assert [c["failed"] for c in real["gate"]["conditions"]] == [True, False]


def test_all_are_judged_by_one_slo(call: Call, write: Write) -> None:
    """The baseline's limits count for all, those of --slo before them; a note says so."""
    write("loose", slo={"ttft_s": 10.0})
    write("tight", slo={"ttft_s": 1e-6}, config={"max_num_seqs": 9})
    write("without", config={"max_num_seqs": 8})

    by_loose = document_of(call, "loose", "tight")
    by_tight = document_of(call, "tight", "loose")
    by_none = document_of(call, "without", "loose")
    by_flag = document_of(call, "without", "loose", "--slo", "ttft=10s")

    found = [
        metrics_of(document)["goodput_fraction"]
        for document in (by_loose, by_tight, by_none, by_flag)
    ]
    assert [goodput["values"][0] for goodput in found] == [1.0, 0.0, None, 1.0]
    assert [goodput["difference"] for goodput in found] == [0.0, 0.0, None, 0.0]
    assert found[2]["verdict"] == "not tested"
    note = "all are judged by the baseline's SLO; --slo sets another"
    assert by_loose["notes"] == by_tight["notes"] == [note]
    assert by_none["notes"] == [
        "the baseline had no SLO, so none is judged; --slo sets one"
    ]
    assert by_flag["notes"] == []


def test_run_of_another_version_is_noted(call: Call, write: Write) -> None:
    """What another blockbench changed may be the difference."""
    path = Path(".blockbench", "runs", write("old"), "run.json")
    run = json.loads(path.read_text())
    run["environment"]["blockbench"] = "0.0.1"
    path.write_text(json.dumps(run))
    write("new", config={"max_num_seqs": 9})

    (note,) = document_of(call, "old", "new")["notes"]

    assert note.startswith("the runs are of blockbench 0.0.1, ")


def test_folders_of_one_name_are_told_apart(call: Call, write: Write) -> None:
    """Where names are the same, arms have the whole path."""
    for place in ("a", "b"):
        write("run", config={"max_num_seqs": ord(place)})
        Path(place).mkdir()
        Path(".blockbench", "runs", "run").rename(Path(place, "run"))

    document = document_of(call, "a/run", "b/run")

    assert [arm["name"] for arm in document["arms"]] == ["a/run", "b/run"]
