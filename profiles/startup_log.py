"""What a vLLM server printed at its start: the size of its KV cache and the memory.

The shapes are those of vLLM 0.1 to 0.33, with any prefix before them. vLLM divides by
2**30 whether it prints GB or GiB.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from profiles.errors import ProfileError

MAX_LOG_BYTES = 16 * 2**20
"""How much of a file is read; a start prints far less, a month of serving far more."""

CONCURRENCY_ERROR = 0.01
"""Largest difference between tokens / max_model_len and the two decimals printed."""

BLOCK_SIZES = (1, 16, 32, 64, 128, 256)
"""Block sizes that a request may have been rounded up to before concurrency was printed.

Source: vLLM 0.11 kv_cache_utils.py ``get_max_concurrency_for_kv_cache_config``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupLog:
    """Figures of one start, None where not printed; of one engine, as the tightest rank.

    Capacities are the least of what the ranks and engines printed, as vLLM takes the
    least over its workers; memory in use is the greatest.

    Attributes:
        num_gpu_blocks: What the engine uses, so ``override`` where only that is known.
        profiled_num_gpu_blocks: What memory allowed, from the line of the override.
        kv_cache_tokens: Of one engine; see ``kv_tokens_reliable``.
        kv_cache_gib: Memory for the KV cache of one GPU; negative if weights overran.
        max_concurrency: Requests of ``concurrency_tokens`` each, from the same line.
        weights_gib: Of one GPU, as the other memory figures.
        cuda_graph_gib: Measured after capture; vLLM has printed negative ones.
        cuda_graph_estimate_gib: What was set aside before capture (since 0.21).
        suggested_kv_cache_memory_bytes: For ``--kv-cache-memory``, within
            ``gpu_memory_utilization``.
        is_refused: The engine said that its KV cache or memory would not do.
        refused_max_model_len: The ``max_model_len`` that was refused.
        needed_gib: KV cache of one request of that length.
        kv_tokens_reliable: Whether tokens and concurrency agree; they do not for hybrid
            models, whose layers keep unequal numbers of tokens. True proves little
            of lines where vLLM computes tokens as concurrency times length (2026).
        num_engines: Engines whose lines are mixed in this log, at least 1.
        notes: What was chosen among lines that differ, or computed from others.
    """

    num_gpu_blocks: int | None = None
    profiled_num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    override: int | None = None
    block_size: int | None = None
    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    max_concurrency: float | None = None
    concurrency_tokens: int | None = None
    weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    cuda_graph_gib: float | None = None
    cuda_graph_estimate_gib: float | None = None
    total_gpu_gib: float | None = None
    gpu_memory_utilization: float | None = None
    suggested_kv_cache_memory_bytes: int | None = None
    is_refused: bool = False
    refused_max_model_len: int | None = None
    needed_gib: float | None = None
    estimated_max_model_len: int | None = None
    vllm_version: str | None = None
    kv_tokens_reliable: bool | None = None
    num_engines: int = 1
    notes: tuple[str, ...] = ()


_DECIMALS = {"max_concurrency", "gpu_memory_utilization"}
_INT = r"-?[0-9][0-9,]{0,24}"
_DECIMAL = r"(?<![0-9.])-?[0-9]{1,9}(?:\.[0-9]{1,12})?"
_VERSION = r"[0-9]{1,4}\.[0-9]{1,4}[0-9A-Za-z.+_-]{0,60}"


def _shape(template: str) -> re.Pattern[str]:
    """A regular expression in which each ``<quantity>`` became a group of its kind."""

    def group(match: re.Match[str]) -> str:
        name = match[1]
        if name.endswith("_gib"):
            return rf"(?P<{name}>{_DECIMAL})(?: ?Gi?B\b|(?=/))"
        if name in _DECIMALS:
            return f"(?P<{name}>{_DECIMAL})"
        return f"(?P<{name}>{_VERSION if name == 'vllm_version' else _INT})"

    return re.compile(re.sub(r"(?<!P)<(\w+)>", group, template), re.ASCII)


# One row a shape. A quantity that several shapes print is taken from the first of them.
_SHAPES = tuple(
    _shape(template)
    for template in (
        r"\b(?:GPU|CUDA|cuda|rocm|cpu|xpu|hpu|npu|tpu) blocks: <num_gpu_blocks>",
        r"# CPU blocks: <num_cpu_blocks>",
        r"Overriding num_gpu_blocks=<profiled_num_gpu_blocks>"
        r" with num_gpu_blocks_override=<override>",
        r"KV cache size: <kv_cache_tokens> tokens",
        r"Maximum concurrency for <concurrency_tokens> tokens per request:"
        r" <max_concurrency>x",
        # KV cache of one GPU
        r"Available KV cache memory: <kv_cache_gib>",
        r"rest of the memory reserved for KV Cache is <kv_cache_gib>",
        r"\bkv_cache_size=<kv_cache_gib>",
        r"available KV cache memory \(<kv_cache_gib>",
        r"Current kv cache memory in use is <kv_cache_gib>",
        r"(?:Auto|Explicitly) set \(<kv_cache_gib>",
        # other memory
        r"model weights take <weights_gib>",
        r"(?:Model loading|Loading model weights) took <weights_gib>",
        r"<weights_gib> for weight\b",
        r"activation peak memory takes <activation_gib>",
        r"<activation_gib> for peak activation",
        r"peak_torch_memory=<peak_torch_gib>",
        r"non_torch_memory takes <non_torch_gib>",
        r"\bnon_torch_memory=<non_torch_gib>",
        r"<non_torch_gib> for non-torch memory",
        r"<consumed_gib> for consumed memory",
        r"Graph capturing finished in [0-9.]+ secs?, took <cuda_graph_gib>",
        r"<cuda_graph_gib> for CUDAGraph memory",
        r"Estimated CUDA graph memory: <cuda_graph_estimate_gib>",
        r"total_gpu_memory(?: \(|=)<total_gpu_gib>",
        r"Free memory on device(?: \S+)? \([0-9.]+/<total_gpu_gib>",
        # options
        r"gpu_memory_utilization(?: \(|=|['\"]: )<gpu_memory_utilization>",
        r"[Dd]esired GPU memory utilization (?:is )?\(<gpu_memory_utilization>",
        r"(?:attention|kv cache) block size to <block_size>\b",
        r"\bblock_size(?:=|['\"]: )<block_size>\b",
        r"--kv-cache-memory(?:-bytes)?=<suggested_kv_cache_memory_bytes>"
        r"`?(?: \([^)]{0,20}\))? to fit",
        r"config with `?--kv-cache-memory(?:-bytes)?[= ]"
        r"<suggested_kv_cache_memory_bytes>",
        # refusals
        r"(?P<is_refused>No available memory for the cache blocks)",
        r"(?P<is_refused>is less than desired GPU memory utilization)",
        r"models?'s max seq len \(<refused_max_model_len>\)",
        r"(?P<is_refused>stored in KV cache) \(<kv_cache_tokens>\)",
        r"<needed_gib> KV (?P<is_refused>cache is needed)",
        r"estimated maximum model length is <estimated_max_model_len>",
        # versions
        r"vLLM (?:API server|server|batch processing API) version v?<vllm_version>",
        r"(?P<engine_start>Initializing an? (?:V[01] )?LLM engine)"
        r"(?: \(v<vllm_version>)?",
        r"█\s+version\s+v?<vllm_version>",
    )
)

_TEXTS = {"vllm_version", "engine_start", "is_refused"}
_OPTIONS = {"vllm_version", "engine_start", "block_size", "gpu_memory_utilization"}
_IN_USE = {
    "weights_gib",
    "activation_gib",
    "peak_torch_gib",
    "non_torch_gib",
    "consumed_gib",
    "cuda_graph_gib",
    "cuda_graph_estimate_gib",
    "needed_gib",
}
_SUMS_WITH_WEIGHTS = {"activation_gib": "peak_torch_gib", "non_torch_gib": "consumed_gib"}
_LAST_ONE = {"block_size", "vllm_version"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ENGINE = re.compile(r"\((EngineCore\w*) pid=([0-9]+)\)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The quantities of one match; ``shape`` is the row of the table that matched."""

    shape: int
    engine: str | None
    values: dict[str, Any]


def read_startup_log(path: Path) -> StartupLog:
    """What the server whose output this file holds printed at its start.

    Only the first ``MAX_LOG_BYTES`` are read.

    Raises:
        ProfileError: The file cannot be read, is no text, or has no line of a start.
    """
    content, is_cut = _content(path)
    log = parse_startup_log(_text(content, path).splitlines(), str(path))
    if not is_cut:
        return log
    note = f"only the first {MAX_LOG_BYTES // 2**20} MiB of {path} were read"
    return replace(log, notes=(*log.notes, note))


def parse_startup_log(lines: Iterable[str], name: str) -> StartupLog:
    """The figures in these lines; ``name`` is what errors call their source.

    Raises:
        ProfileError: No line is one of a start.
    """
    readings: list[_Reading] = []
    engines: set[str] = set()
    for line in lines:
        plain = _COLOUR.sub("", line)
        engine = _engine(plain)
        if engine:
            engines.add(engine)
        readings += _readings(plain, engine)
    printed = {quantity for reading in readings for quantity in reading.values}
    if printed <= _OPTIONS:
        raise ProfileError(_nothing_found(name))
    return _startup_log(readings, printed, engines)


def _content(path: Path) -> tuple[bytes, bool]:
    """The first bytes of a file, and whether more follow."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_LOG_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise ProfileError(
            f"{path} cannot be read ({reason}); it must be a file with the output of a"
            " vLLM server; check the path"
        ) from error
    return content[:MAX_LOG_BYTES], len(content) > MAX_LOG_BYTES


def _text(content: bytes, path: Path) -> str:
    """The content as text; a UTF-16 file, as PowerShell writes it, needs its mark."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content:
        raise ProfileError(
            f"{path} is not text; it must hold the output of a vLLM server; unpack it"
            " first if it is compressed"
        )
    if not content.strip():
        raise ProfileError(
            f"{path} is empty; it must hold the output of a vLLM server; vLLM writes to"
            " stderr too: vllm serve ... > FILE 2>&1"
        )
    return content.decode("utf-8", errors="replace")


def _nothing_found(name: str) -> str:
    return (
        f"{name} has no line in which a vLLM server tells its KV cache or memory;"
        " looked for '# GPU blocks:', 'GPU KV cache size:', 'Available KV cache memory:',"
        " 'Model loading took' and others like them; give the output from the very start,"
        " at VLLM_LOGGING_LEVEL=INFO: vllm serve ... > FILE 2>&1"
    )


def _engine(line: str) -> str | None:
    match = _ENGINE.search(line)
    return f"{match[1]} pid={match[2]}" if match else None


def _readings(line: str, engine: str | None) -> Iterator[_Reading]:
    for shape, pattern in enumerate(_SHAPES):
        match = pattern.search(line)
        if match:
            found = match.groupdict().items()
            values = {name: _value(name, text) for name, text in found if text}
            yield _Reading(shape, engine, values)


def _value(quantity: str, text: str) -> Any:
    if quantity in _TEXTS:
        return text.rstrip(".")
    number = text.replace(",", "")
    is_decimal = quantity.endswith("_gib") or quantity in _DECIMALS
    return float(number) if is_decimal else int(number)


def _startup_log(
    readings: list[_Reading], printed: set[str], engines: set[str]
) -> StartupLog:
    figures: dict[str, Any] = {name: _figure(readings, name) for name in printed}
    num_starts = sum("engine_start" in reading.values for reading in readings)
    num_engines = max(1, len(engines), num_starts)
    notes = [note for name in sorted(printed) for note in _difference(readings, name)]
    if num_engines > 1:
        notes.insert(0, f"lines of {num_engines} engines or starts are mixed in this log")
    if "max_concurrency" in figures:
        figures["concurrency_tokens"] = _tightest_length(readings)
    notes += _complete(figures)
    names = StartupLog.__dataclass_fields__
    return StartupLog(
        **{name: value for name, value in figures.items() if name in names},
        kv_tokens_reliable=_kv_tokens_reliable(readings),
        num_engines=num_engines,
        notes=tuple(notes),
    )


def _of_first_shape(readings: list[_Reading], quantity: str) -> list[_Reading]:
    found = [reading for reading in readings if quantity in reading.values]
    shape = min(reading.shape for reading in found)
    return [reading for reading in found if reading.shape == shape]


def _figure(readings: list[_Reading], quantity: str) -> Any:
    if quantity == "is_refused":
        return True
    found = [r.values[quantity] for r in _of_first_shape(readings, quantity)]
    if quantity in _LAST_ONE:
        return found[-1]
    return max(found) if quantity in _IN_USE else min(found)


def _difference(readings: list[_Reading], quantity: str) -> Iterator[str]:
    """A note if lines of one shape differ in this quantity."""
    found = _of_first_shape(readings, quantity)
    values = list(dict.fromkeys(reading.values[quantity] for reading in found))
    if quantity in {"is_refused", "engine_start"} or len(values) == 1:
        return
    who, shown = "ranks or lines", [_shown(value) for value in values]
    if len({reading.engine for reading in found}) > 1:
        who = "engines"
        shown = [f"{_shown(r.values[quantity])} ({r.engine or '?'})" for r in found]
    listed = ", ".join(dict.fromkeys(shown))
    choice = "greatest" if quantity in _IN_USE else "least"
    choice = "last" if quantity in _LAST_ONE else choice
    yield f"{quantity} differs between {who}: {listed}; the {choice} is taken"


def _tightest_length(readings: list[_Reading]) -> Any:
    """The length on the line of least concurrency, so that the two belong together."""
    found = _of_first_shape(readings, "max_concurrency")
    tightest = min(found, key=lambda reading: reading.values["max_concurrency"])
    return tightest.values["concurrency_tokens"]


def _complete(figures: dict[str, Any]) -> Iterator[str]:
    """Add what follows from other figures, and yield a note for each."""
    if "override" in figures and "num_gpu_blocks" not in figures:
        figures["num_gpu_blocks"] = figures["override"]
        yield "num_gpu_blocks is that of num_gpu_blocks_override"
    if "weights_gib" not in figures:
        return
    for target, total in _SUMS_WITH_WEIGHTS.items():
        if target not in figures and total in figures:
            figures[target] = round(figures[total] - figures["weights_gib"], 4)
            yield f"{target} is what the log's sum with the weights leaves beside them"


def _kv_tokens_reliable(readings: list[_Reading]) -> bool | None:
    """Whether each printed concurrency follows from some printed number of tokens."""
    printed = [reading.values for reading in readings]
    tokens = {v["kv_cache_tokens"] for v in printed if "kv_cache_tokens" in v}
    pairs = {
        (v["concurrency_tokens"], v["max_concurrency"])
        for v in printed
        if "max_concurrency" in v
    }
    if not tokens or not pairs:
        return None
    return all(any(_agree(t, *pair) for t in tokens) for pair in pairs)


def _agree(kv_cache_tokens: Any, max_model_len: Any, concurrency: Any) -> bool:
    lengths = {ceil(max_model_len / size) * size for size in BLOCK_SIZES}
    return any(
        abs(kv_cache_tokens / length - concurrency) <= CONCURRENCY_ERROR
        for length in lengths
        if length > 0
    )


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
