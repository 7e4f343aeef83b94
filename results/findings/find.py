"""All findings of a run."""

from results.columns import Columns
from results.findings.decode import find_decode
from results.findings.dismissed import find_dismissed
from results.findings.ending import find_ending
from results.findings.finding import Finding
from results.findings.long_prefill import find_long_prefills
from results.findings.measuring import find_measuring
from results.findings.offload import find_offload
from results.findings.prefix_cache import find_prefix_cache
from results.findings.pressure import find_pressure
from results.findings.queue import find_queue
from results.findings.rule import Rule, findings_of
from results.findings.run_view import RunView
from results.findings.service_level import find_service_level
from results.findings.sizing import find_sizing
from results.findings.spoiled_text import find_spoiled_text
from results.findings.stall import find_stalls
from results.run_info import RunInfo

RULES: tuple[Rule, ...] = (
    find_ending,
    find_dismissed,
    find_measuring,
    find_queue,
    find_service_level,
    find_pressure,
    find_sizing,
    find_long_prefills,
    find_stalls,
    find_prefix_cache,
    find_offload,
    find_spoiled_text,
    find_decode,
)
"""What looks for findings, in the order in which they are shown."""

_RANK = {"error": 0, "warning": 1, "info": 2}


def find(info: RunInfo, requests: Columns, steps: Columns) -> list[Finding]:
    """The findings of a run, what cost requests first.

    The same rows give the same findings, today or from a run that was stored. One that
    needs what was not measured is left out.

    Args:
        info: What is known besides the rows.
        requests: Columns of ``RequestRecord``.
        steps: Columns of ``StepRecord``, in time order.
    """
    found = findings_of(RunView(info, requests, steps), *RULES)
    return sorted(found, key=lambda finding: _RANK[finding.severity])
