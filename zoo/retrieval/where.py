"""Metadata filters: {"folder": "beach"} or "folder = 'beach' and year > 2019", read without eval."""

import operator
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from zoo.errors import UsageError

TOKEN = re.compile(
    r"""\s*(?:(?P<string>'(?:[^']|'')*')|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>[^\W\d]\w*|"[^"]+")|(?P<op><=|>=|!=|<>|==|=|<|>|\(|\)|,))""",
    re.VERBOSE,
)
COMPARE = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
LITERALS = {"true": True, "false": False}
EXAMPLE = "write it like: folder = 'beach' and year > 2019"

Columns = Callable[[str], Sequence]  # the values of a column, hashable ones, None where there is none


FALSE, UNKNOWN, TRUE = 0, 1, 2  # SQL's three values: and = min, or = max, not = 2 - x


@dataclass(frozen=True)
class Condition:
    """column op value; op is a key of COMPARE, "in", "like" or "is null".

    As in SQL a missing value is neither equal nor different: it passes "is null" only. A value of another
    type counts as missing.
    """

    column: str
    op: str
    value: object = None

    def mask(self, columns: Columns) -> np.ndarray:
        return self.truth(columns) == TRUE

    def truth(self, columns: Columns) -> np.ndarray:
        test = lru_cache(maxsize=None, typed=True)(self._test())  # columns repeat their values; true is not 1
        return np.fromiter(map(test, columns(self.column)), np.int8)

    def _test(self) -> Callable[[object], int]:
        value = normal(self.value)
        if self.op == "is null":
            return lambda x: TRUE if x is None else FALSE
        if self.op == "in":
            return lambda x: UNKNOWN if x is None else TRUE if _any_equal(x, value) else FALSE
        if self.op == "like":
            match = re.compile("".join(map(_like, value)), re.DOTALL).fullmatch
            return lambda x: (TRUE if match(normal(x)) else FALSE) if isinstance(x, str) else UNKNOWN
        compare = COMPARE[self.op]
        return lambda x: (TRUE if compare(normal(x), value) else FALSE) if _comparable(x, value) else UNKNOWN


@dataclass(frozen=True)
class Group:
    """and / or over `parts`, or not over the only one."""

    op: str
    parts: tuple

    def mask(self, columns: Columns) -> np.ndarray:
        return self.truth(columns) == TRUE

    def truth(self, columns: Columns) -> np.ndarray:
        values = [part.truth(columns) for part in self.parts]
        if self.op == "not":
            return TRUE - values[0]
        return np.minimum.reduce(values) if self.op == "and" else np.maximum.reduce(values)


Filter = Condition | Group


def parse(where: str | Mapping) -> Filter | None:
    """The filter of a dict of equalities (a list: any of its values) or of a text in a small part of SQL.

    Text: column (= != < <= > >=) literal, column [not] in (...), column [not] like 'IMG%', column is [not]
    null, joined by and, or, not and parentheses. Literals: 'text', numbers, true, false; a column whose name
    is no word stands in double quotes. Nothing to filter gives None. Raises UsageError that shows where the
    text is wrong.
    """
    if isinstance(where, str):
        if _lone_surrogates(where):
            raise UsageError(f"where: {ascii(where)} is no text in UTF-8")
        try:
            return _Parser(where).whole() if where.strip() else None
        except RecursionError:
            raise UsageError(f"where: nested too deeply, {len(where)} characters; {EXAMPLE}") from None
    if not isinstance(where, Mapping):
        raise UsageError(f"where: a dict or a text is needed, not {type(where).__name__}; {EXAMPLE}")
    tests = [_equality(column, value) for column, value in where.items()]
    return Group("and", tuple(tests)) if tests else None


def _equality(column: str, value) -> Condition:
    if value is None:
        return Condition(column, "is null")
    if isinstance(value, (list, tuple, set)):
        return Condition(column, "in", tuple(value))
    return Condition(column, "=", value)


class _Parser:
    def __init__(self, text: str):
        self.text, self.tokens, self.at = text, [], 0
        position, end = 0, len(text.rstrip())
        while position < end:
            match = TOKEN.match(text, position)
            if not match:
                raise self._error(position)
            self.tokens.append((match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            position = match.end()
        self.tokens.append(("end", "", end))

    def whole(self) -> Filter:
        tree = self._joined("or", lambda: self._joined("and", self._single))
        if self.tokens[self.at][0] != "end":
            raise self._error()
        return tree

    def _joined(self, word: str, part: Callable) -> Filter:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Group(word, tuple(parts))

    def _single(self) -> Filter:
        if self._take("not"):
            return Group("not", (self._single(),))
        if self._take("("):
            tree = self._joined("or", lambda: self._joined("and", self._single))
            self._need(")")
            return tree
        kind, column, _ = self.tokens[self.at]
        if kind != "name":
            raise self._error()
        self.at += 1
        return self._test(column.strip('"'))

    def _test(self, column: str) -> Filter:
        if self._take("is"):
            negated = self._take("not")
            self._need("null")
            return _negate(negated, Condition(column, "is null"))
        negated = self._take("not")
        if self._take("in"):
            self._need("(")
            values = [self._literal()]
            while self._take(","):
                values.append(self._literal())
            self._need(")")
            return _negate(negated, Condition(column, "in", tuple(values)))
        if self._take("like"):
            value = self._literal()
            if not isinstance(value, str):
                self.at -= 1
                raise self._error()
            return _negate(negated, Condition(column, "like", value))
        kind, op, _ = self.tokens[self.at]
        if negated or op not in COMPARE or kind != "op":
            raise self._error()
        self.at += 1
        return Condition(column, op, self._literal())

    def _literal(self):
        kind, word, _ = self.tokens[self.at]
        self.at += 1
        if kind == "string":
            return word[1:-1].replace("''", "'")
        if kind == "number":
            return int(word) if re.fullmatch(r"[+-]?\d+", word) else float(word)
        if kind == "name" and word.lower() in LITERALS:
            return LITERALS[word.lower()]
        self.at -= 1
        raise self._error()

    def _take(self, word: str) -> bool:
        kind, found, _ = self.tokens[self.at]
        if kind in ("name", "op") and found.lower() == word:
            self.at += 1
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._error()

    def _error(self, position: int | None = None) -> UsageError:
        position = self.tokens[self.at][2] if position is None else position
        rest = self.text[position:].strip()
        place = f"at {rest!r}" if rest else "at its end"
        return UsageError(f"where: {self.text!r} is not understood {place}; {EXAMPLE}")


def _lone_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _negate(negated: bool, condition: Condition) -> Filter:
    return Group("not", (condition,)) if negated else condition


def normal(value):
    """Text in NFC, also within a tuple: a folder may be stored decomposed (macOS) and typed composed."""
    if isinstance(value, str):
        return value if value.isascii() else unicodedata.normalize("NFC", value)
    return tuple(map(normal, value)) if isinstance(value, tuple) else value


def _comparable(x, value) -> bool:
    if isinstance(x, bool) or isinstance(value, bool):
        return isinstance(x, bool) and isinstance(value, bool)
    if isinstance(value, str):
        return isinstance(x, str)
    return isinstance(x, (int, float)) and isinstance(value, (int, float)) and value == value  # no NaN


def _any_equal(x, values: tuple) -> bool:
    return any(_comparable(x, value) and normal(x) == value for value in values)


def _like(character: str) -> str:
    return {"%": ".*", "_": "."}.get(character) or re.escape(character)
