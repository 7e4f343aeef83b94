"""Every knob of a run, with the defaults of the vLLM version in force filled in."""

from harness.config.engine_config import EngineConfig, no_start
from harness.config.model_type import model_of
from harness.config.resolve import resolve_config

__all__ = ["EngineConfig", "model_of", "no_start", "resolve_config"]
