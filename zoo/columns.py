"""One raw column -> numbers for a model: categories with an unknown bucket, scaled floats; and how both are fitted."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zoo.errors import ZooError

SCALINGS = ("standard", "rows", "none")


@dataclass(frozen=True)
class Category:
    """Column `column` of the raw `name`; known values -> 1, 2, ... in order, every other value -> 0, the unknown bucket."""

    name: str
    values: tuple
    column: int = 0

    def __post_init__(self):
        object.__setattr__(self, "values", tuple(self.values))  # a list comes from JSON

    @property
    def size(self) -> int:
        """Rows of an embedding table, the unknown bucket included."""
        return len(self.values) + 1

    @cached_property
    def _codes(self) -> dict:
        return {value: code for code, value in enumerate(self.values, start=1)}

    def codes(self, raw: dict) -> list[int]:
        """The code of each row."""
        values, codes = raw[self.name], self._codes
        values = values[:, self.column].tolist() if isinstance(values, np.ndarray) else values
        return [codes.get(value, 0) for value in values]


@dataclass(frozen=True)
class Number:
    """`width` float columns of the raw `name`.

    scaling: "standard" (value - mean) / std by column, where a missing value (NaN) becomes 0, the mean; "rows" divides
    each row by the sum of its magnitudes (a bag of words becomes frequencies; a row of zeros stays); "none".
    """

    name: str
    width: int = 1
    scaling: str = "standard"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self):
        for key in ("mean", "std"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        if self.scaling not in SCALINGS:
            raise ZooError(f"preprocess: scaling of {self.name!r} is {self.scaling!r}; allowed: {', '.join(SCALINGS)}")
        if self.scaling == "standard" and not len(self.mean) == len(self.std) == self.width:
            raise ZooError(f"preprocess: {self.name!r} has {self.width} columns, {len(self.mean)} means and "
                           f"{len(self.std)} deviations; there must be one of each per column")

    def scaled(self, raw: dict, key: str) -> np.ndarray:
        """(rows, width) float32. ZooError naming `key` and the column where a value is infinite or no number."""
        values = _numeric(raw[self.name], self.name, key)
        if self.scaling == "standard":
            values = (values - np.asarray(self.mean)) / np.asarray(self.std)
        elif self.scaling == "rows":
            values = values / np.maximum(np.abs(values).sum(1, keepdims=True), 1e-12)
        return np.nan_to_num(values, copy=False, nan=0.0).astype(np.float32, copy=False)


def width(values) -> int:
    """Columns that a raw column holds; 0 where it is missing (None)."""
    return 0 if values is None else values.shape[1] if isinstance(values, np.ndarray) else 1


def fitted(parts: list[tuple[dict, np.ndarray | slice]], scaling: str) -> tuple[list[Category], list[Number]]:
    """Schema of the raw columns of several graphs, each with the rows that count.

    float columns become a Number, everything else one Category per column with the values that occur, in order.
    """
    categories, numbers = [], []
    for name in dict.fromkeys(name for raw, _ in parts for name in raw):
        found = [_rows(raw[name], rows) for raw, rows in parts if name in raw]
        widths = {width(values) for values in found}
        if len(widths) > 1:
            raise ZooError(f"preprocess: {name!r} has {min(widths)} columns in one graph and {max(widths)} in another")
        if any(_is_float(values) for values in found):
            numbers.append(_number(name, widths.pop(), found, scaling))
        else:
            categories += [_category(name, column, found) for column in range(widths.pop())]
    return categories, numbers


def _category(name: str, column: int, found: list) -> Category:
    values = {v for part in found for v in (part[:, column].tolist() if isinstance(part, np.ndarray) else part)} - {None}
    return Category(name, tuple(sorted(values, key=lambda v: (isinstance(v, str), v))), column)


def _number(name: str, columns: int, found: list, scaling: str) -> Number:
    if scaling != "standard":
        return Number(name, columns, scaling)
    values = np.concatenate([_numeric(part, name, "preprocess").astype(np.float64) for part in found])
    known = ~np.isnan(values)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, values, 0).sum(0) / count
    std = np.sqrt((np.where(known, values - mean, 0) ** 2).sum(0) / count)
    constant = std <= 1e-7 * np.abs(mean)  # rounding alone gives a constant column a deviation
    return Number(name, columns, scaling, tuple(mean.tolist()), tuple(np.where(constant, 1.0, std).tolist()))


def _numeric(values, name: str, key: str) -> np.ndarray:
    """(rows, width) of a float type."""
    try:
        array = values if isinstance(values, np.ndarray) else np.array([[v] for v in values], np.float64).reshape(-1, 1)
        array = array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ZooError(f"{key}: column {name!r} is no column of numbers: {error}") from error
    if np.isinf(array).any():
        raise ZooError(f"{key}: column {name!r} holds an infinite value in row {np.argwhere(np.isinf(array))[0][0]}")
    return array


def _rows(values, rows):
    return values[rows] if isinstance(values, np.ndarray) or isinstance(rows, slice) else [values[i] for i in rows.tolist()]


def _is_float(values) -> bool:
    if isinstance(values, np.ndarray):
        return np.issubdtype(values.dtype, np.floating)
    return any(isinstance(value, float) for value in values)
