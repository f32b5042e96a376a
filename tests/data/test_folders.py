"""Pictures in folders: order, classes, split layers, captions beside them."""

import os

import pytest
from PIL import Image

from zoo.data.images import open_images, open_pairs, open_pictures, split, splits, unreadable
from zoo.data.items import balanced_weights, natural
from zoo.errors import ZooError


def draw(folder, *names, colour="red"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), colour).save(folder / name)


def test_class_folders_in_natural_order(tmp_path):
    draw(tmp_path, "10/a.png", "2/img10.png", "2/img9.png", "1/deep/er/x.JPG", "1/.hidden.png")
    (tmp_path / "1" / "notes.txt").write_text("no picture")
    items = open_images(tmp_path)
    assert items.classes == ["1", "2", "10"]
    assert items.keys == ["1/deep/er/x.JPG", "2/img9.png", "2/img10.png", "10/a.png"]
    assert items.labels == [0, 1, 1, 2]
    assert items.image(3).getpixel((0, 0)) == (255, 0, 0)
    assert items.sources[0] == tmp_path / "1/deep/er/x.JPG"


def test_natural_key_sorts_any_text():
    names = ["b", "a10", "A9", "²", "", "01", "1", "a9"]
    assert sorted(names, key=natural) == ["", "01", "1", "A9", "a9", "a10", "b", "²"]


def test_split_layer_keeps_the_classes_of_all_splits(tmp_path):
    draw(tmp_path, "train/1/a.png", "train/2/a.png", "train/3/a.png", "validation/1/b.png",
         "validation/3/b.png", "test/3/c.png")
    val = open_images(tmp_path, split="val")
    assert (val.classes, val.labels) == (["1", "2", "3"], [0, 2])  # 2 is missing here and shifts nothing
    assert val.keys == ["validation/1/b.png", "validation/3/b.png"]
    assert open_images(tmp_path, split="validation").keys == val.keys
    assert len(open_images(tmp_path)) == 6
    assert splits(tmp_path) == ["train", "val", "test"]


def test_classes_may_be_called_like_splits(tmp_path):
    draw(tmp_path, "train/a.png", "bus/a.png")
    assert open_images(tmp_path).classes == ["bus", "train"]
    assert splits(tmp_path) == []
    with pytest.raises(ZooError, match="no split 'test'"):
        open_images(tmp_path, split="test")


def test_one_class_is_fine_none_is_an_error(tmp_path):
    draw(tmp_path, "one/wren/a.png", "flat/a.png")
    assert open_images(tmp_path / "one").classes == ["wren"]
    (tmp_path / "empty").mkdir()
    for name in ("flat", "empty"):
        with pytest.raises(ZooError, match="no pictures in class folders"):
            open_images(tmp_path / name)
    with pytest.raises(ZooError, match="no pictures"):
        open_pictures(tmp_path / "empty")
    with pytest.raises(ZooError, match="no such file"):
        open_images(tmp_path / "absent")


def test_names_of_any_script(tmp_path):
    draw(tmp_path, "кошка/снимок 1.png", "犬/写真.png", "cafe\u0301/e\u0301.png")
    items = open_images(tmp_path)
    assert set(items.classes) == {"кошка", "犬", "caf\u00e9"}  # NFC, as a label typed elsewhere
    assert not unreadable(items)


def test_a_name_that_is_no_utf8_can_be_stored(tmp_path):
    try:
        draw(tmp_path, os.fsdecode(b"x\xff/a.png"))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    items = open_images(tmp_path)
    assert items.classes == ["x\\xff"] and items.keys[0].encode("utf-8")
    assert not unreadable(items)


def test_links_that_lead_up_are_not_followed(tmp_path):
    draw(tmp_path, "data/a/1.png", "data/b/1.png", "elsewhere/2.png")
    try:
        (tmp_path / "data/a/up").symlink_to(tmp_path / "data", target_is_directory=True)
        (tmp_path / "data/again").symlink_to(tmp_path / "data", target_is_directory=True)
        (tmp_path / "data/c").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        (tmp_path / "data/b/gone.png").symlink_to(tmp_path / "nowhere.png")
    except OSError:
        pytest.skip("no symbolic links here")
    items = open_images(tmp_path / "data")
    assert items.keys == ["a/1.png", "b/1.png", "b/gone.png", "c/2.png"]
    assert unreadable(items) == [("b/gone.png", "no such file")]


def test_broken_files_are_listed(tmp_path):
    draw(tmp_path, "a/1.png", "a/2.png", "a/3.png")
    (tmp_path / "a/2.png").write_bytes((tmp_path / "a/2.png").read_bytes()[:50])
    (tmp_path / "a/3.png").write_bytes(b"")
    bad = unreadable(open_images(tmp_path))
    assert [key for key, _ in bad] == ["a/2.png", "a/3.png"]
    assert bad[0][1].startswith("broken picture") and bad[1][1] == "empty, 0 bytes"


def test_pictures_without_labels(tmp_path):
    draw(tmp_path, "b/10.png", "b/9.png", "a.png")
    items = open_pictures(tmp_path)
    assert items.keys == ["a.png", "b/9.png", "b/10.png"]
    assert items.labels is None and items.meta == [{}, {}, {}]
    assert open_pictures(tmp_path / "a.png").keys == ["a.png"]


def test_captions_beside_the_pictures(tmp_path):
    draw(tmp_path, "1.png", "2.jpg", "3.png")
    (tmp_path / "1.txt").write_text("a dog\n\n  ein Hund  \n", encoding="utf-8-sig")
    (tmp_path / "2.txt").write_text("猫 cafe\u0301", encoding="utf-8")
    items = open_pairs(tmp_path)
    assert items.keys == ["1.png", "2.jpg", "3.png"]
    assert items.captions == [["a dog", "ein Hund"], ["猫 caf\u00e9"], []]
    assert unreadable(items) == [("3.png", "no caption")]
    (tmp_path / "1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ZooError, match=r"1\.txt: not UTF-8"):
        open_pairs(tmp_path)


def test_captions_beside_the_pictures_by_split(tmp_path):
    draw(tmp_path, "train/1.png", "test/1.png")
    for name in ("train", "test"):
        (tmp_path / name / "1.txt").write_text(name)
    assert open_pairs(tmp_path, split="test").captions == [["test"]]
    (tmp_path / "train/1.txt").unlink()
    (tmp_path / "test/1.txt").unlink()
    with pytest.raises(ZooError, match="no captions; expected a table"):
        open_pairs(tmp_path)


def test_labels_are_compared_by_name(tmp_path):
    draw(tmp_path, "wren/a.png", "robin/a.png")
    items = open_images(tmp_path)
    other = items.relabel(["wren", "robin"])
    assert [other.classes[label] for label in other.labels] == ["robin", "wren"] and other.labels == [1, 0]
    with pytest.raises(ZooError) as error:
        items.relabel(["wren", "crow", "owl"])
    assert str(error.value) == "labels differ.  only in data: robin   only in checkpoint: crow, owl"


def test_split_is_stratified_repeatable_and_complete(tmp_path):
    for name, n in (("a", 20), ("b", 10), ("c", 2), ("d", 1)):
        draw(tmp_path, *[f"{name}/{i}.png" for i in range(n)])
    items = open_images(tmp_path)
    train, held = split(items, 0.2, seed=3)
    assert [held.labels.count(label) for label in range(4)] == [4, 2, 1, 0]
    assert sorted(train.keys + held.keys) == sorted(items.keys)
    assert train.classes == held.classes == items.classes
    assert split(items, 0.2, seed=3)[1].keys == held.keys
    assert split(items, 0.2, seed=4)[1].keys != held.keys
    with pytest.raises(ZooError, match=r"fraction is 1\.5"):
        split(items, 1.5)


def test_balanced_weights(tmp_path):
    draw(tmp_path, "a/1.png", "a/2.png", "a/3.png", "b/1.png")
    weights = balanced_weights(open_images(tmp_path))
    assert sum(weights[:3]) == pytest.approx(weights[3])
