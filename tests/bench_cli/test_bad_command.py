"""Command lines that cannot be meant, of every command but ``run``'s own flags."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_cli.main import app

Refuse = Callable[..., str]

pytestmark = pytest.mark.usefixtures("files")

BLOCKBENCH = Path(sys.executable).with_name("blockbench")
HUGE = 10**30

# What is given to ``trace generate -o made.jsonl`` -> words of the one message.
GENERATE_FLAGS = {
    "--num-requests 0": "'--num-requests': .* equal to 1",
    f"--num-requests {HUGE}": "num_requests is 1,000.*, must be from 1 to",
    "--num-requests 10000001": "samples, must be at most 10,000,000 in all; lower one",
    f"--input-len {HUGE}": "input_len is 1,000.*, must be from 1 to 1,073,741,823",
    "--output-len 0": "'--output-len': .* equal to 1",
    "--range-ratio 1": "range_ratio is 1, must be from 0 to below 1",
    "--range-ratio nan": "range_ratio is nan, must be from 0 to below 1",
    "--request-rate 0": "--request-rate .*never sends a request; it must exceed 0",
    "--request-rate nan": "'nan' is not a number from 0; write it as --request-rate 4",
    "--request-rate 1e-300": "request rate 1e-300 .* never finishes; raise",
    "--request-rate 1 --burstiness -1": "burstiness is -1, must be above 0",
    "--burstiness 2": "burstiness .*; add request_rate",
    "--num-prefixes 2": "num_prefixes .*; add prefix_len",
    "--think-time 2": "think_time .*; add turns",
    "--n-fraction 0.5": "n_fraction .*; add n",
    f"--turns {HUGE}": "turns is 1,000.*, must be from 1 to 1,000,000",
    "--turns 2 --think-time inf": "think_time is inf, must be from 0 to 1,000,000,000",
    "--n 1025": "n is 1,025, must be from 1 to 1,024",
    "--n 2 --n-fraction nan": "n_fraction is nan, must be from 0 to 1",
    f"--seed {HUGE}": "seed is 1,000.*, must be from 0 to",
    "--prefix-len -1": "'--prefix-len': .* equal to 0",
    "--requests 5": "No such option: --requests",
    "-o ''": "'--output' / '-o': it is empty; name what to write",
    "-o -": "'--output' / '-o': - is no file's name; name one, or ./- if it is",
    "-o full": "full is a folder; name a file in it",
    "-o full --force": "full is a folder; name a file in it",
    "-o good.jsonl": "good.jsonl exists; choose another name, or replace it: --force",
    "-o good.jsonl/x": "cannot write good.jsonl/x: not a directory; choose another place",
    "-o nowhere/x": "cannot write nowhere/x: no such file or directory; choose another",
    "-o loop": "cannot write loop: too many levels of symbolic links; choose another",
    f"-o {'x' * 300}": "cannot write x+: file name too long; choose another place with",
}

VERIFY_FLAGS = {
    "": (2, "nothing to compare; give TRACE --against vllm, or"),
    "--scenario good.jsonl": (2, "--scenario is one half of a recording; add --rows"),
    "--scenario nowhere --rows good.jsonl": (
        2,
        "'--scenario': .*'nowhere' does not exist",
    ),
    "--scenario full --rows good.jsonl": (2, "'--scenario': .*'full' is a directory"),
    "--scenario good.jsonl --rows good.jsonl": (
        3,
        r"good.jsonl:2: not JSON: .*; give the scenario with --scenario",
    ),
    "--rows good.jsonl": (2, "--rows is one half of a recording; add --scenario"),
    "good.jsonl": (2, "TRACE is compared with nothing; add --against vllm"),
    "--scenario good.jsonl --rows good.jsonl --limit 2 --block-size 8": (
        2,
        "knobs and requests of its own: leave out --block-size, --limit",
    ),
    "--against vllm": (2, "--against vllm is compared with nothing; add TRACE"),
    "good.jsonl --against sglang": (2, "'--against': 'sglang' is not"),
    "good.jsonl --against vllm --scenario good.jsonl --rows good.jsonl": (
        2,
        "two comparisons; give one of them",
    ),
    "good.jsonl --against vllm --speedup 2 --request-rate 3": (
        2,
        "--request-rate draws new arrival times",
    ),
    "good.jsonl --against vllm --swap-space 4": (2, "No such option: --swap-space"),
    "--scenario /dev/null --rows good.jsonl": (3, "/dev/null:1: not JSON"),
}


def shortened(flags: str) -> str:
    """The flags as a test's id."""
    return flags if len(flags) < 60 else flags[:50] + "..."


@pytest.mark.parametrize(
    ("flags", "words"), GENERATE_FLAGS.items(), ids=map(shortened, GENERATE_FLAGS)
)
def test_generate_refuses_what_cannot_be(refuse: Refuse, flags: str, words: str) -> None:
    """What cannot be generated or written is refused, and nothing is left behind."""
    given = ["-o", "made.jsonl", *shlex.split(flags)]

    assert re.search(words, refuse(2, "trace", "generate", *given))


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [(flags, *expected) for flags, expected in VERIFY_FLAGS.items()],
    ids=map(shortened, VERIFY_FLAGS),
)
def test_verify_refuses_what_cannot_be(
    refuse: Refuse, flags: str, code: int, words: str
) -> None:
    """Files that are missing or no recording are named."""
    assert re.search(words, refuse(code, "verify", *shlex.split(flags)))


@pytest.mark.parametrize(
    ("block_size", "words"),
    [("0", "'--block-size': .* equal to 1"), (HUGE, "block size is 1,000.*from 1 to")],
)
def test_inspect_refuses_what_cannot_be(
    refuse: Refuse, block_size: str, words: str
) -> None:
    """A block size is at least a token and no longer than any prompt."""
    given = ["good.jsonl", "--block-size", block_size]

    assert re.search(words, refuse(2, "trace", "inspect", *given))


GROUPS = [(), *((group.name,) for group in app.registered_groups)]
APPS = [app, *(group.typer_instance for group in app.registered_groups)]
COMMANDS = [
    [*group, command.name or command.callback.__name__]
    for group, group_app in zip(GROUPS, APPS, strict=True)
    for command in group_app.registered_commands
    if command.callback is not None
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_passes_over_an_option(refuse: Refuse, command: list[str]) -> None:
    """An option that a command does not have is refused, whatever else is missing."""
    message = refuse(2, *command, "--no-such-option")

    assert message.startswith("No such option: --no-such-option")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["runn", "good.jsonl"], "No such command 'runn'. Did you mean 'run'"),
        (["trace", "inspct", "good.jsonl"], "No such command 'inspct'. Did you mean"),
        (["--json", "run", "good.jsonl"], "No such option: --json"),
        (["run"], "Missing argument 'TRACE'"),
        (["run", ""], "'TRACE': it is empty; name a trace file"),
        (["run", "-"], "'TRACE': - is no trace; name a file, or /dev/stdin"),
        (["run", "--"], "Missing argument 'TRACE'"),
        (["trace", "generate"], "Missing option '--output'"),
    ],
)
def test_what_is_no_command_line_is_refused(
    refuse: Refuse, args: list[str], words: str
) -> None:
    """An unknown command, and an argument that is missing, are named."""
    assert words in refuse(2, *args)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("run nowhere.jsonl", 3, "nowhere.jsonl: no such file or directory"),
        ("run good.json", 3, "did you mean good.jsonl?"),
        ("run bad.jsonl", 3, "bad.jsonl:2: output_length is 0"),
        ("trace inspect bad.jsonl", 3, "bad.jsonl:2: output_length is 0"),
        ("run good.jsonl --model Llama-3.1-70B --gpu A100", 4, "GiB are allowed"),
        ("run good.jsonl --block-size 7", 4, "block_size is 7"),
        ("run good.jsonl --gpu H1000", 2, "did you mean H100-80GB"),
        ("run good.jsonl --blocksize 16", 2, "No such option: --blocksize"),
        ("run good.jsonl --request-rate 1 --speedup 2", 2, "give one of them"),
        ("run good.jsonl --slo ttft=2", 2, "has no unit"),
        ("trace generate -o good.jsonl", 2, "good.jsonl exists"),
        ("verify --scenario good.jsonl --rows good.jsonl", 3, "good.jsonl:2: not JSON"),
        ("runn", 2, "No such command 'runn'"),
    ],
)
def test_the_installed_script_does_the_same(
    tmp_path: Path, line: str, code: int, words: str
) -> None:
    """The script prints one error, nothing on stdout, and leaves nothing behind."""
    before = sorted(tmp_path.rglob("*"))

    done = subprocess.run(
        [BLOCKBENCH, *line.split()], cwd=tmp_path, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert words in done.stderr.splitlines()[0]
    assert done.stderr.count("\n") <= 2
    assert sorted(tmp_path.rglob("*")) == before
