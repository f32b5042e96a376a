"""One safetensors file = a whole model: bit-equal, strict, readable without the weights, whole or not at all."""

import json
import os
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

import zoo
from zoo import checkpoint
from zoo.errors import ZooError

SMALL = dict(dims=(16, 32), depths=(1, 2), head_dim=8, window=4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = zoo.create_model("image_pico", num_classes=3, **SMALL).eval()
    model.card.labels, model.card.name = ["a", "b", "ü"], "image_pico.test"
    return model


@pytest.fixture
def file(model, tmp_path):
    return zoo.save(model, tmp_path / "m.safetensors")


def test_save_and_load_are_bit_equal(model, file):
    again = zoo.load(file)
    assert not again.training
    for (name, here), (other, there) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other and torch.equal(here, there)
    assert again.card == model.card and again.card.labels == ["a", "b", "ü"]
    assert again.card.sha256 == checkpoint.sha256(file)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(x), again(x))


def test_card_is_read_from_the_header_alone(file):
    with open(file, "r+b") as stream:  # the weights are gone, the header is there
        length = struct.unpack("<Q", stream.read(8))[0]
        stream.truncate(8 + length + 16)
    assert checkpoint.read_card(file).name == "image_pico.test"
    with pytest.raises(ZooError, match="m.safetensors: damaged or incomplete"):
        zoo.load(file)


@pytest.mark.parametrize("data, says", [
    (b"", "no complete safetensors file"),
    (b"PK\x03\x04 a zip", "no complete safetensors file"),
    (struct.pack("<Q", 10**12) + b"{}", "header of 1000000000000 bytes"),
    (struct.pack("<Q", 4) + b"[1]]", "no JSON"),
    (struct.pack("<Q", 3) + b"[1]", "no JSON object"),
])
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path, data, says):
    file = tmp_path / "bad.safetensors"
    file.write_bytes(data)
    with pytest.raises(ZooError, match=f"bad.safetensors: .*{says}"):
        zoo.load(file)


def test_a_file_without_a_card_names_the_way(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "plain.safetensors")
    with pytest.raises(ZooError, match="without a zoo card; see: zoo convert"):
        zoo.load(tmp_path / "plain.safetensors")


def rewrite(file, change):
    """The file with its card changed."""
    tensors, header = load_file(file), checkpoint.read_header(file)
    card = json.loads(header["__metadata__"]["zoo"])
    change(card)
    save_file(tensors, file, metadata={"zoo": json.dumps(card)})


def test_newer_format_and_unknown_keys_are_refused(file):
    rewrite(file, lambda card: card.update(colour="red"))
    with pytest.raises(ZooError, match="unknown card keys colour"):
        zoo.load(file)
    rewrite(file, lambda card: card.update(format=99))
    with pytest.raises(ZooError, match="card format 99.*pip install -U zoo"):
        zoo.load(file)


def test_weights_that_do_not_match_give_a_table(file):
    rewrite(file, lambda card: card["arguments"].update(dims=[24, 32]))
    with pytest.raises(ZooError, match=r"tensors do not match\n  key +expected +found\n") as error:
        zoo.load(file)
    assert "..." in str(error.value) and len(str(error.value).splitlines()) == 8


def test_wrong_constructor_argument_in_a_card(file):
    rewrite(file, lambda card: card["arguments"].update(stem="x"))
    with pytest.raises(ZooError, match="m.safetensors: .*stem='x'; allowed: 'patch', 'conv'"):
        zoo.load(file)


def test_only_declared_tensors_may_be_new(model, file):
    other = zoo.create_model("image_pico", num_classes=5, **SMALL)
    with pytest.raises(ZooError, match=r"2 tensors do not match"):
        checkpoint.load_weights(other, file)
    fresh = checkpoint.load_weights(other, file, new=("classifier",))
    assert fresh == [("classifier.bias", "5", "3"), ("classifier.weight", "5x32", "3x32")]
    assert torch.equal(other.norm.weight, model.norm.weight)


def test_tied_tensors_are_stored_once(model, tmp_path):
    model.norm.bias = model.stages[1].blocks[1].norm2.bias
    file = zoo.save(model, tmp_path / "tied.safetensors")
    assert ("norm.bias" in load_file(file)) + ("stages.1.blocks.1.norm2.bias" in load_file(file)) == 1


def test_a_failed_write_keeps_the_old_file(model, file, monkeypatch):
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ZooError, match="could not be written .No space left on device.; the file there before is kept"):
        zoo.save(model, file)
    assert file.read_bytes() == before and os.listdir(file.parent) == [file.name]


def test_permissions_follow_the_umask(model, tmp_path):
    old = os.umask(0o027)
    try:
        assert zoo.save(model, tmp_path / "p.safetensors").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


def test_unknown_names_suggest(tmp_path):
    with pytest.raises(ZooError, match="unknown model 'image_nanno'; did you mean image_nano"):
        zoo.create_model("image_nanno")
    with pytest.raises(ZooError, match="no such checkpoint, file or run folder"):
        zoo.load("image_nano.nothing_like_it")
    with pytest.raises(ZooError, match="no best.safetensors in this folder"):
        zoo.load(tmp_path)
    with pytest.raises(ZooError, match="unexpected keyword argument 'dimms'"):
        zoo.create_model("image_nano", dimms=3)


def test_shipped_checkpoints_match_their_table():
    folder = checkpoint.folders()[0]
    table = {entry["file"]: entry for entry in json.loads((folder / "index.json").read_text())}
    files = sorted(folder.glob("*.safetensors"))
    assert {file.name for file in files} == table.keys()
    for file in files:
        entry, card = table[file.name], checkpoint.read_card(file)
        assert (entry["bytes"], entry["sha256"]) == (file.stat().st_size, checkpoint.sha256(file))
        assert file.stat().st_size < 25e6 and card.licence == entry["licence"] and card.name == file.stem
        assert [s for s in card.scores if s["split"] == "test"], "a shipped checkpoint states its test score"


def test_a_model_name_is_never_taken_twice():
    from dataclasses import replace

    from zoo import registry

    spec = registry.find("image_nano")
    registry.register(spec)
    with pytest.raises(ZooError, match=r"'image_nano' is taken: .*registry.py and elsewhere.py"):
        registry.register(replace(spec, entry="x:y", file="elsewhere.py"))


def test_a_new_head_makes_the_labels_void(model, tmp_path):
    model.reset_classifier(7)
    with pytest.raises(ZooError, match="has no labels"):
        model.predict([])
    again = zoo.load(zoo.save(model, tmp_path / "new.safetensors"))
    assert again.num_classes == 7 and again.card.labels is None


def test_a_single_item_is_not_taken_for_letters(model):
    with pytest.raises(ZooError, match=r"expected a list of items, got one: 'cat.jpg'; write \['cat.jpg'\]"):
        model.predict("cat.jpg")


def test_a_registry_name_has_no_weights():
    with pytest.raises(ZooError, match="image_tiny: a model of the registry, without weights"):
        zoo.load("image_tiny")


def test_altered_weights_are_not_used(file):
    checkpoint.write_index(file.parent)
    zoo.load(file)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ZooError, match="m.safetensors: sha256 .*\n.*bring the file again"):
        zoo.load(file)
