"""What a GPU tells, through NVML; there is none here, so a module stands in for it."""

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from harness.vllm_engine.child import device
from harness.vllm_engine.child.device import GpuReadings, chosen_gpu, device_facts


class FakeError(Exception):
    """What NVML raises."""


def fake_nvml(*, silent: tuple[str, ...] = ()) -> Any:
    """A GPU that uses more memory at each look, and sends 3 KiB while it gets 5."""
    used = iter(range(1_000, 10**9, 1_000))

    def throughput(handle: object, direction: int) -> int:
        if "traffic" in silent:
            raise FakeError
        return {0: 3, 1: 5}[direction]

    def memory(handle: object) -> Any:
        if "memory" in silent:
            raise FakeError
        return SimpleNamespace(used=next(used))

    return SimpleNamespace(
        NVMLError=FakeError,
        NVML_PCIE_UTIL_TX_BYTES=0,
        NVML_PCIE_UTIL_RX_BYTES=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: f"gpu {index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetPcieThroughput=throughput,
        nvmlDeviceGetCurrPcieLinkGeneration=lambda handle: 5,
        nvmlDeviceGetCurrPcieLinkWidth=lambda handle: 16,
    )


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look a hundred times a second."""
    monkeypatch.setattr(device, "READ_EVERY_S", 0.01)


def test_readings_are_the_most_memory_and_the_traffic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes a second each way, and the link; NVML counts in KiB."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    readings = GpuReadings(is_cuda=True)
    time.sleep(0.2)

    read = readings.close()

    pcie = read["pcie"]
    assert read["gpu_memory_used_bytes"] == 1_000 * pcie["num_readings"]
    assert pcie["to_gpu_bytes_per_s_mean"] == pcie["to_gpu_bytes_per_s_max"] == 5 * 1024
    assert pcie["from_gpu_bytes_per_s_mean"] == 3 * 1024
    assert (pcie["generation"], pcie["width"]) == (5, 16)


@pytest.mark.parametrize("is_cuda", [True, False])
def test_without_nvml_there_are_no_readings(
    monkeypatch: pytest.MonkeyPatch, is_cuda: bool
) -> None:
    """No module, or no GPU: null, not 0."""
    for name in device.NVML_MODULES:
        monkeypatch.setitem(sys.modules, name, None)

    read = GpuReadings(is_cuda=is_cuda).close()

    assert read == {"gpu_memory_used_bytes": None, "pcie": None}


@pytest.mark.parametrize(
    "silent", [("traffic",), ("memory",), ("traffic", "memory")], ids="+".join
)
def test_what_a_gpu_does_not_tell_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, silent: tuple[str, ...]
) -> None:
    """An error of NVML ends readings of that kind, and nothing else."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(silent=silent))
    readings = GpuReadings(is_cuda=True)
    time.sleep(0.2)
    read = readings.close()

    assert (read["gpu_memory_used_bytes"] is None) == ("memory" in silent)
    assert (read["pcie"] is None) == ("traffic" in silent)


@pytest.mark.parametrize(
    ("visible", "gpu", "read"),
    [
        ("", None, "gpu 0"),
        ("3,1", None, "gpu 3"),
        ("GPU-ab12,GPU-cd34", None, "GPU-ab12"),
        ("3,1", 1, "gpu 1"),  # --device-ids
        ("no number", None, None),
    ],
)
def test_the_first_gpu_of_the_process_is_read(
    monkeypatch: pytest.MonkeyPatch, visible: str, gpu: int | None, read: str | None
) -> None:
    """By NVML's number, which CUDA_VISIBLE_DEVICES does not change."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    readings = GpuReadings(is_cuda=True, gpu=gpu)
    readings.close()

    assert readings._handle == read


def test_the_gpu_that_vllm_was_given_is_known() -> None:
    """Where the version has that option and somebody used it."""
    parallel = SimpleNamespace(assigned_physical_gpu_ids=[3, 1])
    config = SimpleNamespace(parallel_config=parallel)

    assert chosen_gpu(SimpleNamespace(vllm_config=config)) == 3
    parallel.assigned_physical_gpu_ids = None
    assert chosen_gpu(SimpleNamespace(vllm_config=config)) is None
    assert chosen_gpu(SimpleNamespace()) is None


def platform(**known: Any) -> Any:
    """A vLLM whose platform is this."""
    module = SimpleNamespace(current_platform=SimpleNamespace(**known))
    return SimpleNamespace(module=lambda name: module)


def test_the_device_says_what_it_is() -> None:
    """A GPU by name and memory; a CPU has neither."""
    cuda = platform(
        device_type="cuda",
        get_device_total_memory=lambda: 80 * 2**30,
        get_device_name=lambda: "NVIDIA H100 80GB HBM3",
    )

    assert device_facts(cuda) == {
        "device": "cuda",
        "gpu": "NVIDIA H100 80GB HBM3",
        "gpu_memory_gib": 80.0,
    }
    unknown = {"gpu": None, "gpu_memory_gib": None}
    assert device_facts(platform(device_type="cpu")) == {"device": "cpu"} | unknown
    assert device_facts(platform(device_type="xpu")) == {"device": "xpu"} | unknown


def test_a_device_that_fails_to_say_is_unknown() -> None:
    """By an error of NVML or of a name that is no number; the other is still told."""

    def fails() -> int:
        raise FakeError

    told = platform(
        device_type="cuda",
        get_device_total_memory=fails,
        get_device_name=lambda: "NVIDIA H200",
    )

    assert device_facts(told)["gpu"] == "NVIDIA H200"
    assert device_facts(told)["gpu_memory_gib"] is None
