"""Checks on a tiny model: a start, decisions, the same on two GPUs."""

import os

from cuda_checks.flags import (
    KNOBS,
    SYNCHRONOUS,
    base_version,
    exact_trace,
    modest,
    words_of,
)
from cuda_checks.machine import (
    DESCRIBE,
    DESCRIBE_VLLM,
    GIB,
    free_shm_bytes,
    last_json,
)
from cuda_checks.model import TINY, write_model
from cuda_checks.plan import CheckFailedError, Turn
from cuda_checks.session import Leg, Session

TWO_CPUS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
"""A CPU for each of two workers: by itself vLLM wants a NUMA node for each."""

LEAST_SHM_BYTES = GIB // 2
"""vLLM's queue between two workers takes 160 MiB of it, NCCL some more."""

OF_SOME_VERSIONS = ("watermark", "enable_prefix_caching", "scheduler_reserve_full_isl")


def machine(session: Session, turn: Turn) -> None:
    """What torch and vLLM say before anything is started."""
    done = session.python(DESCRIBE_VLLM)
    if done.code:
        raise CheckFailedError(f"import vllm: {done.complaint}")
    turn.figures |= {
        "vllm_version": last_json(done.stdout),
        "import_vllm_s": done.seconds,
    }
    done = session.python(DESCRIBE)
    turn.figures |= last_json(done.stdout) or {}
    if done.code:
        raise CheckFailedError(f"torch cannot use the GPU: {done.complaint}")
    if session.is_cuda and not turn.figures.get("gpus"):
        raise CheckFailedError(
            f"torch {turn.figures['torch']}, built for CUDA {turn.figures['cuda']}, sees"
            " no GPU: the driver may be too old for it"
        )


def exact_leg(session: Session, turn: Turn) -> Leg:
    """All requests at the start, synchronous, with preemptions."""

    def make() -> Leg:
        model = write_model(session.folder / "tiny", TINY)
        gpu = chosen_gpu(session)
        named = {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        env = {name: value for name, value in named.items() if gpu and value}
        flags = (*SYNCHRONOUS, "--beside-sim", *modest(session))
        return session.measure(
            turn, "exact", exact_trace(session), model, *flags, env=env
        )

    return session.once("exact", make)


def chosen_gpu(session: Session) -> str | None:
    """The last of several GPUs, to see that it is taken; None where that is left open."""
    is_said = session.machine.document()["cuda_visible_devices"] is not None
    num_gpus = len(session.machine.gpus)
    return str(num_gpus - 1) if session.is_cuda and num_gpus > 1 and not is_said else None


def start(session: Session, turn: Turn) -> None:
    """A start of vLLM on the device that was chosen, and says what it has."""
    leg = exact_leg(session, turn)
    facts = leg.facts
    turn.figures |= {
        "command_s": leg.done.seconds,
        "replay_s": leg.run["wall_s"],
        "facts": facts,
        "is_cold": leg.measurement["is_cold"],
        "notes": leg.measurement["notes"],
        "unmeasured": leg.measurement["unmeasured"],
        "nvidia_smi": leg.watched.document(),
        "chosen_gpu": chosen_gpu(session),
    }
    if facts["device"] != session.device:
        raise CheckFailedError(f"vLLM took {facts['device']}, not {session.device}")
    if not leg.measurement["is_cold"]:
        raise CheckFailedError(f"cold cache: {leg.measurement['is_cold']}, not verified")
    if (
        facts["num_gpu_blocks"] != leg.config["num_gpu_blocks"]
        or not facts["block_bytes"]
    ):
        raise CheckFailedError("blocks and their bytes are not told")
    if session.is_cuda and None in (facts["gpu"], facts["gpu_memory_gib"]):
        raise CheckFailedError("vLLM tells neither name nor memory of the GPU")
    check_chosen(leg, chosen_gpu(session))


def check_chosen(leg: Leg, chosen: str | None) -> None:
    """Memory rose most on the GPU that CUDA_VISIBLE_DEVICES named.

    Raises:
        CheckFailedError: It rose most on another.
    """
    rises = leg.watched.rises()
    if chosen is None or not rises:
        return
    taken = max(rises, key=rises.__getitem__)
    if taken != chosen:
        raise CheckFailedError(f"GPU {chosen} was named, and GPU {taken} was filled")


def exact(session: Session, turn: Turn) -> None:
    """Cached tokens, preemptions and what they cost, request by request, and steps."""
    leg = exact_leg(session, turn)
    config, facts = leg.config, leg.facts
    knobs = {name: config[name] for name in KNOBS}
    knobs["num_gpu_blocks_override"] = config["num_gpu_blocks"]
    knobs["vllm_version"] = base_version(config["vllm_version"])
    for name in OF_SOME_VERSIONS:
        if facts.get(name) is not None:
            knobs[name] = facts[name]
    model, trace = session.folder / "tiny", session.folder / "exact.jsonl"
    flags = (*words_of(knobs), "--enforce-eager", "--no-async-scheduling")
    ours = session.simulate("exact-sim", trace, model, *flags)
    compare(turn, leg, ours)
    if not (ours.totals()["num_preemptions"] and ours.totals()["num_cached_tokens"]):
        raise CheckFailedError(
            "the trace makes no preemptions or no hits: it says nothing"
        )


def compare(turn: Turn, leg: Leg, other: Leg) -> None:
    """Both have decided the same.

    Raises:
        CheckFailedError: They have not; which requests differ is in the figures.
    """
    is_other = (leg.decided != other.decided).any(axis=1)
    different = [int(n) for n in leg.requests["request_id"][is_other]]
    steps = (
        leg.run["summary"]["counts"]["steps"],
        other.run["summary"]["counts"]["steps"],
    )
    turn.figures |= {
        "num_requests": len(leg.requests),
        "num_different": len(different),
        "different": different[:20],
        "vllm": leg.totals(),
        "other": other.totals(),
        "num_steps": steps,
        "counters": leg.measurement["counters"],
    }
    if different:
        raise CheckFailedError(
            f"{len(different)} of {len(leg.requests)} requests were decided otherwise,"
            f" #{different[0]} first"
        )
    if steps[0] != steps[1]:
        raise CheckFailedError(f"{steps[0]} steps, not {steps[1]}")


def two_gpus(session: Session, turn: Turn) -> None:
    """With ``-tp 2`` the same is decided as on one GPU."""
    one = exact_leg(session, turn)
    model, trace = session.folder / "tiny", session.folder / "exact.jsonl"
    flags = (*SYNCHRONOUS, *modest(session), "-tp", 2)
    env = {} if session.is_cuda else TWO_CPUS
    leg = session.measure(turn, "two", trace, model, *flags, env=env)
    turn.figures |= {"facts": leg.facts, "nvidia_smi": leg.watched.document()}
    compare(turn, leg, one)


def why_not_two(session: Session) -> str:
    """There may be one alone, or no room for what two workers tell each other."""
    if not session.is_cuda:
        return "" if (os.cpu_count() or 1) > 1 else "needs two CPUs"
    num_gpus, shm_bytes = len(session.machine.gpus), free_shm_bytes()
    if num_gpus < 2:
        return f"needs two GPUs; there is {num_gpus or 'none'}"
    if shm_bytes is not None and shm_bytes < LEAST_SHM_BYTES:
        return (
            f"needs {LEAST_SHM_BYTES / GIB:g} GiB in /dev/shm, as docker run --ipc=host"
            " or --shm-size=4g gives"
        )
    return ""
