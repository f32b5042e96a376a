"""What a filter sees of rows: their metadata, and below it the columns of the rows themselves."""

import json
import math
from collections.abc import Iterable

import pyarrow as pa

from zoo.errors import UsageError

HIDDEN = ("meta", "vector", "blob")  # columns that no filter sees


def metadata(rows: pa.Table) -> list[dict]:
    """The `meta` column (JSON), read; an empty dict where there is none."""
    if "meta" not in rows.column_names:
        return [{}] * len(rows)
    return [json.loads(text) if text else {} for text in rows["meta"].to_pylist()]


def filterable(rows: pa.Table, meta: list[dict], name: str) -> list:
    """The values of one column: str, int, float, bool, or None for a missing one.

    Lists and dicts are seen as JSON, a path's bytes as text, NaN as missing.
    """
    own = name in rows.column_names and name not in HIDDEN
    values = rows[name].to_pylist() if own else [None] * len(rows)
    return [_plain(mine.get(name, value)) for mine, value in zip(meta, values)]


def unknown_column(name: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"where: no column {name!r}; there are: {', '.join(sorted(known))}")


def _plain(value):
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and math.isnan(value):
        return None
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
