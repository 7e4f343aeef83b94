"""The machine that is checked: GPUs, torch, vLLM, and how fast copies cross PCIe."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from bench_cli.probes.accelerator import Gpu, ask_nvidia_smi

MIB = 2**20
GIB = 2**30

SHM = "/dev/shm"
COMPILERS = ("gcc", "nvcc", "ninja")
"""What vLLM's kernels may be compiled with: Triton's need the first, FlashInfer's all."""

DESCRIBE = """
import json, time
import torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda}
def rate(target, source):
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(8):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return 8 * source.nbytes / (time.perf_counter() - began)
if torch.cuda.is_available():
    found["gpus"] = [
        {
            "name": p.name,
            "memory_bytes": p.total_memory,
            "compute_capability": [p.major, p.minor],
            "num_sms": p.multi_processor_count,
        }
        for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    host = torch.empty(256 * 2**20, dtype=torch.uint8, pin_memory=True)
    on_gpu = torch.empty_like(host, device="cuda", pin_memory=False)
    found["to_gpu_bytes_per_s"] = rate(on_gpu, host)
    found["from_gpu_bytes_per_s"] = rate(host, on_gpu)
print(json.dumps(found))
"""
"""What torch says, and copies of 256 MiB of pinned memory each way on the first GPU."""

DESCRIBE_VLLM = "import json, vllm; print(json.dumps(vllm.__version__))"
FIND_VLLM = "from importlib.util import find_spec as f; print(f('vllm') is not None)"


@dataclass(frozen=True, slots=True)
class Machine:
    """What can be known without starting anything.

    Attributes:
        gpus: As nvidia-smi has them.
        why_none: Why there is none.
        has_vllm: vLLM is installed in this interpreter.
    """

    gpus: tuple[Gpu, ...]
    why_none: str
    has_vllm: bool

    @classmethod
    def ask(cls) -> "Machine":
        """This machine."""
        gpus, why_none = ask_nvidia_smi()
        return cls(tuple(gpus), why_none, _has_vllm())

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Memory of the smallest GPU; None where none says."""
        return min((g.memory_bytes for g in self.gpus if g.memory_bytes), default=None)

    def why_not(self, device: str) -> str:
        """Why nothing can be checked on this device; nothing where it can."""
        if not self.has_vllm:
            return (
                f"vLLM is not installed in {sys.executable}: make cuda-check installs"
                " it, or VLLM_PYTHON=... names a Python that has it"
            )
        if device == "cuda" and not self.gpus:
            return f"no CUDA GPU: {self.why_none}; --device cpu checks what needs none"
        return ""

    def document(self) -> dict[str, Any]:
        """The machine for the report."""
        return {
            "gpus": [
                {"name": g.name, "memory_bytes": g.memory_bytes, "driver": g.driver}
                for g in self.gpus
            ],
            "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            "num_cpus": os.cpu_count(),
            "host_memory_bytes": host_memory_bytes(),
            "shm_bytes": free_shm_bytes(),
            "compilers": {name: shutil.which(name) is not None for name in COMPILERS},
        }


def _has_vllm() -> bool:
    done = subprocess.run(
        [sys.executable, "-P", "-c", FIND_VLLM],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip() == "True"


def host_memory_bytes() -> int | None:
    """Memory of the host; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def free_shm_bytes() -> int | None:
    """What is free in /dev/shm, of which a container may have little; None without one.

    vLLM keeps an offload tier there (0.32), and what its workers tell each other.
    """
    try:
        return shutil.disk_usage(SHM).free
    except OSError:
        return None


QUERY = ("index", "memory.used", "pcie.link.gen.current", "pcie.link.width.current")
READ_EVERY_S = 1.0
SMI_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Watched:
    """What nvidia-smi said of each GPU while something ran, by its index.

    Attributes:
        first_used_bytes: Memory in use at the first reading.
        most_used_bytes: The most at any.
        pcie_link: Generation and width, the highest that were seen.
    """

    first_used_bytes: dict[str, int] = field(default_factory=dict)
    most_used_bytes: dict[str, int] = field(default_factory=dict)
    pcie_link: dict[str, tuple[int, int]] = field(default_factory=dict)

    def rises(self) -> dict[str, int]:
        """By how much memory in use has risen on each GPU, in bytes."""
        first = self.first_used_bytes
        return {gpu: most - first[gpu] for gpu, most in self.most_used_bytes.items()}

    def document(self) -> dict[str, Any]:
        """The readings for the report."""
        return {
            "memory_rise_bytes": self.rises(),
            "memory_used_bytes": self.most_used_bytes,
            "pcie_link": self.pcie_link,
        }

    def read(self, text: str) -> None:
        """Take in lines of nvidia-smi; those that are not whole are left out."""
        for line in text.splitlines():
            words = [word.strip() for word in line.split(",")]
            if len(words) != len(QUERY):
                continue
            with suppress(ValueError):
                self._take(words[0], *map(int, words[1:]))

    def _take(self, gpu: str, used_mib: int, generation: int, width: int) -> None:
        used = used_mib * MIB
        self.first_used_bytes.setdefault(gpu, used)
        self.most_used_bytes[gpu] = max(self.most_used_bytes.get(gpu, 0), used)
        link = self.pcie_link.get(gpu, (0, 0))
        self.pcie_link[gpu] = max(link, (generation, width))


@contextmanager
def watched(*, is_cuda: bool) -> Iterator[Watched]:
    """Ask nvidia-smi every second meanwhile; what it said is there at the end."""
    found, is_over = Watched(), Event()

    def ask_it() -> None:
        while not is_over.wait(READ_EVERY_S):
            found.read(_readings())

    thread = Thread(target=ask_it, daemon=True)
    if is_cuda:
        found.read(_readings())
        thread.start()
    try:
        yield found
    finally:
        is_over.set()
        if is_cuda:
            thread.join(SMI_TIMEOUT_S)


def _readings() -> str:
    words = [f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            ["nvidia-smi", *words], capture_output=True, text=True, timeout=SMI_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def last_json(text: str) -> Any:
    """The JSON in the last line of what a program printed; None where there is none."""
    for line in reversed(text.splitlines()):
        with suppress(ValueError):
            return json.loads(line)
    return None


def free_share() -> float | None:
    """How much of the first GPU's memory nobody uses; None where it does not say."""
    words = ["--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            ["nvidia-smi", *words], capture_output=True, text=True, timeout=SMI_TIMEOUT_S
        )
        used, total = map(int, done.stdout.splitlines()[0].split(","))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    return 1 - used / total
