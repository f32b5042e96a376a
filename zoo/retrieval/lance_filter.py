"""Filters for LanceDB: typed columns beside the rows, and the parsed filter written as SQL over them.

A name's value lies in the one column of its type, the others are null there, so that as in `where` a value of
another type counts as missing. Column names are made here and literals are quoted here: no text of a user's
filter reaches the SQL as it is.
"""

import math
import re
import sys

import pyarrow as pa

from zoo.errors import UsageError
from zoo.retrieval.columns import HIDDEN, filterable, metadata, unknown_column
from zoo.retrieval.where import Condition, Filter, normal

TYPES = {"text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "flag": pa.bool_()}
PREFIX = re.compile(rf"({'|'.join(TYPES)})__")
LOWEST, HIGHEST = -(2**63), 2**63 - 1
DEEPEST = 20  # DataFusion's parser gives up at 50 nested brackets


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
            kind = _kind(value)
            if kind:
                parts[kind][place] = _float(value) if kind == "real" else normal(value)
        used = {kind: values for kind, values in parts.items() if any(v is not None for v in values)}
        for kind, values in (used or {"text": parts["text"]}).items():  # a name that is always missing is a name too
            columns[_column(kind, name)] = pa.array(values, TYPES[kind])
    return columns


def as_sql(tree: Filter, columns: list[str]) -> str:
    """SQL that is true where `tree` is; columns: those of the table. Raises UsageError for an unknown column."""
    return _written(tree, set(columns), True, 0)


def text_is_in(column: str, values: list[str]) -> str:
    return f"{column} IN ({', '.join(map(_quoted, values))})"


def _written(tree: Filter, columns: set[str], wanted: bool, depth: int) -> str:
    """True where `tree` is true (wanted) or false (not wanted). Never null: "unknown" is neither of the two."""
    if depth > DEEPEST:
        raise UsageError(f"where: nested too deeply, more than {DEEPEST} brackets")
    if isinstance(tree, Condition):
        return _condition(tree, columns, wanted)
    if tree.op == "not":
        return _written(tree.parts[0], columns, not wanted, depth + 1)
    word = "AND" if (tree.op == "and") == wanted else "OR"
    return _joined(word, [_written(part, columns, wanted, depth + 1) for part in tree.parts])


def _condition(test: Condition, columns: set[str], wanted: bool) -> str:
    mine = {kind: _column(kind, test.column) for kind in TYPES if _column(kind, test.column) in columns}
    if not mine:
        raise unknown_column(test.column, {_name(column) for column in columns if is_filter_column(column)})
    present = _joined("OR", [f"{column} IS NOT NULL" for column in mine.values()])
    if test.op == "is null":
        return f"(NOT {present})" if wanted else present
    if test.op == "in":
        hit = _joined("OR", [_compared(mine, "=", value, True) for value in test.value])
        return hit if wanted else f"({present} AND NOT {hit})"
    return _compared(mine, test.op, test.value, wanted)


def _compared(mine: dict[str, str], op: str, value, wanted: bool) -> str:
    """Over the columns that a value of this type may lie in: present, and the comparison holds or does not."""
    kind = _kind(value)
    kinds = ("whole", "real") if kind in ("whole", "real") else (kind,)
    parts = []
    for column_kind in (kind for kind in kinds if kind in mine):
        column = mine[column_kind]
        holds = _holds(column, column_kind, op, value)
        parts.append(f"({column} IS NOT NULL AND {'' if wanted else 'NOT '}({holds}))")
    return _joined("OR", parts)


def _holds(column: str, kind: str, op: str, value) -> str:
    if op == "like":
        return f"{column} LIKE {_quoted(normal(value).replace(chr(92), 2 * chr(92)))}"  # a backslash is itself
    op = {"==": "=", "<>": "!="}.get(op, op)
    if kind == "text":
        return f"{column} {op} {_quoted(normal(value))}"
    if kind == "flag":
        return f"CAST({column} AS INT) {op} {int(value)}"  # false < true, as in Python
    return _whole(column, op, value) if kind == "whole" else _real(column, op, value)


def _whole(column: str, op: str, value: int | float) -> str:
    """A comparison of whole numbers with any number, exact also where a float cannot hold them."""
    if op in ("=", "!="):
        fits = LOWEST <= value <= HIGHEST and value == int(value)
        return f"{column} {op} {_int(int(value))}" if fits else str(op == "!=").upper()
    if value < LOWEST or value > HIGHEST:  # infinite ones too
        return str((value > 0) == (op in ("<", "<="))).upper()
    bound = math.floor(value) if op in (">", "<=") else math.ceil(value)
    return f"{column} {op} {_int(bound)}"


def _int(value: int) -> str:
    return f"CAST('{value}' AS BIGINT)" if value == LOWEST else str(value)  # SQL reads -(2^63), and 2^63 does not fit


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits, which is not infinite
        return sys.float_info.max if value > 0 else -sys.float_info.max


def _real(column: str, op: str, value: int | float) -> str:
    """A comparison of floats with any number, exact also where no float holds it."""
    nearest = _float(value)
    if nearest != value:
        if op in ("=", "!="):
            return str(op == "!=").upper()
        op = (">=" if nearest > value else ">") if op[0] == ">" else ("<" if nearest > value else "<=")
    literal = repr(nearest) if math.isfinite(nearest) else f"CAST('{nearest}' AS DOUBLE)"
    return f"{column} {op} {literal}"


def _kind(value) -> str | None:
    """The column that a value lies in; None for a missing one and for what no filter compares."""
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int):
        return "whole" if LOWEST <= value <= HIGHEST else "real"
    return "real" if isinstance(value, float) and not math.isnan(value) else None


def _column(kind: str, name: str) -> str:
    """Safe in SQL whatever the name is; a name that needs no care can still be read."""
    return f"{kind}__{name if re.fullmatch('[a-z][a-z0-9_]*', name) else '0' + name.encode().hex()}"


def _name(column: str) -> str:
    name = PREFIX.sub("", column, count=1)
    return bytes.fromhex(name[1:]).decode() if name.startswith("0") else name


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _joined(word: str, parts: list[str]) -> str:
    return f"({f' {word} '.join(parts)})" if parts else "FALSE"
