"""Tests for ``blockbench tune``: document, line, space, budget, storage and refusals."""

import csv
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench_cli.serve_reading import parse_serve
from bench_cli.tune_line import write_yaml
from bench_cli.tune_question import parse_budget
from bench_cli.tune_space import parse_space
from harness.errors import UsageError
from harness.tuning.search import Budget
from profiles.serve_option import OPTIONS

Call = Callable[..., tuple[int, str, str]]
Generate = Callable[..., str]
Refuse = Callable[..., str]
Tune = Callable[..., dict[str, Any]]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "chat_1000.jsonl"
SCRIPT = Path(sys.executable).with_name("blockbench")
SERVE = "vllm serve meta-llama/Llama-3.1-8B"
POOL = ("--kv-cache-gib", 4, "--max-model-len", 4096)
QUICK = ("--budget", "4trials", "--space", "max_num_seqs=64|128")
KEYS = {
    *("schema_version", "kind", "source", "complete", "command", "yaml"),
    *("command_with_yaml", "keep", "keep_reason", "objective", "config", "changes"),
    *(
        "current",
        "current_today",
        "default",
        "advised",
        "trouble",
        "gain",
        "evidence",
        "ties",
    ),
    *(
        "robustness",
        "headroom",
        "replicas",
        "most_replicas_tried",
        "unknowns",
        "vllm_version",
        "policy",
    ),
    *("trials", "replays", "replay_s", "jobs", "withdrawn", "wall_s", "over_limits"),
    *("refused", "decided_by"),
    *("searched", "verification"),
}
TIMES = {"replay_s", "jobs", "wall_s"}
NO_POOL = {"cannot start", "not replayed"}
STANDINGS = {"better", "worse", "as good", "ends", "not tried", *NO_POOL}
VERSIONS = [
    ("0.6.3", "v0"),
    ("0.8.5", "v0"),
    ("0.8.5", None),
    ("0.10.2", None),
    ("0.16.0", None),
    ("0.19.1", None),
    ("0.24.0", None),
    ("0.32.0", None),
]


def declared(version: str) -> dict[str, str]:
    """What a version's parser has, by option: ``no`` where it has none."""
    path = ROOT / "tests" / "data" / "published" / "vllm_serve_options.csv"
    with path.open(newline="") as file:
        return next(row for row in csv.DictReader(file) if row["vllm"] == version)


def options_in(command: str) -> list[str]:
    """Names of the options in a command, a leading ``no-`` taken off."""
    words = [w for w in shlex.split(command) if w.startswith("--")]
    return [w.removeprefix("--").removeprefix("no-").partition("=")[0] for w in words]


def wait_until(is_so: Callable[[], object], timeout_s: float = 60) -> None:
    """Look again and again."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it never came about"
        time.sleep(0.02)


def num_rows(database: Path, table: str) -> int:
    """Rows of a table of a study's storage; 0 where there is none yet."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        try:
            found = connection.execute(f"select count(*) from {table}").fetchone()
        except sqlite3.OperationalError:
            return 0
    return int(found[0])


def test_document_has_its_keys(generate: Generate, tune: Tune) -> None:
    """No key more or less; each knob of the space has a value, a side and evidence."""
    document = tune(
        generate("--input-len", 800, "--num-requests", 100),
        *POOL,
        "--objective",
        "tpot",
    )

    knobs = set(document["config"])
    rows = [row for each in document["evidence"].values() for row in each["rows"]]
    assert set(document) == KEYS
    assert (document["schema_version"], document["kind"]) == (1, "tune")
    assert (document["source"], document["complete"]) == ("simulated", True)
    assert (document["vllm_version"], document["policy"]) == ("0.32.0", "v1")
    assert knobs >= {"block_size", "max_num_seqs", "kv_offloading_size", "watermark"}
    assert set(document["evidence"]) == knobs
    assert set(document["current"]["knobs"]) == set(document["default"]["knobs"]) == knobs
    assert {row["standing"] for row in rows} <= STANDINGS
    assert all(row["num_gpu_blocks"] for row in rows if row["standing"] not in NO_POOL)
    assert document["advised"].keys() == document["current"]["figures"].keys()


def test_each_knob_has_what_is_known_of_it(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """Facts beside the rows, and the screen says them."""
    trace = generate("--input-len", 64, "--prefix-len", 2048, "--num-prefixes", 40)
    pool = ("--kv-cache-gib", 3, "--max-model-len", 4096)

    evidence = tune(trace, *pool, "--budget", "6trials")["evidence"]

    facts = {name: each["facts"] for name, each in evidence.items()}
    tier = facts["kv_offloading_size"]
    limits = [facts[name]["trade"] for name in ("max_num_seqs", "max_num_batched_tokens")]
    assert facts["enable_prefix_caching"] == {}
    assert set(facts["block_size"]["costs"][0]) == {
        *("value", "hit_tokens", "fragmentation", "table_blocks"),
        *("copied_gib", "copy_s"),
    }
    assert set(tier) == {
        *("stages", "recomputed", "traffic", "crossover_tokens"),
        *("mean_prompt_tokens", "block_size"),
    }
    assert tier["stages"][0]["hit_tokens"] > 0
    assert all({"value", "ttft_mean", "tpot_mean"} <= set(t) for ts in limits for t in ts)
    words = " ".join(call("tune", trace, *pool, "--budget", "6trials")[1].split())
    assert "hits of a tier: 0 to 8 GiB " in words
    assert "loading is sooner than computing from" in words
    assert "blocks to keep books of" in words


def test_facts_of_v0_tell_swap_seen_from_the_worst(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """And of utilizations what a point buys, and what is left before OOM."""
    trace = generate("--n", 4, "--input-len", 400, "--num-requests", 30)
    given = (trace, "--policy", "v0", "--vllm-version", "0.6.3", "--budget", "2trials")

    facts = {n: e["facts"] for n, e in tune(*given)["evidence"].items()}

    swap, memory = facts["swap_space"], facts["gpu_memory_utilization"]
    words = " ".join(call("tune", *given)[1].split())
    assert swap["seen_blocks"] == 0 < swap["worst_blocks"]
    assert swap["worst_gib"] == swap["worst_blocks"] * 2 / 1024
    assert set(memory) == {"blocks_per_point", "headroom_gib"}
    assert {each["value"] for each in memory["headroom_gib"]} >= {0.8, 0.9}
    assert "GiB were swapped out here, and no order of these requests needs mo" in words
    assert "GiB before OOM" in words


def test_figures_are_those_that_run_gives(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """What is advised, replayed by ``run``, has the advised figures to the last digit."""
    trace = generate("--input-len", 1000, "--output-len", 200)
    version = ("--vllm-version", "0.32.0")

    document = tune(trace, *POOL, "--objective", "tpot")

    flags: list[object] = []
    for name, change in document["changes"].items():
        flags += [f"--{name.replace('_', '-')}", change["to"]]
    code, out, err = call("run", trace, *POOL, *flags, *version, "--json")
    assert code == 0, err
    latency = json.loads(out)["latency_s"]
    gain = document["gain"]["over_current"]
    assert flags
    assert latency["tpot"]["mean"] == document["advised"]["tpot_mean"]
    assert latency["ttft"]["p99"] == document["advised"]["ttft_p99"]
    assert gain["values"][1] == document["advised"]["tpot_mean"]
    assert gain["difference"] == gain["values"][1] - gain["values"][0]


@pytest.mark.parametrize(("version", "policy"), VERSIONS)
def test_line_has_every_change_and_nothing_that_the_version_lacks(
    generate: Generate, tune: Tune, version: str, policy: str | None
) -> None:
    """Read again, over the version's defaults, it is the advised setting."""
    trace = generate(
        *("--prefix-len", 1024, "--num-prefixes", 40, "--input-len", 200),
        *("--num-requests", 150),
    )
    chosen = () if policy is None else ("--policy", policy)

    document = tune(
        *(trace, *chosen, "--vllm-version", version, "--max-model-len", 4096),
        *("--current", f"{SERVE} --max-num-seqs 8 --gpu-memory-utilization 0.25"),
    )

    line = parse_serve(document["command"])
    config, default = document["config"], document["default"]["knobs"]
    has = declared(version)
    options = options_in(document["command"])
    modelled = {option.key for option in OPTIONS.values()}
    expected = {n: v for n, v in config.items() if v != default[n]}
    assert "max_num_seqs" in document["changes"]
    assert {n: v for n, v in line.knobs.items() if n in config} == expected
    assert "max-model-len" in options
    assert len(set(options)) == len(options)
    assert [o for o in options if has[o] == "no"] == []
    assert set(options) <= modelled | {"kv-offloading-backend"}
    assert document["command"].startswith("VLLM_USE_V1=0 ") == (
        (version, policy) == ("0.8.5", "v0")
    )
    tiers = {"swap_space", "kv_offloading_size", "watermark"} & set(config)
    assert all(has[OPTIONS[name].key] != "no" for name in tiers)


def test_defaults_are_left_out_and_flags_are_kept(generate: Generate, tune: Tune) -> None:
    """A knob with a flag of its own is fixed: in the line, and not in the space."""
    document = tune(
        *(generate("--input-len", 300), "--max-num-seqs", 48, "--block-size", 32),
        *("--budget", "8trials"),
    )

    assert document["keep"]
    assert document["command"] == f"{SERVE} --block-size 32 --max-num-seqs 48"
    assert not {"max_num_seqs", "block_size"} & set(document["config"])
    assert not {"max_num_seqs", "block_size"} & set(document["evidence"])


def test_answer_is_the_same_for_any_number_of_jobs(
    generate: Generate, tune: Tune
) -> None:
    """Same seed and trials: one process or two, all but the times is equal."""
    trace = generate("--input-len", 1000, "--output-len", 200)
    given = (trace, *POOL, "--objective", "tpot", "--budget", "20trials")

    found = [tune(*given, "--jobs", jobs) for jobs in (1, 2)]

    one, two = ({k: v for k, v in d.items() if k not in TIMES} for d in found)
    assert [document["jobs"] for document in found] == [1, 2]
    assert one == two
    assert one["trials"] >= 15


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("block_size=16|32", {"block_size": (16, 32)}),
        ("max_num_seqs=64..512", {"max_num_seqs": (64, 128, 256, 512)}),
        ("watermark=0|0.05", {"watermark": (0.0, 0.05)}),
        ("enable_prefix_caching=on|off", {"enable_prefix_caching": (True, False)}),
        ("gpu_memory_utilization=0.8..0.9..0.05", {
            "gpu_memory_utilization": (0.8, 0.85, 0.9)
        }),
        (" --block-size = 8 , max_num_seqs=64|1024 ", {
            "block_size": (8,), "max_num_seqs": (64, 1024)
        }),
    ],
)  # fmt: skip
def test_space_is_read(text: str, space: dict[str, tuple[Any, ...]]) -> None:
    """Bars separate the values of a knob, since commas separate knobs."""
    assert parse_space(text) == space


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--space cannot read ''; write it as block_size=16|32, max_num_seqs=64..10"),
        ("block_size", "--space cannot read 'block_size'; write it as block_size=16|32,"),
        ("block_size=16|32,", "--space cannot read ''"),
        ("block_size=", "--space cannot read 'block_size='"),
        ("blocksize=16|32", "--space cannot vary blocksize; it can vary"),
        ("block_size=16|x", "--space needs whole numbers here, and 'x' is none"),
        ("max_num_seqs=64..16", "--space goes from low to high; '64..16' goes down"),
        ("block_size=16|16", "names a value twice; keep one"),
        ("block_size=16,block_size=32", "--space names block_size twice; keep one"),
        ("enable_prefix_caching=1|0", "--space takes on or off here"),
    ],
)
def test_space_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    """It names the part, and shows how it is written."""
    with pytest.raises(UsageError) as caught:
        parse_space(text)

    assert message in str(caught.value)
    assert "--vary" not in str(caught.value)


def test_space_narrows_what_is_chosen_from(generate: Generate, tune: Tune) -> None:
    """Only values that were named, and the present one, are tried."""
    trace = generate("--input-len", 1000, "--output-len", 300)

    document = tune(
        *(trace, *POOL, "--objective", "tpot"),
        *("--space", "max_num_seqs=24|48, block_size=16"),
    )

    rows = document["evidence"]["max_num_seqs"]["rows"]
    assert document["config"]["max_num_seqs"] == 24
    assert {row["value"] for row in rows} <= {24, 48, 1024}
    assert "block_size" not in document["config"]


def test_types_of_the_cache_are_searched_when_named(
    generate: Generate, tune: Tune
) -> None:
    """fp8 holds twice the tokens in as much memory; the line says so."""
    trace = generate("--input-len", 1000, "--output-len", 300)

    document = tune(
        *(trace, *POOL, "--objective", "tpot"),
        *("--space", "kv_cache_dtype=fp8", "--max-num-seqs", 1024),
    )

    rows = {row["value"]: row for row in document["evidence"]["kv_cache_dtype"]["rows"]}
    blocks = [rows[value]["num_gpu_blocks"] for value in ("auto", "fp8")]
    assert blocks[1] == 2 * blocks[0]
    assert rows.keys() == {"auto", "fp8"}


def test_tensor_parallel_size_is_searched_when_named(
    generate: Generate, tune: Tune
) -> None:
    """Two GPUs are faster than one; without the name they are not proposed."""
    trace = generate("--input-len", 1000, "--num-requests", 50)

    document = tune(trace, "--space", "tensor_parallel_size=1|2", "--budget", "6trials")

    plain = tune(trace, "--budget", "4trials")
    assert document["changes"]["tensor_parallel_size"] == {"from": 1, "to": 2}
    assert "--tensor-parallel-size 2" in document["command"]
    assert "tensor_parallel_size" not in plain["config"]


def test_present_tensor_parallel_size_is_what_is_replayed(
    generate: Generate, tune: Tune
) -> None:
    """Its steps are those of two GPUs; it stays in the line, as all that is kept."""
    trace = generate("--input-len", 1000, "--num-requests", 50)
    one, two = (
        tune(trace, *QUICK, "--current", f"{SERVE} -tp {number}") for number in (1, 2)
    )

    assert "--tensor-parallel-size 2" in two["command"]
    assert one["keep"]
    assert one["command"] == f"{SERVE} --tensor-parallel-size 1"
    assert two["advised"]["tpot_mean"] < 0.8 * one["advised"]["tpot_mean"]


def test_host_memory_bounds_the_tier(generate: Generate, tune: Tune) -> None:
    """Of 20 GiB 14 may be taken, which leaves a tier of 8; the present one stays too."""
    trace = generate("--prefix-len", 1024, "--num-prefixes", 40, "--input-len", 64)
    given = (trace, *POOL, "--host-memory-gib", 20, "--budget", "8trials")

    document = tune(*given, "--current", f"{SERVE} --kv-offloading-size 100")

    rows = document["evidence"]["kv_offloading_size"]["rows"]
    assert document["current"]["knobs"]["kv_offloading_size"] == 100
    assert {row["value"] for row in rows} <= {0, 8, 100}


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("40trials", Budget(num_trials=40)),
        ("1trial", Budget(num_trials=1)),
        (" 12 Trials ", Budget(num_trials=12)),
        ("60s", Budget(seconds=60)),
        ("5min", Budget(seconds=300)),
        ("500ms", Budget(seconds=0.5)),
    ],
)
def test_budget_is_read(text: str, budget: Budget) -> None:
    """A number of trials, or a time."""
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    "text", ["", "40", "0trials", "-3trials", "1.5trials", "1e3trials", "trials", "0s"]
)
def test_budget_that_cannot_be_read_is_refused(text: str) -> None:
    """It names the text and both ways of writing one."""
    with pytest.raises(UsageError, match="write a time, as 60s or 5min, or 40trials"):
        parse_budget(text)


def test_budget_bounds_the_search(generate: Generate, tune: Tune) -> None:
    """A second ends as a few trials do: with a whole answer, and less tried than many."""
    trace = generate("--input-len", 1000, "--output-len", 200)
    given = (trace, *POOL, "--objective", "tpot")
    few, many, brief = (
        tune(*given, "--budget", budget) for budget in ("2trials", "40trials", "1ms")
    )

    assert few["trials"] < many["trials"] >= 28
    assert brief["complete"]
    assert brief["trials"] < many["trials"]
    assert brief["wall_s"] < 60


@pytest.mark.parametrize(
    ("flags", "objective", "metric"),
    [
        ((), "ttft", "ttft_mean"),
        (("--slo", "ttft=2s"), "goodput", "goodput_fraction"),
        (("--max-concurrency", 8), "throughput", "output_token_per_s"),
        (("--request-rate", "inf"), "throughput", "output_token_per_s"),
        (("--objective", "tpot"), "tpot", "tpot_mean"),
        (("--objective", "ttft", "--slo", "ttft=2s"), "ttft", "ttft_mean"),
        (("--objective", "throughput"), "throughput", "output_token_per_s"),
    ],
)
def test_gain_is_in_what_is_wanted(
    generate: Generate,
    tune: Tune,
    flags: tuple[object, ...],
    objective: str,
    metric: str,
) -> None:
    """The objective that was asked for, else the one that limits and load suggest."""
    document = tune(generate("--input-len", 300, "--num-requests", 60), *flags, *QUICK)

    gain = document["gain"]["over_current"]
    assert (document["objective"], gain["metric"]) == (objective, metric)
    assert gain["values"][1] == document["advised"][metric]
    has_load = "--slo" in flags
    assert (document["headroom"] is not None) == has_load


def test_headroom_of_a_closed_loop_is_in_requests_at_a_time(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """As ``run`` has it: so many are kept inside the limits, and the next are not."""
    trace = generate("--input-len", 3000, "--num-requests", 200, "--request-rate", 2000)
    slo = ("--slo", "ttft=500ms")

    document = tune(trace, *QUICK, *slo, "--max-concurrency", 8)

    headroom = document["headroom"]
    given: list[object] = ["run", trace, *slo, "--vllm-version", "0.32.0", "--json"]
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        given += [f"--{name.replace('_', '-')}", document["config"][name]]
    most, failing = headroom["max_concurrency"], 8 * headroom["first_failing"]
    assert headroom["kind"] == "concurrency"
    assert most == 8 * headroom["load"] < failing
    for number, is_kept in ((most, True), (round(failing), False)):
        load = ("--max-concurrency", number, "--speedup", number / 8)
        out = call(*given, *load)[1]
        assert (json.loads(out)["goodput"]["fraction"] >= 0.9) == is_kept


def test_a_trace_too_short_for_a_load_says_nothing_of_it(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """All come before the first leaves: eight times as many are fine, for so long."""
    trace = generate("--num-requests", 100, "--request-rate", 100)
    given = (trace, *QUICK, "--slo", "ttft=2s", "--vllm-version", "0.32.0")

    document = tune(*given)

    headroom = document["headroom"]
    words = " ".join(call("tune", *given, "--jobs", 1)[1].split())
    assert headroom["load"] is None
    assert headroom["kept_briefly"] == 8
    assert "come for less than 5 times as long as one takes" in headroom["reason"]
    assert "load how much load keeps the SLO cannot be told (90 % of req" in words
    assert "8x does here, but its requests come for less than 5 times as long" in words
    assert "SLO no setting" not in words


def test_all_at_once_is_as_much_load_as_there_can_be(
    generate: Generate, tune: Tune
) -> None:
    """It says so, and no headroom and no check of more load are there."""
    trace = generate("--input-len", 300, "--num-requests", 60)
    now = ("--current", f"{SERVE} --max-num-seqs 2")

    document = tune(trace, *QUICK, *now, "--request-rate", "inf", "--slo", "e2e=3s")

    assert document["headroom"] is None
    assert any("all requests come at once" in each for each in document["unknowns"])
    assert document["robustness"]
    assert not any("load" in check["name"] for check in document["robustness"])


def test_a_storage_is_gone_on_from(
    generate: Generate, tune: Tune, tmp_path: Path
) -> None:
    """A second run adds its trials to the first one's; another question begins anew."""
    trace = generate("--input-len", 1000, "--output-len", 200)
    database = tmp_path / "tune.db"
    given = (trace, *POOL, "--storage", f"sqlite:///{database}")

    first = tune(*given, "--objective", "tpot")
    after_first = num_rows(database, "trials")
    second = tune(*given, "--objective", "tpot")
    after_second = num_rows(database, "trials")
    studies = num_rows(database, "studies")
    tune(*given, "--objective", "ttft", "--budget", "4trials")

    assert first["config"] == second["config"]
    assert 0 < after_first < after_second
    assert (studies, num_rows(database, "studies")) == (1, 2)


@pytest.mark.parametrize(
    "url", ["nowhere", "sqlite:////no/such/folder/x.db", "sqlite:///good.jsonl"]
)
def test_storage_that_cannot_be_used_is_refused(
    generate: Generate, call: Call, url: str, tmp_path: Path
) -> None:
    """In words, with one that could be."""
    trace = generate("--input-len", 300, "--num-requests", 5)
    Path("good.jsonl").write_text("no database, and longer than its first page is\n" * 99)

    code, out, err = call("tune", trace, "--storage", url, "--jobs", 1)

    assert (code, out) == (2, "")
    assert err.startswith("error: --storage cannot be used: ")
    assert err.endswith("; give one as sqlite:///tune.db\n")


def test_yaml_file_is_what_the_line_reads(
    generate: Generate, tune: Tune, call: Call
) -> None:
    """Document and file hold the same; a second time the file that is there stays."""
    trace = generate("--input-len", 1000, "--output-len", 200)
    given = (trace, *POOL, "--objective", "tpot", "--yaml", "my serve.yaml")

    document = tune(*given)

    change = document["changes"]["max_num_seqs"]["to"]
    text = Path("my serve.yaml").read_text()
    code, out, err = call("tune", *given, "--jobs", 1, "--vllm-version", "0.32.0")
    assert text == document["yaml"]
    assert f"max-num-seqs: {change}\n" in text
    assert document["command_with_yaml"] == "vllm serve --config 'my serve.yaml'"
    assert (code, out) == (2, "")
    assert "my serve.yaml is there already; choose another file with --yaml" in err
    assert Path("my serve.yaml").read_text() == text


def test_output_file_holds_the_document(generate: Generate, tune: Tune) -> None:
    """The same as stdout, byte for byte."""
    document = tune(generate("--num-requests", 30), *QUICK, "-o", "tune.json")

    assert json.loads(Path("tune.json").read_text()) == document


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--verify", "server"), "--verify server needs the server's address; add --url"),
        (("--verify-requests", "9"), "--verify-requests says how many requests a real"),
        (("--repeats", "2"), "--repeats belongs to --verify vllm or --verify server"),
        (("--verify", "vllm", "--url", "h:1"), "--url belongs to --verify server"),
        (("--verify", "vllm", "--vllm-python", "no/such"), "no/such cannot be run: No"),
        (("--objective", "goodput"), "--objective goodput needs limits; add --slo"),
        (("--objective", "cost"), "'cost' is not one of"),
        (("--budget", "soon"), "--budget cannot read 'soon'"),
        (("--space", "swap_space=4|8"), "swap_space is not searched with vLLM 0.32.0"),
        (("--space", "model=a|b"), "model is not searched with vLLM 0.32.0"),
        (
            ("--space", "block_size=16|32", "--block-size", "16"),
            "--space gives values of block_size, and --block-size fixes it",
        ),
        (
            ("--shared-gpu", "--kv-cache-gib", "40"),
            "--kv-cache-gib sets the blocks without it; leave one of them out",
        ),
        (
            ("--shared-gpu", "--gpu-memory-utilization", "0.5"),
            "--gpu-memory-utilization fixes it; leave one of them out",
        ),
        (
            ("--current", f"{SERVE} --block-size 32", "--block-size", "16"),
            "the present command has block_size 32, and --block-size says 16",
        ),
        (("--current", "python serve.py"), "the command begins with 'python serve.py'"),
        (("--current", f"{SERVE} --max-num-seqs many"), "max-num-seqs"),
        (("--num-cpu-blocks-override", "9"), "vLLM has no option for --num-cpu-blocks"),
        (("--replicas", "0"), "'--replicas': Input should be greater than or equal to 1"),
        (("--routing", "random"), "'random' is not one of"),
        (("--yaml", "serve.txt"), "serve.txt must end in .yaml or .yml"),
        (("--yaml", "no/serve.yaml"), "no/serve.yaml: there is no folder no"),
        (("-o", "good.jsonl"), "good.jsonl is there and holds no tune document"),
        (("--jobs", "0"), "Input should be greater than or equal to 1"),
    ],
)
@pytest.mark.usefixtures("files")
def test_bad_flags_are_refused_in_words(
    refuse: Refuse, flags: tuple[str, ...], message: str
) -> None:
    """Code 2, one line, nothing written."""
    given = ("tune", "good.jsonl", "--vllm-version", "0.32.0", "--jobs", "1")

    assert message in refuse(2, *given, *flags)


def test_an_option_of_another_engine_is_left_out_and_named(
    generate: Generate, tune: Tune
) -> None:
    """The present command would not start with it; it does not go without a word."""
    trace = generate("--num-requests", 20)

    document = tune(trace, *QUICK, "--current", f"{SERVE} --swap-space 8")

    assert document["command"] == SERVE
    assert (
        "vLLM 0.32.0 has no --swap-space (0.18.0 no longer has it), and does not start"
        " with the present command: left out of the line; --kv-offloading-size is what"
        " keeps blocks on the CPU now" in document["unknowns"]
    )


@pytest.mark.usefixtures("files")
def test_knob_that_the_version_lacks_is_refused(refuse: Refuse) -> None:
    """With what it does have; a flag of its own is refused too."""
    given = ("tune", "good.jsonl", "--vllm-version", "0.16.0", "--jobs", "1")

    message = refuse(2, *given, "--space", "watermark=0|0.1")

    assert "watermark is not searched with vLLM 0.16.0; gpu_memory_utilization" in message
    assert "has no --watermark" in refuse(2, *given, "--watermark", "0.1")
    older = ("tune", "good.jsonl", "--vllm-version", "0.5.5", "--jobs", "1")
    assert "0.5.5 has no --config" in refuse(2, *older, "--yaml", "serve.yaml")


@pytest.mark.parametrize(
    ("code", "args", "message"),
    [
        (3, ("empty.jsonl",), "empty.jsonl: the file is empty"),
        (3, ("missing.jsonl",), "missing.jsonl: no such file or directory"),
        (3, ("bad.jsonl",), "bad.jsonl"),
        (3, ("good.jsonl", "--format", "azure"), "good.jsonl"),
        (4, ("good.jsonl", "--gpu", "T4"), "it starts on 4 GPUs"),
        (4, ("good.jsonl", "--block-size", "17"), "17"),
        (
            4,
            ("good.jsonl", "--current", f"{SERVE} --gpu-memory-utilization 0.1"),
            "raise gpu_memory_utilization",
        ),
        (
            4,
            ("good.jsonl", "--num-gpu-blocks-override", "1000"),
            "it starts with --max-model-len 15984",
        ),
    ],
)
@pytest.mark.usefixtures("files")
def test_what_cannot_be_tuned_is_refused_in_words(
    refuse: Refuse,
    tmp_path: Path,
    code: int,
    args: tuple[str, ...],
    message: str,
) -> None:
    """Code 3 for a trace, 4 for a start that is impossible."""
    (tmp_path / "empty.jsonl").touch()

    given = ("tune", *args, "--vllm-version", "0.32.0", "--jobs", "1")
    assert message in refuse(code, *given)


@pytest.mark.usefixtures("files")
def test_nothing_that_could_finish_is_an_impossible_configuration(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of 40 tokens where 16 may be: code 4, and the document all the same."""
    monkeypatch.chdir(tmp_path)
    given = ("--max-model-len", 16, "--vllm-version", "0.32.0", "--jobs", 1, "--json")

    code, out, err = call("tune", "good.jsonl", *given)

    assert code == 4
    assert json.loads(out)["keep"]
    assert err.startswith("error: no request could finish with any setting that was tri")


def test_replicas_share_the_trace(generate: Generate, tune: Tune) -> None:
    """The first of three is searched, and it is said; later turns stay together."""
    trace = generate("--input-len", 300, "--num-requests", 90, "--turns", 2)
    given = (trace, *QUICK, "--replicas", 3, "--slo", "ttft=2s")

    document = tune(*given)

    [note] = [u for u in document["unknowns"] if "replicas" in u]
    assert note.startswith("the search is of the first of 3 replicas, which gets")
    assert note.endswith("(round-robin)")
    assert document["replicas"] == 1


def test_routing_by_prefix_finds_more(generate: Generate, tune: Tune) -> None:
    """Prompts that begin alike meet, so that each place computes fewer prefixes."""
    trace = generate("--prefix-len", 1024, "--num-prefixes", 30, "--input-len", 64)
    prefix, turns = (
        tune(trace, *QUICK, "--replicas", 4, "--routing", routing)["advised"]["hit_rate"]
        for routing in ("prefix", "round-robin")
    )

    assert prefix > turns + 0.1


def test_plain_serve_of_both_engines_is_v1(generate: Generate, tune: Tune) -> None:
    """From 0.8 to 0.10 v0 runs only where ``VLLM_USE_V1=0`` stands before the command."""
    trace = generate("--num-requests", 20)
    version = ("--vllm-version", "0.8.5")

    plain = tune(trace, *QUICK, *version)
    told = tune(trace, *QUICK, *version, "--current", f"VLLM_USE_V1=0 {SERVE}")

    assert plain["policy"] == "v1"
    assert plain["command"].startswith("vllm serve")
    assert told["policy"] == "v0"
    assert told["command"].startswith("VLLM_USE_V1=0 vllm serve")
    assert told["command"].count("VLLM_USE_V1") == 1


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_stopped_search_prints_the_best_so_far(tmp_path: Path) -> None:
    """Ctrl-C after a batch: code 130, and a whole document that says it was stopped."""
    process = _started(tmp_path, "--json")
    wait_until(lambda: num_rows(tmp_path / "tune.db", "trial_values") >= 8)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    document = json.loads(out)
    assert process.returncode == 130
    assert set(document) == KEYS
    assert document["complete"] is False
    assert document["command"].startswith(SERVE)
    assert document["trials"] >= 8
    assert document["robustness"] == []
    assert "stopping; the best so far follows" in err
    assert "Traceback" not in err


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes")
def test_a_killed_process_loses_no_answer(tmp_path: Path) -> None:
    """The best so far is printed; then comes the error, with its own exit code."""
    process = _started(tmp_path, "--json")
    wait_until(lambda: num_rows(tmp_path / "tune.db", "trial_values") >= 8)
    words = {n: Path(f"/proc/{n}/cmdline").read_bytes() for n in _started_by(process.pid)}
    _server, *workers = (n for n, line in words.items() if b"forkserver" in line)
    os.kill(workers[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    document = json.loads(out)

    assert process.returncode == 5
    assert document["complete"] is False
    assert document["command"].startswith(SERVE)
    assert "ended with signal 9, perhaps for want of memory" in err
    assert "Traceback" not in err


def _started_by(pid: int) -> list[int]:
    """Processes that a process has started, and these in turn, oldest first."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_started_by(int(child))]
    return found


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_loses_no_answer(generate: Generate, call: Call) -> None:
    """What was found stands on the screen, or on stdout, before a file fails."""
    trace = generate("--input-len", 300, "--num-requests", 60)
    given = ("tune", trace, *QUICK, "--jobs", 1, "-o", "/dev/full")

    for more in ((), ("--json",)):
        code, out, err = call(*given, *more)
        assert code == 2
        assert SERVE in out
        assert "/dev/full: cannot be written: No space left on device" in err
    with pytest.raises(UsageError, match="No space left on device"):
        write_yaml(Path("/dev/full"), "model: m\n")


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_search_stopped_before_anything_was_found_says_nothing(tmp_path: Path) -> None:
    """Ctrl-C during the very first replay: code 130, an empty stdout, no traceback."""
    process = _started(tmp_path)
    wait_until(lambda: num_rows(tmp_path / "tune.db", "studies") == 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err


def _started(folder: Path, *args: str) -> "subprocess.Popen[str]":
    """A search that takes long, through the installed script."""
    pool = ("--policy", "v0", "--num-gpu-blocks-override", "700")
    load = ("--max-model-len", "4096", "--speedup", "3", "--budget", "10min")
    return subprocess.Popen(
        [SCRIPT, "tune", EXAMPLE, *pool, *load, "--storage", "sqlite:///tune.db", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
