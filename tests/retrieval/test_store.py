"""The store's contract, against a plain dict; then what the files must survive."""

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

import zoo.retrieval.store as module
from zoo.errors import ZooError
from zoo.retrieval import NumpyStore
from zoo.retrieval.segments import top
from zoo.retrieval.where import parse

DIM = 4


def rows(keys, value=0.0, blob=None, **columns):
    vectors = np.array([[len(key), ord(key[0]), value, 1] for key in keys], np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = {"key": list(keys), "blob": pa.array([blob] * len(keys), pa.binary()), **columns}
    return pa.table(table | {"vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)})


def contents(store):
    return dict(zip(store.rows()["key"].to_pylist(), store.vectors().tolist()))


def test_random_changes_equal_a_dict_and_survive_reopening(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGE", 40)  # so that merging happens at every size
    monkeypatch.setattr(module, "MANY", 4)
    random, truth, store = np.random.default_rng(0), {}, NumpyStore(tmp_path / "s", DIM)
    for step in range(80):
        keys = [f"k{i}" for i in random.choice(60, size=random.integers(1, 12), replace=False)]
        if random.random() < 0.35:
            assert store.delete(keys) == sum(truth.pop(key, None) is not None for key in keys)
        else:
            new = rows(keys, value=float(step))
            store.append(new)
            truth |= dict(zip(keys, np.array(new["vector"].to_pylist(), np.float32).tolist()))
        if step % 10 == 0:
            assert contents(NumpyStore(tmp_path / "s", DIM)) == truth
        assert contents(store) == truth and len(store) == len(truth)
    assert len(list((tmp_path / "s").glob("segment-*"))) < 12  # merged and swept


def test_a_new_row_takes_the_place_of_its_key(tmp_path):
    store = NumpyStore(tmp_path, DIM)
    store.append(rows(["a", "b"], blob=b"old", note=["x", "y"]))
    store.append(rows(["b"], value=2.0, blob=b"new", note=["z"]))
    assert store.rows().to_pylist() == [{"key": "a", "note": "x"}, {"key": "b", "note": "z"}]
    assert (store.blob("a"), store.blob("b")) == (b"old", b"new")
    with pytest.raises(KeyError):
        store.blob("c")


def test_blobs_are_found_in_every_row_group(tmp_path):
    store = NumpyStore(tmp_path, DIM)
    table = rows([f"k{i}" for i in range(600)])
    store.append(table.set_column(1, "blob", pa.array([str(i).encode() for i in range(600)])))
    assert [store.blob(f"k{i}") for i in (0, 255, 256, 599)] == [b"0", b"255", b"256", b"599"]


def test_deleting_frees_the_disk(tmp_path):
    store = NumpyStore(tmp_path, DIM)
    store.append(rows([f"k{i}" for i in range(100)], blob=bytes(1000)))
    before = sum(f.stat().st_size for f in tmp_path.glob("segment-*"))
    store.delete([f"k{i}" for i in range(60)])
    assert sum(f.stat().st_size for f in tmp_path.glob("segment-*")) < before / 2
    store.delete(store.rows()["key"].to_pylist())
    assert not list(tmp_path.glob("segment-*")) and len(store) == 0 and store.vectors().shape == (0, DIM)


def test_wrong_rows_are_refused_and_change_nothing(tmp_path):
    store = NumpyStore(tmp_path, DIM)
    store.append(rows(["a"]))
    with pytest.raises(ZooError, match="a key occurs twice among 2 new rows"):
        store.append(rows(["b", "b"]))
    with pytest.raises(ZooError, match="vectors of 2 numbers do not fit a store of 4"):
        store.append(pa.table({"key": ["b"], "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}))
    with pytest.raises(ZooError, match="format 1 with 4 numbers a vector; needed: format 1 with 5"):
        NumpyStore(tmp_path, 5)
    assert store.rows()["key"].to_pylist() == ["a"] and store.ignored == []


@pytest.mark.parametrize("n", [1, 2, 17, 400])
def test_top_equals_a_full_stable_sort(n):
    scores = np.random.default_rng(n).integers(0, 9, n).astype(np.float32)  # many ties
    full = sorted(range(n), key=lambda i: (-scores[i], i))
    assert all(top(scores, k).tolist() == full[:k] for k in range(n + 3))


def test_search_is_exact_filtered_and_breaks_ties_by_row(tmp_path):
    store = NumpyStore(tmp_path, DIM)
    random = np.random.default_rng(1)
    vectors = random.normal(size=(301, DIM)).astype(np.float32)
    vectors[[7, 150, 300]] = vectors[200]  # the same picture four times; BLAS treats the last rows apart
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    keys, meta = [f"k{i}" for i in range(301)], [json.dumps({"year": i % 10}) for i in range(301)]
    column = pa.array(vectors.tolist(), pa.list_(pa.float32(), DIM))
    store.append(pa.table({"key": keys, "meta": meta, "vector": column}))
    found = store.search(vectors[200], 5)
    assert [row["key"] for _, row in found[:4]] == ["k7", "k150", "k200", "k300"]
    assert len({score for score, _ in found[:4]}) == 1
    query = vectors[3]
    some = [i for i in np.argsort(-(vectors.astype(float) @ query), kind="stable") if i % 10 > 7]
    found = store.search(query, 20, parse("year > 7"))
    assert [row["key"] for _, row in found] == [f"k{i}" for i in some[:20]]
    assert len(store.search(query, 1000, parse("year > 7"))) == len(some) == 60
    assert store.search(query, 3, parse("year > 70")) == []
    assert NumpyStore(tmp_path / "none", DIM).search(query, 3, parse("year > 7")) == []


def test_torn_and_unknown_files_are_ignored_and_named(tmp_path):
    store = NumpyStore(tmp_path, DIM)
    for key in "abc":
        store.append(rows([key]))
    listed = [s["file"] for s in json.loads((tmp_path / "segments.json").read_text())["segments"]]
    (tmp_path / listed[0]).write_bytes((tmp_path / listed[0]).read_bytes()[:-10])
    damaged = bytearray((tmp_path / listed[1]).read_bytes())
    damaged[damaged.index(np.float32(1 / np.sqrt(1 + 98**2 + 1)).tobytes())] ^= 1  # one bit of a vector
    (tmp_path / listed[1]).write_bytes(damaged)
    (tmp_path / "segment-half.parquet").write_bytes(b"PAR1")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.warns(UserWarning, match="ignored: .*build the index again"):
        again = NumpyStore(tmp_path, DIM)
    assert again.rows()["key"].to_pylist() == ["c"]
    reasons = dict(again.ignored)
    assert set(reasons) == {*listed[:2], "segment-half.parquet", "notes.txt"}
    assert "bytes" in reasons[listed[0]]
    again.append(rows(["a", "b"]))
    clean = NumpyStore(tmp_path, DIM)
    assert sorted(clean.rows()["key"].to_pylist()) == ["a", "b", "c"]
    clean.append(rows(["d"]))  # the writer sweeps what a kill leaves, and nothing else
    assert clean.ignored == [("notes.txt", "not listed in segments.json")]


def test_a_damaged_state_file_is_named(tmp_path):
    NumpyStore(tmp_path, DIM).append(rows(["a"]))
    (tmp_path / "segments.json").write_text('{"format": 1, "dim"')
    with pytest.raises(ZooError, match=r"segments\.json: damaged .*build the index again"):
        NumpyStore(tmp_path, DIM)


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    store = NumpyStore(tmp_path, DIM)
    store.append(rows(["a"]))

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ZooError, match="cannot be written .No space left.*; what was saved before is kept"):
        store.append(rows(["b"]))
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.tmp"))
    assert contents(store).keys() == contents(NumpyStore(tmp_path, DIM)).keys() == {"a"}


class Killed(BaseException):
    pass


def test_stopped_at_any_step_it_is_before_or_after_never_between(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MANY", 2)  # so that each change also merges
    calls, stop_at = 0, None

    def step(real):
        def wrapped(*arguments):
            nonlocal calls
            calls += 1
            if calls == stop_at:
                raise Killed
            return real(*arguments)

        return wrapped

    monkeypatch.setattr(os, "fsync", step(os.fsync))
    monkeypatch.setattr(os, "replace", step(os.replace))
    changes = [lambda s: s.append(rows(["b", "c"], value=5.0)), lambda s: s.delete(["a", "b"])]
    for number, change in enumerate(changes):
        for at in range(1, 30):
            path, stop_at = tmp_path / f"{number}-{at}", None
            NumpyStore(path, DIM).append(rows(["a", "b"]))
            before = contents(NumpyStore(path, DIM))
            calls, stop_at, finished = 0, at, False
            try:
                change(NumpyStore(path, DIM))
                finished = True
            except Killed:
                pass
            stop_at = None
            change_seen = contents(NumpyStore(path, DIM))
            change(NumpyStore(path, DIM))  # doing it again repairs
            after = contents(NumpyStore(path, DIM))
            assert change_seen in ((after,) if finished else (before, after))
            assert NumpyStore(path, DIM).ignored == []
            if finished:
                break
        assert finished and at > 5


WRITER = """
import sys; sys.path.insert(0, {here!r})
from test_store import *
store = NumpyStore({path!r}, DIM)
for step in range({start}, 10**6):
    keys = [f"{name}{{step}}-{{i}}" for i in range(3)]
    store.append(rows(keys, value=1.0))
    store.append(rows(keys[:2], value=2.0))   # replace
    store.delete(keys[2:])
    print(step, flush=True)
"""


def writer(path, name, start=0):
    script = WRITER.format(here=str(Path(__file__).parent), path=str(path), name=name, start=start)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_kill_9_loses_no_finished_row_and_doubles_none(tmp_path):
    start = 0
    for attempt in range(3):
        process = writer(tmp_path, "w", start)
        for line in process.stdout:
            if int(line) >= start + 3 + attempt:
                break
        time.sleep(0.003 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = [int(line), *map(int, process.stdout.read().split())][-1]
        process.communicate()
        store = NumpyStore(tmp_path, DIM)
        keys = store.rows()["key"].to_pylist()
        assert len(keys) == len(set(keys)) == len(store)
        finished = {f"w{step}-{i}" for step in range(acknowledged + 1) for i in range(2)}
        unfinished = {f"w{acknowledged + 1}-{i}" for i in range(3)}
        assert finished <= set(keys) <= finished | unfinished
        values = contents(store)
        replaced = [np.round(values[key][2] / values[key][3]) for key in finished]
        assert set(replaced) == {2.0}
        start = acknowledged + 1


def test_two_writers_and_a_reader_at_once(tmp_path):
    reader, sizes, errors = NumpyStore(tmp_path, DIM), [], []
    writers = [writer(tmp_path, name) for name in "ab"]
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
        assert [int(next(process.stdout)) for _ in range(12)][-1] == 11
    for process in writers:
        process.kill()
        process.communicate()
    stop.set()
    thread.join()
    assert not errors and max(sizes) > 10
    keys = set(reader.rows()["key"].to_pylist())  # no reopening
    assert {f"{name}{step}-{i}" for name in "ab" for step in range(12) for i in range(2)} <= keys
