"""The contract of every store, against a plain dict and a product written out, also under kill -9 and in company."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from zoo.errors import UsageError, ZooError
from zoo.retrieval.store import chosen, matrix, open_store
from zoo.retrieval.where import parse

DIM, STEPS = 4, 6


SERVER = pytest.param("milvus", marks=pytest.mark.slow)  # it takes half a minute to start


def usable(request, kind):
    """where(path): the uri of that kind that stands for a path."""
    if kind == "lance":
        pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")
    return request.getfixturevalue("milvus_uri") if kind == "milvus" else str


@pytest.fixture(params=["numpy", "lance", "lance, partitions", SERVER])
def open_at(request, monkeypatch):
    """open_at(path): the store there. The third searches by an index of neighbours from the first row on."""
    kind, _, partitions = request.param.partition(", ")
    where = usable(request, kind)
    if partitions:
        monkeypatch.setattr("zoo.retrieval.lance_store.LARGE", 1)
    return lambda path, dim=DIM: open_store(kind, where(path), dim)


def rows(keys, value=0.0, blob=None, **columns):
    vectors = np.array([[len(key), ord(key[0]), value, 1] for key in keys], np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = {"key": list(keys), "blob": pa.array([blob] * len(keys), pa.binary()), **columns}
    return pa.table(table | {"vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)})


def contents(store):
    found = store.rows(["key", "vector"])
    return dict(zip(found["key"].to_pylist(), matrix(found, DIM).tolist())) if len(found) else {}


def test_random_changes_equal_a_dict_and_survive_reopening(tmp_path, open_at, monkeypatch):
    monkeypatch.setattr("zoo.retrieval.numpy_store.LARGE", 40)  # so that merging happens at every size
    monkeypatch.setattr("zoo.retrieval.numpy_store.MANY", 4)
    monkeypatch.setattr("zoo.retrieval.lance_store.MANY", 9)
    random, truth, store = np.random.default_rng(0), {}, open_at(tmp_path / "s")
    for step in range(30):
        keys = [f"k{i}" for i in random.choice(60, size=random.integers(1, 12), replace=False)]
        if random.random() < 0.35:
            assert store.delete(keys) == sum(truth.pop(key, None) is not None for key in keys)
        else:
            new = rows(keys, value=float(step))
            store.append(new)
            truth |= dict(zip(keys, np.array(new["vector"].to_pylist(), np.float32).tolist()))
        if step % 10 == 0:
            assert contents(open_at(tmp_path / "s")) == truth
            store.optimize()
        assert contents(store) == truth and len(store) == len(truth)


def test_a_new_row_takes_the_place_of_its_key(tmp_path, open_at):
    store = open_at(tmp_path / "s")
    assert len(store) == 0 and store.get("a") is None and store.rows().num_rows == 0 and store.delete(["a"]) == 0
    store.append(rows(["a", "b"], blob=b"old", note=["x", "y"]))
    store.append(rows(["b"], value=2.0, blob=b"new", note=["z"]))
    assert sorted(store.rows().to_pylist(), key=str) == [{"key": "a", "note": "x"}, {"key": "b", "note": "z"}]
    assert (store.blob("a"), store.blob("b")) == (b"old", b"new") and store.get("b") == {"key": "b", "note": "z"}
    assert store.rows(["note", "blob"]).column_names == ["note", "blob"] and store.get("it's; --") is None
    with pytest.raises(KeyError):
        store.blob("c")


def test_a_column_that_comes_later_is_null_before(tmp_path, open_at):
    store = open_at(tmp_path / "s")
    store.append(rows(["a"], meta=['{"year": 2019}']))
    store.append(rows(["b"], meta=['{"year": 2020.5, "имя": "x"}'], origin=["o"]))
    store.append(rows(["a"], value=1.0, meta=['{"name": "y"}']))  # the old metadata goes with the old row
    assert {row["key"]: row["origin"] for row in store.rows().to_pylist()} == {"a": None, "b": "o"}
    query = np.ones(DIM, np.float32)
    for text, keys in {"year > 1": ["b"], "имя = 'x'": ["b"], "year is null": ["a"], "origin = 'o'": ["b"]}.items():
        assert [row["key"] for _, row in store.search(query, 5, parse(text))] == keys


def test_wrong_rows_are_refused_and_change_nothing(tmp_path, open_at):
    store = open_at(tmp_path / "s")
    store.append(rows(["a"]))
    with pytest.raises(ZooError, match="a key occurs twice among 2 new rows"):
        store.append(rows(["b", "b"]))
    with pytest.raises(ZooError, match="vectors of 2 numbers do not fit a store of 4"):
        store.append(pa.table({"key": ["b"], "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}))
    with pytest.raises(ZooError, match="4 numbers a vector; needed: .*5"):
        len(open_at(tmp_path / "s", 5))
    assert store.rows()["key"].to_pylist() == ["a"] and store.ignored == []


def filled(store, count=301):
    random = np.random.default_rng(1)
    vectors = random.normal(size=(count, DIM)).astype(np.float32)
    vectors[[7, 150, 300]] = vectors[200]  # the same picture four times; BLAS treats the last rows apart
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    keys, meta = [f"k{i}" for i in range(count)], [json.dumps({"year": i % 10}) for i in range(count)]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    store.append(pa.table({"key": keys, "meta": meta, "vector": column}))
    return vectors


def test_search_is_exact_among_few_and_filtered_search_gives_all_matches(tmp_path, open_at):
    store = open_at(tmp_path / "s")
    vectors = filled(store)
    found = store.search(vectors[200], 5)
    assert [row["key"] for _, row in found[:4]] == ["k7", "k150", "k200", "k300"]
    assert len({score for score, _ in found[:4]}) == 1 and found[0][0] == pytest.approx(1, abs=2e-6)
    query = vectors[3]
    scores = vectors.astype(float) @ query
    some = [i for i in np.argsort(-scores, kind="stable") if i % 10 > 7]
    found = store.search(query, 20, parse("year > 7"))
    assert [row["key"] for _, row in found] == [f"k{i}" for i in some[:20]]
    np.testing.assert_allclose([score for score, _ in found], scores[some[:20]], atol=2e-6)
    assert len(store.search(query, 1000, parse("year > 7"))) == len(some) == 60
    assert len(store.search(query, 1000)) == 301
    assert store.search(query, 3, parse("year > 70")) == []
    assert open_at(tmp_path / "none").search(query, 3, parse("year > 7")) == []
    with pytest.raises(UsageError, match="no column 'yaer'; there are: key, year"):
        store.search(query, 3, parse("yaer > 7"))


def test_partitions_give_all_matches_and_find_what_came_after_them(tmp_path, monkeypatch):
    pytest.importorskip("lancedb")
    monkeypatch.setattr("zoo.retrieval.lance_store.LARGE", 200)
    monkeypatch.setattr("zoo.retrieval.lance_table.probes", lambda partitions: 1)
    store = open_store("lance", str(tmp_path / "s"), DIM)
    vectors = filled(store)
    store.optimize()
    assert store.info()["search"].startswith("1 of 17 partitions") and store.info()["rows outside the partitions"] == 0
    assert len(store.search(vectors[3], 250)) == 250  # one partition holds fewer: all are looked at
    assert len(store.search(vectors[3], 230, parse("year < 8"))) == 230
    assert store.search(vectors[200], 2)[0][1]["key"] in ("k7", "k150", "k200", "k300")
    store.append(rows(["new"]))
    vector = matrix(store.rows(["key", "vector"]), DIM)[-1]
    assert store.search(vector, 1)[0][1]["key"] == "new" and store.info()["rows outside the partitions"] == 1
    assert (store.get("k7")["key"], store.delete(["k7"]), store.get("k7")) == ("k7", 1, None)
    store.optimize()
    assert store.info()["rows outside the partitions"] == 0 and len(store) == 301
    monkeypatch.setattr("zoo.retrieval.lance_table.GROWN", 0.5)
    store.append(rows([f"more{i}" for i in range(400)], meta=["{}"] * 400))
    store.optimize()
    assert store.info()["search"].startswith("1 of 26 partitions")


def test_which_store_is_chosen(monkeypatch):
    assert [chosen("auto", n, False) for n in (10, 19_999, 20_000)] == ["numpy", "numpy", "lance"]
    assert (chosen("lance", 3, False), chosen("numpy", 10**6, False), chosen("auto", 3, True)) == ("lance", "numpy", "lance")
    monkeypatch.setattr("zoo.retrieval.store.find_spec", lambda name: None)
    assert chosen("auto", 10**6, False) == "numpy"  # exact, only slower
    with pytest.raises(UsageError, match="--store faiss; allowed: auto, numpy, lance, and a Milvus server such as http://host:19530"):
        chosen("faiss", 1, False)
    with pytest.raises(UsageError, match="on object storage: --store lance"):
        chosen("numpy", 1, True)


def test_lancedb_missing_is_said_with_the_pip_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(ZooError, match=r"LanceDB, which is not installed.*\npip install 'zoo-attention\[retrieval\]'"):
        open_store("lance", str(tmp_path), DIM)


def test_damage_is_an_error_of_one_line(tmp_path):
    pytest.importorskip("lancedb")
    store = open_store("lance", str(tmp_path / "s"), DIM)
    store.append(rows(["a", "b"]))
    for file in (tmp_path / "s").rglob("*.lance"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ZooError, match="cannot be read .*; see: zoo index verify") as error:
        open_store("lance", str(tmp_path / "s"), DIM).rows()
    assert "\n" not in str(error.value)


WRITER = """
import sys; sys.path.insert(0, {here!r})
from test_store import *
store = open_store({kind!r}, {path!r}, DIM)
for step in range({start}, 10**6):
    keys = [f"{name}{{step}}-{{i}}" for i in range(3)]
    store.append(rows(keys, value=1.0))
    store.append(rows(keys[:2], value=2.0))   # replace
    store.delete(keys[2:])
    print(step, flush=True)
"""


def writer(kind, path, name, start=0):
    script = WRITER.format(here=str(Path(__file__).parent), kind=kind, path=path, name=name, start=start)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(params=["numpy", "lance", SERVER])
def kept(request, tmp_path):
    """The kind of a store and its uri."""
    return request.param, usable(request, request.param)(tmp_path)


def test_kill_9_loses_no_finished_row_and_doubles_none(kept):
    start, (kind, path) = 0, kept
    for attempt in range(2):
        process = writer(kind, path, "w", start)
        for line in process.stdout:
            if int(line) >= start + 3 + attempt:
                break
        time.sleep(0.003 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = [int(line), *map(int, process.stdout.read().split())][-1]
        process.communicate()
        store = open_store(kind, path, DIM)
        keys = store.rows()["key"].to_pylist()
        assert len(keys) == len(set(keys)) == len(store)
        finished = {f"w{step}-{i}" for step in range(acknowledged + 1) for i in range(2)}
        unfinished = {f"w{acknowledged + 1}-{i}" for i in range(3)}
        assert finished <= set(keys) <= finished | unfinished
        values = contents(store)
        replaced = [np.round(values[key][2] / values[key][3]) for key in finished]
        assert set(replaced) == {2.0}
        start = acknowledged + 1


def test_two_writers_and_a_reader_at_once(kept):
    kind, path = kept
    reader, sizes, errors = open_store(kind, path, DIM), [], []
    writers = [writer(kind, path, name) for name in "ab"]
    stop = threading.Event()

    def read():
        try:
            while not stop.is_set():
                keys = reader.rows()["key"].to_pylist()
                assert len(keys) == len(set(keys))
                sizes.append(len(keys))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for process in writers:
        assert [int(next(process.stdout)) for _ in range(STEPS)][-1] == STEPS - 1
    for process in writers:
        process.kill()
        process.communicate()
    stop.set()
    thread.join()
    assert not errors and max(sizes) > STEPS
    keys = set(reader.rows()["key"].to_pylist())  # no reopening
    assert {f"{name}{step}-{i}" for name in "ab" for step in range(STEPS) for i in range(2)} <= keys
