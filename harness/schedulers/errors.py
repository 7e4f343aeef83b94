"""Where vLLM itself would not go on."""

from harness.errors import EngineError


class SchedulerDiedError(EngineError):
    """vLLM's engine ends here, and with it every request in it.

    Attributes:
        kind: ``no_cpu_swap_space`` or ``vllm_assertion``.
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)
