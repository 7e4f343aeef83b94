"""``--engine vllm``: the same trace through vLLM itself, on a tiny model with no weights.

With all requests at the start and synchronous scheduling nothing is left to chance: what
vLLM finds in its cache, and whom it preempts, is what ``sim --policy v1`` decides. Each
start of vLLM takes ten seconds or more, so a test looks at many things.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from harness.config import resolve_config
from harness.replay import replay
from harness.request import Request, Run
from harness.traces import open_trace
from harness.vllm_engine.beside_sim import beside_sim
from harness.vllm_engine.measured_config import measured_config
from harness.vllm_engine.measured_run import MeasuredRun
from harness.vllm_engine.spec import EngineSpec
from harness.vllm_engine.started import StartedVllm
from harness.workload import Workload
from results import load
from results.record import RequestRecord, RequestStatus
from results.run_info import Ending

pytestmark = pytest.mark.vllm

if find_spec("vllm") is None and os.environ.get("BLOCKBENCH_REQUIRE_VLLM") != "1":
    pytest.skip("vLLM is not installed", allow_module_level=True)

BLOCK, NUM_BLOCKS, LONGEST = 32, 96, 1_024
FLAGS = {
    "block_size": BLOCK,
    "num_gpu_blocks_override": NUM_BLOCKS,
    "max_model_len": LONGEST,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "enforce_eager": True,
    "async_scheduling": False,
}
DUMMY = ("--load-format", "dummy", "--skip-tokenizer-init")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and little memory."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def chat(num: int = 36, seed: int = 3) -> Workload:
    """Requests as they come to a chat: common beginnings, later turns, several samples.

    Each group begins alike; some requests continue the output of an earlier one; some
    have two or three samples of unequal length.
    """
    rng = random.Random(seed)
    requests: list[Request] = []
    parent: list[int] = []
    for number in range(num):
        prompt: tuple[Run, ...] = (
            (number % 3, 7 * BLOCK + 5),
            (10 + number % 7, rng.randrange(1, 3 * BLOCK)),
            (100 + number, rng.randrange(20, 200)),
        )
        outputs = tuple(
            (1_000 + 10 * number + sample, rng.randrange(20, 120))
            for sample in range(1 + (number % 5 == 1) + (number % 10 == 1))
        )
        parent.append(-1)
        if number >= 24:  # the next turn of one of the first
            before = requests[number - 24]
            prompt = (*before.prompt, before.outputs[0], (100 + number, 40))
            parent[-1] = number - 24
        requests.append(
            Request(
                request_id=number,
                arrival_ns=0,
                prompt=prompt,
                num_prompt_tokens=sum(length for _, length in prompt),
                outputs=outputs,
            )
        )
    return Workload.from_requests(requests, parent=parent)


def measure(model: Path, workload: Workload, **flags: Any) -> tuple[MeasuredRun, Any]:
    """Replay on vLLM; the run, and the configuration that it had."""
    given = {**FLAGS, **flags, "model": str(model)}
    spec = EngineSpec(policy="v1", given=given, engine_args=DUMMY, warmup_requests=2)
    with StartedVllm(spec, workload) as vllm:
        vllm.start()
        config = measured_config("vllm", vllm.facts, given, DUMMY)
        return vllm.replay(), config


def simulate(model: Path, workload: Workload, config: dict[str, Any]) -> Any:
    """Replay in our own policy, with the knobs that vLLM had."""
    knobs = {name: config[name] for name in FLAGS if name in config}
    knobs |= {"num_gpu_blocks_override": config["num_gpu_blocks"]}
    more = ("enable_prefix_caching", "scheduler_reserve_full_isl", "watermark")
    knobs |= {name: config[name] for name in more}
    resolved = resolve_config(
        model=str(model),
        gpu="H100-80GB",
        policy="v1",
        vllm_version=config["vllm_version"],
        **knobs,
    )
    return replay(workload, resolved)


def decided(requests: Sequence[RequestRecord]) -> list[tuple[int, ...]]:
    """What a scheduler decided of each request."""
    return [
        (
            r.num_cached_tokens,
            r.num_preemptions,
            r.num_recomputed_tokens,
            r.num_recompute_cached_tokens,
            r.num_output_tokens,
            r.max_sample_tokens,
        )
        for r in requests
    ]


@pytest.mark.parametrize("caching", [True, False])
def test_vllm_and_sim_decide_the_same(model: Path, caching: bool) -> None:
    """Cached tokens, preemptions and what they cost agree request by request."""
    workload = chat()

    run, config = measure(model, workload, enable_prefix_caching=caching)
    ours = simulate(model, workload, config)

    assert run.outcome.ending is Ending.COMPLETE
    assert all(r.status is RequestStatus.FINISHED for r in run.requests)
    assert decided(run.requests) == decided(ours.requests)
    assert sum(r.num_preemptions for r in ours.requests) > 2
    hits = sum(r.num_cached_tokens for r in ours.requests)
    assert (hits > 2_000) if caching else (hits == 0)
    same = ("num_prefill_tokens", "num_evictions", "num_preempted_recompute")
    for name in (*same, "num_prefill_attention", "num_admitted"):
        assert run.steps.column(name).sum() == ours.steps.column(name).sum(), name
    assert len(run.steps) == ours.steps.column("num_steps").sum()
    measured = run.measurement
    assert measured.counters["preemptions"] == sum(d[1] for d in decided(run.requests))
    if caching:
        # vLLM looks up each sample of a request; rows tell of the first.
        alone = sum(r.num_cached_tokens for r in run.requests if r.n == 1)
        assert measured.counters["prefix_cache_hit_tokens"] > alone
    assert measured.is_cold
    assert measured.facts["num_gpu_blocks"] == NUM_BLOCKS
    assert measured.facts["device"] == "cpu"
    assert measured.lateness_s is not None
    requested = [r.num_requested_tokens for r in run.requests]
    assert [r.num_output_tokens for r in run.requests] == requested


def test_times_are_the_only_difference(model: Path) -> None:
    """Arrivals over time: given vLLM's own steps, sim decides the same.

    Without them it may not, as other requests meet; that both complete is all there is.
    """
    workload = replace(chat(), arrival_ns=chat().arrival_ns + spread(36, 3_000_000_000))
    workload = workload.retimed(speedup=1.0)

    run, config = measure(model, workload)
    beside = beside_sim(workload, config, run)
    ours = simulate(model, workload, config)

    assert run.outcome.ending is ours.outcome.ending is Ending.COMPLETE
    assert beside.num_compared == 36
    assert "decides the same for all 36 requests" in beside.in_words()
    queued = [r.queued_ns - r.arrival_ns for r in run.requests]
    assert min(queued) >= 0
    assert run.requests[23].arrival_ns > 1_000_000_000
    for record in run.requests:
        assert record.first_token_ns is not None
        assert record.arrival_ns <= record.queued_ns <= record.first_token_ns


def spread(num: int, over_ns: int) -> Any:
    """Equal gaps for all that wait for nobody."""
    import numpy as np

    return np.linspace(0, over_ns, num).astype(np.int64)


def command_for(model: Path, trace: Path, *more: object) -> list[str]:
    """The installed script, as a person types it."""
    script = str(Path(sys.executable).with_name("blockbench"))
    knobs = "--block-size 32 --num-gpu-blocks-override 96 --max-model-len 1024"
    words = ["--engine", "vllm", "--model", model, "--enforce-eager", *knobs.split()]
    passed = ["--engine-args", " ".join(DUMMY), *more]
    return [script, "run", *map(str, [trace, *words, *passed])]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace in Mooncake's format, with sharing."""
    rng = random.Random(1)
    path = tmp_path / "made.jsonl"
    rows = [
        {
            "timestamp": 100 * number,
            "input_length": 512 + rng.randrange(1, 300),
            "output_length": rng.randrange(20, 60),
            "hash_ids": [number % 3, 100 + number],
        }
        for number in range(24)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_measures_saves_and_explains(
    model: Path, trace: Path, tmp_path: Path
) -> None:
    """One document on stdout, a run folder with vLLM's log, and sim beside it.

    Nothing is left where temporary files are but torch's own cache.
    """
    folder, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        command_for(model, trace, "--beside-sim", "--json", "-o", folder),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env=os.environ | {"TMPDIR": str(temporary)},
    )

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["source"], document["engine"]) == ("measured", "vllm")
    assert document["counts"]["finished"] == 24
    assert document["prefix_cache"]["hit_tokens"] > 0
    assert "init engine" in (folder / "vllm.log").read_text()
    run = load(folder)
    assert run.info.config["num_gpu_blocks"] == 96
    notes = " ".join(run.info.measurement.notes if run.info.measurement else ())
    assert "given the same arrivals and steps" in notes
    assert "cannot be told what to generate" in notes
    assert not [p for p in temporary.iterdir() if "torchinductor" not in p.name]


@pytest.mark.parametrize(
    ("number", "code", "ending"),
    [(signal.SIGKILL, 5, "died"), (signal.SIGTERM, 130, "interrupted")],
)
def test_a_run_that_is_cut_short_is_kept(
    model: Path, trace: Path, tmp_path: Path, number: int, code: int, ending: str
) -> None:
    """VLLM is killed, or we are stopped, in the middle: the rows so far are saved."""
    folder = tmp_path / "run"
    slowly = ("--speedup", "0.02", "-o", folder)
    ours = subprocess.Popen(
        command_for(model, trace, *slowly), cwd=tmp_path, stderr=subprocess.PIPE
    )
    try:
        wait_for_a_finish(folder)
        theirs = child_of(ours.pid)
        os.kill(theirs if number == signal.SIGKILL else ours.pid, number)
        began = time.monotonic()
        assert ours.wait(60) == code
    finally:
        ours.kill()
        ours.communicate()

    assert time.monotonic() - began < 30
    run = load(folder)
    assert run.info.outcome.ending == ending
    finished = (run.requests["status"] == "finished").sum()
    assert 0 < finished < 24
    assert len(run.requests) == 24
    assert len(run.steps) > 5
    assert (folder / "vllm.log").exists()
    if number == signal.SIGKILL:
        summary = json.loads((folder / "run.json").read_text())["summary"]
        codes = [finding["code"] for finding in summary["findings"]]
        assert "vllm_crashed" in codes
    with pytest.raises(ProcessLookupError):
        os.kill(theirs, 0)


def wait_for_a_finish(folder: Path) -> None:
    """Wait until the journal has a request that has finished."""
    deadline_s = time.monotonic() + 100
    journal = folder / "requests.jsonl"
    while time.monotonic() < deadline_s:
        if journal.exists() and b'"status":"finished"' in journal.read_bytes():
            return
        time.sleep(0.1)
    raise AssertionError("no request finished")


def child_of(pid: int) -> int:
    """The process of ours in which vLLM runs."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])


def test_a_model_that_is_not_there_is_a_finding(trace: Path, tmp_path: Path) -> None:
    """VLLM does not start; its own words are quoted, and a run says so."""
    folder = tmp_path / "run"
    done = subprocess.run(
        command_for(tmp_path / "nowhere", trace, "-o", folder),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )

    assert done.returncode == 5
    assert "error: vLLM did not start: " in done.stderr
    assert "nowhere" in done.stderr
    assert "vllm_did_not_start" in done.stdout
    assert load(folder).info.outcome.kind == "vllm_did_not_start"


@pytest.mark.data
def test_a_slice_of_mooncake_is_decided_the_same(model: Path, data_dir: Path) -> None:
    """Real sharing and lengths, those cut to what a tiny model takes."""
    (path,) = sorted((data_dir / "traces").rglob("conversation_trace*.jsonl*"))[:1]
    workload = cut(open_trace(path).select(slice(40)))

    run, config = measure(model, workload)
    ours = simulate(model, workload, config)

    assert decided(run.requests) == decided(ours.requests)
    assert sum(r.num_cached_tokens for r in ours.requests) > 0
    assert sum(r.num_preemptions for r in ours.requests) > 0


def cut(workload: Workload) -> Workload:
    """The same requests, each block of 512 tokens an eighth as long, all at the start."""
    requests = []
    for number in range(len(workload)):
        request = workload.request(number, arrival_ns=0)
        prompt, room = [], LONGEST - 150
        for segment, length in request.prompt:
            length = min(max(length // 8, 1), room)
            room -= length
            if length:
                prompt.append((segment, length))
        outputs = tuple((s, min(max(n // 4, 1), 120)) for s, n in request.outputs)
        num_tokens = sum(length for _, length in prompt)
        requests.append(
            replace(
                request,
                prompt=tuple(prompt),
                num_prompt_tokens=num_tokens,
                outputs=outputs,
            )
        )
    return Workload.from_requests(requests, name="cut mooncake")
