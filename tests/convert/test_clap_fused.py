"""transformers' CLAP audio tower with feature fusion and ours: the same maps, pooled vector, gradients and mel pictures."""

import numpy as np
import pytest
import torch
from test_clap import SMALL, away_from_defaults, close, grid
from torch import nn

import zoo
from zoo.cli import main
from zoo.convert.clap import arguments, from_clap
from zoo.errors import ZooError
from zoo.models.htsat import HTSAT

pytest.importorskip("transformers")
RATE = 48000
LENGTHS = [96000, 480479, 480480, 1234567]  # the second is longer than 10 s by less than a frame


@pytest.fixture
def both():
    """Their tower with random weights, also in its fusion, and ours with the same."""
    from transformers import ClapAudioConfig, ClapAudioModel

    theirs = away_from_defaults(ClapAudioModel(ClapAudioConfig(**SMALL, enable_fusion=True, fusion_type="aff_2d")))
    for name, buffer in theirs.named_buffers():
        if "fusion_model" in name and name.endswith("running_mean"):
            buffer.normal_(0, 0.3)
        elif "fusion_model" in name and name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    ours = HTSAT(**arguments(theirs.config.to_dict())).eval()
    ours.load_state_dict(from_clap(theirs.state_dict()), strict=True)
    return ours, theirs


def mels(frames: int = 1001) -> torch.Tensor:
    return torch.randn(3, 4, frames, 64, generator=torch.Generator().manual_seed(1)) * 15 - 30


def extract(waves: list[torch.Tensor]):
    from transformers import ClapFeatureExtractor

    extractor = ClapFeatureExtractor(frequency_min=50, frequency_max=14000, truncation="fusion", padding="repeatpad")
    found = extractor([wave.numpy() for wave in waves], sampling_rate=RATE, return_tensors="pt")
    return found["input_features"].float(), found["is_longer"].flatten()


def noise(samples: int) -> torch.Tensor:
    return 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(samples))


@pytest.fixture
def middle(monkeypatch):
    """Their extractor draws the place of each piece: here it takes the middle one, as ours does outside of training."""
    monkeypatch.setattr(np.random, "choice", lambda places: places[len(places) // 2])


@pytest.mark.parametrize("longer", [(True, False, True), (False, False, False)], ids=["some longer", "none longer"])
def test_maps_pooled_vector_and_gradients_equal_transformers(longer, both):
    ours, theirs = both
    longer = torch.tensor(longer)
    inputs = [mels().requires_grad_() for _ in range(2)]
    keep = {"output_hidden_states": True, "output_hidden_states_before_downsampling": True}
    expected = theirs(inputs[1], is_longer=longer[:, None], **keep)
    maps = ours.image.forward_intermediates((ours.picture(inputs[0]), longer))[1]
    for i, (a, b) in enumerate(zip(maps, expected.hidden_states[1:], strict=True)):
        close(a, b, f"map {i}")
    last = ours.forward_mel(inputs[0], longer)
    pooled = ours.forward_head(last.mean(1), pre_logits=True)
    close(grid(last), expected.last_hidden_state, "last map")
    close(pooled, expected.pooler_output, "pooled")

    weights = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(2))
    for output in (pooled, expected.pooler_output):
        (output * weights).sum().backward()
    close(inputs[0].grad, inputs[1].grad, "gradient of the input")
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    grads = from_clap({name: grad for name, grad in grads.items() if grad is not None})
    scale = max(grad.abs().max() for grad in grads.values())
    for name, p in ours.named_parameters():
        if p.grad is None:
            assert name not in grads and any(part in name for part in ("fusion_model", "mel_conv2d")) and not longer.any()
            continue
        assert (p.grad - grads[name]).abs().max() < 1e-5 * max(grads[name].abs().max(), 1e-3 * scale), name


def test_statistics_at_training_equal_theirs(both):
    ours, theirs = (model.train() for model in both)
    longer = torch.tensor([True, True, False])
    close(grid(ours.forward_mel(mels(), longer)), theirs(mels(), is_longer=longer[:, None]).last_hidden_state, "last map")
    for key, value in from_clap(theirs.state_dict()).items():
        assert torch.allclose(ours.state_dict()[key], value, rtol=1e-4, atol=1e-6), key


def test_one_longer_clip_in_a_batch_trains(both):
    ours = both[0].train()
    ours.forward_mel(mels(), torch.tensor([False, True, False])).sum().backward()  # theirs: "more than 1 value per channel"
    assert ours.image.patch_embed.mel_conv2d.weight.grad.isfinite().all()


@torch.no_grad()
def test_pictures_equal_the_feature_extractor(both, middle):
    front = both[0].frontend
    waves = [noise(n) for n in LENGTHS]
    expected, their_longer = extract(waves)
    ours, sound = front(nn.utils.rnn.pad_sequence(waves, batch_first=True), torch.tensor(LENGTHS))
    assert ours.shape == expected.shape == (4, 4, 1001, 64) and their_longer.tolist() == [False, False, True, True]
    assert (ours - expected).abs().max() < 1e-3  # dB; theirs is computed in double
    assert front.longer(sound).tolist() == their_longer.tolist()
    assert not torch.equal(ours[3, 1], ours[3, 2]) and torch.equal(ours[0, 0], ours[0, 3])


@torch.no_grad()
def test_from_the_waveform_to_the_vector(both, middle):
    ours, theirs = both
    waves = [noise(n) for n in LENGTHS]
    features, longer = extract(waves)
    expected = theirs(features, is_longer=longer[:, None]).pooler_output
    padded, lengths = nn.utils.rnn.pad_sequence(waves, batch_first=True, padding_value=float("nan")), torch.tensor(LENGTHS)
    together = ours(padded, lengths)
    close(together, expected, "pooled")
    for i, wave in enumerate(waves):
        close(ours(wave[None]), together[i : i + 1], f"clip {i} alone")  # theirs would call a lone short clip longer


def test_pieces_are_drawn_from_their_thirds_at_training(both):
    front = both[0].frontend
    assert front.eval()._starts(301) == [50, 151, 251] and front._starts(2) == [0, 1, 0]
    torch.manual_seed(0)
    drawn = torch.tensor([front.train()._starts(301) for _ in range(300)])
    assert (drawn >= torch.tensor([0, 101, 201])).all() and (drawn < torch.tensor([101, 201, 301])).all()
    assert all(len(column.unique()) > 60 for column in drawn.T)


def test_frames_of_a_squeezed_clip_are_refused(both):
    ours = both[0]
    assert ours.forward_frames(noise(96000)[None])[0].shape[1] == ours.tokens
    with pytest.raises(ZooError, match="squeezes clips longer than 10 s"):
        ours.forward_frames(noise(600000)[None])


@torch.no_grad()
def test_hugging_face_and_laion_files(both, tmp_path):
    from test_command import as_laion

    _, theirs = both
    theirs.save_pretrained(tmp_path / "hf")
    laion = as_laion(theirs.state_dict())
    torch.save({"state_dict": {f"module.{key}": value for key, value in laion.items()}}, tmp_path / "l.pt")
    expected = theirs(mels(), is_longer=torch.ones(3, 1, dtype=torch.bool)).pooler_output
    for source, name in ((tmp_path / "hf", "a"), (tmp_path / "l.pt", "b")):
        assert main(["convert", "auto", str(source), "--out", str(tmp_path / f"{name}.safetensors")]) == 0
        model = zoo.load(tmp_path / f"{name}.safetensors")
        assert model.card.model == "audio_htsat" and model.card.arguments["front"] == "fused"
        pooled = model.forward_head(model.forward_mel(mels(), torch.ones(3, dtype=torch.bool)).mean(1), pre_logits=True)
        close(pooled, expected, name)


@pytest.mark.parametrize("key, value", [("fusion_type", "channel_map"), ("aff_block_r", 8)])
def test_another_fusion_is_refused(key, value):
    from transformers import ClapAudioConfig

    config = ClapAudioConfig(**SMALL, enable_fusion=True).to_dict() | {key: value}
    with pytest.raises(ZooError, match=f"config.json: {key} is {value!r}"):
        arguments(config)


def test_an_unknown_front_is_named():
    with pytest.raises(ValueError, match="HTSAT: front='both'; allowed: 'pieces', 'fused'"):
        HTSAT(0, front="both")
