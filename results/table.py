"""Records as Arrow tables, and their files: equal rows give equal bytes."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import numpy as np

from results.columns import rows_of
from results.errors import RunFolderError
from results.record import add_later_columns

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def record_schema(
    record_type: type[Any], unmeasured: Collection[str] = ()
) -> "pa.Schema":
    """The Arrow schema of a record class: one field an attribute, in their order.

    Those that nobody measured may be null.
    """
    import pyarrow as pa

    hints = get_type_hints(record_type)
    found = [_arrow_field(f.name, hints[f.name]) for f in fields(record_type)]
    return pa.schema(
        [f.with_nullable(True) if f.name in unmeasured else f for f in found]
    )


def _arrow_field(name: str, hint: Any) -> "pa.Field":
    import pyarrow as pa

    if hint is int:
        return pa.field(name, pa.int64(), nullable=False)
    if isinstance(hint, UnionType) and set(get_args(hint)) == {int, type(None)}:
        return pa.field(name, pa.int64(), nullable=True)
    if hint == list[int]:
        return pa.field(name, pa.list_(pa.int64()), nullable=False)
    assert isinstance(hint, type), f"{name}: no Arrow type for {hint}"
    assert issubclass(hint, str), f"{name}: no Arrow type for {hint}"
    return pa.field(name, pa.string(), nullable=False)


def _arrow_table(
    record_type: type[Any], columns: Mapping[str, Any], unmeasured: Collection[str] = ()
) -> "pa.Table":
    import pyarrow as pa

    schema = record_schema(record_type, unmeasured)
    arrays = [
        pa.nulls(len(columns[field.name]), field.type)
        if field.name in unmeasured
        else _arrow_array(columns[field.name], field)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _arrow_array(values: Any, field: "pa.Field") -> "pa.Array":
    import pyarrow as pa

    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        return pa.array(values.data, mask=mask, type=field.type)
    return pa.array(values, type=field.type)


def write_records(
    path: Path,
    record_type: type[Any],
    records: Sequence[Any],
    unmeasured: Collection[str] = (),
) -> None:
    """Write one row a record as Parquet; the file holds no time of day.

    It is on the disk when this returns. Columns that nobody measured are null.

    Raises:
        OSError: The file cannot be written.
    """
    import pyarrow.parquet as pq

    rows = rows_of(record_type, records)
    names = [field.name for field in fields(record_type)]
    columns = {name: rows.column(name) for name in names}
    table = _arrow_table(record_type, columns, unmeasured)
    # Arrow encodes a path as UTF-8, which fails where Python's locale does not.
    with path.open("wb") as file:
        pq.write_table(table, file, write_page_checksum=True)
        file.flush()
        os.fsync(file.fileno())


def read_frame(path: Path, record_type: type[Any]) -> "pd.DataFrame":
    """The rows of a Parquet file of such records.

    Raises:
        RunFolderError: It cannot be read, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Read by threads of Arrow, a Python file can abort the process at its exit.
        data = pa.BufferReader(path.read_bytes())
        file = pq.ParquetFile(data, page_checksum_verification=True)
        frame = _frame(file.read(use_threads=False))
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}; repeat the run that wrote it"
        ) from error
    add_later_columns(frame)
    names = [field.name for field in fields(record_type)]
    missing = [name for name in names if name not in frame]
    if missing:
        raise RunFolderError(
            f"{path} has no column {missing[0]}: another version of blockbench wrote it;"
            " repeat the run, or read it with that version"
        )
    return frame if list(frame.columns) == names else frame[names]


def rows_frame(
    record_type: type[Any],
    rows: Sequence[Mapping[str, Any]],
    unmeasured: Collection[str] = (),
) -> "pd.DataFrame":
    """Rows with the columns and types that they have when read from Parquet.

    Raises:
        ValueError, TypeError, OverflowError: A value is not of its column's kind.
    """
    names = [field.name for field in fields(record_type)]
    columns = {name: [row[name] for row in rows] for name in names}
    return _frame(_arrow_table(record_type, columns, unmeasured))


def _frame(table: "pa.Table") -> "pd.DataFrame":
    frame: pd.DataFrame = table.to_pandas(use_threads=False)
    return frame
