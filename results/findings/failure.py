"""How a real engine failed, and which of its requests it did not serve."""

from results.columns import BoolArray
from results.findings.finding import Finding
from results.findings.run_view import RunView
from results.record import RequestStatus

KEPT = "what was measured before is kept"
LOG = "vllm.log in the run's folder has vLLM's own words"

FAILURES: dict[str, tuple[str, str]] = {
    "vllm_crashed": (
        "vLLM's process ended",
        f"{LOG}; where a kernel or a graph fails there, --enforce-eager or another"
        " attention backend goes around it",
    ),
    "vllm_out_of_memory": (
        "vLLM ran out of memory",
        "a lower --gpu-memory-utilization leaves more to everything but the KV cache; a"
        " lower --max-num-seqs or --max-num-batched-tokens needs less; or"
        " --tensor-parallel-size (blockbench capacity says what fits)",
    ),
    "vllm_hung": (
        "vLLM stopped answering and was ended",
        f"{LOG} up to then; if it was only slow, as with a first compilation, let it"
        " take longer (blockbench run --help: hang), else try --enforce-eager",
    ),
    "vllm_did_not_start": (
        "vLLM did not start",
        f"{LOG}: a model that is not there, a folder that lacks weights or tokenizer"
        ' (--engine-args "--load-format dummy --skip-tokenizer-init"), an option that'
        " this version does not have, or too little memory (blockbench capacity)",
    ),
    "server_lost": (
        "the connection to the server was lost",
        "the server's own log says whether it ended; start it again and repeat the run",
    ),
    "server_error": (
        "the server answered with an error",
        "the server's own log says why; if it comes only under load, a lower"
        " --request-rate or --max-concurrency shows from where on",
    ),
    "server_unresponsive": (
        "the server stopped answering",
        "see whether it still runs and what its log says; a lower --request-rate or"
        " --max-concurrency shows whether it was the load",
    ),
}
"""By kind: what happened, and what to do."""

NOT_SERVED = (RequestStatus.REJECTED, RequestStatus.ABORTED, RequestStatus.FAILED)


def failure(run: RunView) -> Finding:
    """The failure of a measured run as a finding of its kind."""
    outcome = run.info.outcome
    what, advice = FAILURES[outcome.kind]
    detail = f": {outcome.message}" if outcome.message else ""
    return Finding(
        code=outcome.kind,
        severity="error",
        message=f"{what}{detail}; {KEPT}",
        advice=advice,
    )


def find_failed(run: RunView) -> list[Finding]:
    """Requests that a real engine refused or broke off, by what it said of them."""
    if not run.info.is_measured:
        return []
    found = []
    for reason in run.requests.words("reason"):
        chosen = _not_served(run) & run.requests.is_equal("reason", reason)
        if reason and reason != run.info.outcome.reason and chosen.any():
            found.append(_failed(run, chosen, reason))
    return found


def _not_served(run: RunView) -> BoolArray:
    chosen = run.requests.is_equal("status", NOT_SERVED[0])
    for status in NOT_SERVED[1:]:
        chosen |= run.requests.is_equal("status", status)
    return chosen


def _failed(run: RunView, chosen: BoolArray, reason: str) -> Finding:
    return Finding(
        code="requests_failed",
        severity="warning",
        message=f"{run.named(chosen)} of {len(run.requests):,} did not finish: {reason}",
        advice="latencies are those of the others; the engine's own log says more of"
        " these",
    )
