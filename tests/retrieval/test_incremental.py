"""Adding, updating, removing, checking and moving an index, over every store; kill -9 in each of them."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zoo.retrieval
from zoo.data.items import Items
from zoo.errors import UsageError, ZooError
from zoo.retrieval import add, build, remove, update, verify
from zoo.retrieval.files import locked
from zoo.retrieval.store import matrix

HERE = str(Path(__file__).parent)


@pytest.fixture(params=["numpy", "lance"])
def kind(request):
    if request.param == "lance":
        pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")
    return request.param


@pytest.fixture
def path(tmp_path, photos, fake, kind):
    build(tmp_path / "my.index", photos, fake, store=kind)
    return tmp_path / "my.index"


@pytest.fixture
def holiday(tmp_path, painted):
    painted(tmp_path / "holiday" / "1.png", (0, 0, 200))
    painted(tmp_path / "holiday" / "2.png", (200, 200, 0))
    return tmp_path / "holiday"


def keys(path):
    return sorted(zoo.retrieval.open(path).keys())


def embeds(path, model):
    """Every vector is what the model says of that picture now."""
    index = zoo.retrieval.open(path, model)
    found = index.store.rows(["key", "vector"])
    truth = model.embed_image([index.image(key) for key in found["key"].to_pylist()])
    np.testing.assert_allclose(matrix(found, 4), truth, atol=1e-6)
    return True


def test_add_update_remove(path, photos, holiday, make_model, painted):
    first = keys(path)
    fake = make_model()
    report = add(path, holiday, fake)
    assert (report.added, report.removed, sum(fake.embedded)) == (2, 0, 2)
    assert keys(path) == sorted([*first, "holiday/1.png", "holiday/2.png"])
    painted(photos / "new.png", "purple")
    painted(photos / "later.png", "white")
    assert add(path, photos / "new.png", fake).added == 1  # within the first source: its own key, and nothing else
    assert {"new.png"} == set(keys(path)) - set(first) - {"holiday/1.png", "holiday/2.png"}

    painted(holiday / "1.png", "red", (9, 9))
    (holiday / "2.png").unlink()
    (photos / "green.png").unlink()
    os.utime(photos / "red.jpg", (1, 1))
    fake = make_model()
    report = update(path, fake)
    assert (report.added, report.changed, report.removed, sum(fake.embedded)) == (1, 1, 2, 2)
    assert keys(path) == sorted({*first, "holiday/1.png", "new.png", "later.png"} - {"green.png"})
    assert embeds(path, make_model())
    assert zoo.retrieval.open(path, fake).search("red", k=1, where="origin = 'added:holiday'")[0].path == str(holiday / "1.png")

    assert sorted(remove(path, ["beach", "new.png"])) == ["beach/1.png", "beach/10.png", "beach/2.png", "new.png"]
    assert (photos / "new.png").is_file()
    assert update(path, fake).added == 0  # what was taken out stays out
    assert "new.png" not in keys(path) and not any(key.startswith("beach") for key in keys(path))
    assert add(path, photos / "new.png", fake).added == 1 and update(path, fake).unchanged == len(keys(path))
    assert remove(path, [str(holiday)]) == ["holiday/1.png"]
    assert update(path, fake).added == 0 and zoo.retrieval.open(path).manifest["added"] == []


def test_remove_by_filter_and_what_is_not_there(path, fake):
    with pytest.raises(ZooError, match="no picture, folder or added source 'cat' in this index; nothing was removed"):
        remove(path, ["red.jpg", "cat"])
    assert len(keys(path)) == 6
    assert sorted(remove(path, where="folder = 'beach' and key like '%0.png'")) == ["beach/10.png"]
    assert update(path, fake).added == 0 and len(keys(path)) == 5


def test_from_python(path, photos, holiday, fake):
    index = zoo.retrieval.open(path, fake)
    assert index.add(holiday).added == 2 and len(index) == 8
    assert index.add(Items(["mine"], [(photos / "red.jpg").read_bytes()])).unchanged == 0
    assert index.search("red", k=2)[1].key in ("mine", "red.jpg") and index.image("mine").size == (8, 6)
    assert index.update().unchanged == 8 and len(index) == 9  # pictures out of memory stay
    assert index.remove(["mine"]) == ["mine"] and index.verify() != []  # the model of the test is no file
    with pytest.raises(ZooError, match="the key 'red.jpg' belongs to another picture"):
        index.add(Items(["red.jpg"], [(photos / "green.png").read_bytes()]))
    assert index.manifest["doing"] is None and index.note() is None


def test_folders_of_one_name_and_tables_are_kept_apart(path, tmp_path, holiday, photos, fake, painted):
    painted(tmp_path / "other" / "holiday" / "1.png", "purple")
    painted(tmp_path / "other" / "beach" / "1.png", "white")
    pq.write_table(pa.table({"image": [(photos / "red.jpg").read_bytes()], "year": [1999]}), tmp_path / "t.parquet")
    for source in (holiday, tmp_path / "other" / "holiday", tmp_path / "other" / "beach", tmp_path / "t.parquet"):
        add(path, source, fake)
    new = {"holiday/1.png", "holiday/2.png", "holiday-2/1.png", "beach-2/1.png", f"{tmp_path.name}/t.parquet:0"}
    assert new < set(keys(path)) and len(keys(path)) == 11
    index = zoo.retrieval.open(path, fake)
    assert index.search("red", k=3, where="year = 1999")[0].key == f"{tmp_path.name}/t.parquet:0"
    assert index.image(f"{tmp_path.name}/t.parquet:0").size == (8, 6) and update(path, fake).unchanged == 11
    (holiday / "1.png").unlink(), (holiday / "2.png").unlink(), holiday.rmdir()
    with pytest.raises(ZooError, match=f"holiday.*\nwithout it: zoo index remove INDEX {holiday}"):
        update(path, fake)  # a drive that is not plugged in empties no index
    assert len(keys(path)) == 11


def test_bad_pictures_are_listed_until_they_are_mended(path, photos, fake, painted):
    (photos / "cut.jpg").write_bytes((photos / "red.jpg").read_bytes()[:99])
    for report in (add(path, photos / "cut.jpg", fake), update(path, fake)):
        assert [key for key, _ in report.bad] == ["cut.jpg"] and zoo.retrieval.open(path).info()["unreadable"]
    painted(photos / "cut.jpg", "red")
    assert add(path, photos / "cut.jpg", fake).bad == [] and zoo.retrieval.open(path).info()["unreadable"] == []


def test_items_in_memory_have_no_folder_to_look_at(tmp_path, photos, fake, kind):
    build(tmp_path / "i", Items(["a"], [(photos / "red.jpg").read_bytes()]), fake, store=kind)
    with pytest.raises(UsageError, match="made of pictures out of memory, there is no folder to look at"):
        update(tmp_path / "i", fake)


@pytest.fixture
def in_file(tmp_path, make_model, monkeypatch):
    """A model that is a file with a sha256, as those of the zoo."""
    from zoo import checkpoint

    file = tmp_path / "m.safetensors"
    file.write_bytes(b"weights")
    monkeypatch.setattr("zoo.load", lambda name: make_model("m", checkpoint.sha256(file)))
    return file


def test_verify_names_each_problem_and_what_mends_it(tmp_path, photos, in_file, kind, painted, holiday):
    path = tmp_path / "v.index"
    build(path, photos, in_file, store=kind)
    add(path, holiday)
    assert verify(path) == verify(path, contents=True) == []
    size, time = os.stat(photos / "red.jpg").st_size, os.stat(photos / "red.jpg").st_mtime_ns
    (photos / "red.jpg").write_bytes(bytes(size))
    os.utime(photos / "red.jpg", ns=(time, time))
    painted(photos / "green.png", "purple", (9, 9))
    painted(photos / "new.png", "purple")
    (holiday / "1.png").unlink()
    os.utime(photos / "beach" / "1.png", (1, 1))  # touched: its content is what it was
    mend = f"zoo index update {path}"
    wanted = {("not in the index", "new.png", mend), ("the file has changed", "green.png", mend),
              ("the file cannot be read: No such file or directory", "holiday/1.png", mend)}  # fmt: skip
    found = {tuple(problem.values()) for problem in verify(path)}
    assert found == wanted
    hidden = ("the file has changed", "red.jpg", mend)
    assert {tuple(problem.values()) for problem in verify(path, contents=True)} == wanted | {hidden}
    painted(photos / "red.jpg", "red")
    update(path)
    assert verify(path) == []

    index = zoo.retrieval.open(path)
    row = index.store.rows([*index.store.rows().column_names, "vector", "blob"]).slice(0, 1)
    vector = pa.FixedSizeListArray.from_arrays(pa.array([1] * 4, pa.float32()), 4)
    index.store.append(row.set_column(row.column_names.index("vector"), "vector", vector))
    rebuild = f"zoo index build {path} {photos} --rebuild"
    key = row["key"][0].as_py()
    assert [tuple(p.values()) for p in verify(path)] == [("vector of length 2", key, rebuild)]
    build(path, photos, in_file, rebuild=True)
    assert verify(path) == [] and keys(path)[-1].startswith("sky")
    with locked(path / "lock"):
        assert [problem["what"] for problem in verify(path)] == ["being written"]
    in_file.write_bytes(b"trained on")
    assert [p["what"].split(":")[0] for p in verify(path)] == ["other weights"] and verify(path)[0]["mend"] == rebuild
    in_file.unlink()
    assert [p["what"] for p in verify(path)] == ["its model is not here"]


def test_verify_finds_damage(tmp_path, photos, in_file, kind):
    path = tmp_path / "v.index"
    build(path, photos, in_file, store=kind)
    suffix = {"numpy": ".parquet", "lance": ".lance"}[kind]
    file = next(file for file in (path / "rows-1").rglob(f"*{suffix}") if file.is_file())
    file.write_bytes(file.read_bytes()[:-20])
    if kind == "lance":
        problems = verify(path)
        assert problems[0]["what"] == "the rows cannot be read" and problems[0]["mend"].endswith("--rebuild")
        with pytest.warns(UserWarning, match="left behind"):
            build(path, photos, in_file, rebuild=True)
    else:
        with pytest.warns(UserWarning, match="is ignored"):
            assert "not counted" in verify(path)[0]["what"] and len(verify(path)) == 7
        with pytest.warns(UserWarning, match="is ignored"):
            update(path)
    assert verify(path) == [] and len(keys(path)) == 6


def test_moved_to_another_store_without_embedding(path, photos, holiday, kind, make_model, fake):
    add(path, holiday, fake)
    add(path, Items(["mine"], [(photos / "red.jpg").read_bytes()]), fake)
    remove(path, ["green.png"])
    before, other = keys(path), {"numpy": "lance", "lance": "numpy"}[kind]
    if other == "lance":
        pytest.importorskip("lancedb")
    reader, fake = zoo.retrieval.open(path, fake), make_model()
    assert reader.info()["store"]["kind"] == kind
    report = build(path, photos, fake, store=other)
    assert report.unchanged == 8 and sum(fake.embedded) == 1  # the probe for the width
    assert reader.info()["store"]["kind"] == other and keys(path) == before and reader.search("red", k=9)
    assert reader.image("mine").size == (8, 6) and sorted(os.listdir(path)) == ["lock", "manifest.json", "rows-2"]
    report = build(path, photos, fake, rebuild=True, store=other)
    assert sum(fake.embedded) > 8 and keys(path) == before and embeds(path, fake)


SCRIPT = """
import os, sys; sys.path.insert(0, {here!r})
from colour_model import FakeModel
from zoo import retrieval
class Doomed(FakeModel):
    def embed_image(self, pictures):
        if len(self.embedded) >= {calls}:
            os.kill(os.getpid(), 9)
        return super().embed_image(pictures)
{command}
"""


def killed(command, calls):
    script = SCRIPT.format(here=HERE, calls=calls, command=command)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == -signal.SIGKILL


@pytest.mark.parametrize("what", ["update", "add", "rebuild"])
def test_kill_9_in_the_middle_is_said_and_gone_on_from(path, photos, holiday, kind, painted, make_model, what):
    before = keys(path)
    for i in range(10):
        painted(photos / f"{i}.png", (i, 0, 0))
        painted(holiday / f"a{i}.png", (0, i + 1, 0))
    painted(photos / "green.png", "purple", (9, 9))
    command = {
        "update": f"retrieval.update({str(path)!r}, Doomed(), batch_size=4)",
        "add": f"retrieval.add({str(path)!r}, {str(holiday)!r}, Doomed(), batch_size=4)",
        "rebuild": f"retrieval.build({str(path)!r}, {str(photos)!r}, Doomed(), batch_size=4, rebuild=True)",
    }[what]
    killed(command, {"rebuild": 3}.get(what, 2))
    index = zoo.retrieval.open(path, make_model())
    assert len(set(index.keys())) == len(index) and set(before) <= set(index.keys())
    assert len(index) == (6 if what == "rebuild" else 14)  # two batches are in
    assert "interrupted" in index.note() and index.info()["state"] == index.note()
    assert [p["what"] for p in verify(path) if p["what"] == "interrupted"] == ["interrupted"]
    fake = make_model()
    if what == "rebuild":
        build(path, photos, fake, rebuild=True)
        assert sum(fake.embedded) == 8  # 8 of 16 were done; the probe is not needed again
    else:
        update(path, fake)
        assert sum(fake.embedded) == {"update": 3, "add": 4 + 11}[what]
    index = zoo.retrieval.open(path, fake)
    assert index.note() is None and len(index) == len(set(index.keys())) == {"rebuild": 16, "update": 16, "add": 28}[what]
    assert embeds(path, make_model())


def test_a_reader_sees_a_whole_index_at_every_moment_of_a_rebuild(path, photos, kind, make_model):
    stop, errors, sizes = threading.Event(), [], []
    index = zoo.retrieval.open(path, make_model())

    def read():
        try:
            while not stop.is_set():
                sizes.append(len({hit.key for hit in index.search("red", k=10)}))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(2):
        build(path, photos, make_model(), batch_size=2, rebuild=True)
    stop.set()
    thread.join()
    assert errors == [] and set(sizes) == {6}


def test_rows_that_are_replaced_in_the_middle_of_a_search(path, photos, make_model, monkeypatch):
    index = zoo.retrieval.open(path, make_model())
    old = index.store

    def search(*arguments):
        build(path, photos, make_model(), rebuild=True)  # just before the files are looked at
        return type(old).search(old, *arguments)

    monkeypatch.setattr(old, "search", search)
    assert len(index.search("red", k=10)) == 6 and len(index.search("red", k=10)) == 6
    assert os.listdir(path / "rows-2") and index.store is not old


def test_two_writers_take_turns_and_a_search_says_that_one_writes(path, photos, fake):
    with locked(path / "lock"):
        writes = (lambda: update(path, fake), lambda: remove(path, ["red.jpg"]), lambda: add(path, photos / "red.jpg", fake))
        for attempt in writes:
            with pytest.raises(ZooError, match=f"process {os.getpid()} is writing; try again when it is done"):
                attempt()
        assert f"process {os.getpid()} is writing" in zoo.retrieval.open(path).note()
        assert zoo.retrieval.open(path, fake).search("red", k=1)[0].key == "red.jpg"


def test_an_index_of_an_older_version_is_read_and_goes_on(tmp_path, photos, make_model):
    """Before `add` came, manifests named no added sources, and rows no origin."""
    fake, path = make_model(), tmp_path / "old.index"
    build(path, photos, fake, store="numpy")
    index = zoo.retrieval.open(path, fake)
    manifest = {key: value for key, value in index.manifest.items() if key not in ("added", "excluded", "doing")}
    rows = index.store.rows([*index.store.rows().column_names, "vector", "blob"]).drop_columns(["origin"])
    index.store.delete(index.keys())
    index.store.append(rows)
    (path / "manifest.json").write_text(json.dumps(manifest))
    fake = make_model()
    (photos / "red.jpg").unlink()
    assert zoo.retrieval.open(path, fake).search("green", k=1)[0].key == "green.png"
    report = update(path, fake)
    assert (report.unchanged, report.removed, fake.embedded) == (5, 1, [])
