"""Swin of every source, through a file of it: the same features, logits and gradients as the library's own model.

Maps are whole windows here: at other sizes the others let the padding take part, and ours masks it.
"""

import pytest
import torch
from einops import rearrange
from swin_peers import close, hf_swin, old_layout, picture, timm_swin, torchvision_swin

import zoo
from zoo import foreign
from zoo.convert import sources
from zoo.convert.rules import translate


def timm_file(folder):
    torch.save(timm_swin().state_dict(), folder / "timm.pth")
    theirs = timm_swin(img_size=(64, 96))  # timm's masks are made for one size
    theirs.load_state_dict(torch.load(folder / "timm.pth"))
    return theirs, folder / "timm.pth", theirs.forward_features


def original_file(folder):
    theirs, _, features = timm_file(folder)
    torch.save({"model": old_layout(theirs.state_dict()), "epoch": 300}, folder / "swin.pth")
    return theirs, folder / "swin.pth", features


def torchvision_file(folder):
    theirs = torchvision_swin()
    torch.save({f"module.{key}": value for key, value in theirs.state_dict().items()}, folder / "vision.pt")
    return theirs, folder / "vision.pt", lambda x: theirs.norm(theirs.features(x))


def hf_folder(folder):
    theirs = hf_swin()
    theirs.save_pretrained(folder / "hf")  # the names that files have
    return theirs, folder / "hf", lambda x: _as_map(theirs.swin(x).last_hidden_state)


def hf_memory(folder):
    theirs, _, features = hf_folder(folder)
    torch.save(theirs.state_dict(), folder / "memory.bin")  # the names of transformers 5 in memory
    return theirs, folder / "memory.bin", features


def _as_map(tokens):
    return rearrange(tokens, "b (h w) c -> b h w c", h=8)


CASES = [("timm-swin", timm_file), ("timm-swin", original_file), ("swin", original_file), ("torchvision-swin", torchvision_file),
         ("hf-swin", hf_folder), ("hf-swin", hf_memory)]


@pytest.mark.parametrize("source, make", CASES, ids=lambda case: getattr(case, "__name__", case))
def test_features_logits_and_gradients_off_the_training_size(source, make, tmp_path):
    theirs, file, features = make(tmp_path)
    ours, report = foreign.convert(source, str(file))
    assert sources.convert("auto", file).source in (source, "swin")
    ours.eval()

    inputs = [picture(64, 96).requires_grad_() for _ in range(2)]
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
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    layouts = sources.find("timm-swin" if source == "swin" else source).layouts
    layout = next(layout for layout in layouts if layout.fits(gradients))
    expected, _ = translate(layout, gradients)
    scale = max(gradient.abs().max() for gradient in expected.values())
    for name, p in ours.named_parameters():
        # the bias of the keys has no gradient at all in exact arithmetic: rounding is compared with the whole
        assert (p.grad - expected[name]).abs().max() < 1e-5 * max(expected[name].abs().max(), 1e-3 * scale), name


def test_every_map_equals_torchvisions(tmp_path):
    theirs, file, _ = torchvision_file(tmp_path)
    ours = zoo.create_model("image_tiny", weights=f"auto:{file}", **_sizes()).eval()
    _, maps = ours.forward_intermediates(picture(64, 96))
    x = picture(64, 96)
    for i, layer in enumerate(theirs.features):
        x = layer(x)
        if i % 2:
            close(maps[i // 2], rearrange(x, "b h w c -> b c h w"), f"stage {i // 2}")


@torch.no_grad()
def test_a_larger_window_is_timms_model_with_its_tables_resized(tmp_path):
    from timm.layers import resize_rel_pos_bias_table_simple

    theirs, file, _ = timm_file(tmp_path)
    wide = timm_swin(img_size=64, window_size=8)
    state = theirs.state_dict()
    for key, value in state.items():
        if key.endswith("bias_table"):
            state[key] = resize_rel_pos_bias_table_simple(value, (8, 8), (15 * 15, value.shape[1]))
    wide.load_state_dict(state)
    ours = zoo.create_model("image_tiny", weights=f"timm-swin:{file}", window=8, **_sizes()).eval()
    close(ours(picture(64, 64)), wide(picture(64, 64)), "logits")
    assert ours.card.arguments["window"] == 8 and "4 tables of windows 4x4 -> 8x8 (bicubic)" in ours.card.notes


@torch.no_grad()
def test_a_stage_whose_map_was_smaller_than_the_window(tmp_path):
    theirs = timm_swin(depths=(2, 2, 2), num_heads=(1, 2, 4))  # the last map has 2 x 2 tokens, its tables 3 x 3 rows
    torch.save(theirs.state_dict(), tmp_path / "three.pth")
    ours, report = foreign.convert("timm-swin", str(tmp_path / "three.pth"))
    assert report.changed == ["2 tables of windows 2x2 -> 4x4 (nearest)"]
    close(ours.eval()(picture(32, 32)), theirs(picture(32, 32)), "logits")


@torch.no_grad()
@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_other_channels_are_timms(channels, tmp_path):
    from timm.models import adapt_input_conv

    theirs, file, _ = timm_file(tmp_path)
    ours = zoo.create_model("image_tiny", weights=f"timm-swin:{file}", in_chans=channels, **_sizes()).eval()
    expected = adapt_input_conv(channels, theirs.patch_embed.proj.weight)
    assert torch.allclose(ours.patch_embed.proj.weight, expected, atol=1e-7)
    if channels == 1:
        gray = picture(64, 96, 1)
        close(ours(gray), theirs(gray.expand(-1, 3, -1, -1)), "logits of a gray picture")


def _sizes() -> dict:
    return {"dims": (32, 64), "depths": (2, 2)}
