"""Tests for ``blockbench compare TRACE``: arms, verdicts, tables, conditions, exit codes.

Stored runs have a file of their own, and so have comparisons that somebody stops.
"""

import contextlib
import csv
import io
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from results.comparison.metric import METRICS

Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]
Document = dict[str, Any]

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat_1000.jsonl"
SCRIPT = Path(sys.executable).with_name("blockbench")
MODERN = ("--vllm-version", "0.32.0", "--max-model-len", 4096)
SMALL = (EXAMPLE, "--limit", 60, *MODERN, "--num-gpu-blocks-override", 900)
TINY = (EXAMPLE, "--limit", 12, *MODERN, "--num-gpu-blocks-override", 900)
VERDICTS = {"better", "worse", "no difference found", "not tested"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which the test works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def document_of(call: Call, *args: object, code: int = 0) -> Document:
    """What ``compare --json`` prints."""
    ended, out, err = call("compare", *args, "--json")
    assert ended == code, err
    document: Document = json.loads(out, parse_constant=pytest.fail)
    return document


@pytest.fixture(scope="module")
def caching(call: Call, tmp_path_factory: pytest.TempPathFactory) -> Document:
    """Return the document of prefix caching off and on, over 60 requests that share."""
    with contextlib.chdir(tmp_path_factory.mktemp("caching")):
        return document_of(call, *SMALL, "--jobs", 1)


def metrics_of(document: Document, arm: int = 1) -> dict[str, Document]:
    """The metrics of an arm beside the baseline, by name."""
    name = document["arms"][arm]["name"]
    return {m["name"]: m for m in document["metrics"] if m["arm"] == name}


def without_place(document: Document) -> Document:
    """The document without where the arms lie and how long it all took."""
    arms = [
        arm | {"folders": None, "summary": arm["summary"] | {"wall_s": None}}
        for arm in document["arms"]
    ]
    return document | {"arms": arms, "wall_s": None}


def test_document_has_two_arms_the_baseline_first(caching: Document) -> None:
    """Each has configuration and summary; the second has verdict and reason besides."""
    off, on = caching["arms"]

    assert (caching["schema_version"], caching["kind"]) == (1, "compare")
    assert (caching["source"], caching["trace"]["num_requests"]) == ("simulated", 60)
    assert caching["baseline"] == off["name"] == "prefix caching off"
    assert (off["verdict"], off["reason"], off["differs"]) == (None, None, [])
    assert (on["name"], on["verdict"]) == ("prefix caching on", "better")
    assert on["reason"].startswith("hits save 5")
    assert on["differs"] == ["enable_prefix_caching"]
    assert [arm["config"]["enable_prefix_caching"] for arm in (off, on)] == [False, True]
    assert [arm["num_runs"] for arm in (off, on)] == [1, 1]
    assert all(arm["error"] is None for arm in (off, on))
    assert caching["gate"] is None
    assert caching["wall_s"] > 0


def test_document_has_one_entry_a_metric(caching: Document) -> None:
    """Each with both figures, what they are apart, a verdict and a reason in words."""
    names = [metric["name"] for metric in caching["metrics"]]
    known = [metric.name for metric in METRICS]

    assert names == [name for name in known if name in names]
    assert {"finished", "ttft_p50", "tpot_p99", "hit_rate", "evictions"} <= set(names)
    for metric in caching["metrics"]:
        base, value = metric["values"]
        assert (metric["arm"], metric["baseline"]) == (
            "prefix caching on",
            "prefix caching off",
        )
        assert metric["verdict"] in VERDICTS
        assert metric["reason"]
        if base is not None and value is not None:
            assert metric["difference"] == value - base
            assert not base or metric["relative"] == (value - base) / base
        if metric["interval"] is not None:
            low, high = metric["interval"]
            assert low <= metric["difference"] <= high


def test_figures_are_those_of_the_summaries(caching: Document) -> None:
    """A metric's two values stand in the summaries of the two arms, to the digit."""
    places = {
        "finished": ("counts", "finished"),
        "ttft_p50": ("latency_s", "ttft", "p50"),
        "e2e_p99": ("latency_s", "e2e", "p99"),
        "queue_mean": ("latency_s", "queue", "mean"),
        "itl_p99": ("latency_s", "itl", "p99"),
        "output_token_per_s": ("throughput", "output_token_per_s"),
        "hit_rate": ("prefix_cache", "hit_rate"),
        "evictions": ("counts", "evictions"),
    }
    found = metrics_of(caching)

    for name, path in places.items():
        figures: list[Any] = [arm["summary"] for arm in caching["arms"]]
        for key in path:
            figures = [figure[key] for figure in figures]
        assert found[name]["values"] == figures, name


def test_share_of_the_difference_adds_up(caching: Document) -> None:
    """Queue, prefill and decode make up the difference in mean E2E."""
    split = caching["arms"][1]["e2e_split_s"]

    assert sum(split.values()) == pytest.approx(
        metrics_of(caching)["e2e_mean"]["difference"]
    )


@pytest.mark.parametrize("place", [0, 1])
def test_arms_are_what_run_gives(call: Call, caching: Document, place: int) -> None:
    """Each arm's summary equals that of ``blockbench run`` with its flags."""
    switch = ("--no-enable-prefix-caching", "--enable-prefix-caching")[place]

    code, out, _ = call("run", *SMALL, switch, "--json")

    assert code == 0
    arm = caching["arms"][place]
    assert arm["summary"] | {"wall_s": None} == json.loads(out) | {"wall_s": None}


def test_flags_of_the_load_reach_each_arm(call: Call) -> None:
    """With a limit on concurrency an arm is what run gives with it."""
    load = (*TINY, "--request-rate", "inf", "--max-concurrency", 2)

    arms = document_of(call, *load, "--vary", "block_size=16,32")["arms"]
    _, alone, _ = call("run", *load, "--block-size", 32, "--json")

    assert arms[1]["summary"] | {"wall_s": None} == json.loads(alone) | {"wall_s": None}


def test_number_of_processes_changes_nothing(call: Call, caching: Document) -> None:
    """Again, and two at a time: the same document but for folders and wall time."""
    again = document_of(call, *SMALL, "--jobs", 2)

    assert without_place(again) == without_place(caching)


def test_arms_are_saved_as_runs(call: Call) -> None:
    """Each lies under its name, and ``show`` has the summary that compare has."""
    document = document_of(call, *TINY)

    for arm in document["arms"]:
        (folder,) = arm["folders"]
        assert folder.endswith(f"-chat_1000-{arm['name'].replace(' ', '-')}")
        code, out, _ = call("show", folder, "--json")
        assert code == 0
        assert json.loads(out) == arm["summary"]


def test_screen_has_both_arms_and_says_why(call: Call) -> None:
    """Trace and setting on top, a row a metric, then verdict, reason and causes."""
    code, out, err = call("compare", *SMALL)

    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("chat_1000.jsonl · blockbench · 60 requests")
    assert lines[0].endswith("simulated")
    assert lines[1].startswith("prefix caching off: Llama-3.1-8B on H100-80GB, as vLLM")
    rows = {line.split("  ")[0].strip(): line.split() for line in lines}
    assert rows["prefix caching"][2:5] == ["off", "on", "verdict"]
    assert "better" in rows["TTFT p50"]
    assert any(ln.startswith("prefix caching on: better; hits save 5") for ln in lines)
    assert any(ln.strip().startswith("hit tokens 0 to 30.1k -> ") for ln in lines)


def test_screen_of_several_arms_has_a_row_each(call: Call) -> None:
    """An arm that could not start has none, but is named with its reason."""
    code, out, _ = call("compare", *SMALL, "--vary", "block_size=16,24,32")

    assert code == 0
    verdicts = [ln.split()[:2] for ln in out.splitlines() if ln.startswith(" block_size")]
    assert verdicts == [["block_size=16", "baseline"], ["block_size=32", "no"]]
    assert "block_size=24: not tested; it could not start: block_size is 24" in out
    assert "hold from 14,400 to 28,800 tokens; --kv-cache-gib keeps memory equal" in out


def test_table_of_csv_is_the_document(call: Call, caching: Document) -> None:
    """A row a metric with every figure; what is said in words is on stderr."""
    code, out, err = call("compare", *SMALL, "--table", "csv")

    assert code == 0
    rows = {row["metric"]: row for row in csv.DictReader(io.StringIO(out))}
    found = metrics_of(caching)
    assert list(rows) == list(found)
    for name, row in rows.items():
        base, value = found[name]["values"]
        assert row["baseline"] == ("" if base is None else str(base))
        assert float(row["value"]) == value
        assert (row["verdict"], row["reason"]) == (
            found[name]["verdict"],
            found[name]["reason"],
        )
    assert err.startswith("prefix caching on: better; ")


@pytest.mark.parametrize(
    ("style", "row"),
    [
        ("github", "| prefix caching on | ttft_p50 "),
        ("plain", "prefix caching on  ttft_p50 "),
        ("latex", " prefix caching on & ttft\\_p50 "),
    ],
)
def test_table_for_people_shows_what_is_missing(call: Call, style: str, row: str) -> None:
    """Every metric has a row, and n/a stands where there is no figure."""
    code, out, _ = call("compare", *TINY, "--table", style)

    assert code == 0
    lines = out.splitlines()
    assert any(line.startswith(row) for line in lines)
    (hits,) = [line for line in lines if "hit_rate" in line or "hit\\_rate" in line]
    assert "n/a" in hits


def test_output_takes_the_document(call: Call, folder: Path) -> None:
    """-o writes what --json prints, beside the screen, and replaces only its like."""
    assert "TTFT p50" in call("compare", *TINY, "-o", "c.json")[1]
    before = json.loads((folder / "c.json").read_text())

    after = document_of(call, *TINY, "-o", "c.json")

    assert json.loads((folder / "c.json").read_text()) == after
    assert without_place(before) == without_place(after)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("notes.txt", "notes.txt is there and holds no compare document"),
        ("nowhere/c.json", "nowhere/c.json: cannot be written: No such file"),
        ("", "it is empty; name what to write"),
    ],
)
def test_output_is_refused_before_anything_runs(
    refuse: Refuse, folder: Path, output: str, words: str
) -> None:
    """Nothing is replayed for a document that could not be kept."""
    (folder / "notes.txt").write_text("mine")

    assert words in refuse(2, "compare", *TINY, "-o", output)
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("code", "args", "words"),
    [
        (2, [*TINY, "--json", "--table", "csv"], "--json and --table both claim stdout"),
        (2, [*TINY, "--slo", "ttft=2"], "no unit"),
        (2, [*TINY, "--jobs", "0"], "--jobs"),
        (2, [*TINY, "--allow", "anything"], "--allow"),
        (2, [*TINY, "--vary", "bogus=1,2"], "cannot vary bogus"),
        (2, [*TINY, "--vary", "block_size=16"], "makes one arm"),
        (2, [*TINY, "--vary", "max_concurrency=0,1"], "from 1 here, and 0 is"),
        (2, [*TINY, "--enable-prefix-caching"], "leave --[no-]enable-prefix-caching out"),
        (2, [*TINY, "--block-size", 16, "--vary", "block_size=16,32"], "both set it"),
        (2, [*TINY, "--seed", 1], "add --request-rate"),
        (2, [*TINY, "--slice", "2000:"], "slice 2000: selects none"),
        (4, [*TINY, "--vary", "block_size=16,24"], "block_size is 24; it must be one of"),
        (2, [*TINY, "--vary", "engine=sim,real"], "--vary engine: there is no real"),
        (2, [*TINY, "--vary", "engine=sim,server"], "needs the server's address"),
        (2, [*TINY, "--fail-if", "ttft_p99>10"], "ttft_p99 is a time"),
        (2, [*TINY, "--fail-if", "nothing>10"], "there is no metric 'nothing'"),
        (2, [*TINY, "--fail-if", "finished<1,"], "cannot read ''"),
        (2, [*TINY, "--baseline", "nowhere"], "blockbench list shows the runs"),
        (2, [EXAMPLE, EXAMPLE], "is a file: give one TRACE alone"),
        (2, [EXAMPLE, "last"], "stored runs with --baseline"),
        (
            2,
            ["nowhere.jsonl"],
            "there is no file 'nowhere.jsonl', and 'nowhere.jsonl' is",
        ),
        (2, ["nowhere.jsonl", "--limit", 5], "there is no file 'nowhere.jsonl'"),
        (2, ["."], "there is no file '.', and '.' is no run folder"),
        (2, [""], "blockbench list shows the runs"),
        (2, [], "Missing argument"),
        (3, ["empty.jsonl"], "empty.jsonl: the file is empty"),
        (3, ["header.jsonl"], "header.jsonl: there is no request in it"),
        (3, ["bad.jsonl"], "bad.jsonl:2: "),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(
    refuse: Refuse, folder: Path, code: int, args: list[object], words: str
) -> None:
    """One error that says what to write; nothing is printed, replayed or saved."""
    (folder / "empty.jsonl").touch()
    with EXAMPLE.open() as example:
        header = example.readline()
    (folder / "header.jsonl").write_text(header)
    (folder / "bad.jsonl").write_text(header + "{}")

    assert words in refuse(code, "compare", *args)


def test_bad_rows_can_be_skipped(call: Call, folder: Path) -> None:
    """--skip-bad-rows counts them and goes on, as in run."""
    row = '{"timestamp": 1, "input_length": 40, "output_length": 2, "hash_ids": [1]}\n'
    (folder / "t.jsonl").write_text(row + '{"timestamp": -1}\n' + row)

    assert call("compare", "t.jsonl", *MODERN)[0] == 3
    document = document_of(call, "t.jsonl", *MODERN, "--skip-bad-rows")
    trace = document["trace"]
    assert (trace["num_requests"], trace["num_skipped"]) == (2, 1)


def test_grid_is_compared_with_its_first_arm(call: Call) -> None:
    """Each combination is an arm, and each metric has an entry for each but the first."""
    document = document_of(
        call,
        *TINY,
        "--vary",
        "enable_prefix_caching=on,off",
        "--vary",
        "max_num_seqs=2,4",
    )

    names = [arm["name"] for arm in document["arms"]]
    assert names == [
        "prefix caching on max_num_seqs=2",
        "prefix caching on max_num_seqs=4",
        "prefix caching off max_num_seqs=2",
        "prefix caching off max_num_seqs=4",
    ]
    assert document["baseline"] == names[0]
    assert [arm["differs"] for arm in document["arms"]] == [
        [],
        ["max_num_seqs"],
        ["enable_prefix_caching"],
        ["enable_prefix_caching", "max_num_seqs"],
    ]
    ttft = [m for m in document["metrics"] if m["name"] == "ttft_p50"]
    assert [metric["arm"] for metric in ttft] == names[1:]
    assert len({metric["values"][0] for metric in ttft}) == 1


def test_load_can_be_varied(call: Call) -> None:
    """Twice the speed is another load: latencies are compared, throughput is not."""
    document = document_of(call, *SMALL, "--vary", "speedup=1,2x,8")

    durations = [arm["summary"]["trace"]["duration_s"] for arm in document["arms"]]
    assert durations == pytest.approx([durations[0], durations[0] / 2, durations[0] / 8])
    found = metrics_of(document, arm=2)
    assert found["tpot_mean"]["verdict"] == "worse"
    assert found["output_token_per_s"]["verdict"] == "not tested"
    assert found["output_token_per_s"]["reason"] == "another load"


def test_settings_that_come_to_the_same_are_told(call: Call) -> None:
    """Two spellings of one GPU differ in nothing, and a note says so."""
    document = document_of(call, *TINY, "--vary", "gpu=H100-80GB,h100-80gb")

    assert document["arms"][1]["verdict"] == "no difference found"
    assert (
        "gpu=H100-80GB and gpu=h100-80gb come to the same settings" in (document["notes"])
    )
    assert {m["verdict"] for m in document["metrics"]} <= {
        "no difference found",
        "not tested",
    }


def test_arm_that_cannot_start_stands_beside_others(call: Call) -> None:
    """v1 has no --swap-space: its arms have an error in place of figures."""
    document = document_of(
        call,
        *(EXAMPLE, "--limit", 12, "--max-model-len", 4096, "--swap-space", 4),
        *("--vary", "policy=v0,v1", "--vary", "block_size=16,32"),
    )

    lost = document["arms"][2:]
    assert [arm["name"].split()[0] for arm in lost] == ["policy=v1"] * 2
    for arm in lost:
        assert "has no --swap-space" in arm["error"]
        assert (arm["config"], arm["summary"], arm["folders"]) == (None, None, [])
        assert arm["verdict"] == "not tested"
        assert arm["reason"] == f"it could not start: {arm['error']}"
    assert {metric["arm"] for metric in document["metrics"]} == {
        "policy=v0 block_size=32"
    }


def test_nothing_that_could_finish_is_code_4(call: Call) -> None:
    """A pool for nobody is no comparison, whatever is printed."""
    tiny = (EXAMPLE, "--limit", 12, "--vllm-version", "0.32.0", "--max-model-len", 32)
    code, _, err = call("compare", *tiny, "--vary", "num_gpu_blocks_override=2,3")

    assert code == 4
    assert err.startswith("error: no request could finish in any arm; take a larger KV")


def test_caching_is_not_judged_without_sharing(call: Call, folder: Path) -> None:
    """A trace of lengths alone does not say what would be found; other knobs are."""
    rows = [f"2023-11-16 18:15:{i:02d}.5,{200 + 7 * i},20" for i in range(40)]
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    (folder / "azure.csv").write_text("\n".join([header, *rows]))

    document = document_of(
        call,
        *("azure.csv", *MODERN, "--vary", "enable_prefix_caching=on,off"),
        *("--vary", "block_size=16,32"),
    )

    _, sizes, off, _ = document["arms"]
    assert off["verdict"] == "not tested"
    assert off["reason"].startswith("the trace does not say which")
    assert sizes["verdict"] == "no difference found"


@pytest.fixture
def n4(call: Call) -> tuple[object, ...]:
    """Return a trace of four samples a prompt, with 600 blocks of v0 for it."""
    code, _, err = call(
        *("trace", "generate", "-o", "n4.jsonl", "--num-requests", 60, "--n", 4),
        *("--request-rate", 20, "--input-len", 300, "--output-len", 200),
    )
    assert code == 0, err
    return (
        *("n4.jsonl", "--policy", "v0", "--num-gpu-blocks-override", 600),
        *("--max-model-len", 4096),
    )


@pytest.mark.parametrize(
    ("order", "verdict"), [("swap,recompute", "worse"), ("recompute,swap", "better")]
)
def test_engine_that_ends_loses(
    call: Call, n4: tuple[object, ...], order: str, verdict: str
) -> None:
    """v0 cannot recompute several samples; the arm that swaps is the better one."""
    document = document_of(call, *n4, "--vary", f"preemption_mode={order}")

    arm = document["arms"][1]
    found = metrics_of(document)
    assert arm["verdict"] == verdict
    assert "preemption_mode=recompute does not last: " in arm["reason"]
    assert found["finished"]["verdict"] == verdict
    assert found["ttft_p50"]["verdict"] == "not tested"
    assert found["ttft_p50"]["reason"] == "preemption_mode=recompute does not last"


def test_engine_that_ends_passes_no_condition(call: Call, n4: tuple[object, ...]) -> None:
    """Those it finished were the lucky ones: their TTFT, which is lower, is no proof."""
    document = document_of(
        call,
        *(*n4, "--vary", "preemption_mode=swap,recompute"),
        *("--fail-if", "ttft_p99>+10%, finished<60"),
        code=6,
    )

    ttft, finished = document["gate"]["conditions"]
    assert metrics_of(document)["ttft_p99"]["relative"] < -0.5
    assert ttft["failed"]
    assert ttft["message"].endswith(
        "cannot be judged: preemption_mode=recompute does not last"
    )
    assert finished["failed"]
    assert finished["value"] < 60


def test_slo_is_counted_in_both_arms(call: Call) -> None:
    """With limits, goodput is an outcome; without, there is no such entry."""
    judged = document_of(call, *SMALL, "--slo", "ttft=40ms")
    silent = document_of(call, *TINY)

    goodput = metrics_of(judged)["goodput_fraction"]
    fractions = [arm["summary"]["goodput"]["fraction"] for arm in judged["arms"]]
    assert goodput["values"] == fractions
    assert goodput["verdict"] == "better"
    assert "goodput_fraction" not in metrics_of(silent)


def test_condition_that_is_met_is_code_6(call: Call) -> None:
    """Several conditions, in one option or two: each is judged, and named if it fails."""
    conditions = "ttft_p50>+10%,prefill_tokens<-10%"
    code, out, _ = call(
        *("compare", *SMALL, "--fail-if", conditions),
        *("--fail-if", "hit_rate>10%, e2e_p99.9>1h"),
    )

    said = [line for line in out.splitlines() if line[:2] in ("x ", "- ")]
    assert code == 6
    assert [line[:30] for line in said] == [
        "- ttft_p50>+10% (prefix cachin",
        "x prefill_tokens<-10% (prefix ",
        "x hit_rate>10% (prefix caching",
        "- e2e_p99.9>1h (prefix caching",
    ]
    assert re.search(r": \d\d\.\dk -> \d\d\.\dk, -\d\d\.\d %$", said[1])
    assert said[2].endswith("n/a -> 57 %")
    assert "prefill_tokens<-10% fails on a change to the better only; is that" in out
    assert "hit_rate>10% fails" not in out


def test_conditions_that_hold_are_code_0(call: Call, caching: Document) -> None:
    """The document has each condition with limit, value and message."""
    document = document_of(call, *SMALL, "--fail-if", "ttft_p99>+10%")

    assert document["gate"]["failed"] is False
    (condition,) = document["gate"]["conditions"]
    ttft = metrics_of(caching)["ttft_p99"]
    assert condition["condition"] == "ttft_p99>+10%"
    assert condition["arm"] == "prefix caching on"
    assert (condition["metric"], condition["limit"]) == ("ttft_p99", 0.1)
    assert condition["value"] == ttft["relative"]
    assert condition["failed"] is False
    assert condition["message"].startswith("ttft_p99>+10% (prefix caching on): ")


def test_percentile_of_a_condition_is_in_the_document(call: Call) -> None:
    """One that nobody compares by default has an entry once it is asked for."""
    document = document_of(call, *TINY, "--fail-if", "e2e_p75>1h,itl_max>1h")

    assert {"e2e_p75", "itl_max"} <= set(metrics_of(document))


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("goodput_fraction<90%", "neither has it; --slo sets the limits"),
        ("swap_out_blocks>+10%", "cannot be judged: neither has it"),
        ("evictions>+10%", "cannot be judged: n/a in prefix caching off"),
    ],
)
def test_condition_without_a_figure_fails(call: Call, condition: str, words: str) -> None:
    """Nobody can tell that it holds, and the message says why."""
    document = document_of(call, *TINY, "--fail-if", condition, code=6)

    (judged,) = document["gate"]["conditions"]
    assert (judged["failed"], judged["value"]) == (True, None)
    assert words in judged["message"]


def test_condition_fails_for_an_arm_that_cannot_start(call: Call) -> None:
    """Each arm is judged by each condition; the one without a run fails them."""
    document = document_of(
        call, *TINY, "--vary", "block_size=16,24,32", "--fail-if", "ttft_p99>1h", code=6
    )

    judged = document["gate"]["conditions"]
    assert [(c["arm"], c["failed"]) for c in judged] == [
        ("block_size=24", True),
        ("block_size=32", False),
    ]
    assert judged[0]["message"].endswith("cannot be judged, as it could not start")


def shell(*args: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed script here."""
    command = [SCRIPT, "compare", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def test_script_prints_the_document(caching: Document) -> None:
    """The installed script says the same, and nothing on stderr."""
    done = shell(*SMALL, "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert without_place(json.loads(done.stdout)) == without_place(caching)


def test_script_without_a_place_for_runs_says_so(folder: Path) -> None:
    """What cannot be a folder is one line and code 2, although a process found out."""
    (folder / ".blockbench").touch()

    done = shell(*TINY)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: .blockbench/runs: no run can be saved here: ")
    assert done.stderr.count("\n") == 1
    assert os.listdir(folder) == [".blockbench"]


def test_script_on_a_full_disk_says_what_is_kept(folder: Path) -> None:
    """A run that does not fit is one line and code 5, and its rows can be shown."""
    limit = 20_000

    done = shell(
        *(EXAMPLE, "--limit", 300, *MODERN, "--num-gpu-blocks-override", 900),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )

    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("error: .blockbench/runs/")
    assert "-chat_1000-prefix-caching-o" in done.stderr
    assert "the run was not saved: File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    kept = list(folder.glob(".blockbench/runs/*/run.json"))
    assert kept
    shown = subprocess.run([SCRIPT, "show", kept[0].parent], capture_output=True)
    assert shown.returncode == 0


def test_a_trace_may_come_through_a_pipe(folder: Path) -> None:
    """What a shell's <(zcat trace.gz) names is a trace, as run takes it."""
    trace = folder / "short.jsonl"
    trace.write_text("".join(EXAMPLE.read_text().splitlines(keepends=True)[:13]))
    outcomes = []
    for name in (trace, "/dev/stdin"):
        done = subprocess.run(
            [SCRIPT, "compare", name, *map(str, MODERN), "--json"],
            input=trace.read_text(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        outcomes.append([each["values"] for each in json.loads(done.stdout)["metrics"]])

    assert outcomes[0] == outcomes[1]


def test_modules_of_the_folder_are_not_imported(folder: Path) -> None:
    """The processes that replay import what blockbench itself does."""
    (folder / "results.py").write_text("print('stranger')")
    (folder / "bench_cli").mkdir()
    (folder / "bench_cli" / "__init__.py").touch()

    done = subprocess.run(
        [SCRIPT, "compare", *map(str, TINY), "--json"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert "stranger" not in done.stdout + done.stderr
    assert len(json.loads(done.stdout)["arms"]) == 2
