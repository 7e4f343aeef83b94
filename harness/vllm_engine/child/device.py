"""The device that vLLM runs on, and readings of a GPU while it does.

Readings are NVML's, where a driver is there; elsewhere there are none.
"""

import os
from importlib import import_module
from threading import Event, Thread
from typing import Any

READ_EVERY_S = 1.0
NVML_MODULES = ("pynvml", "vllm.third_party.pynvml")
"""That of nvidia-ml-py, and the copy that vLLM brings."""

_KIB = 1024


def device_facts(vllm: Any) -> dict[str, Any]:
    """The kind of device, its name and its memory in GiB; None for what is not known."""
    platform = vllm.module("platforms").current_platform
    facts: dict[str, Any] = {"device": str(platform.device_type) or None}
    if facts["device"] == "cpu":
        return facts | {"gpu": None, "gpu_memory_gib": None}
    name = _told(platform, "get_device_name")
    memory = _told(platform, "get_device_total_memory")
    return facts | {
        "gpu": None if name is None else str(name),
        "gpu_memory_gib": None if memory is None else int(memory) / 2**30,
    }


def _told(platform: Any, name: str) -> Any:
    """What a platform of vLLM's says of its first device; None where it fails to."""
    try:
        return getattr(platform, name)()
    except Exception:  # NVML's own errors, devices named in odd ways, another interface
        return None


def _nvml() -> Any:
    """NVML's module.

    Raises:
        ImportError: There is none.
    """
    for name in NVML_MODULES:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError(f"none of {', '.join(NVML_MODULES)}")


def chosen_gpu(engine: Any) -> int | None:
    """NVML's number of the first GPU that ``--device-ids`` (0.32) names; None without."""
    parallel = getattr(getattr(engine, "vllm_config", None), "parallel_config", None)
    numbers = getattr(parallel, "assigned_physical_gpu_ids", None)
    return int(numbers[0]) if numbers else None


class GpuReadings:
    """Memory and PCIe traffic of the first GPU, read now and then by a thread.

    Reading takes some ten milliseconds, in which NVML watches the bus; nothing waits.

    Args:
        is_cuda: Without CUDA there is nothing to read.
        gpu: NVML's number of it; the first that the process may use by default.
    """

    def __init__(self, *, is_cuda: bool, gpu: int | None = None) -> None:
        self._gpu = gpu
        self._nvml: Any = None
        self._memory: list[int] = []
        self._traffic: list[tuple[int, int]] = []
        self._stopped = Event()
        self._handle = self._open() if is_cuda else None
        if self._handle is not None:
            Thread(target=self._run, daemon=True).start()

    def close(self) -> dict[str, Any]:
        """What was read: the most memory in use, and mean and most bytes a second.

        Each is None where the GPU does not tell it.
        """
        self._stopped.set()
        return {
            "gpu_memory_used_bytes": max(self._memory, default=None),
            "pcie": self._rates() if self._traffic else None,
        }

    def _rates(self) -> dict[str, Any]:
        sent, received = zip(*self._traffic, strict=True)
        num = len(sent)
        return self._link() | {
            "num_readings": num,
            "to_gpu_bytes_per_s_mean": sum(received) / num,
            "to_gpu_bytes_per_s_max": max(received),
            "from_gpu_bytes_per_s_mean": sum(sent) / num,
            "from_gpu_bytes_per_s_max": max(sent),
        }

    def _open(self) -> Any:
        """NVML's handle of the first GPU that vLLM may use; None where there is none."""
        try:
            self._nvml = nvml = _nvml()
            nvml.nvmlInit()
            if self._gpu is not None:
                return nvml.nvmlDeviceGetHandleByIndex(self._gpu)
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
            if visible.startswith(("GPU-", "MIG-")):
                return nvml.nvmlDeviceGetHandleByUUID(visible)
            return nvml.nvmlDeviceGetHandleByIndex(int(visible or 0))
        except Exception:  # no library, no driver, or not allowed to ask: no readings
            return None

    def _run(self) -> None:
        readings = [self._read_memory, self._read_traffic]
        while readings and not self._stopped.wait(READ_EVERY_S):
            for read in tuple(readings):
                try:
                    read()
                except self._nvml.NVMLError:
                    readings.remove(read)  # this GPU does not tell

    def _read_memory(self) -> None:
        self._memory.append(int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def _read_traffic(self) -> None:
        nvml = self._nvml
        sent, received = (
            _KIB * int(nvml.nvmlDeviceGetPcieThroughput(self._handle, direction))
            for direction in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
        )
        self._traffic.append((sent, received))

    def _link(self) -> dict[str, Any]:
        nvml, handle = self._nvml, self._handle
        try:
            return {
                "generation": int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
                "width": int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            }
        except nvml.NVMLError:
            return {"generation": None, "width": None}
