"""The trace formats, and which one a file is of."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from harness.errors import TraceError, UsageError
from harness.traces.azure import AzureReader
from harness.traces.bad_row import NOT_UTF_8, BadRowError, BadRows, parse_object
from harness.traces.blockbench import BlockbenchReader
from harness.traces.mooncake import MooncakeReader
from harness.traces.reader import TraceReader, arranged
from harness.traces.source import TraceSource
from harness.workload import Workload

# A new format is one more reader here. The first that recognises a file reads it.
READERS: tuple[TraceReader, ...] = (BlockbenchReader(), MooncakeReader(), AzureReader())


def open_trace(
    path: str | PathLike[str], *, format: str | None = None, skip_bad_rows: bool = False
) -> Workload:
    """The workload that a trace file holds.

    Args:
        path: The file, perhaps packed with gzip or zstd.
        format: Name of the format; recognised from the first lines if not given.
        skip_bad_rows: Count rows that cannot be used, rather than refuse the file.

    Raises:
        TraceError: The file cannot be read, is of no known format, has a bad row, or
            has no good one.
        UsageError: There is no format of that name.
    """
    source = TraceSource(Path(path))
    try:
        return _read(source, _reader(source, format), skip_bad_rows)
    finally:
        source.close()


def _read(source: TraceSource, reader: TraceReader, skip_bad_rows: bool) -> Workload:
    bad_rows = BadRows(source.path, skip=skip_bad_rows)
    columns = reader.read(source, bad_rows)
    if not len(columns.arrival_ns):
        raise _no_request(source.path, bad_rows)
    return arranged(
        columns,
        name=source.path.name,
        format_name=reader.name,
        content_hash=source.content_hash(),
        skipped_by_reason=bad_rows.counts,
    )


def _reader(source: TraceSource, format_name: str | None) -> TraceReader:
    head = [text for _, text in source.head]
    for reader in READERS:
        if reader.name == format_name or (
            format_name is None and reader.recognises(head)
        ):
            return reader
    if format_name is not None:
        raise UsageError(
            f"format {format_name!r} is unknown; this version reads {_names()}"
        )
    raise _unrecognised(source.path, head)


def _names() -> str:
    return ", ".join(reader.name for reader in READERS)


def _unrecognised(path: Path, head: Sequence[bytes]) -> TraceError:
    """Says what the first line looks like, for a person to compare."""
    try:
        keys = list(parse_object(head[0]))
        if {"arrival_s", "prompt"} <= set(keys):
            return TraceError(
                path,
                "the header before the first request is missing",
                f"put this line at the top: {BlockbenchReader.first_line}",
            )
        look = f"the first line has the keys {', '.join(keys[:8]) or 'none'}"
    except BadRowError as bad:
        if bad.reason == NOT_UTF_8:
            return TraceError(path, f"this is {NOT_UTF_8}", "save it as UTF-8")
        begins = head[0].decode()[:40]
        look = f"the first line begins with {begins!r}"
        if begins.startswith("{"):  # then it was meant as JSON
            look = f"the first line is {bad.problem}"
    return TraceError(
        path,
        f"no trace format is recognised: {look}",
        f"a trace begins as {' or '.join(f'{r.first_line} ({r.name})' for r in READERS)};"
        " docs/traces.md says more",
    )


def _no_request(path: Path, bad_rows: BadRows) -> TraceError:
    if not bad_rows.counts:
        return TraceError(
            path, "there is no request in it, only a header", "check what wrote it"
        )
    reasons = ", ".join(f"{n:,} {why}" for why, n in bad_rows.counts.most_common())
    total = bad_rows.counts.total()
    return TraceError(
        path,
        f"nothing is left of it: all {total:,} rows are bad ({reasons})",
        "check the format, or --format",
    )
