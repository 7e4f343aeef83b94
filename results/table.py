"""Records as Arrow tables, and their files: equal rows give equal bytes."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

if TYPE_CHECKING:
    import pyarrow as pa


def record_schema(record_type: type[Any]) -> "pa.Schema":
    """The Arrow schema of a record class: one field an attribute, in their order."""
    import pyarrow as pa

    hints = get_type_hints(record_type)
    return pa.schema([_arrow_field(f.name, hints[f.name]) for f in fields(record_type)])


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


def write_records(path: Path, record_type: type[Any], records: Sequence[Any]) -> None:
    """Write one row a record as Parquet; the file holds no time of day.

    Raises:
        OSError: The file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = record_schema(record_type)
    columns = [
        pa.array([getattr(r, name) for r in records], type=schema.field(name).type)
        for name in schema.names
    ]
    # Arrow encodes a path as UTF-8, which fails where Python's locale does not.
    with path.open("wb") as file:
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), file)
