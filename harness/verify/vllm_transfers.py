"""Transfers between vLLM's GPU blocks and its offload tier, reported without a GPU."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.verify.vllm_interface import OFFLOADING, Vllm
from harness.verify.vllm_output import Row, row_id


@dataclass(slots=True, kw_only=True)
class Transfer:
    """A job that vLLM handed to its workers and that has not been reported as done.

    Attributes:
        job_id: vLLM's number for it; loads and stores are counted together, from 0.
        request_id: vLLM's name of the request.
        num_blocks: Blocks that it moves.
        is_store: It goes to the offload tier; otherwise it comes from there.
        due: Call of the scheduler at whose end it is done.
    """

    job_id: int
    request_id: str
    num_blocks: int
    is_store: bool
    due: int


class VllmTransfers:
    """The transfers under way, in the order in which vLLM made them.

    A load that a call of the scheduler makes is done ``transfer_steps`` calls later, a
    store one call after that, because workers begin it with the next step; one that vLLM
    forces is done in the call that forces it.
    """

    def __init__(self, vllm: Vllm, transfer_steps: int) -> None:
        self.pending: dict[int, Transfer] = {}
        self._vllm = vllm
        self._steps = transfer_steps
        self._calls = 0

    def made(self, metadata: Any) -> Row:
        """Take in what a call of the scheduler made and forced; its part of the row."""
        self._calls += 1
        loads = self._jobs(metadata.load_jobs, is_store=False)
        stores = self._jobs(metadata.store_jobs, is_store=True)
        forced = set(metadata.jobs_to_flush or ())
        for job_id in forced & self.pending.keys():
            self.pending[job_id].due = self._calls
        self.pending |= {job.job_id: job for job in [*loads, *stores]}
        for job in stores:  # a store can be forced in the call that makes it
            if job.job_id in forced:
                job.due = self._calls
        return {
            "offload_store": [[row_id(j.request_id), j.num_blocks] for j in stores],
            "offload_load": [[row_id(j.request_id), j.num_blocks] for j in loads],
            "flushed": len(forced),
        }

    def report(self, job_ids: Iterable[int] | None) -> Any:
        """What workers would report: these jobs, or for None those that are due."""
        if job_ids is None:
            job_ids = [j.job_id for j in self.pending.values() if j.due <= self._calls]
        jobs = [self.pending.pop(job_id) for job_id in job_ids]
        if not jobs:
            return None
        common = self._vllm.module(f"{OFFLOADING}.common")
        done = common.OffloadingWorkerMetadata(
            completed_jobs={job.job_id: 1 for job in jobs}
        )
        return self._vllm.module("v1.outputs").KVConnectorOutput(
            finished_recving={job.request_id for job in jobs if not job.is_store},
            kv_connector_worker_meta=done,
        )

    def _jobs(self, jobs: dict[int, Any], *, is_store: bool) -> list[Transfer]:
        return [
            Transfer(
                job_id=job_id,
                request_id=job.req_id,
                num_blocks=num_gpu_blocks(job, is_store),
                is_store=is_store,
                due=self._calls + self._steps + is_store,
            )
            for job_id, job in jobs.items()
        ]


def num_gpu_blocks(job: Any, is_store: bool) -> int:
    """Blocks at the GPU's end of a job."""
    if hasattr(job, "transfer_spec"):  # so up to 0.24
        source, target = job.transfer_spec
    else:
        source, target = job.src_spec, job.dst_spec
    return len((source if is_store else target).block_ids)
