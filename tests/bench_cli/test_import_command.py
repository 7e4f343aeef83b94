"""``blockbench import`` through the installed script, and what reads its runs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data" / "imports"
BENCH, OLD_BENCH = DATA / "vllm_bench_0.32.json", DATA / "vllm_bench_0.9.json"
GUIDELLM = DATA / "guidellm_0.8.json"
AIPERF = DATA / "aiperf" / "profile_export.jsonl"

Script = Callable[..., tuple[int, str, str]]
Call = Callable[..., tuple[int, str, str]]
Refuse = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return a caller of the installed program: arguments to code, stdout, stderr."""
    program = Path(sys.executable).with_name("blockbench")

    def run(*args: object) -> tuple[int, str, str]:
        done = subprocess.run(
            [program, *map(str, args)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def imported(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a caller of the app in a folder where the two bench files are runs."""
    monkeypatch.chdir(tmp_path)
    for name, path in (("new", BENCH), ("old", OLD_BENCH)):
        code, _, err = call("import", path, "-o", tmp_path / name)
        assert code == 0, err
    return call


def test_a_result_becomes_a_run(script: Script, tmp_path: Path) -> None:
    """The screen shows it, the folder keeps it, and its own statistics stand beside."""
    code, out, err = script("import", BENCH)

    assert (code, err) == (0, "")
    assert "vllm bench serve" in out
    assert "measured" in out.splitlines()[0]
    assert "TTFT 132 ms  204 ms  240 ms" in out
    assert "n/a (preemptions were not counted)" in out
    assert "ttft_p99" in out
    assert "differs" not in out
    assert len(list((tmp_path / ".blockbench" / "runs").iterdir())) == 1


def test_list_and_show_know_it(script: Script) -> None:
    """What import saved is a run like any other."""
    script("import", GUIDELLM, "--part", 1)

    code, out, _ = script("list", "--json")
    assert code == 0
    entry = json.loads(out)["runs"][0]
    assert (entry["source"], entry["finished"]) == ("measured", 24)
    assert entry["preemptions"] is None
    code, out, _ = script("show", "last", "--json")
    assert code == 0
    assert json.loads(out)["prefix_cache"]["hit_tokens"] > 0


def test_json_is_the_summary(script: Script) -> None:
    """``--json`` prints one document, and says on stderr where the run lies."""
    code, out, err = script("import", AIPERF, "--json")

    document: dict[str, Any] = json.loads(out)
    assert code == 0
    assert err.startswith("saved ")
    assert (document["kind"], document["source"]) == ("run", "measured")
    assert document["measurement"]["warmup_requests"] == 1
    assert document["measurement"]["facts"]["reported_s"]["ttft_p99"] > 0


def test_show_prints_what_was_printed(imported: Call) -> None:
    """A stored import has the figures that import printed, computed anew."""
    _, printed, _ = imported("import", BENCH, "--json", "-o", "again")

    _, shown, _ = imported("show", "again", "--json")

    assert json.loads(shown) == json.loads(printed)


def test_rows_show_what_is_known(imported: Call) -> None:
    """Cells that no client can fill are n/a on the screen, empty in CSV, null in JSON."""
    _, out, _ = imported("show", "new", "--requests")
    assert "n/a" in out.splitlines()[3]
    _, out, _ = imported("show", "new", "--requests", "--json")
    row = json.loads(out)["rows"][0]
    assert row["num_preemptions"] is None
    assert row["num_prompt_tokens"] > 0
    _, out, _ = imported("show", "new", "--steps", "--json")
    assert json.loads(out)["rows"][0]["num_running"] is None
    code, _, _ = imported("show", "new", "--steps")
    assert code == 0
    code, out, _ = imported("show", "new", "--table", "csv")
    assert code == 0
    assert "counts.preemptions,\n" in out


def test_imports_of_one_label_are_repeats(imported: Call) -> None:
    """Files of one configuration are one arm, however many there are."""
    for place, path in enumerate((BENCH, OLD_BENCH, BENCH)):
        imported("import", path, "--label", "small", "-o", f"small{place}")

    runs = ("new", "small0", "small1", "small2")
    code, out, err = imported("compare", *runs, "--json")

    assert code == 0, err
    assert [arm["num_runs"] for arm in json.loads(out)["arms"]] == [1, 3]


def test_imports_are_compared(imported: Call) -> None:
    """Two measured runs of the same prompts are set side by side."""
    code, out, err = imported("compare", "new", "old")

    assert code == 0, err
    assert "TTFT" in out
    code, out, err = imported("compare", "new", "old", "--json")
    assert code == 0, err
    assert json.loads(out)["kind"] == "compare"


def test_an_import_beside_a_simulation(imported: Call, generate: Any) -> None:
    """A simulated run of another trace is compared once that is allowed."""
    code, _, err = imported("run", generate(), "-o", "sim")
    assert code == 0, err

    code, _, err = imported("compare", "sim", "new")
    assert code == 2
    assert "--allow" in err
    allowed = ("--allow", "trace", "--allow", "hardware", "--allow", "model")
    code, _, err = imported("compare", "sim", "new", *allowed)
    assert code == 0, err


def test_a_service_level_judges_it(imported: Call) -> None:
    """``--slo`` works as with ``run`` and ``show``."""
    code, out, _ = imported("import", BENCH, "--slo", "ttft=150ms", "--json", "-o", "slo")

    assert code == 0
    assert 0 < json.loads(out)["goodput"]["fraction"] < 1


def test_a_run_that_is_there_stays(imported: Call) -> None:
    """``-o`` replaces a run only with ``--force``."""
    code, _, err = imported("import", BENCH, "-o", "new")
    assert code == 2
    assert "--force" in err
    assert imported("import", OLD_BENCH, "-o", "new", "--force")[0] == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("missing.json",), 3, "missing.json: cannot be read"),
        ((DATA / "vllm_bench_averages.json",), 3, "--save-detailed"),
        ((GUIDELLM,), 2, "name one: --part N"),
        ((GUIDELLM, "--part", 9), 2, "has no benchmark 9"),
        ((BENCH, "--format", "csv"), 2, "--format csv is none of vllm-bench, guidellm"),
        ((BENCH, "--format", "aiperf"), 3, "is a result of vllm-bench, not of aiperf"),
        ((BENCH, "--force"), 2, "add -o FOLDER"),
        (("",), 2, "it is empty; name a result file"),
        ((BENCH, "--slo", "speed=1s"), 2, "--slo cannot read"),
    ],
)
def test_what_cannot_be_imported_leaves_nothing(
    refuse: Refuse, args: tuple[object, ...], code: int, said: str
) -> None:
    """One line says what is wrong and what to do; no folder is left."""
    assert said in refuse(code, "import", *args)
