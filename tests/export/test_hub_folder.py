"""A folder for the hub: zoo.load reads it back bit for bit; config.json and README.md say what the card says."""

import json

import pytest
import torch
import yaml

import zoo
from zoo import checkpoint
from zoo.cli import main
from zoo.errors import UsageError, ZooError
from zoo.export import export, folder

SHIPPED = sorted(checkpoint.shipped())


@pytest.mark.parametrize("name", SHIPPED)
def test_every_checkpoint_comes_back_bit_for_bit(name, tmp_path):
    model = zoo.load(name)
    files = {part.file.name for part in export(model, "hf", tmp_path / "out")}
    again = zoo.load(tmp_path / "out")
    assert files == {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert again.card == model.card
    if model.card.towers:  # a frozen tower is named, not stored
        assert not any(key.startswith("text.") for key in checkpoint.read_header(tmp_path / "out" / "model.safetensors"))
        assert again.card.towers["text."]["sha256"] == model.card.towers["text."]["sha256"]


def test_the_config_says_labels_and_card(tmp_path):
    model = zoo.load("image_nano.cifar10")
    export(model, "hf", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "zoo" and config["id2label"]["3"] == "cat" and config["label2id"]["cat"] == 3
    assert config["zoo"]["arguments"] == model.card.arguments and config["zoo"]["preprocess"]["size"] == [32, 32]


def test_the_head_of_the_readme_is_the_hubs(tmp_path):
    export(zoo.load("audio_pico.fsdd"), "hf", tmp_path)
    text = (tmp_path / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["license"], head["pipeline_tag"]) == ("cc-by-sa-4.0", "audio-classification")
    result = next(row for row in head["model-index"][0]["results"] if row["dataset"]["split"] == "test")
    assert result["metrics"] == [{"type": "accuracy", "value": 1.0}]
    assert "# audio_pico.fsdd" in text
    assert yaml.safe_load(folder.front_matter(zoo.load("image_nano.cifar10").card))["license"] == "other"


def test_wrong_wishes(tmp_path):
    model = zoo.create_model("image_pico", num_classes=2, dims=(16,), depths=(1,), head_dim=8)
    (tmp_path / "file").write_text("")
    with pytest.raises(ZooError, match="a file; --to hf writes a folder"):
        export(model, "hf", tmp_path / "file")
    for to, out, more, why in (
        ("tflite", "a.tflite", {}, "--to tflite: expected torch, onnx or hf"),
        ("torch", "a.pt2", {"int8": True}, "--int8 goes with --to onnx"),
        ("onnx", "a.pt2", {}, "expected a file name that ends in .onnx"),
        ("torch", "a", {}, "expected a file name that ends in .pt2"),
    ):
        with pytest.raises(UsageError, match=why):
            export(model, to, tmp_path / out, **more)
    pairs = zoo.create_model("text_image_pico", image=dict(dims=(16,), depths=(1,), head_dim=8), fusion_dim=32)
    with pytest.raises(UsageError, match="three programs; give a folder"):
        export(pairs, "onnx", tmp_path / "a.onnx")


def test_the_command(tmp_path, capsys):
    assert main(["export", "graph_pico.cora", "--to", "hf", "--out", str(tmp_path / "cora")]) == 0
    assert "model.safetensors" in capsys.readouterr().out
    assert main(["export", "graph_pico.cora", "--to", "onnx", "--out", str(tmp_path / "cora.onnx")]) == 1
    assert "path='edges'" in capsys.readouterr().err and not (tmp_path / "cora.onnx").exists()
    for words, why in ((["--check", "data"], "--check goes with --to onnx"), (["--items", "0"], "--items 0")):
        assert main(["export", "graph_pico.cora", "--to", "hf", "--out", str(tmp_path / "x"), *words]) == 2
        assert why in capsys.readouterr().err
