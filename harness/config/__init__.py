"""Every knob of a run, with the defaults of the vLLM version in force filled in."""

from harness.config.engine_config import EngineConfig
from harness.config.resolve import resolve_config

__all__ = ["EngineConfig", "resolve_config"]
