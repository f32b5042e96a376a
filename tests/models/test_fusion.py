"""Fusion: every setting against a written-out reference, BLIP's own encoder, and what is kept against what is computed anew."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zoo.bench.rerank import multihead
from zoo.core import Attention, Recorder
from zoo.models.fusion import Fusion, ImageSide, Settings

BOTH = ("text", "image")
WAYS = [dict(directions=ways, self_attention=own, share_cross=share, norm=norm, readout=readout, heads=4)
        for ways, own, share, norm, readout in itertools.product(
            (BOTH, ("text",), ("image",)), (False, True), (False, True), ("pre", "post"), ("mean", "token", "first"))
        if not (share and len(ways) == 1 or readout == "token" and not own or readout == "first" and ways != ("text",))]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def build(depth: int = 2, widths: tuple[int, int] = (32, 32), **settings) -> Fusion:
    torch.manual_seed(0)
    fusion = Fusion(*widths, 32, depth, 0.0, Settings(**settings))
    for parameter in fusion.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return fusion.eval()


def inputs(texts: int = 3, images: int = 3, dirty: bool = False):
    torch.manual_seed(1)
    mask = torch.arange(6) < torch.tensor([6, 2, 4])[:texts, None]
    text = torch.randn(texts, 6, 32)
    return text.masked_fill(~mask[..., None], float("nan")) if dirty else text, mask, torch.randn(images, 5, 32)


class Reference:
    """One pair at a time, without padding, on torch's nn.MultiheadAttention; all tokens in every layer."""

    def __init__(self, fusion: Fusion):
        self.fusion, self.post = fusion, fusion.settings.norm == "post"

    def __call__(self, text, image):
        f, readout = self.fusion, self.fusion.settings.readout
        text, image = f.text_in(text), f.image_in(image)
        if readout == "token":
            text = torch.cat([f.text_token[0], text]) if f.text_asks else text
            image = torch.cat([f.image_token[0], image]) if f.image_asks else image
        for i in range(f.depth):
            text, image = (self.block(blocks[i], x, other) if blocks else x
                           for blocks, x, other in ((f.text_asks, text, image), (f.image_asks, image, text)))
        found = [x.mean(0) if readout == "mean" else x[0] for x in
                 ([f.text_norm(text)] if f.text_asks else []) + ([f.image_norm(image)] if f.image_asks else [])]
        return f.head(torch.cat(found + ([found[0] * found[1]] if len(found) == 2 else [])))

    def block(self, block, x, context):
        if block.self_attn is not None:
            x = self.step(block.norm_self, x, lambda y: self.attend(block.self_attn, y, y))
        context = context if self.post else block.norm_context(context)
        x = self.step(block.norm1, x, lambda y: self.attend(block.attn, y, context))
        return self.step(block.norm2, x, lambda y: block.mlp.fc2(F.gelu(block.mlp.fc1(y))))

    def step(self, norm, x, branch):
        return norm(x + branch(x)) if self.post else x + branch(norm(x))

    def attend(self, attn, x, context):
        return multihead(attn)(x, context, context)[0]


@torch.no_grad()
@pytest.mark.parametrize("settings", WAYS, ids=lambda s: "-".join(map(str, s.values())))
def test_equals_one_pair_written_out(settings):
    fusion = build(**settings)
    text, mask, image = inputs()
    found = fusion(*inputs(dirty=True))
    expected = torch.cat([Reference(fusion)(t[m], i) for t, m, i in zip(text, mask, image)])
    assert torch.allclose(found, expected, atol=1e-5)
    assert expected.std() > 1e-2  # the pairs differ: not a comparison of constants


@pytest.mark.parametrize("settings", WAYS, ids=lambda s: "-".join(map(str, s.values())))
def test_every_parameter_learns_and_nan_in_padding_stays_there(settings):
    fusion = build(**settings)
    fusion(*inputs(dirty=True)).square().sum().backward()
    for name, parameter in fusion.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@torch.no_grad()
@pytest.mark.parametrize("settings", WAYS, ids=lambda s: "-".join(map(str, s.values())))
def test_one_against_many_is_as_if_repeated_and_sides_can_be_kept(settings):
    fusion = build(**settings)
    text, mask, image = inputs()
    side = fusion.image_side(image)
    for i in range(3):
        one = text[i : i + 1], mask[i : i + 1]
        repeated = fusion(text[i : i + 1].repeat(3, 1, 1), mask[i : i + 1].repeat(3, 1), image)
        assert torch.allclose(fusion(*one, image), repeated, atol=1e-6)
        assert torch.allclose(fusion(*one, side), repeated, atol=1e-6)
        short = text[i : i + 1, : mask[i].sum()]
        assert torch.allclose(fusion(short, None, side.pick([2, 0])), repeated[[2, 0]], atol=1e-5)
        repeated = fusion(text, mask, image[i : i + 1].repeat(3, 1, 1))
        assert torch.allclose(fusion(text, mask, side.pick([i])), repeated, atol=1e-6)
    again = ImageSide.cat([side.pick([0]), side.pick([1, 2])])
    assert torch.equal(fusion(text, mask, again), fusion(text, mask, side)) and again.shape == image.shape[:1] + side.shape[1:]


@torch.no_grad()
@pytest.mark.parametrize("settings", [s for s in WAYS if s["self_attention"] and not s["share_cross"]],
                         ids=lambda s: "-".join(map(str, s.values())))
def test_padding_gets_exactly_no_attention_and_a_recorder_sees_every_row(settings):
    fusion = build(**settings)
    text, mask, image = inputs(dirty=True)
    with Recorder(fusion) as record:
        recorded = fusion(text, mask, image)
    assert torch.allclose(recorded, fusion(text, mask, image), atol=1e-5)
    lead = int(settings["readout"] == "token")
    real, sides = F.pad(mask, (lead, 0), value=True), settings["directions"]
    tokens = {"text": 6 + lead, "image": 5 + lead}
    assert set(record.maps) == {f"{side}_asks.{i}.{kind}" for side in sides for i in range(2) for kind in ("attn", "self_attn")}
    for name, weights in record.maps.items():
        asks, own = name.split("_")[0], name.endswith("self_attn")
        over = asks if own else {"text": "image", "image": "text"}[asks]
        keys = tokens[over] if over in sides else tokens[over] - lead  # a read-out token leads who asks
        assert weights.shape == (3, 4, tokens[asks], keys), name
        if over == "text":
            keep = real if "text" in sides else mask
            assert (weights.movedim(-1, 1)[~keep] == 0).all() and not keep.all()
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


def test_shared_cross_attention_is_one_set_of_weights_with_two_names():
    fusion, apart = build(share_cross=True, heads=4), build(heads=4)
    for text, image in zip(fusion.text_asks, fusion.image_asks):
        assert text.attn is not image.attn and all(p is q for p, q in zip(text.attn.parameters(), image.attn.parameters()))
        assert text.mlp.fc1.weight is not image.mlp.fc1.weight
    count = sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in fusion.parameters())
    assert count == 2 * sum(p.numel() for p in fusion.text_asks[0].attn.parameters())
    with Recorder(fusion) as record, torch.no_grad():
        fusion(*inputs())
    assert record.maps["text_asks.0.attn"].shape[-2:] == (6, 5) and record.maps["image_asks.0.attn"].shape[-2:] == (5, 6)


def test_blip_weights_fit():
    blip = pytest.importorskip("transformers.models.blip.modeling_blip_text", reason="transformers is not installed")
    from transformers.models.blip.configuration_blip import BlipTextConfig

    torch.manual_seed(0)
    config = BlipTextConfig(hidden_size=32, encoder_hidden_size=20, num_hidden_layers=2, num_attention_heads=4, is_decoder=True,
                            intermediate_size=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, vocab_size=50,
                            attn_implementation="eager")
    peer, itm = blip.BlipTextModel(config, add_pooling_layer=False).eval(), nn.Linear(32, 2)
    for parameter in peer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    fusion = build(widths=(32, 20), directions=("text",), norm="post", readout="first", self_attention=True, heads=4)
    for ours, theirs in zip(fusion.text_asks, peer.encoder.layer):
        _copy(ours.self_attn, ours.norm_self, theirs.attention)
        _copy(ours.attn, ours.norm1, theirs.crossattention)
        ours.mlp.fc1.load_state_dict(theirs.intermediate.dense.state_dict())
        ours.mlp.fc2.load_state_dict(theirs.output.dense.state_dict())
        ours.norm2.load_state_dict(theirs.output.LayerNorm.state_dict())
    with torch.no_grad():
        fusion.head.weight.copy_(itm.weight[1:] - itm.weight[:1])
        fusion.head.bias.copy_(itm.bias[1:] - itm.bias[:1])
        ids, mask = torch.randint(1, 50, (3, 6)), inputs()[1]
        image = torch.randn(3, 5, 20)
        states = peer(input_ids=ids, attention_mask=mask.long(), encoder_hidden_states=image, is_decoder=False).last_hidden_state
        expected = itm(states[:, 0]).diff(dim=1)[:, 0]
        found = fusion(peer.embeddings(input_ids=ids), mask, image)
    assert torch.allclose(found, expected, atol=1e-5) and expected.std() > 1e-2


@torch.no_grad()
def _copy(attn: Attention, norm: nn.LayerNorm, theirs) -> None:
    attn.q.load_state_dict(theirs.self.query.state_dict())
    attn.kv.weight.copy_(torch.cat([theirs.self.key.weight, theirs.self.value.weight]))
    attn.kv.bias.copy_(torch.cat([theirs.self.key.bias, theirs.self.value.bias]))
    attn.proj.load_state_dict(theirs.output.dense.state_dict())
    norm.load_state_dict(theirs.output.LayerNorm.state_dict())


@pytest.mark.parametrize(("settings", "message"), [
    ({"heads": 5}, r"fusion\['heads'\]=5; allowed: a divisor of fusion_dim=32"),
    ({"heads": 0}, r"fusion\['heads'\]=0"),
    ({"directions": ("image", "text")}, r"fusion\['directions'\].*allowed: \('text', 'image'\)"),
    ({"directions": ()}, r"fusion\['directions'\]=\(\)"),
    ({"norm": "none"}, r"fusion\['norm'\]='none'; allowed: 'pre' or 'post'"),
    ({"readout": "last"}, r"fusion\['readout'\]='last'"),
    ({"readout": "token"}, "'token' with self_attention only"),
    ({"readout": "first"}, r"'first' with directions=\('text',\) only"),
    ({"share_cross": True, "directions": ["text"]}, r"fusion\['share_cross'\]=True"),
    ({"rerank_weight": -1.0}, r"fusion\['rerank_weight'\]=-1.0; allowed: a number >= 0"),
    ({"rerank_weight": float("nan")}, r"fusion\['rerank_weight'\]=nan"),
])  # fmt: skip
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        build(**settings)


def test_post_norm_takes_streams_as_they_are():
    with pytest.raises(ValueError, match="fusion_dim=32; allowed: 48, the text's"):
        build(widths=(48, 32), norm="post")
    assert isinstance(build(widths=(32, 48), norm="post", directions=("text",)).text_in, nn.Identity)
