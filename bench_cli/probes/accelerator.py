"""GPUs, torch and vLLM: neither is imported in this process.

Importing them takes seconds and can end the process, so torch is asked in one of its own,
and of vLLM the version is enough.
"""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from bench_cli.probes.check import Check, Status
from bench_cli.probes.distribution import Requirement, installed_version, is_at_least
from bench_cli.probes.program import ask, printable

TORCH_TIMEOUT_S = 60.0  # a cold disk, or one across a network
NVIDIA_SMI_TIMEOUT_S = 15.0  # eight GPUs that no daemon keeps awake take seconds

_DESCRIBE_TORCH = """
import json, torch
cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU-only"
num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps([build, num_gpus]))
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as nvidia-smi names it."""

    name: str
    memory_bytes: int | None
    driver: str

    def __str__(self) -> str:
        if self.memory_bytes is None:
            return f"{self.name}, driver {self.driver}"
        gib = self.memory_bytes / 2**30
        return f"{self.name}, {gib:.1f} GiB, driver {self.driver}"


@dataclass(frozen=True, slots=True)
class Torch:
    """What torch says of itself; ``build`` is None where it could not say."""

    build: str | None = None
    num_gpus: int = 0
    failure: str = ""


def ask_nvidia_smi() -> tuple[list[Gpu], str]:
    """The GPUs of this machine, or why none is known."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], "nvidia-smi is not on PATH"
    query = "--query-gpu=name,memory.total,driver_version"
    answer = ask(
        [program, query, "--format=csv,noheader"], timeout_s=NVIDIA_SMI_TIMEOUT_S
    )
    if answer.failure:
        return [], f"nvidia-smi {answer.failure}"
    gpus = [gpu for line in answer.text.splitlines() if (gpu := _gpu(line))]
    return gpus, "" if gpus else "nvidia-smi answers, but not with GPUs"


def _gpu(line: str) -> Gpu | None:
    match = re.fullmatch(r"\s*(\S[^,]*), *([^,]*), *(\d+(?:\.\d+)+)\s*", line)
    if match is None:
        return None
    mib = re.fullmatch(r"(\d+) MiB", match[2])  # [N/A] where it shares the CPU's
    return Gpu(printable(match[1]), int(mib[1]) * 2**20 if mib else None, match[3])


def ask_torch() -> Torch | None:
    """How torch was built and how many GPUs it sees; None where it is not installed."""
    if installed_version("torch") is None:
        return None
    command = [sys.executable, "-P", "-c", _DESCRIBE_TORCH]
    answer = ask(command, timeout_s=TORCH_TIMEOUT_S)
    if answer.failure:
        return Torch(failure=f"its import {answer.failure}")
    try:
        build, num_gpus = json.loads(answer.text.splitlines()[-1])
        return Torch(build=printable(str(build)), num_gpus=int(num_gpus))
    except (IndexError, TypeError, ValueError):
        return Torch(failure="it does not say how it was built")


def check_torch(needed: Requirement | None, torch: Torch | None) -> Check:
    """A note where it is missing, too old or broken: no simulation needs it."""
    detail = "" if torch is None else torch.failure or f"{torch.build} build"
    check = _check_extra("torch", needed, detail)
    check.data["build"] = None if torch is None else torch.build
    if torch is None or not torch.failure:
        return check
    advice = check.advice or "install torch again"
    return replace(check, status=Status.NOTE, advice=advice)


def check_vllm(needed: Requirement | None) -> Check:
    """A note where it is missing or too old: recorded rows are verified without it."""
    check = _check_extra("vllm", needed)
    return replace(check, found=f"{check.found}; verify against recorded rows needs none")


def _check_extra(name: str, needed: Requirement | None, detail: str = "") -> Check:
    version = installed_version(name)
    minimum = needed.minimum if needed else ""
    is_new_enough = version is not None and is_at_least(version, minimum)
    words = [
        version or "not installed",
        detail,
        "" if is_new_enough or version is None else f"older than {minimum}",
        f"--engine {name} is not there yet in this version",
    ]
    advice = f"nothing now; once it is there, pip install 'blockbench[{name}]'"
    return Check(
        name,
        Status.OK if is_new_enough else Status.NOTE,
        "; ".join(word for word in words if word),
        "" if is_new_enough else advice,
        {"version": version, "required": minimum or None},
    )


def check_cuda(torch: Torch | None) -> Check:
    """A note where no GPU is found, or torch cannot use the one that is."""
    gpus, why_none = ask_nvidia_smi()
    num_usable = None if torch is None or torch.failure else torch.num_gpus
    data = {"gpus": [asdict(gpu) for gpu in gpus], "num_torch_gpus": num_usable}
    found = "; ".join(_count(gpus)) or why_none
    if num_usable:
        return Check("cuda", Status.OK, f"{found}; torch can use {num_usable}", "", data)
    if not gpus:
        advice = "nothing now: simulated runs need no GPU"
        return Check("cuda", Status.NOTE, f"no GPU found: {found}", advice, data)
    if num_usable == 0:
        advice = "install a build of torch for this driver, as pytorch.org lists them"
        return Check("cuda", Status.NOTE, f"{found}; torch can use none", advice, data)
    return Check("cuda", Status.OK, found, "", data)


def _count(gpus: Sequence[Gpu]) -> list[str]:
    """Each kind of GPU once, with how many there are."""
    return [
        f"{number} x {gpu}" if number > 1 else str(gpu)
        for gpu, number in Counter(gpus).items()
    ]
