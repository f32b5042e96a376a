"""Filters for LanceDB: the parsed filter written as SQL over the typed columns beside the rows.

Column names are made by `typed` and literals are quoted here: no text of a user's filter reaches the SQL as it is.
"""

import math

from zoo.errors import UsageError
from zoo.retrieval.columns import unknown_column
from zoo.retrieval.typed import LOWEST, TYPES, column_of, is_filter_column, kinds_of, name_of, real_test, whole_test
from zoo.retrieval.where import Condition, Filter, normal

DEEPEST = 20  # DataFusion's parser gives up at 50 nested brackets


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
    mine = {kind: column_of(kind, test.column) for kind in TYPES if column_of(kind, test.column) in columns}
    if not mine:
        raise unknown_column(test.column, {name_of(column) for column in columns if is_filter_column(column)})
    present = _joined("OR", [f"{column} IS NOT NULL" for column in mine.values()])
    if test.op == "is null":
        return f"(NOT {present})" if wanted else present
    if test.op == "in":
        hit = _joined("OR", [_compared(mine, "=", value, True) for value in test.value])
        return hit if wanted else f"({present} AND NOT {hit})"
    return _compared(mine, test.op, test.value, wanted)


def _compared(mine: dict[str, str], op: str, value, wanted: bool) -> str:
    """Over the columns that a value of this type may lie in: present, and the comparison holds or does not."""
    parts = []
    for kind in (kind for kind in kinds_of(value) if kind in mine):
        holds = _holds(mine[kind], kind, op, value)
        parts.append(f"({mine[kind]} IS NOT NULL AND {'' if wanted else 'NOT '}({holds}))")
    return _joined("OR", parts)


def _holds(column: str, kind: str, op: str, value) -> str:
    if op == "like":
        return f"{column} LIKE {_quoted(normal(value).replace(chr(92), 2 * chr(92)))}"  # a backslash is itself
    op = {"==": "=", "<>": "!="}.get(op, op)
    if kind == "text":
        return f"{column} {op} {_quoted(normal(value))}"
    if kind == "flag":
        return f"CAST({column} AS INT) {op} {int(value)}"  # false < true, as in Python
    test = whole_test(op, value) if kind == "whole" else real_test(op, value)
    if isinstance(test, bool):
        return str(test).upper()
    return f"{column} {test[0]} {_int(test[1]) if kind == 'whole' else _real(test[1])}"


def _int(value: int) -> str:
    return f"CAST('{value}' AS BIGINT)" if value == LOWEST else str(value)  # SQL reads -(2^63), and 2^63 does not fit


def _real(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"CAST('{value}' AS DOUBLE)"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _joined(word: str, parts: list[str]) -> str:
    return f"({f' {word} '.join(parts)})" if parts else "FALSE"
