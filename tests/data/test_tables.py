"""Tables of pictures in three formats: bytes or files, labels, captions, splits, and their faults."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from zoo.data.images import open_images, open_pairs, open_pictures, splits, unreadable
from zoo.errors import ZooError

SHARED = Path(__file__).parents[2] / "../shared/data"


def picture(colour="red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(out, "PNG")
    return out.getvalue()


def write(file: Path, rows: list[dict]) -> Path:
    """The rows as CSV, JSONL or Parquet, by the suffix."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        quoted = [",".join(f'"{value}"' for value in row.values()) for row in rows]
        file.write_text("\n".join([",".join(rows[0]), *quoted]) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png", "c.png", "пёс.png"):
        (tmp_path / "pics").mkdir(exist_ok=True)
        (tmp_path / "pics" / name).write_bytes(picture())
    return tmp_path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("column", ["file", "path", "image", "file_name"])
def test_file_column_in_every_format(folder, suffix, column):
    rows = [{column: f"pics/{name}", "label": label, "year": year, "note": "x, y"}
            for name, label, year in (("a.png", "10", 7), ("пёс.png", "9", 8), ("b.png", "10", 9))]
    for items in (open_images(write(folder / f"t.{suffix}", rows)), open_images(folder)):
        assert items.keys == ["pics/a.png", "pics/пёс.png", "pics/b.png"]
        assert (items.classes, items.labels) == (["9", "10"], [1, 0, 1])
        assert items.meta[1] == {column: "pics/пёс.png", "year": 8, "note": "x, y"}
        assert not unreadable(items)


def test_text_labels_stay_text_in_csv(folder):
    write(folder / "t.csv", [{"file": "pics/a.png", "kind": "007"}, {"file": "pics/b.png", "kind": "NA"}])
    assert open_images(folder, label="kind").classes == ["007", "NA"]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_byte_order_mark(folder, delimiter):
    text = "file;label\npics/a.png;x\npics/b.png;y\n".replace(";", delimiter)
    (folder / "t.csv").write_text(text, encoding="utf-8-sig")
    assert open_images(folder).classes == ["x", "y"]


def test_image_bytes_with_stored_label_names(tmp_path):
    table = pa.table({"image": pa.array([picture("red"), picture("blue"), None], pa.binary()),
                      "label": pa.array([2, 0, 0], pa.int8()), "sound": pa.array([b"x"] * 3, pa.binary())})
    names = ["zebra", "ant", "bee"]  # an order that is not alphabetical is kept
    pq.write_table(table.replace_schema_metadata({"label_names": json.dumps(names)}), tmp_path / "t.parquet")
    items = open_images(tmp_path / "t.parquet")
    assert (items.classes, items.labels, items.meta) == (names, [2, 0, 0], [{}, {}, {}])
    assert items.keys == ["t.parquet:0", "t.parquet:1", "t.parquet:2"]
    assert items.image(1).getpixel((0, 0)) == (0, 0, 255)
    assert unreadable(items) == [("t.parquet:2", "empty, 0 bytes")]


def test_hugging_face_struct_and_class_labels(folder):
    rows = [{"image": {"bytes": picture("blue"), "path": None}, "label": 1},
            {"image": {"bytes": None, "path": "pics/a.png"}, "label": 0}]
    info = {"info": {"features": {"label": {"names": ["yes", "no"], "_type": "ClassLabel"}}}}
    table = pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, folder / "train-00000-of-00001.parquet")
    items = open_images(folder, split="train")
    assert (items.classes, items.labels) == (["yes", "no"], [1, 0])
    assert [items.image(i).getpixel((0, 0)) for i in (0, 1)] == [(0, 0, 255), (255, 0, 0)]


def test_labels_as_categories(tmp_path):
    table = pa.table({"image": [picture()] * 3, "label": pa.array(["b", "a", "b"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "t.parquet")
    assert open_images(tmp_path).labels == [1, 0, 1]


def test_integers_without_names_are_names(tmp_path):
    write(tmp_path / "t.parquet", [{"image": picture(), "label": n} for n in (10, 2, 10)])
    items = open_images(tmp_path)
    assert (items.classes, items.labels) == (["2", "10"], [1, 0, 1])


def test_split_column_keeps_all_classes(folder):
    write(folder / "t.jsonl", [{"file": f"pics/{n}.png", "label": n, "split": s}
                               for n, s in (("a", "train"), ("b", "train"), ("c", "validation"))])
    val = open_images(folder, split="val")
    assert (val.keys, val.classes, val.labels) == (["pics/c.png"], ["a", "b", "c"], [2])
    assert splits(folder) == ["train", "val"]
    with pytest.raises(ZooError, match=r"no split 'test' \(has: train, val\)"):
        open_images(folder, split="test")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_named_by_split(folder, suffix):
    write(folder / f"birds_train.{suffix}", [{"file": f"pics/{n}.png", "label": c} for n, c in ("ax", "by")])
    write(folder / f"birds_test.{suffix}", [{"file": "pics/c.png", "label": "y"}])
    test = open_images(folder, split="test")
    assert (test.keys, test.classes, test.labels) == (["pics/c.png"], ["x", "y"], [1])
    assert len(open_images(folder)) == 3
    with pytest.raises(ZooError, match=r"no split 'val' \(has: test, train\)"):
        open_images(folder, split="val")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_missing_columns_are_named(folder, suffix):
    file = write(folder / f"t.{suffix}", [{"file": "pics/a.png", "class": "x"}])
    with pytest.raises(ZooError) as error:
        open_images(file)
    assert str(error.value) == f"{file}: no column 'label' (columns: file, class)"
    with pytest.raises(ZooError, match="no column 'caption' or 'captions' or 'text'"):
        open_pairs(file)
    file = write(folder / f"u.{suffix}", [{"picture": "pics/a.png", "label": "x"}])
    with pytest.raises(ZooError) as error:
        open_images(file)
    for said in (f"{file}: no picture column", "'image'", "'file'", "'path'", "(columns: picture, label)"):
        assert said in str(error.value)


@pytest.mark.parametrize("value, said", [(None, "None"), (3, "3"), (-1, "-1")])
def test_labels_out_of_range_name_the_row(tmp_path, value, said):
    table = pa.table({"image": [picture()] * 2, "label": pa.array([0, value], pa.int64())})
    pq.write_table(table.replace_schema_metadata({"label_names": '["a", "b"]'}), tmp_path / "t.parquet")
    with pytest.raises(ZooError) as error:
        open_images(tmp_path)
    assert str(error.value) == f"t.parquet:1: label is {said}; expected 0 to 1"


def test_wrong_label_type_and_conflicting_names(tmp_path):
    write(tmp_path / "a.parquet", [{"image": picture(), "label": 1.5}])
    with pytest.raises(ZooError, match="column 'label' holds double"):
        open_images(tmp_path)
    for name, names in (("a", '["x", "y"]'), ("b", '["y", "x"]')):
        table = pa.table({"image": [picture()], "label": [0]}).replace_schema_metadata({"label_names": names})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(ZooError, match="different label names"):
        open_images(tmp_path)


@pytest.mark.parametrize("name", ["../secret.png", "pics/../../secret.png", "/secret.png"])
def test_files_outside_the_folder_are_refused(folder, name):
    write(folder / "t.csv", [{"file": name, "label": "x"}])
    with pytest.raises(ZooError, match="leads out of the table's folder"):
        open_images(folder)


def test_absent_and_broken_pictures_are_listed(folder):
    (folder / "pics/b.png").write_bytes(picture()[:40])
    write(folder / "t.csv", [{"file": f"pics/{n}.png", "label": "x"} for n in ("a", "b", "gone")])
    bad = dict(unreadable(open_images(folder)))
    assert list(bad) == ["pics/b.png", "pics/gone.png"] and bad["pics/gone.png"] == "no such file"


def test_a_file_named_twice_keeps_unique_keys(folder):
    write(folder / "t.csv", [{"file": "pics/a.png", "label": "x"}] * 3)
    assert open_images(folder).keys == ["pics/a.png", "pics/a.png#2", "pics/a.png#3"]


@pytest.mark.parametrize("name, data", [
    ("t.parquet", b"PAR1 no"), ("t.csv", b""), ("t.csv", b"file,label\na.png\n"),
    ("t.csv", b"file,label\n\xff,x\n"), ("t.csv", b"\xff\xfe"),
    ("t.jsonl", b'{"file": "a.png"'), ("t.jsonl", b"")])
def test_unreadable_tables_are_named(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ZooError) as error:
        open_images(tmp_path / name)
    assert name in str(error.value) and "\n" not in str(error.value)


def test_table_without_rows(tmp_path):
    (tmp_path / "t.csv").write_text("file,label\n")
    with pytest.raises(ZooError, match="no rows"):
        open_images(tmp_path)


def test_captions_of_every_shape(tmp_path):
    write(tmp_path / "t.parquet", [
        {"image": picture(), "label": "cat", "tags": ["pet", "", "animal"],
         "names": {"de": "Katze", "fr": None}, "n": 1},
        {"image": picture(), "label": " ", "tags": None, "names": {"de": "Hund", "fr": "chien"}, "n": 2}])
    items = open_pairs(tmp_path, captions=("label", "tags", "names"))
    assert items.captions == [["cat", "pet", "animal", "Katze"], ["Hund", "chien"]]
    assert items.meta == [{"n": 1}, {"n": 2}]
    assert open_pairs(tmp_path, captions="tags").captions == [["pet", "animal"], []]
    with pytest.raises(ZooError, match="no column 'nick'"):
        open_pairs(tmp_path, captions=("label", "nick"))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("column", ["caption", "text"])
def test_one_caption_a_row_beside_a_picture_folder(folder, suffix, column):
    pairs = (("a.png", "one"), ("b.png", "два"), ("a.png", "12"))
    rows = [{"image": name, column: text} for name, text in pairs]
    write(folder / f"captions.{suffix}", rows)
    items = open_pairs(folder)  # the table has bare names, the pictures lie in pics/
    assert items.keys == ["a.png", "b.png"]
    assert items.captions == [["one", "12"], ["два"]]
    assert items.sources[0] == folder / "pics/a.png"


def test_pictures_of_a_table(folder):
    file = write(folder / "t.csv", [{"file": "pics/a.png", "place": "Rome"}])
    items = open_pictures(file)
    assert items.keys == ["pics/a.png"] and items.meta == [{"file": "pics/a.png", "place": "Rome"}]
    assert len(open_pictures(folder)) == 4  # a folder of pictures is taken as it is


def test_a_table_that_names_no_pictures_does_not_hide_class_folders(tmp_path):
    (tmp_path / "wren").mkdir()
    (tmp_path / "wren/a.png").write_bytes(picture())
    (tmp_path / "stats.csv").write_text("month,count\n1,2\n")
    assert open_images(tmp_path).classes == ["wren"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not here")
def test_shared_data_opens():
    test = open_images(SHARED / "cifar10", split="test")
    assert len(test) == 10_000 and len(test.classes) == 10 and test.classes[:2] == ["airplane", "automobile"]
    assert all(test.meta[i]["file"].startswith(test.classes[test.labels[i]]) for i in range(0, 10_000, 37))
    emoji = open_pairs(SHARED / "openmoji", split="test", captions=("label", "tags"))
    assert len(emoji) == 197 and emoji.meta[0]["subgroup"] and all(emoji.captions)
    photos = open_pairs(SHARED / "flickr8k", split="val")
    assert len(photos) == 1000 and {len(texts) for texts in photos.captions} == {5}
    stamps = open_pairs(SHARED / "stamps", split="val")
    assert len(stamps) == 98 and {len(texts) for texts in stamps.captions} == {1}
    assert not unreadable(emoji) + unreadable(stamps)
