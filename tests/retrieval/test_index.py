"""Building, bringing up to date, reopening; what must be refused and what must be reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zoo.retrieval
from zoo.data.items import Items
from zoo.errors import UsageError, ZooError
from zoo.retrieval import build
from zoo.retrieval.files import locked
from zoo.retrieval.store import matrix

KEYS = ["beach/1.png", "beach/2.png", "beach/10.png", "green.png", "red.jpg", "sky/blue.png"]


def test_a_folder_is_mirrored_and_only_what_changed_is_embedded(tmp_path, photos, make_model, painted):
    path, steps, fake = tmp_path / "i", [], make_model()
    report = build(path, photos, fake, progress=lambda done, total: steps.append((done, total)), batch_size=4)
    assert (report.added, report.unchanged, report.removed, report.bad) == (6, 0, 0, [])
    assert steps == [(4, 6), (6, 6)]
    index = zoo.retrieval.open(path, fake)
    assert sorted(index.keys()) == sorted(KEYS) and len(index) == 6

    again = make_model()
    assert build(path, photos, again).unchanged == 6
    assert again.embedded == []

    painted(photos / "green.png", "purple", (9, 9))  # changed
    painted(photos / "new.png", "white")  # added
    (photos / "red.jpg").rename(photos / "rot.jpg")  # renamed: known by its content
    os.utime(photos / "sky" / "blue.png", (1, 1))  # touched only
    (photos / "beach" / "1.png").unlink()
    again = make_model()
    report = build(path, photos, again)
    assert (report.added, report.changed, report.unchanged, report.removed) == (2, 1, 3, 2)
    assert again.embedded == [2]
    now = ["beach/10.png", "beach/2.png", "green.png", "new.png", "rot.jpg", "sky/blue.png"]
    assert sorted(index.keys()) == now
    assert index.image("green.png").size == (9, 9)
    truth = dict(zip(index.keys(), make_model().embed_image([index.image(key) for key in index.keys()])))
    np.testing.assert_allclose(matrix(index.store.rows(["vector"]), 4), np.stack(list(truth.values())), atol=1e-6)
    quiet = make_model()
    assert build(path, photos, quiet).unchanged == 6 and quiet.embedded == []


def test_bad_files_are_reported_and_never_stop_the_run(tmp_path, photos, painted, picky):
    whole = (photos / "red.jpg").read_bytes()
    (photos / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "empty.png").write_bytes(b"")
    (photos / "text.png").write_text("not a picture")
    os.mkfifo(photos / "pipe.png")
    (photos / "dangling.png").symlink_to("nowhere")
    painted(photos / "flat.png", "red", (5, 1))
    painted(photos / "white.png", "white")
    report = build(tmp_path / "i", photos, picky)
    reasons = dict(report.bad)
    assert report.added == 6 and len(reasons) == 7
    assert reasons["flat.png"] == "too flat" and reasons["white.png"] == "the model's vector is not finite"
    assert reasons["pipe.png"] == "not a regular file" and "No such file" in reasons["dangling.png"]
    assert "0 bytes" in reasons["empty.png"] and "not a picture" in reasons["text.png"] and reasons["cut.jpg"]
    assert not any(reason.startswith(key) for key, reason in report.bad)
    assert zoo.retrieval.open(tmp_path / "i").info()["unreadable"] == [list(pair) for pair in report.bad]

    (photos / "green.png").write_text("broken since")
    report = build(tmp_path / "i", photos, picky)
    assert (report.unchanged, report.removed) == (5, 1) and "green.png" in dict(report.bad)


def test_big_pictures_are_embedded_few_at_a_time(tmp_path, painted, fake, monkeypatch):
    monkeypatch.setattr("zoo.retrieval.sync.PIXELS", 100)
    for i in range(7):
        painted(tmp_path / "p" / f"{i}.png", (i * 30, 0, 0), (10, 5))
    build(tmp_path / "i", tmp_path / "p", fake)
    assert fake.embedded[1:] == [2, 2, 2, 1]


def test_captions_and_metadata_beside_the_pictures(tmp_path, photos, fake):
    table = "file,caption,year\nred.jpg,a red thing,2020\nred.jpg,ein rotes Ding,2020\n"
    table += "beach/1.png,жёлтый,2018\n"
    (photos / "captions.csv").write_text(table, encoding="utf-8")
    (photos / "other.csv").write_text('"broken')
    build(tmp_path / "i", photos, fake)
    index = zoo.retrieval.open(tmp_path / "i", fake)
    assert len(index) == 6
    rows = {row["key"]: row for row in index.store.rows().to_pylist()}
    assert rows["red.jpg"]["captions"] == ["a red thing", "ein rotes Ding"]
    assert rows["beach/1.png"]["captions"] == ["жёлтый"] and rows["green.png"]["captions"] is None
    assert json.loads(rows["beach/1.png"]["meta"])["year"] == 2018

    (photos / "captions.csv").write_text(table.replace("2018", "2017"), encoding="utf-8")
    fake.embedded.clear()
    assert build(tmp_path / "i", photos, fake).unchanged == 6 and fake.embedded == []
    assert index.search("yellow", where={"year": 2017})[0].key == "beach/1.png"

    (photos / "captions.csv").unlink()
    (photos / "red.txt").write_text(" \n")
    assert build(tmp_path / "i", photos, fake).unchanged == 6
    (photos / "green.txt").write_text("a lawn\n")
    build(tmp_path / "i", photos, fake)
    captions = {row["key"]: row["captions"] for row in index.store.rows().to_pylist()}
    assert captions["green.png"] == ["a lawn"] and captions["red.jpg"] is None


def encoded(photos):
    return [(photos / key).read_bytes() for key in KEYS]


def test_a_table_is_referred_to_not_copied(tmp_path, photos, fake):
    table = tmp_path / "t.parquet"
    columns = {"image": encoded(photos), "captions": [[k, "x"] for k in KEYS], "year": list(range(6))}
    pq.write_table(pa.table(columns), table)
    assert build(tmp_path / "i", table, fake).added == 6
    assert build(tmp_path / "i", table, fake).unchanged == 6
    index = zoo.retrieval.open(tmp_path / "i", fake)
    assert index.keys()[3] == "t.parquet:3" and index.store.blob("t.parquet:3") is None
    assert index.image("t.parquet:3").getpixel((0, 0)) == (0, 255, 0)
    hit = index.search("green", k=1)[0]
    assert (hit.key, hit.path, hit.caption, hit.meta["year"]) == ("t.parquet:3", None, "green.png", 3)
    pq.write_table(pa.table(columns | {"image": encoded(photos)[::-1]}), table)
    changed = zoo.retrieval.open(tmp_path / "i", fake)
    with pytest.raises(ZooError, match="t.parquet:0: its table has changed since it was indexed; zoo index update"):
        changed.image("t.parquet:0")


def test_a_table_of_files_and_a_single_picture(tmp_path, photos, fake):
    (photos / "list.csv").write_text("file,caption\nsky/blue.png,sky\nred.jpg,red\n")
    build(tmp_path / "i", photos / "list.csv", fake)
    index = zoo.retrieval.open(tmp_path / "i", fake)
    assert index.search("blue", k=1)[0].path == str(photos / "sky" / "blue.png")
    build(tmp_path / "j", photos / "red.jpg", fake)
    assert zoo.retrieval.open(tmp_path / "j", fake).image("red.jpg").size == (8, 6)


def test_items_of_bytes_are_kept_in_the_index(tmp_path, photos, fake):
    items = Items(list(KEYS), encoded(photos), meta=[{"имя": "é" * i} for i in range(6)])
    build(tmp_path / "i", items, fake)
    shutil.rmtree(photos)
    index = zoo.retrieval.open(tmp_path / "i", fake)
    assert index.image("sky/blue.png").getpixel((0, 0)) == (0, 0, 255)
    hit = index.search("blue", k=1)[0]
    assert (hit.path, hit.meta) == (None, {"folder": "sky", "width": 4, "height": 4, "имя": "é" * 5})
    again = Items(list(KEYS), [b"x", *items.sources[1:]])
    report = build(tmp_path / "i", again, fake)
    assert report.bad[0][0] == "beach/1.png" and (report.unchanged, report.removed) == (5, 1)
    with pytest.raises(ZooError, match="the key 'a' occurs twice"):
        build(tmp_path / "i", Items(["a", "b", "a"], items.sources[:3]), fake)


def test_pictures_of_a_table_come_into_the_index_once_the_table_is_no_longer_named(tmp_path, photos, fake):
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"image": encoded(photos)}), table)
    build(tmp_path / "i", table, fake)
    keys = zoo.retrieval.open(tmp_path / "i").keys()
    fake.embedded.clear()
    assert build(tmp_path / "i", Items(keys, encoded(photos)), fake).unchanged == 6 and fake.embedded == []
    table.unlink()
    assert zoo.retrieval.open(tmp_path / "i").image(keys[0]).size == (8, 6)


def test_a_moved_folder_is_followed(tmp_path, photos, fake):
    build(tmp_path / "i", photos, fake)
    photos.rename(tmp_path / "moved")
    fake.embedded.clear()
    assert build(tmp_path / "i", tmp_path / "moved", fake).unchanged == 6 and fake.embedded == []
    hit = zoo.retrieval.open(tmp_path / "i", fake).search("red", k=1)[0]
    assert hit.path == str(tmp_path / "moved" / "red.jpg")


def test_a_file_name_that_is_no_utf8_is_indexed(tmp_path, painted, fake):
    painted(tmp_path / "p" / "a.png", "red")
    os.rename(tmp_path / "p" / "a.png", os.fsencode(tmp_path / "p") + b"/caf\xe9.png")
    assert build(tmp_path / "i", tmp_path / "p", fake).added == 1
    index = zoo.retrieval.open(tmp_path / "i", fake)
    assert index.image(index.keys()[0]).size == (8, 6)


def test_another_model_is_refused_with_the_command_that_rebuilds(tmp_path, photos, make_model):
    path = tmp_path / "my photos.index"
    build(path, photos, make_model())
    other = make_model("fake.other", "2" * 64)  # of equal width
    message = (
        f"{path} was built with fake.colours (sha256 111111111111), "
        f"not with fake.other (sha256 222222222222); their vectors cannot be compared\n"
        f"rebuild it with: zoo index build '{path}' {photos} --model fake.other --rebuild"
    )
    for attempt in (lambda: build(path, photos, other), lambda: zoo.retrieval.open(path, other)):
        with pytest.raises(ZooError) as error:
            attempt()
        assert str(error.value) == message
    with pytest.raises(ZooError, match="same weights, other preprocessing"):
        zoo.retrieval.open(path, make_model(preprocess={"size": [9, 9]}))
    tuple_for_list = make_model(preprocess={"size": (8, 8)})
    assert len(zoo.retrieval.open(path, tuple_for_list)) == 6

    reader = zoo.retrieval.open(path, make_model())
    assert build(path, photos, other, rebuild=True).added == 6
    assert zoo.retrieval.open(path, other).info()["model"] == "fake.other"
    assert [p.name for p in path.glob("rows-*")] == ["rows-2"]
    with pytest.raises(ZooError, match="built anew with fake.other since it was opened; open it again"):
        reader.search("red")


def test_the_model_of_the_manifest_is_loaded_at_first_need(tmp_path, photos, make_model, monkeypatch):
    build(tmp_path / "i", photos, make_model())
    names = []
    monkeypatch.setattr(zoo, "load", lambda name: names.append(name) or make_model())
    index = zoo.retrieval.open(tmp_path / "i")
    assert len(index) == 6 and index.info()["model"] == "fake.colours" and names == []
    assert index.search("red", k=1)[0].key == "red.jpg" and index.search("blue") and names == ["fake.colours"]
    monkeypatch.setattr(zoo, "load", lambda name: make_model(sha256="3" * 64))
    with pytest.raises(ZooError, match="rebuild it with"):  # trained anew under the same name
        zoo.retrieval.open(tmp_path / "i").search("red")


def test_a_model_from_a_file_is_found_again_from_anywhere(tmp_path, photos, make_model, monkeypatch):
    names = []
    monkeypatch.setattr(zoo, "load", lambda name: names.append(str(name)) or make_model())
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    build("i", photos, "run")
    monkeypatch.chdir("/")
    assert zoo.retrieval.open(tmp_path / "i").search("red", k=1)[0].key == "red.jpg"
    assert names == ["run", str(tmp_path / "run")]
    monkeypatch.setattr(zoo, "load", lambda name: make_model(sha256="3" * 64))
    with pytest.raises(ZooError, match=f"--model {tmp_path / 'run'} --rebuild"):
        zoo.retrieval.open(tmp_path / "i", tmp_path / "run")


def test_a_fresh_model_of_the_zoo_is_used_in_eval_mode(tmp_path, photos):
    model = zoo.create_model("image_pico", num_classes=3)
    build(tmp_path / "i", photos, model)
    index = zoo.retrieval.open(tmp_path / "i", model)
    assert not model.training
    assert index.search(image=photos / "green.png", k=1)[0].score == pytest.approx(1, abs=1e-5)
    assert build(tmp_path / "i", photos, model).unchanged == 6


def test_an_unsaved_model_is_known_by_its_values(tmp_path, photos, make_model):
    import torch

    models = [make_model(sha256="") for _ in range(3)]
    for model, value in zip(models, (1.0, 1.0, 2.0)):
        state = {"a": torch.tensor(value), "b": torch.zeros(2, dtype=torch.bfloat16)}
        model.state_dict = lambda state=state: state
    build(tmp_path / "i", photos, models[0])
    zoo.retrieval.open(tmp_path / "i", models[1])
    with pytest.raises(ZooError, match="rebuild it with"):
        zoo.retrieval.open(tmp_path / "i", models[2])


@pytest.mark.parametrize("text, message", [
    (None, "no index here; make one with: zoo index build"),
    ("{", r"manifest\.json: damaged"),
    ('{"format": 2}', "format 2; this zoo reads format 1"),
])  # fmt: skip
def test_what_is_no_index_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ZooError, match=message):
        zoo.retrieval.open(tmp_path)


def test_nothing_is_written_into_a_folder_of_something_else(tmp_path, photos, fake):
    before = sorted(photos.rglob("*"))
    for wrong in (photos, photos / "red.jpg"):  # the two arguments swapped
        with pytest.raises(ZooError, match="exists and is no index"):
            build(wrong, photos, fake)
    (tmp_path / "void").mkdir()
    with pytest.raises(ZooError, match="no pictures"):
        build(tmp_path / "i", tmp_path / "void", fake)
    assert sorted(photos.rglob("*")) == before and not (tmp_path / "i").exists()


def test_a_second_writer_is_told_who_writes_and_readers_go_on(tmp_path, photos, fake):
    build(tmp_path / "i", photos, fake)
    with locked(tmp_path / "i" / "lock"):
        with pytest.raises(ZooError, match=f"i: process {os.getpid()} is writing; try again when it is done"):
            build(tmp_path / "i", photos, fake)
        assert len(zoo.retrieval.open(tmp_path / "i", fake).search("red")) == 6
    assert build(tmp_path / "i", photos, fake).unchanged == 6


BUILDER = """
import os, sys; sys.path.insert(0, {here!r})
from colour_model import FakeModel
from zoo.retrieval import build
class Slow(FakeModel):
    def embed_image(self, pictures):
        if len(self.embedded) > {calls}:
            os.kill(os.getpid(), 9)
        return super().embed_image(pictures)
build({path!r}, {photos!r}, Slow(), batch_size=5)
"""


def test_a_killed_build_goes_on_where_it_stopped(tmp_path, painted, make_model):
    for i in range(40):
        painted(tmp_path / "p" / f"{i}.png", (i, 0, 0))
    here, path, pictures = str(Path(__file__).parent), str(tmp_path / "i"), str(tmp_path / "p")
    script = BUILDER.format(here=here, calls=3, path=path, photos=pictures)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == -signal.SIGKILL
    assert len(zoo.retrieval.open(tmp_path / "i")) == 15  # three batches of five after the probe
    fake = make_model()
    report = build(tmp_path / "i", tmp_path / "p", fake)
    assert (report.added, report.unchanged, sum(fake.embedded)) == (25, 15, 25)
    assert zoo.retrieval.open(tmp_path / "i").info()["ignored"] == []


def test_an_index_knows_its_own_model(tmp_path, photos, make_model, monkeypatch):
    with pytest.raises(UsageError, match="a new index needs a model"):
        build(tmp_path / "i", photos)
    build(tmp_path / "i", photos, make_model())
    monkeypatch.setattr(zoo, "load", lambda name: make_model(name))
    assert build(tmp_path / "i", photos).unchanged == 6


def test_info_is_plain_values(tmp_path, photos, fake):
    build(tmp_path / "i", photos, fake)
    info = json.loads(json.dumps(zoo.retrieval.open(tmp_path / "i").info()))
    assert (info["rows"], info["dim"], info["metric"], info["model"]) == (6, 4, "cosine", "fake.colours")
    assert info["source"] == str(photos) and info["bytes"] > 1000 and info["preprocess"] == {"size": [8, 8]}


def test_importing_is_cheap_and_open_is_lazy():
    code = """
import sys, zoo.retrieval
assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules)
zoo.retrieval.open, zoo.retrieval.build
assert 'torch' not in sys.modules
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(zoo.retrieval, "nothing")
    assert all(hasattr(zoo.retrieval, name) and name in dir(zoo.retrieval) for name in zoo.retrieval.__all__)
