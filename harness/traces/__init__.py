from harness.traces.registry import READERS, open_trace

__all__ = ["READERS", "open_trace"]
