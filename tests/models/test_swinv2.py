"""Swin v2 of every source, through a file of it: the same maps, features, logits and gradients as the library's own model."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from einops import rearrange

import zoo
from zoo import foreign
from zoo.convert import sources, swin_v2
from zoo.convert.rules import translate
from zoo.core.continuous import LARGEST, ContinuousPosition, Cosine, KeylessBias
from zoo.errors import ZooError
from zoo.models.image_v2 import ImageV2

sys.path.insert(0, str(Path(__file__).parents[1] / "convert"))
from swin_peers import close, hf_swin_v2, old_layout, picture, timm_swin_v2, torchvision_swin_v2  # noqa: E402

SIZES = {"dims": (32, 64), "depths": (2, 2)}
CONFIG = {"architecture": "swinv2_tiny_window4_32"}  # of timm, whose files hold no window


def timm_folder(folder):
    theirs = timm_swin_v2()
    (folder / "timm").mkdir()
    torch.save(theirs.state_dict(), folder / "timm" / "pytorch_model.bin")
    (folder / "timm" / "config.json").write_text(json.dumps(CONFIG))
    large = timm_swin_v2(img_size=(64, 96))  # timm's masks are made for one size
    large.load_state_dict(theirs.state_dict())
    return large, folder / "timm", large.forward_features


def original_file(folder):
    """What the authors wrote: buffers of coordinates, merging at the end of the stage before."""
    theirs, _, features = timm_folder(folder)
    state = old_layout(theirs.state_dict())
    for name, module in theirs.named_modules():
        if name.endswith("attn"):
            state[f"{name}.relative_coords_table"] = module.relative_coords_table
    torch.save({"model": state, "epoch": 300}, folder / "swin.pth")
    return theirs, folder / "swin.pth", features


def torchvision_file(folder):
    theirs = torchvision_swin_v2()
    torch.save(theirs.state_dict(), folder / "vision.pt")
    return theirs, folder / "vision.pt", lambda x: theirs.norm(theirs.features(x))


def hf_folder(folder):
    theirs = hf_swin_v2()
    theirs.save_pretrained(folder / "hf")
    large = hf_swin_v2(image_size=64)
    large.load_state_dict(theirs.state_dict())
    return large, folder / "hf", lambda x: rearrange(large.swinv2(x).last_hidden_state, "b (h w) c -> b h w c", h=8)


CASES = [("timm-swin-v2", timm_folder, (64, 96)), ("timm-swin-v2", original_file, (64, 96)),
         ("torchvision-swin-v2", torchvision_file, (64, 96)), ("hf-swin-v2", hf_folder, (64, 64))]


@pytest.mark.parametrize("source, make, size", CASES, ids=lambda case: getattr(case, "__name__", None))
def test_features_logits_and_gradients_off_the_training_size(source, make, size, tmp_path):
    theirs, file, features = make(tmp_path)
    ours, report = foreign.convert("auto", str(file))
    assert sources.convert("auto", file).source == source and ours.card.model.endswith("_v2")
    ours.eval()
    inputs = [picture(*size).requires_grad_() for _ in range(2)]
    close(ours.forward_features(inputs[0]), features(inputs[1]), "features")
    logits, expected = ours(inputs[0]), theirs(inputs[1])
    expected = getattr(expected, "logits", expected)
    close(logits, expected, "logits")

    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    for output in (logits, expected):
        (output * weights).sum().backward()
    close(inputs[0].grad, inputs[1].grad, "gradient of the input")
    _same_gradients(ours, theirs, source)


def _same_gradients(ours, theirs, source: str) -> None:
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in theirs.named_parameters()}
    layout = next(layout for layout in sources.find(source).layouts if layout.fits(gradients))
    expected, _ = translate(layout, gradients)
    swin_v2.settle(expected)
    assert expected.keys() == dict(ours.named_parameters()).keys()
    scale = max(gradient.abs().max() for gradient in expected.values())
    for name, p in ours.named_parameters():
        assert (p.grad - expected[name]).abs().max() < 1e-5 * max(expected[name].abs().max(), 1e-3 * scale), name
    clamped = torch.cat([p.grad[p > LARGEST] for name, p in ours.named_parameters() if name.endswith("log_scale")])
    assert len(clamped) and not clamped.any()


@torch.no_grad()
def test_every_map_equals_timms(tmp_path):
    theirs, folder, _ = timm_folder(tmp_path)
    ours = zoo.create_model("image_tiny_v2", weights=f"auto:{folder}", **SIZES).eval()
    _, expected = theirs.forward_intermediates(picture(64, 96), norm=False)
    for i, (a, b) in enumerate(zip(ours.forward_intermediates(picture(64, 96))[1], expected, strict=True)):
        close(a, b, f"map {i}")


@torch.no_grad()
def test_a_map_smaller_than_the_window_has_its_own_scale_of_offsets(tmp_path):
    """The last stage of swinv2_tiny_window16_256 has 8 x 8 tokens: timm measures offsets by 8 there, as these do by 2."""
    theirs = timm_swin_v2(depths=(2, 2, 2), num_heads=(1, 2, 4))
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    ours, _ = foreign.convert("timm-swin-v2", str(tmp_path))
    assert ours.card.arguments["trained"] == [4, 4, 2] and ours.card.arguments["window"] == 4
    close(ours.eval()(picture(32, 32)), theirs(picture(32, 32)), "logits")


@torch.no_grad()
def test_a_larger_window_is_timms_model_with_the_pretrained_window_told(tmp_path):
    _, folder, _ = timm_folder(tmp_path)
    wide = timm_swin_v2(img_size=64, window_size=8, pretrained_window_sizes=(4, 4))
    wide.load_state_dict(torch.load(folder / "pytorch_model.bin"))
    ours = zoo.create_model("image_tiny_v2", weights=f"auto:{folder}", window=8, **SIZES).eval()
    close(ours(picture(64, 64)), wide(picture(64, 64)), "logits")
    assert "windows 4 -> 8" in ours.card.notes
    torch.save(wide.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "swinv2_base_window4to8_32to64_22kft1k"}))
    again, _ = foreign.convert("auto", str(tmp_path))
    assert (again.card.arguments["window"], again.card.arguments["trained"]) == (8, [4, 4])
    close(again.eval()(picture(64, 64)), wide(picture(64, 64)), "logits")


@torch.no_grad()
def test_hugging_face_tells_windows_seen_before(tmp_path):
    theirs = hf_swin_v2(image_size=64, window_size=8, pretrained_window_sizes=[4, 3])
    theirs.save_pretrained(tmp_path)
    ours, _ = foreign.convert("auto", str(tmp_path))
    assert (ours.card.arguments["window"], ours.card.arguments["trained"]) == (8, [4, 3])
    assert ours.card.labels == ["ant", "bee", "cat", "dog", "elk"]
    close(ours.eval()(picture(64, 64)), theirs(picture(64, 64)).logits, "logits")


@torch.no_grad()
def test_windows_are_read_from_buffers_told_or_asked_for(tmp_path):
    theirs, file, _ = original_file(tmp_path)
    found = sources.convert("auto", file)
    assert found.arguments["window"] == 4 and found.arguments["trained"] == [4, 4]
    assert set(found.report.dropped_by_reason()) == {"geometry, recomputed", "beside the weights in 'model'"}
    bare = tmp_path / "bare.pth"
    torch.save(timm_swin_v2().state_dict(), bare)
    with pytest.raises(ZooError, match="bare.pth: the window of a Swin v2 is not in its weights.*--source-window HEIGHTxWIDTH"):
        sources.convert("auto", bare)
    told = sources.convert("auto", bare, sources.Wanted(source_window=(4, 4)))
    assert told.arguments["trained"] == [4, 4]
    with pytest.raises(ZooError, match="windows of 4x6: allowed are square ones"):
        sources.convert("auto", bare, sources.Wanted(source_window=(4, 6)))


def test_nothing_may_be_left_over(tmp_path):
    state = timm_swin_v2().state_dict() | {"layers.0.blocks.0.attn.cpb_mlp.1.weight": torch.ones(49, 1)}
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(ZooError, match=r"1 of .* keys unknown, first: layers\.0\.blocks\.0\.attn\.cpb_mlp\.1\.weight"):
        sources.convert("timm-swin-v2", tmp_path / "x.pth", sources.Wanted(source_window=(4, 4)))


@pytest.mark.parametrize("name", ["tiny", "small", "base"])
def test_registered_sizes_are_timms(name):
    import timm

    with torch.device("meta"):
        theirs = timm.create_model(f"swinv2_{name}_window8_256")
        ours = zoo.registry.build(f"image_{name}_v2")
    expected, _ = translate(swin_v2.TIMM, theirs.state_dict())
    swin_v2.settle(expected)
    found = ours.state_dict()
    assert {key: value.shape for key, value in expected.items()} == {key: value.shape for key, value in found.items()}


@torch.no_grad()
def test_the_attention_is_the_papers_formula():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 12, 8).double().unbind()
    method, position = Cosine(2).double(), ContinuousPosition((5, 4), 2).double()
    method.log_scale.copy_(torch.tensor([1.0, 9.0]))
    bias = position((3, 4))
    out = method(q, k, v, None, bias)
    for h, tau in ((0, torch.tensor(-1.0).exp()), (1, torch.tensor(0.01))):
        cosine = torch.cosine_similarity(q[:, h, :, None], k[:, h, None], dim=-1)
        expected = (cosine / tau + bias[h]).softmax(-1) @ v[:, h]
        assert torch.allclose(out[:, h], expected)
    i, j = (0, 2), (2, 1)  # row, column
    offset = torch.tensor([8 * (i[0] - j[0]) / 4, 8 * (i[1] - j[1]) / 3]).double()
    coded = offset.sign() * (1 + offset.abs()).log2() / 3
    assert torch.allclose(bias[:, 0 * 4 + 2, 2 * 4 + 1], 16 * position.mlp(coded).sigmoid())


def test_keys_have_no_bias():
    torch.manual_seed(0)
    layer, x = KeylessBias(4), torch.randn(3, 4)
    torch.nn.init.ones_(layer.bias)
    plain = x @ layer.weight.T
    assert torch.allclose(layer(x), plain + torch.tensor([1.0, 0, 1]).repeat_interleave(4))
    layer(x).sum().backward()
    assert not layer.bias.grad[4:8].any() and layer.bias.grad[:4].all()


@torch.no_grad()
def test_any_size_of_picture():
    torch.manual_seed(0)
    model = ImageV2(3, dims=(32, 64), depths=(2, 2), window=4).eval()
    for size in ((1, 1), (5, 70), (33, 18)):
        assert model(picture(*size)).isfinite().all()
    assert {name for name in model.no_weight_decay() if not re.search(r"position\.mlp|log_scale", name)} == set()


@pytest.mark.parametrize("trained", [(8,), (8, 0), (8, 8.0)])
def test_wrong_windows_are_named(trained):
    with pytest.raises(ValueError, match="ImageV2: trained=.*allowed: integers >= 1, one entry per stage"):
        ImageV2(dims=(32, 64), depths=(2, 2), trained=trained)
