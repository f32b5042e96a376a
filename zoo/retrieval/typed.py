"""Metadata in typed columns, for stores that filter by themselves.

A name's value lies in the one column of its type, the others are null there, so that as in `where` a value of
another type counts as missing. Column names are made here: no text of a user reaches a store's language as a name.
"""

import math
import re
import sys

import pyarrow as pa

from zoo.retrieval.columns import HIDDEN, filterable, metadata
from zoo.retrieval.where import normal

TYPES = {"text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "flag": pa.bool_()}
PREFIX = re.compile(rf"({'|'.join(TYPES)})__")
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def is_filter_column(name: str) -> bool:
    return PREFIX.match(name) is not None


def filter_columns(rows: pa.Table) -> dict[str, pa.Array]:
    """Typed columns of every name that a filter may use of `rows`."""
    meta = metadata(rows)
    names = [name for name in rows.column_names if name not in HIDDEN]
    columns = {}
    for name in dict.fromkeys([*names, *(key for own in meta for key in own)]):
        parts = {kind: [None] * len(rows) for kind in TYPES}
        for place, value in enumerate(filterable(rows, meta, name)):
            kind = kind_of(value)
            if kind:
                parts[kind][place] = as_float(value) if kind == "real" else normal(value)
        used = {kind: values for kind, values in parts.items() if any(v is not None for v in values)}
        for kind, values in (used or {"text": parts["text"]}).items():  # a name that is always missing is a name too
            columns[column_of(kind, name)] = pa.array(values, TYPES[kind])
    return columns


def kind_of(value) -> str | None:
    """The column that a value lies in; None for a missing one and for what no filter compares."""
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int):
        return "whole" if LOWEST <= value <= HIGHEST else "real"
    return "real" if isinstance(value, float) and not math.isnan(value) else None


def kinds_of(value) -> tuple[str, ...]:
    """The columns that hold what compares with `value`: whole numbers compare with real ones."""
    kind = kind_of(value)
    return ("whole", "real") if kind in ("whole", "real") else (kind,) if kind else ()


def column_of(kind: str, name: str) -> str:
    """Safe in any language whatever the name is; a name that needs no care can still be read."""
    return f"{kind}__{name if re.fullmatch('[a-z][a-z0-9_]*', name) else '0' + name.encode().hex()}"


def name_of(column: str) -> str:
    name = PREFIX.sub("", column, count=1)
    return bytes.fromhex(name[1:]).decode() if name.startswith("0") else name


def whole_test(op: str, value: int | float) -> bool | tuple[str, int]:
    """x op value for whole x of 64 bits, as (op, whole number); True or False where it is the same for all x."""
    if op in ("=", "!="):
        fits = LOWEST <= value <= HIGHEST and value == int(value)
        return (op, int(value)) if fits else op == "!="
    if value < LOWEST or value > HIGHEST:  # infinite ones too
        return (value > 0) == (op in ("<", "<="))
    return op, math.floor(value) if op in (">", "<=") else math.ceil(value)


def real_test(op: str, value: int | float) -> bool | tuple[str, float]:
    """The same for floats x, exact also where no float holds the value."""
    nearest = as_float(value)
    if nearest == value:
        return op, nearest
    if op in ("=", "!="):
        return op == "!="
    above = nearest > value
    return ((">=" if above else ">") if op[0] == ">" else "<" if above else "<="), nearest


def as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits, which is not infinite
        return sys.float_info.max if value > 0 else -sys.float_info.max
