"""Whether swapping beside prefix caching may have spoiled what was generated."""

from results.findings.finding import Finding
from results.findings.fit import fewer_or_more
from results.findings.hits import Prompts
from results.findings.run_view import RunView


def find_spoiled_text(run: RunView) -> list[Finding]:
    """Groups that were swapped in where another may write a block of theirs.

    Two groups get the same partly filled block only if their prompts are equal to the
    last token and end within that block: it keeps the name of the prompt while outputs
    are written into it. Where all prompts differ, or end with a block, nothing is said.

    Source: docs/v0.md, "Swapping with prefix caching can spoil content".
    """
    num_blocks = run.steps.total("num_swap_in_blocks")
    if run.info.policy != "v0" or not run.info.is_caching or not num_blocks:
        return []
    repeated = _repeated_prompts(run)
    if not repeated:
        return []
    return [
        Finding(
            code="swap_may_spoil_text",
            severity="warning",
            message=f"{num_blocks:,} blocks were swapped in with prefix caching on, and"
            f" {repeated}: vLLM's v0 can copy a request that comes back over a block that"
            " another with the same prompt is writing, and text comes out wrong",
            advice=_without_swaps(run),
        )
    ]


def _repeated_prompts(run: RunView) -> str:
    """How many prompts were there before; empty where none was."""
    if not run.info.trace["has_sharing"]:
        return "the trace does not say which prompts are equal"
    num_repeated = Prompts.of(run).num_repeated(run.block_size)
    if not num_repeated:
        return ""
    verb = "prompt repeats" if num_repeated == 1 else "prompts repeat"
    return f"{num_repeated:,} {verb} an earlier one to its last token"


def _without_swaps(run: RunView) -> str:
    """How to keep requests from being swapped."""
    has_samples = (run.requests["n"] > 1) & (run.requests["num_preemptions"] > 0)
    if run.knob("preemption_mode") == "swap" and not has_samples.any():
        return (
            "leave --preemption-mode swap out, so that requests with n = 1 are"
            " recomputed, or leave --enable-prefix-caching out"
        )
    return (
        "leave --enable-prefix-caching out, or see that nothing is swapped:"
        f" {fewer_or_more(run, 1)}; vLLM's V1 does not swap"
    )
