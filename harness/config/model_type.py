"""The types that a model's numbers are kept in, as options of vLLM's set them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.errors import ConfigError
from profiles.default_engine import CASTS_BF16_SINCE, refuses_bf16
from profiles.gpu import GpuProfile
from profiles.model import ModelProfile, load_model
from profiles.vllm_version import offered_kv_cache_dtypes, uses_mla


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTypes:
    """Options for the types of a model; None and ``auto`` leave what its checkpoint says.

    Attributes:
        dtype: Of weights that are not quantised, and of the KV cache by default.
        quantization: Of the weights.
        kv_cache_dtype: Of the KV cache.
    """

    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None

    def load(self, model: str) -> ModelProfile:
        """The profile of a model in these types.

        Raises:
            ProfileError: An unknown model or type, or one that does not follow from it.
        """
        return load_model(model).with_types(**asdict(self))

    def check(self, vllm_version: str, gpu: GpuProfile, model: ModelProfile) -> None:
        """Refuse types that a version or a GPU does not have.

        Args:
            vllm_version: In force.
            gpu: What it runs on.
            model: In these types, as ``load`` returns it.

        Raises:
            ConfigError: Names the type, and what there is instead.
        """
        self._check_version(vllm_version, model)
        self._check_gpu(gpu, model)

    def notes(self, vllm_version: str, gpu: GpuProfile) -> list[str]:
        """Where a version needs to be told a type, as it does not take it by itself."""
        is_told = self.dtype not in (None, "auto")
        if is_told or not refuses_bf16(vllm_version, gpu):
            return []
        return [
            f"vLLM {vllm_version} does not start on a {gpu.name} with a model of bfloat16"
            f" unless --dtype half is given; {CASTS_BF16_SINCE} is the first that takes"
            " float16 by itself"
        ]

    def _check_version(self, version: str, model: ModelProfile) -> None:
        """Refuse what a version keeps in another form, or not at all."""
        offered = offered_kv_cache_dtypes(version)
        if self.kv_cache_dtype is not None and self.kv_cache_dtype not in offered:
            raise ConfigError(
                f"vLLM {version} has no --kv-cache-dtype {self.kv_cache_dtype}; it has"
                f" {', '.join(offered)}"
            )
        if model.mla is not None and not uses_mla(version):
            raise ConfigError(
                f"vLLM {version} keeps whole heads of {model.name} in the KV cache, as"
                " many bytes as nobody published; latents came with 0.7.1: give a later"
                " --vllm-version"
            )

    def _check_gpu(self, gpu: GpuProfile, model: ModelProfile) -> None:
        """Refuse what a GPU does not compute with."""
        if self.dtype == "bfloat16" and not gpu.has_bf16:
            raise ConfigError(f"{gpu.name} has no bfloat16; give --dtype float16")
        if model.bytes_per_kv == 1 and not gpu.takes_fp8_cache:
            raise ConfigError(
                f"{gpu.name} has no attention that reads a KV cache of fp8; leave out"
                " --kv-cache-dtype, or choose a GPU of compute capability 8.0 or more"
            )


def model_of(config: Mapping[str, Any]) -> ModelProfile:
    """The model that a run's configuration means, in the types that were in force.

    Args:
        config: As ``EngineConfig.to_dict`` makes it, or as it stands in a run.json; where
            types are missing there, they were no options yet.

    Raises:
        ProfileError: The model was a file that is gone, or is another one by now.
    """
    types = {option.name: config.get(option.name) for option in fields(ModelTypes)}
    return ModelTypes(**types).load(config["model"])
