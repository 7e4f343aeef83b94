"""What tests against the installed vLLM have in common."""

import pytest


@pytest.fixture(autouse=True)
def _vllm_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a vLLM that a test starts log as usual: its scheduler in here is silent."""
    monkeypatch.delenv("VLLM_CONFIGURE_LOGGING", raising=False)
