"""Seconds and peak memory of one replay of a steady load, as a JSON document.

Run by ``replay_speed.py``, a process for each length: ``replay_steady.py NUM_REQUESTS``.
"""

import json
import resource
import sys

import numpy as np
from replay_speed import replay_s

from harness.run_columns import RunColumns
from harness.workload import Workload, draw_arrivals_ns


def steady_workload(num_requests: int) -> Workload:
    """Requests that an H100 serves as fast as they come, with some prompts alike."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(0, 64, num_requests)
    own = 64 + 2 * np.arange(num_requests)
    prompt_lengths = np.full((num_requests, 2), 512, dtype=np.int32)
    prompt_lengths[:, 1] = rng.integers(200, 1101, num_requests)
    output_lengths = rng.integers(50, 351, num_requests, dtype=np.int32)
    zeros = np.zeros(num_requests, dtype=np.int64)
    return Workload(
        name=f"steady {num_requests:,}",
        format="memory",
        content_hash="",
        arrival_ns=draw_arrivals_ns(num_requests, 5.0, 1.0, rng),
        prompts=RunColumns(
            2 * np.arange(num_requests + 1),
            np.stack([prefix, own], axis=1).ravel(),
            prompt_lengths.ravel(),
        ),
        outputs=RunColumns(np.arange(num_requests + 1), own + 1, output_lengths),
        parent=zeros - 1,
        delay_ns=zeros,
        priority=zeros,
    )


def main() -> None:
    """Replay so many requests and print what it took."""
    cpu_s = replay_s(steady_workload(int(sys.argv[1])))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_s": cpu_s, "peak_mib": peak_mib}))


if __name__ == "__main__":
    main()
