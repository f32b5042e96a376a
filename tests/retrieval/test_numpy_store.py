"""The files of the exact numpy store: what they must survive. Its answers are tested in test_store.py."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
from test_store import DIM, contents, rows

import zoo.retrieval.numpy_store as module
from zoo.errors import ZooError
from zoo.retrieval import NumpyStore
from zoo.retrieval.segments import top


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
    assert not list(tmp_path.glob("segment-*")) and len(store) == 0 and contents(store) == {}


@pytest.mark.parametrize("n", [1, 2, 17, 400])
def test_top_equals_a_full_stable_sort(n):
    scores = np.random.default_rng(n).integers(0, 9, n).astype(np.float32)  # many ties
    full = sorted(range(n), key=lambda i: (-scores[i], i))
    assert all(top(scores, k).tolist() == full[:k] for k in range(n + 3))


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
