"""A table of rollouts declared as a dataclass: Parquet, checkpoints, readers and docs/metrics.md derive from its fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Spans = tuple[tuple[int, int], ...]
"""From one position to before another, in order; in a file one flat list."""


class Column(NamedTuple):
    meaning: str
    unit: str = ""


Columns = Mapping[str, tuple[Any, Column]]


def list_columns(*tables: type) -> Columns:
    hints = {name: hint for table in tables for name, hint in get_type_hints(table, include_extras=True).items()}
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def arrow_type(kind: Any) -> pa.DataType:
    import pyarrow as pa

    plain = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(), bytes: pa.list_(pa.int32())}
    if kind in plain:
        return plain[kind]
    if kind == Spans:
        return pa.list_(pa.int32())
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one not in (type(None), Ellipsis)]
    if origin is Literal:
        return pa.string()
    if origin is Mapping:
        return pa.map_(pa.string(), arrow_type(inner[1]))
    if origin is tuple:
        return pa.list_(pa.int32() if inner == [int] else arrow_type(inner[0]))
    return arrow_type(inner[0])  # of X | None


def arrow_schema(columns: Columns, names: Iterable[str] = ()) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, arrow_type(columns[name][0])) for name in names or columns])


def to_arrow(kind: Any, values: Iterable[Any]) -> pa.Array:
    import pyarrow as pa

    if kind == Spans:
        values = [list(chain(*spans)) for spans in values]
    elif get_args(kind)[:1] == (bytes,):
        values = [[np.frombuffer(one, np.int32) for one in row] for row in values]
    elif get_origin(kind) is Mapping:
        values = [list(row.items()) for row in values]
    return pa.array(list(values), arrow_type(kind))


def from_arrow(kind: Any, column: pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    if kind == Spans:
        return [tuple(zip(row[::2], row[1::2], strict=True)) for row in values]
    if get_args(kind)[:1] == (bytes,):
        return [tuple(np.array(one, np.int32).tobytes() for one in row) for row in values]
    if get_origin(kind) is Mapping:
        return [dict(row) for row in values]
    return [tuple(row) for row in values] if get_origin(kind) is tuple else values


def number_text(text: str) -> int:
    """A number of 64 bits for a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True)


def format_columns(title: str, columns: Columns) -> str:
    rows = (f"- `{name}`{one.unit and f' ({one.unit})'}: {one.meaning}" for name, (_, one) in columns.items())
    return "\n".join((f"Columns of {title}:\n", *rows))
