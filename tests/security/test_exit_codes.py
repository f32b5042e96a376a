"""Exit 2 for a slip of the user, 1 for what the data or the machine refuse; nothing half-made stays."""

import numpy as np
import pytest
from PIL import Image

import zoo
from zoo.cli import main


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """image.safetensors, pairs.safetensors and a picture."""
    folder = tmp_path_factory.mktemp("codes")
    small = dict(dims=(16, 32), depths=(1, 1), head_dim=8, window=4)
    image = zoo.create_model("image_pico", num_classes=3, **small)
    image.card.labels = ["a", "b", "c"]
    zoo.save(image, folder / "image.safetensors")
    zoo.save(zoo.create_model("text_image_pico", image={**small, "patch": 4}, fusion_dim=32), folder / "pairs.safetensors")
    pictures(folder / "photos")
    return folder


def pictures(folder, names=("a/1.png", "a/2.png", "a/3.png", "b/1.png", "b/2.png", "b/3.png")):
    random = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (12, 12, 3), dtype=np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def never(monkeypatch):
    """No model may be loaded."""
    def load(*_):
        raise AssertionError("the model was loaded before the paths were looked at")

    monkeypatch.setattr(zoo, "load", load)


@pytest.mark.parametrize("words", [
    ["train", "image_scratch", "--model", "image_nanno", "--data", "DATA"], ["info", "image_nanno"], ["predict", "nothing",
    "x.png"],
    ["train", "image_scratch", "--data", "DATA", "--arguments", "{attention: {pattern: wndows}}"],
    ["train", "image_scratch", "--data", "DATA", "--arguments", "{dims: [7]}"],
    ["train", "image_scratch", "--data", "DATA", "--arguments", "{colour: red}"]])
def test_slips_exit_2(words, tiny, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(tiny / "photos") if word == "DATA" else word for word in words]) == 2
    assert "error: " in capsys.readouterr().err and not list(tmp_path.glob("runs*"))


def test_a_card_that_names_no_model_is_the_files_fault(tiny, capsys, tmp_path):
    model = zoo.load(tiny / "image.safetensors")
    model.card.model = "image_unheard"
    zoo.save(model, tmp_path / "odd.safetensors")
    assert main(["predict", str(tmp_path / "odd.safetensors"), str(tiny / "photos")]) == 1
    assert "odd.safetensors: the card does not give a model: unknown model" in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    ["predict", "image.safetensors", "lost.png"],
    ["predict", "image.safetensors", "lost.png", "lost too.png"],
    ["eval", "image.safetensors", "lost"], ["explain", "image.safetensors", "lost.png", "--out", "deep/er/x.png"],
    ["explain", "pairs.safetensors", "lost.png", "--text", "a b", "--out", "deep/er/x.png"],
    ["embed", "image.safetensors", "lost.png", "--out", "deep/er/x.parquet"], ["search", "photos", "--image", "lost.png"]])
def test_paths_are_looked_at_first(words, tiny, never, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [str(tiny / word) if word.endswith("safetensors") else word for word in words]
    assert main(words) == 1
    assert "lost" in (said := capsys.readouterr().err) and "no such file" in said
    assert not list(tmp_path.iterdir())


def test_explain_makes_no_folder_for_a_bad_picture(tiny, capsys, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    for more in ([], ["--grid"]):
        assert main(["explain", str(tiny / "image.safetensors"), str(tmp_path / "bad.png"), "--out", str(tmp_path / "d/e/x.png"),
                     *more]) == 1
    assert not (tmp_path / "d").exists()


def test_rollout_of_two_kinds_of_tokens(tiny, capsys, tmp_path):
    picture = tiny / "photos" / "a" / "1.png"
    assert main(["explain", str(tiny / "pairs.safetensors"), str(picture), "--text", "a red car", "--layer", "rollout", "--out",
                 str(tmp_path / "x.png")]) == 2
    said = capsys.readouterr().err
    assert "words and patches" in said and "fusion.text_asks.0.attn" in said and not (tmp_path / "x.png").exists()


def test_a_run_that_fails_at_once_leaves_no_folder(tiny, capsys, tmp_path, monkeypatch):
    from zoo.errors import UsageError
    from zoo.train import run

    def fail(*_):
        raise UsageError("captions: no caption is left")

    monkeypatch.setattr(run, "fit", fail)
    assert main(["train", "image_scratch", "--data", str(tiny / "photos"), "--val", "0.4", "--model", "image_pico", "--runs",
                 str(tmp_path / "runs")]) == 2
    assert "no run folder is kept" in capsys.readouterr().err and not list((tmp_path / "runs").iterdir())


def test_an_index_of_no_picture_is_not_made(capsys, tmp_path):
    (tmp_path / "photos").mkdir()
    for i in range(5):
        (tmp_path / "photos" / f"{i}.png").write_bytes(b"no picture")
    assert main(["index", "build", str(tmp_path / "my.index"), str(tmp_path / "photos")]) == 1
    said = capsys.readouterr().err
    assert "none of its 5 pictures can be read, no index is made" in said and "0.png: not a picture" in said and "2 more" in said
    assert not (tmp_path / "my.index").exists()


def test_class_folders_beside_a_stray_table(tmp_path):
    from zoo.data.images import open_images

    photos = pictures(tmp_path / "photos")
    (photos / "notes.csv").write_text("file,remark\na/1.png,nice\n")
    with pytest.warns(UserWarning, match=r"the class folders are taken; notes.csv has no column 'label'"):
        items = open_images(photos)
    assert len(items) == 6 and items.classes == ["a", "b"]
    (photos / "notes.csv").write_text("file,label\na/1.png,nice\n")
    assert len(open_images(photos)) == 1  # a table with labels is what it says
