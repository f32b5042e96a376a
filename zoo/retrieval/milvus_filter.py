"""Filters for Milvus: the parsed filter as a boolean expression over the typed columns in a row's dynamic field.

A Milvus comparison with a column that a row lacks is false in one version and an error in another, so whatever is
negated stands behind `exists`. Texts are quoted as in JSON; no text of a user's filter is read as an expression.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from zoo.errors import UsageError
from zoo.retrieval.typed import LOWEST, TYPES, column_of, kind_of, kinds_of, real_test, whole_test
from zoo.retrieval.where import COMPARE, Condition, Filter, normal

DEEPEST = 40  # brackets in brackets; the server gives up at about 48: protobuf reads 100 messages in one another
INFINITE = "inf"  # JSON has no such number: a text in its place


class Expression(NamedTuple):
    text: str
    depth: int


Written = Expression | bool  # True and False: of all rows, whatever they hold


def as_expression(tree: Filter, values: Callable[[str], Iterable[str]]) -> Written:
    """An expression that holds where `tree` does. values: the texts in a column, asked for where `like` needs them.

    Raises UsageError where it is nested too deeply.
    """
    found = _written(tree, values, True)
    if not isinstance(found, bool) and found.depth > DEEPEST:
        raise UsageError(f"where: nested too deeply, more than {DEEPEST} brackets")
    return found


def names_in(tree: Filter) -> set[str]:
    """The columns that a filter asks for."""
    return {tree.column} if isinstance(tree, Condition) else set().union(*map(names_in, tree.parts))


def one_of(column: str, texts: Iterable[str]) -> Written:
    texts = sorted(set(texts))
    return Expression(f"{column} in {quoted(texts)}", 1) if texts else False


def _written(tree: Filter, values: Callable, wanted: bool) -> Written:
    """True where `tree` is true (wanted) or false (not wanted); "unknown" is neither of the two."""
    if isinstance(tree, Condition):
        return _condition(tree, values, wanted)
    if tree.op == "not":
        return _written(tree.parts[0], values, not wanted)
    parts = [_written(part, values, wanted) for part in tree.parts]
    return _all(parts) if (tree.op == "and") == wanted else _any(parts)


def _condition(test: Condition, values: Callable, wanted: bool) -> Written:
    if test.op == "is null":
        return _not(_present(test.column)) if wanted else _present(test.column)
    if test.op == "in":
        texts = one_of(column_of("text", test.column), (normal(v) for v in test.value if kind_of(v) == "text"))
        others = [_compared(test.column, "=", v, True) for v in test.value if kind_of(v) != "text"]
        hit = _any([texts, *others])
        return hit if wanted else _all([_present(test.column), _not(hit)])
    if test.op == "like":
        column = column_of("text", test.column)
        return _guarded(column, _like(column, normal(test.value), values), wanted)
    return _compared(test.column, test.op, test.value, wanted)


def _present(name: str) -> Written:
    return _any([_exists(column_of(kind, name)) for kind in TYPES])


def _compared(name: str, op: str, value, wanted: bool) -> Written:
    """Over the columns that a value of this type may lie in: present, and the comparison holds or does not."""
    op = {"==": "=", "<>": "!="}.get(op, op)
    op, wanted = ("=", not wanted) if op == "!=" else (op, wanted)
    columns = [(column_of(kind, name), kind) for kind in kinds_of(value)]
    return _any([_guarded(column, _holds(column, kind, op, value), wanted) for column, kind in columns])


def _guarded(column: str, holds: Written, wanted: bool) -> Written:
    if wanted and holds is not True:
        return holds  # of a missing value it does not hold
    return _all([_exists(column), holds if wanted else _not(holds)])


def _holds(column: str, kind: str, op: str, value) -> Written:
    if kind == "text":
        return _test(column, op, quoted(normal(value)))
    if kind == "flag":
        allowed = [flag for flag in (False, True) if COMPARE[op](flag, value)]
        return len(allowed) == 2 or _any([_test(column, "=", str(flag).lower()) for flag in allowed])
    test = whole_test(op, value) if kind == "whole" else real_test(op, value)
    if isinstance(test, bool):
        return test
    return _whole(column, *test) if kind == "whole" else _real(column, *test)


def _whole(column: str, op: str, value: int) -> Written:
    if value != LOWEST:
        return _test(column, op, str(value))
    if op in ("<", ">="):
        return op == ">="
    return _test(column, ">=" if op == ">" else "<", str(LOWEST + 1))  # the lowest number itself cannot be written


def _real(column: str, op: str, value: float) -> Written:
    end = quoted(INFINITE if op[0] == ">" else f"-{INFINITE}")  # the infinite number that passes < or >
    if abs(value) != float("inf"):
        found = _test(column, op, repr(value))
        return found if op == "=" else _any([found, _test(column, "=", end)])
    same = _test(column, "=", quoted(INFINITE if value > 0 else f"-{INFINITE}"))
    if op == "=" or op == (">=" if value > 0 else "<="):
        return same
    if op == (">" if value > 0 else "<"):
        return False
    return True if len(op) == 2 else _all([_exists(column), _not(same)])


def _like(column: str, pattern: str, values: Callable) -> Written:
    """A start by order, which every server knows; any other pattern by the texts that it fits."""
    start = pattern[: next((i for i, letter in enumerate(pattern) if letter in "%_"), len(pattern))]
    if start == pattern:
        return _test(column, "=", quoted(pattern))
    if pattern == start + "%":
        return _begins(column, start)
    texts = sorted(values(column))
    return one_of(column, (texts[i] for i in Condition("x", "like", pattern).mask(lambda _: texts).nonzero()[0]))


def _begins(column: str, start: str) -> Written:
    """Texts are ordered by code points, as their bytes in UTF-8 are."""
    if not start:
        return True
    stem = start.rstrip(chr(0x10FFFF))
    least = _test(column, ">=", quoted(start))
    if not stem:
        return least
    after = ord(stem[-1]) + 1
    end = stem[:-1] + chr(0xE000 if after == 0xD800 else after)  # no text holds a surrogate
    return _all([least, _test(column, "<", quoted(end))])


def _test(column: str, op: str, literal: str) -> Expression:
    return Expression(f"{column} {'==' if op == '=' else op} {literal}", 1)


def _exists(column: str) -> Expression:
    return Expression(f"(exists {column})", 1)


def _not(one: Written) -> Written:
    return not one if isinstance(one, bool) else Expression(f"(not ({one.text}))", one.depth + 1)


def _all(parts: list[Written]) -> Written:
    return _joined("and", parts, True)


def _any(parts: list[Written]) -> Written:
    return _joined("or", parts, False)


def _joined(word: str, parts: list[Written], neutral: bool) -> Written:
    if (not neutral) in [part for part in parts if isinstance(part, bool)]:
        return not neutral
    parts = [part for part in parts if not isinstance(part, bool)]
    while len(parts) > 1:  # in pairs: a thousand parts are ten brackets deep, not a thousand
        parts = list(_pairs(word, parts))
    return parts[0] if parts else neutral


def _pairs(word: str, parts: list[Expression]) -> Iterator[Expression]:
    for one, other in zip(parts[::2], parts[1::2]):
        yield Expression(f"({one.text} {word} {other.text})", max(one.depth, other.depth) + 1)
    if len(parts) % 2:
        yield parts[-1]


def quoted(value: str | list[str]) -> str:
    return json.dumps(value, ensure_ascii=False)
