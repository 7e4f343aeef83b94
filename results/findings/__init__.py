"""What a run taught about its configuration, recomputable from what it stored."""

from results.findings.find import find
from results.findings.finding import Finding, Severity

__all__ = ["Finding", "Severity", "find"]
