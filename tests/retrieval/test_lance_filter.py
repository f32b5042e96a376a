"""The SQL of a filter selects what the filter itself selects, whatever the values and the names are."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from zoo.errors import UsageError
from zoo.retrieval.lance_filter import as_sql
from zoo.retrieval.store import open_store
from zoo.retrieval.where import COMPARE, Condition, Group, parse

pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")
NAMES = ["year", "my column", "имя", 'a"b', "text__x", "x'; DROP TABLE rows --", "Upper", "key", "width"]
VALUES = [
    None, True, False, 0, 1, -3, 2019, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 0.0, 0.5, 2019.5, -1e300, float("inf"),
    float("nan"), "", "a", "A", "a'b", "a\\b", "a%b", "a_b", "line\nbreak", "cafe\u0301", "日本", "' OR 1=1 --", "\0", "1",
    "true", ["x"], {"k": 1},
]  # fmt: skip
PATTERNS = ["%", "a%", "_", "a\\b", "%\\%", "a'%", "a_b", "%\n%", "caf_", "%' OR '1'='1", ""]


def table(draw, count=60):
    meta = [{name: draw.choice(VALUES) for name in NAMES if draw.random() < 0.8} for _ in range(count)]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.full(2 * count, 0.5**0.5, np.float32)), 2)
    keys, widths = [f"k{i}" for i in range(count)], [draw.choice([None, 1, 2]) for _ in range(count)]
    return pa.table({"key": keys, "width": pa.array(widths, pa.int32()), "meta": list(map(json.dumps, meta)), "vector": vectors})


def condition(draw):
    op = draw.choice([*COMPARE, "in", "like", "is null"])
    values = {"in": tuple(draw.choices(VALUES[:-2], k=3)), "like": draw.choice(PATTERNS), "is null": None}
    return Condition(draw.choice(NAMES), op, values.get(op, draw.choice([*VALUES[1:-2], 10**400, 2**54 + 1])))


def tree(draw, depth=3):
    if depth == 0 or draw.random() < 0.3:
        return condition(draw)
    op = draw.choice(["and", "or", "not"])
    return Group(op, tuple(tree(draw, depth - 1) for _ in range(1 if op == "not" else draw.randint(2, 3))))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    rows, found = table(random.Random(0)), []
    for kind in ("numpy", "lance"):
        found.append(open_store(kind, str(tmp_path_factory.mktemp(kind)), 2))
        found[-1].append(rows)
    return found


def selected(store, where):
    return {row["key"] for _, row in store.search(np.ones(2, np.float32), 100, where)}


@pytest.mark.parametrize("seed", range(4))
def test_random_filters_select_the_same_rows_in_both_stores(stores, seed):
    draw, sizes = random.Random(seed), set()
    for _ in range(40):
        where = tree(draw)
        right = selected(stores[0], where)
        assert selected(stores[1], where) == right, where
        sizes.add(len(right))
    assert len(sizes) > 10  # not all of them select all or nothing


def test_nothing_of_the_users_text_is_sql(stores):
    for text in ("year = ''' OR TRUE --'", "имя = 'x'' ; DELETE FROM rows'", '"x\'; DROP TABLE rows --" = 1 or year > 1e999'):
        assert selected(stores[1], parse(text)) == selected(stores[0], parse(text))
    hostile = "text__0" + b"x'; DROP TABLE rows --".hex()
    sql = as_sql(parse("\"x'; DROP TABLE rows --\" = 'it''s' and not key like 'k%'"), ["text__key", hostile])
    assert "DROP" not in sql and sql.count("'") == 6 and "'it''s'" in sql
    with pytest.raises(UsageError, match="no column 'TRUE; --'; there are: A"):
        as_sql(Condition("TRUE; --", "=", 1), ["text__041", "vector", "key"])


def test_deep_and_wide_filters(stores):
    wide = " or ".join(f"year = {i}" for i in range(1500))
    assert selected(stores[1], parse(wide)) == selected(stores[0], parse(wide))
    deep = "not " * 18 + "year = 2019"
    assert selected(stores[1], parse(deep)) == selected(stores[0], parse(deep))
    with pytest.raises(UsageError, match="nested too deeply"):
        selected(stores[1], parse("not " * 40 + "year = 2019"))


def test_a_filter_that_is_no_text_is_refused():
    with pytest.raises(UsageError, match="is no text in UTF-8"):
        parse("folder = 'caf\udce9'")
