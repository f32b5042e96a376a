"""Columns of numbers to predict, with missing values."""

from collections.abc import Sequence
from math import inf, isinf, nan

from zoo.data.tables import Table
from zoo.errors import ZooError


def target_rows(table: Table, names: Sequence[str]) -> list[list[float]]:
    """(rows, targets); an empty field or NaN is NaN. ZooError naming the row for anything else that is no finite number."""
    def numbers(name: str) -> list[float]:
        return [_number(value, f"{table.file.name}:{row}: {name}") for row, value in enumerate(table.column(name))]

    return [list(row) for row in zip(*map(numbers, names))]


def _number(value, where: str) -> float:
    if value is None or isinstance(value, str) and not value.strip():
        return nan
    try:
        found = float(value)  # text too: one "high" makes text of a whole column
    except (TypeError, ValueError):
        found = inf
    if isinf(found):
        raise ZooError(f"{where} is {value!r}; expected a number, or nothing where it is missing")
    return found
