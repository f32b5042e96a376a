"""HTSAT as a model of the audio family: clips of any length, alone as in a batch, whatever lies in the padding."""

import copy
import math
import sys

import pytest
import torch
from torch import nn

from zoo.errors import ZooError
from zoo.models.htsat import HTSAT

PIECE = 480000


@pytest.fixture(scope="module")
def model() -> HTSAT:
    torch.manual_seed(0)
    model = HTSAT(5, dims=(24, 48, 96), depths=(2, 1, 1))
    for p in model.parameters():
        nn.init.normal_(p, std=0.05) if p.ndim > 1 else nn.init.normal_(p, 0.5, 0.2)
    model.mel_norm.running_mean.fill_(-30)
    model.mel_norm.running_var.fill_(200)
    return model.eval()


def noise(samples: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(1, samples, generator=torch.Generator().manual_seed(seed))


def batch(waves: list[torch.Tensor], padding: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips (1 samples) behind each other, the shorter ones filled with `padding`, and their lengths."""
    lengths = torch.tensor([wave.shape[1] for wave in waves])
    out = torch.full((len(waves), int(lengths.max())), padding)
    for row, wave in zip(out, waves):
        row[: wave.shape[1]] = wave[0]
    return out, lengths


def test_a_clip_fills_ten_seconds_by_whole_repeats_and_silence(model):
    wave = noise(200000)
    pieces, sound = model.frontend.cut(wave)
    assert sound.tolist() == [[200000]]
    assert torch.equal(pieces, torch.cat([wave, wave, torch.zeros(1, PIECE - 400000)], 1))
    one, _ = model.frontend.cut(torch.tensor([[0.3]]))
    assert torch.equal(one, torch.full((1, PIECE), 0.3))
    whole, _ = model.frontend.cut(noise(PIECE))
    assert torch.equal(whole, noise(PIECE))


def test_pieces_of_long_clips_come_clip_by_clip(model):
    short, long = noise(PIECE, 1), noise(2 * PIECE + 1, 2)
    pieces, sound = model.frontend.cut(*batch([short, long], float("nan")))
    assert sound.tolist() == [[PIECE, 0, 0], [PIECE, PIECE, 1]]
    assert torch.equal(pieces[0], short[0])
    assert torch.equal(pieces[1:3].flatten(), long[0, :-1])
    assert (pieces[3] == long[0, -1]).all()


def test_the_picture_lays_four_pieces_of_time_below_each_other(model):
    mel = torch.randn(1, 1, 1024, 64, generator=torch.Generator().manual_seed(3))
    picture = model.picture(mel)
    scale, shift = model.mel_norm.weight / (200 + 1e-5) ** 0.5, model.mel_norm.bias
    for k, t, f in [(0, 0, 0), (1, 17, 5), (3, 255, 63)]:
        expected = (mel[0, 0, 256 * k + t, f] + 30) * scale[f] + shift[f]
        assert torch.isclose(picture[0, 0, 64 * k + f, t], expected, atol=1e-6)


@pytest.mark.parametrize("padding", [0.0, 7.0, float("nan")])
@torch.no_grad()
def test_alone_is_as_in_a_batch(model, padding):
    waves = [noise(1), noise(4800, 1), noise(150000, 2), noise(PIECE + 77777, 3)]
    wave, lengths = batch(waves, padding)
    logits, unit = model(wave, lengths), model.forward_embed(wave, lengths)
    frames, heard = model.forward_frames(wave, lengths)
    for i, alone in enumerate(waves):
        assert torch.allclose(logits[i], model(alone)[0], atol=1e-5)
        assert torch.allclose(logits[i], model(alone, lengths[i : i + 1])[0], atol=1e-5)
        assert torch.allclose(unit[i], model.forward_embed(alone)[0], atol=1e-5)
        own, own_heard = model.forward_frames(alone)
        assert heard[i].sum() == own_heard.sum()
        assert torch.allclose(frames[i, heard[i]], own[own_heard], atol=1e-5)
    assert unit.norm(dim=1).allclose(torch.ones(4))
    assert not torch.allclose(logits[1], logits[2], atol=1e-3)  # the clips can be told apart


def test_gradients_do_not_depend_on_padding_and_silence_has_finite_ones(model):
    grads = []
    for padding in (0.0, float("nan")):
        wave, lengths = batch([noise(PIECE + 5), torch.zeros(1, 1000)], padding)
        wave.requires_grad_()
        model.zero_grad()
        model(wave, lengths).square().sum().backward()
        assert wave.grad.isfinite().all() and not wave.grad[1, 1000:].any() and wave.grad[0].any()
        grads.append([wave.grad, *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*grads))
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    model.zero_grad()


@torch.no_grad()
def test_a_long_clip_is_its_pieces(model):
    wave = noise(2 * PIECE + 30000, 4)
    tokens, mask = model.forward_features(wave)
    parts = [model.forward_features(part)[0] for part in wave.split(PIECE, 1)]
    assert torch.allclose(tokens, torch.cat(parts, 1), atol=1e-5)
    heard = math.ceil(30000 / 48000 / model.frame_seconds)  # tokens of the rest: they alone count beside the full pieces
    assert mask.sum() == 2 * model.tokens + heard
    assert torch.allclose(model(wave), model.classifier(tokens[mask].mean(0))[None], atol=1e-5)


@torch.no_grad()
def test_intermediates_end_in_the_features_of_every_clip(model):
    wave, lengths = batch([noise(1000), noise(PIECE + 1, 1)], 0.0)
    (last, mask), kept = model.forward_intermediates(wave, lengths)
    tokens, expected = model.forward_features(wave, lengths)
    assert torch.equal(last, tokens) and torch.equal(mask, expected)
    assert [tuple(x.shape) for x, _ in kept] == [(2, 512, 24), (2, 256, 48), (2, 128, 96)]
    assert [mask.sum(1).tolist() for _, mask in kept] == [[256, 257], [128, 129], [64, 65]]
    _, [(alone, none)] = model.forward_intermediates(noise(1000), indices=[0])
    assert none is None and torch.allclose(kept[0][0][:1, :256], alone, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("off, tokens", [(-1, 1), (0, 1), (1, 2)])
def test_frames_end_at_the_boundary_of_a_token(model, off, tokens):
    samples = round(model.frame_seconds * 48000) + off
    _, heard = model.forward_frames(noise(samples))
    assert heard.sum() == tokens and heard[0, :tokens].all()
    _, heard = model.forward_frames(*batch([noise(samples), noise(PIECE)], 0.0))
    assert heard.sum(1).tolist() == [tokens, model.tokens]


@pytest.mark.parametrize("value", [0.0, 1e30])
def test_silence_and_huge_values_are_finite(model, value):
    wave = torch.full((1, 5000), value, requires_grad=True)
    logits = model(wave)
    logits.sum().backward()
    assert logits.isfinite().all() and wave.grad.isfinite().all()
    model.zero_grad()


def test_half_precision_weights_still_hear_in_full(model):
    wave, exact = noise(96000), model(noise(96000))
    with torch.autocast("cpu", torch.bfloat16):
        assert model.frontend(wave)[0].dtype == torch.float32
        assert (model(wave) - exact).abs().max() < 0.05 * exact.abs().max()
    half = copy.deepcopy(model).bfloat16()
    assert half.frontend(wave.bfloat16())[0].dtype == torch.float32
    assert (half(wave) - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.slow
def test_export_with_dynamic_batch_and_samples_equals_eager(model):
    sizes = {0: torch.export.Dim("b", min=1), 1: torch.export.Dim("samples", min=2, max=PIECE)}
    inputs = batch([noise(9000), noise(100, 1), noise(5000, 2)], 0.0)
    exported = torch.export.export(model, inputs, dynamic_shapes={"wave": sizes, "lengths": {0: sizes[0]}}).module()
    for waves in ([noise(PIECE)], [noise(2), noise(30000, 1)]):
        assert torch.allclose(exported(*batch(waves, 7.0)), model(*batch(waves, 7.0)), atol=1e-5)


def test_published_sizes():
    model = HTSAT()
    blocks = [stage.blocks[0].attn for stage in model.image.stages]
    assert [attn.heads for attn in blocks] == [4, 8, 16, 32]
    assert all(attn.pattern.size == (8, 8) for attn in blocks)
    assert model.tokens == 32 and model.frame_seconds == 0.3125 and model.num_features == 768 and model.num_classes == 527


def test_head_and_parameter_groups(model):
    from timm.models import group_parameters

    model = HTSAT(3, dims=(24, 48), depths=(1, 2))
    model.reset_classifier(7)
    assert model.classifier.weight.shape == (7, 48) and model.num_classes == 7
    model.reset_classifier(0)
    assert model.forward_head(torch.ones(2, 3, 48)).shape == (2, 48)
    assert len(model.no_weight_decay()) == 3 and model.no_weight_decay() <= {name for name, _ in model.named_parameters()}
    model.reset_classifier(7)
    depth = group_parameters(model, model.group_matcher(), reverse=True)
    order = ["mel_norm.weight", "image.stages.0.blocks.0.norm1.bias", "image.stages.1.blocks.1.norm1.bias", "classifier.bias"]
    layers = [depth[name] for name in order]
    assert layers == sorted(set(layers)) and depth["image.patch_embed.proj.weight"] == depth["mel_norm.weight"] == 0


def test_augment_sees_the_normalised_mel_at_training_only(model):
    seen = []

    class Keep(nn.Module):
        def forward(self, mel, mask):
            seen.append((tuple(mel.shape), mask))
            return mel * 0

    model.augment = Keep()
    mel = torch.randn(2, 1, 1001, 64)
    try:
        model.picture(mel)
        assert not seen
        kept = {name: value.clone() for name, value in model.mel_norm.state_dict().items()}
        model.mel_norm.train()
        model.training = True
        assert not model.picture(mel).any() and seen == [((2, 1001, 64), None)]
    finally:
        model.augment = None
        model.eval().mel_norm.load_state_dict(kept)


@pytest.mark.parametrize("arguments, text", [
    ({"num_classes": -1}, "HTSAT: num_classes=-1; allowed: >= 0"),
    ({"dims": (24,) * 6}, "at most 5 stages"),
    ({"head_dim": 25}, "dims=.*allowed: multiples of head_dim=25"),
])
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        HTSAT(**arguments)


def test_wrong_inputs_are_named(model):
    with pytest.raises(ValueError, match=r"wave must be \(b samples\) .* got shape \[1, 0\]"):
        model(torch.zeros(1, 0))
    with pytest.raises(ValueError, match=r"lengths\[0\]=0; allowed: 1 .. 10 samples"):
        model(torch.zeros(3, 10), torch.tensor([0, 5, 10]))
    with pytest.raises(ValueError, match=r"lengths must be \(b\) = \[3\], got shape \[2\]"):
        model(torch.zeros(3, 10), torch.tensor([5, 5]))
    for shape in ([1, 1, 1025, 64], [1, 1, 1001, 128], [1, 4, 1001, 64], [1, 1001, 64]):
        with pytest.raises(ValueError, match=r"mel \[.*\]; allowed: \(b 1 frames 64\), frames in 1 .. 1024"):
            model.forward_mel(torch.zeros(shape))


def test_without_torchaudio_the_error_names_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio.functional", None)
    with pytest.raises(ZooError, match="audio models need torchaudio: pip install"):
        HTSAT(dims=(24,), depths=(1,))
