"""Which client wrote a file, and its result."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from harness.errors import TraceError, UsageError
from harness.vllm_engine.imports.aiperf import (
    averages_beside,
    is_averages,
    is_record,
    read_aiperf,
    records_beside,
)
from harness.vllm_engine.imports.guidellm import (
    benchmarks_of,
    describe,
    is_report,
    read_guidellm,
)
from harness.vllm_engine.imports.imported import ImportedRequest, ImportedResult
from harness.vllm_engine.imports.json_node import DAMAGED, JsonNode, read_nodes
from harness.vllm_engine.imports.vllm_bench import is_bench, read_bench

MOST_S = 4e9
"""Later than any time since 1970."""

MOST_TOKENS = 2**40


class ImportFormat(StrEnum):
    """Clients whose results can be imported."""

    VLLM_BENCH = "vllm-bench"
    GUIDELLM = "guidellm"
    AIPERF = "aiperf"


_MARKS: dict[ImportFormat, Sequence[Callable[[JsonNode], bool]]] = {
    ImportFormat.AIPERF: (is_record, is_averages),
    ImportFormat.GUIDELLM: (is_report,),
    ImportFormat.VLLM_BENCH: (is_bench,),
}


def read_result(
    path: Path, format: ImportFormat | None = None, part: int | None = None
) -> ImportedResult:
    """One benchmark of a file.

    Args:
        path: What the client wrote.
        format: Which client; found by what is in the file if not given.
        part: Which benchmark of several, from 1.

    Raises:
        TraceError: The file is damaged, of no known client, or has no requests.
        UsageError: It holds several benchmarks, or not this one.
    """
    result = _read(path, format, part)
    if any(_is_beyond(request) for request in result.requests):
        raise TraceError(path, "holds times or numbers of tokens that cannot be", DAMAGED)
    return result


def _is_beyond(request: ImportedRequest) -> bool:
    """Whether a figure is larger than a row can hold."""
    times = (request.start_s, request.ttft_s, request.e2e_s, *(request.gaps_s or ()))
    counts = (
        request.prompt_tokens,
        request.output_tokens,
        request.requested_tokens,
        request.cached_tokens,
    )
    return max((t or 0.0 for t in times), default=0.0) > MOST_S or any(
        (count or 0) > MOST_TOKENS for count in counts
    )


def _read(path: Path, format: ImportFormat | None, part: int | None) -> ImportedResult:
    nodes = read_nodes(path)
    found = _format_of(nodes[0])
    if found is None or format not in (None, found):
        raise TraceError(path, _not_known(format, found), _REMEDY)
    if found is ImportFormat.AIPERF:
        _refuse_part(path, part, ["the benchmark"])
        if is_averages(nodes[0]):
            return read_aiperf(records_beside(nodes[0]), nodes[0])
        return read_aiperf(nodes, averages_beside(path))
    if found is ImportFormat.GUIDELLM:
        benchmarks = benchmarks_of(nodes[0])
        place = _refuse_part(path, part, [describe(node) for node in benchmarks])
        return read_guidellm(nodes[0], benchmarks[place])
    names = [str(node.at("date").value) for node in nodes]
    return read_bench(nodes[_refuse_part(path, part, names)])


def _format_of(node: JsonNode) -> ImportFormat | None:
    for format, marks in _MARKS.items():
        if any(is_one(node) for is_one in marks):
            return format
    return None


def _not_known(wanted: ImportFormat | None, found: ImportFormat | None) -> str:
    if wanted is not None and found is not None:
        return f"is a result of {found.value}, not of {wanted.value}"
    named = wanted.value if wanted else "vllm bench serve, GuideLLM or AIPerf"
    return f"is JSON, but no result of {named}"


_REMEDY = (
    "name the JSON that vllm bench serve --save-result --save-detailed or GuideLLM wrote,"
    " or AIPerf's profile_export.jsonl"
)


def _refuse_part(path: Path, part: int | None, names: Sequence[str]) -> int:
    """The place of the benchmark that is meant.

    Raises:
        TraceError: There is none at all.
        UsageError: There are several and none is named, or not so many.
    """
    if not names:
        raise TraceError(path, "holds no benchmark", "name another file")
    listed = ", ".join(f"{number} ({name})" for number, name in enumerate(names, 1))
    if part is None and len(names) > 1:
        raise UsageError(f"{path} holds several benchmarks: {listed}; name one: --part N")
    if part is not None and part > len(names):
        raise UsageError(f"{path} has no benchmark {part}, it holds {listed}")
    return (part or 1) - 1
