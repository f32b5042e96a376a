"""Folders and tables of sounds: labels, tags, splits of any column, unlabelled clips, what cannot be read."""

import io
import json
import pickle
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_tables import write

from zoo.data.items import Items, joined, split, unreadable
from zoo.data.sounds import open_clips, open_sounds, open_tags, splits
from zoo.errors import ZooError
from zoo.sound import load_sound

soundfile = pytest.importorskip("soundfile")


def sound(value: float = 0.5, samples: int = 80) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.full(samples, value), 8000, format="WAV")
    return out.getvalue()


def fill(folder, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(sound())  # the content decides, so wav does for every suffix


def test_class_folders_below_a_split_layer(tmp_path):
    fill(tmp_path, "train/10/b.wav", "train/9/a.FLAC", "train/9/x/c.opus", "validation/10/d.mp3", "validation/10/notes.txt",
         "train/9/cover.jpg", "validation/10/._d.mp3")
    items = open_sounds(tmp_path, split="train")
    assert (items.keys, items.classes) == (["train/9/a.FLAC", "train/9/x/c.opus", "train/10/b.wav"], ["9", "10"])
    assert (items.labels, items.kind) == ([0, 0, 1], "sound")
    assert open_sounds(tmp_path, split="val").labels == [1]
    assert splits(tmp_path) == ["train", "val"] and not unreadable(items)
    assert pickle.loads(pickle.dumps(items)) == items
    with pytest.raises(ZooError, match=r"no split 'test' \(has: "):
        open_sounds(tmp_path, split="test")


def test_folders_without_sounds_are_refused(tmp_path):
    fill(tmp_path, "a.wav")
    with pytest.raises(ZooError, match=rf"no sounds in class folders; expected {tmp_path.name}/CLASS/sound.wav"):
        open_sounds(tmp_path)
    (tmp_path / "empty").mkdir()
    for open_any in (open_clips, open_sounds):
        with pytest.raises(ZooError, match="no sounds"):
            open_any(tmp_path / "empty")
        with pytest.raises(ZooError, match="no such file or folder"):
            open_any(tmp_path / "gone")


def test_every_broken_file_is_listed_with_its_reason(tmp_path):
    fill(tmp_path, "a/1.wav", "a/2.wav", "a/3.wav", "b/4.wav", "b/5.m4a")
    (tmp_path / "a/2.wav").write_bytes(b"")
    (tmp_path / "a/3.wav").write_text("a text with another name")
    (tmp_path / "b/5.m4a").write_bytes(b"\0\0\0 ftypM4A " + bytes(99))  # found, though nothing here can read it
    bad = unreadable(open_sounds(tmp_path))
    assert [key for key, _ in bad] == ["a/2.wav", "a/3.wav", "b/5.m4a"]
    assert bad[0][1] == "empty, 0 bytes" and bad[1][1] == "not a sound but text" and "ffmpeg -i 5.m4a 5.flac" in bad[2][1]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("column", ["file", "path", "audio", "sound", "file_name"])
def test_tables_of_file_names(tmp_path, suffix, column):
    fill(tmp_path, "clips/a.wav", "clips/b.ogg", "clips/пёс.flac")
    file = write(tmp_path / f"t.{suffix}", [{column: name, "label": label, "fold": fold} for name, label, fold in (
        ("clips/a.wav", "dog", 1), ("b.ogg", "rain", 2), ("пёс.flac", "dog", 10))])  # bare names are looked for below
    for path in (file, tmp_path):
        items = open_sounds(path)
        assert (items.classes, items.labels) == (["dog", "rain"], [0, 1, 0]) and not unreadable(items)
        assert splits(path, "fold") == ["1", "2", "10"] and splits(path) == []
    held = open_sounds(file, split="10", split_column="fold")
    assert (held.keys, held.classes, held.labels) == (["пёс.flac"], ["dog", "rain"], [0])
    with pytest.raises(ZooError, match=r"no split '3' \(has: 1, 2, 10\)"):
        open_sounds(file, split="3", split_column="fold")
    with pytest.raises(ZooError, match=rf"no column 'part' \(columns: {column}, label, fold\)"):
        open_sounds(file, split="3", split_column="part")
    with pytest.raises(ZooError, match="no split 'test' .has: neither a column split nor files named by split"):
        open_sounds(file, split="test")


@pytest.mark.parametrize("column", ["audio", "sound"])
def test_tables_of_bytes(tmp_path, column):
    fill(tmp_path, "b.wav")
    structs = [{"bytes": sound(0.25), "path": "gone.wav"}, {"bytes": None, "path": "b.wav"}, None]
    for values in (structs, [sound(0.25), sound(), None]):
        table = pa.table({column: values, "label": pa.array([1, 0, 0]), "image": [b"x"] * 3})
        table = table.replace_schema_metadata({"label_names": json.dumps(["rain", "dog"])})
        pq.write_table(table, tmp_path / "train.parquet")
        items = open_sounds(tmp_path, split="train")
        assert (items.classes, items.labels, items.meta) == (["rain", "dog"], [1, 0, 0], [{}, {}, {}])
        assert [load_sound(s, 8000)[0].item() for s in items.sources[:2]] == [0.25, 0.5]
        assert unreadable(items) == [("train.parquet:2", "empty, 0 bytes")]
        assert open_clips(tmp_path / "train.parquet").keys == [f"train.parquet:{i}" for i in range(3)]


def test_a_table_without_sounds_says_what_was_looked_for(tmp_path):
    file = write(tmp_path / "t.csv", [{"clip": "a.wav", "label": "x"}])
    with pytest.raises(ZooError) as error:
        open_sounds(file)
    for said in ("no sound column", "'audio' or 'sound' (bytes)", "'file_name'", "(columns: clip, label)"):
        assert said in str(error.value)
    write(file, [{"file": "../a.wav", "label": "x"}])
    with pytest.raises(ZooError, match="leads out of the table's folder"):
        open_sounds(file)


TAGS = {"text": ["rain; dog;rain", "", "dog"], "lists": [["rain", "dog"], [], ["dog"]], "none": [["rain", "dog"], None, ["dog"]]}


@pytest.mark.parametrize("suffix, form", [("csv", "text"), ("jsonl", "text"), ("jsonl", "lists"), ("parquet", "lists"),
                                          ("parquet", "none")])
def test_tags(tmp_path, suffix, form):
    fill(tmp_path, "0.wav", "1.wav", "2.wav")
    file = write(tmp_path / f"t.{suffix}", [{"file": f"{i}.wav", "tags": tags, "split": part} for i, (tags, part) in enumerate(
        zip(TAGS[form], ("train", "test", "test"), strict=True))])
    items = open_tags(file, label="tags")
    assert (items.tags, items.classes, items.labels) == ([[0, 1], [], [0]], ["dog", "rain"], None)
    held = open_tags(file, split="test", label="tags")
    assert (held.tags, held.classes) == ([[], [0]], ["dog", "rain"])
    turned = items.relabel(["rain", "dog"])
    assert (turned.tags, turned.classes, turned.kind) == ([[0, 1], [], [1]], ["rain", "dog"], "sound")


def test_tags_with_stored_names(tmp_path):
    table = pa.table({"audio": [sound()] * 2, "label": [[1, 0], [0]]})
    for feature in ({"feature": {"names": ["z", "a"]}, "_type": "Sequence"}, [{"names": ["z", "a"], "_type": "ClassLabel"}]):
        info = json.dumps({"info": {"features": {"label": feature}}})
        pq.write_table(table.replace_schema_metadata({"huggingface": info}), tmp_path / "t.parquet")
        items = open_tags(tmp_path)
        assert (items.tags, items.classes) == ([[0, 1], [0]], ["z", "a"])
    pq.write_table(pa.table({"audio": [sound()], "label": [[7]]}).replace_schema_metadata({"label_names": '["z"]'}),
                   tmp_path / "t.parquet")
    with pytest.raises(ZooError, match=r"t\.parquet:0: label is 7; expected 0 to 0"):
        open_tags(tmp_path)


def test_wrong_tags_are_refused(tmp_path):
    fill(tmp_path, "x/a.wav")
    with pytest.raises(ZooError, match="tags need one, with a column 'label' like 'dog;rain'"):
        open_tags(tmp_path)
    write(tmp_path / "t.parquet", [{"file": "x/a.wav", "label": [0.5]}])
    with pytest.raises(ZooError, match="column 'label' holds list<.*double>; tags are lists of names"):
        open_tags(tmp_path)


def test_a_split_of_tags_holds_out_the_rare_ones():
    items = Items([str(i) for i in range(40)], [b""] * 40, tags=[[0, 1] if i < 4 else [0] if i < 38 else [] for i in range(40)],
                  classes=["common", "rare"], kind="sound")
    train, held = split(items, 0.25)
    assert sum([0, 1] == tags for tags in held.tags) == 1 and len(train) + len(held) == 40 and held.kind == "sound"
    assert sorted(held.keys) == sorted(split(items.subset(range(39, -1, -1)), 0.25)[1].keys)


def test_items_of_one_kind_can_be_joined():
    first = Items(["a"], [b"1"], [0], ["x"], meta=[{"n": 1}], kind="sound")
    both = first + Items(["b"], [b"2"], [0], ["x"], kind="sound")
    assert (both.keys, both.labels, both.meta, both.kind) == (["a", "b"], [0, 0], [{"n": 1}, {}], "sound")
    for other in (Items(["b"], [b"2"], [0], ["x"]), Items(["b"], [b"2"], [0], ["y"], kind="sound")):
        with pytest.raises(ZooError, match="of one kind and with the same classes"):
            joined([first, other])


def test_clips_without_labels(tmp_path):
    fill(tmp_path, "b/10.wav", "b/9.ogg", "a.mp3")
    assert open_clips(tmp_path).keys == ["a.mp3", "b/9.ogg", "b/10.wav"]
    one = open_clips(tmp_path / "a.mp3")
    assert (one.keys, one.sources, one.kind, one.labels) == (["a.mp3"], [tmp_path / "a.mp3"], "sound", None)


def unpacked(archive, folder, *tables):
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist()[::37]:
            packed.extract(name, folder)
    for table in tables:
        (folder / table.name).write_bytes(table.read_bytes())


def test_fsdd(shared, tmp_path):
    unpacked(shared / "fsdd/fsdd_wav.zip", tmp_path, shared / "fsdd/fsdd.csv")
    train, test = (open_sounds(tmp_path, split=name) for name in ("train", "test"))
    assert (len(train), len(test), train.classes) == (2700, 300, [str(digit) for digit in range(10)])
    george = open_sounds(tmp_path, split="george", split_column="speaker")
    assert len(george) == 500 and {row["speaker"] for row in george.meta} == {"george"}
    here = {path.name for path in (tmp_path / "recordings").iterdir()}
    found = train.subset([i for i, key in enumerate(train.keys) if key in here])
    assert len(found) > 40 and not unreadable(found)
    assert len(load_sound(found.sources[0], 8000)) == found.meta[0]["num_samples"]


def test_esc10(shared, tmp_path):
    unpacked(shared / "esc10/esc10_ogg22k.zip", tmp_path, shared / "esc10/esc10.csv")
    assert splits(tmp_path, "fold") == ["1", "2", "3", "4", "5"]
    items = open_sounds(tmp_path, split="3", label="class", split_column="fold")
    assert len(items) == 80 and {items.labels.count(label) for label in range(10)} == {8} and "dog_bark" in items.classes
    here = [i for i, source in enumerate(items.sources) if source.is_file()]
    assert here and not unreadable(items.subset(here))


def test_stamps(shared):
    items = open_sounds(shared / "stamps/stamps128.parquet", label="category")
    heard = [i for i, source in enumerate(items.sources) if source]
    assert len(items) == 843 and len(heard) == 123
    assert len(load_sound(items.sources[heard[0]], 16000)) > 1000
    assert not unreadable(items.subset(heard[:10]))
