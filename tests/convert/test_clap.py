"""transformers' CLAP audio tower and ours: the same weights give the same maps, pooled vector and gradients."""

import pytest
import torch
from einops import rearrange
from torch import nn

from zoo.convert.clap import HF, arguments, from_clap
from zoo.convert.rules import rename
from zoo.errors import ZooError
from zoo.models.htsat import HTSAT

pytest.importorskip("transformers")

SMALL = {"patch_embeds_hidden_size": 24, "depths": [2, 2, 2], "num_attention_heads": [2, 4, 8], "num_hidden_layers": 3,
         "hidden_size": 96, "hidden_dropout_prob": 0.0}


def away_from_defaults(model: nn.Module) -> nn.Module:
    """Weights, and statistics of the batch norm, as in no initialisation, so that each of them takes part."""
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.05) if p.ndim > 1 else nn.init.normal_(p, 0.5, 0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(-30, 10)
        elif name.endswith("running_var"):
            buffer.uniform_(50, 500)
    return model.eval()


def pair(sizes: dict):
    """Their tower with random weights and ours with the same, sized by their config."""
    from transformers import ClapAudioConfig, ClapAudioModel

    theirs = away_from_defaults(ClapAudioModel(ClapAudioConfig(**sizes)))
    ours = HTSAT(**arguments(theirs.config.to_dict())).eval()
    ours.load_state_dict(from_clap(theirs.state_dict()), strict=True)
    return ours, theirs


@pytest.fixture(scope="module")
def small():
    return pair(SMALL)


def close(ours: torch.Tensor, theirs: torch.Tensor, name: str, tolerance: float = 1e-5) -> None:
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < tolerance, f"{name}: {error:.1e} of the scale"


def mel(frames: int = 1001, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 1, frames, 64, generator=torch.Generator().manual_seed(1)) * 15 - 30


def grid(ours: torch.Tensor) -> torch.Tensor:
    """Our last map in the order of theirs."""
    return rearrange(ours, "b f t d -> b d f t")


def extractor():
    from transformers import ClapFeatureExtractor

    return ClapFeatureExtractor(frequency_min=50, frequency_max=14000, truncation="rand_trunc", padding="repeatpad")


@pytest.mark.parametrize("sizes", [SMALL, {}], ids=["small", "as published"])
def test_maps_pooled_vector_and_gradients_equal_transformers(sizes):
    ours, theirs = pair(sizes)
    inputs = [mel().requires_grad_() for _ in range(2)]
    keep = {"output_hidden_states": True, "output_hidden_states_before_downsampling": True}
    expected = theirs(inputs[1], **keep)
    maps = ours.image.forward_intermediates(ours.picture(inputs[0]))[1]
    for i, (a, b) in enumerate(zip(maps, expected.hidden_states[1:], strict=True)):
        close(a, b, f"map {i}")
    last = ours.forward_mel(inputs[0])
    pooled = ours.forward_head(last.mean(1), pre_logits=True)
    close(grid(last), expected.last_hidden_state, "last map")
    close(pooled, expected.pooler_output, "pooled")

    weights = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(2))
    for output in (pooled, expected.pooler_output):
        (output * weights).sum().backward()
    close(inputs[0].grad, inputs[1].grad, "gradient of the input")
    grads = from_clap({name: p.grad for name, p in theirs.named_parameters()})
    scale = max(grad.abs().max() for grad in grads.values())
    for name, p in ours.named_parameters():
        # the bias of the keys has no gradient at all in exact arithmetic: rounding is compared with the whole
        assert (p.grad - grads[name]).abs().max() < 1e-5 * max(grads[name].abs().max(), 1e-3 * scale), name


@pytest.mark.parametrize("frames", [1, 300, 1024])
@torch.no_grad()
def test_other_lengths_are_stretched_as_theirs(small, frames):
    ours, theirs = small
    close(grid(ours.forward_mel(mel(frames))), theirs(mel(frames)).last_hidden_state, f"{frames} frames")


def test_batch_norm_at_training_equals_theirs(small):
    ours, theirs = (model.train() for model in small)
    before = {key: value.clone() for key, value in theirs.state_dict().items()}
    close(grid(ours.forward_mel(mel())), theirs(mel()).last_hidden_state, "last map")
    for key, value in from_clap(theirs.state_dict()).items():
        assert torch.allclose(ours.state_dict()[key], value, rtol=1e-5), key
    theirs.load_state_dict(before)
    ours.load_state_dict(from_clap(before))
    ours.eval(), theirs.eval()


@pytest.mark.parametrize("samples", [400, 48000, 130001, 480000])
def test_front_end_equals_the_feature_extractor(small, samples):
    wave = 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(samples))
    expected = extractor()(wave.numpy(), sampling_rate=48000, return_tensors="pt")["input_features"]
    assert expected.shape == (1, 1, 1001, 64) and expected.max() > -10
    ours, _ = small[0].frontend(wave[None])
    assert (ours - expected[0]).abs().max() < 2e-4  # dB; theirs is computed in double


def test_a_tone_differs_by_rounding_far_below_its_level(small):
    wave = 0.5 * torch.sin(2 * torch.pi * 1000 * torch.arange(480000) / 48000)
    expected = extractor()(wave.numpy(), sampling_rate=48000, return_tensors="pt")["input_features"][0].float()
    error = (small[0].frontend(wave[None])[0] - expected).abs()
    assert expected.max() > 20 and error.max() < 0.2 and error[expected > -40].max() < 1e-3  # dB


@torch.no_grad()
def test_from_the_waveform_to_the_vector(small):
    ours, theirs = small
    waves = [0.1 * torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (96000, 333333)]
    features = extractor()([wave.numpy() for wave in waves], sampling_rate=48000, return_tensors="pt")["input_features"]
    padded = nn.utils.rnn.pad_sequence(waves, batch_first=True)
    close(ours(padded, torch.tensor([96000, 333333])), theirs(features.float()).pooler_output, "pooled")


def test_a_whole_clap_model_loads_and_what_is_dropped_is_told():
    from transformers import ClapConfig, ClapModel

    text = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    theirs = ClapModel(ClapConfig(text_config=text, audio_config=SMALL))
    HTSAT(**arguments(theirs.config.to_dict())).load_state_dict(from_clap(theirs.state_dict()), strict=True)
    dropped = rename(HF, theirs.state_dict()).dropped
    index = [key for key in dropped if key.endswith("relative_position_index")]
    others = {key.split(".")[0] for key in dropped if key not in index}
    assert len(index) == 6 and others == {"text_model", "text_projection", "audio_projection", "logit_scale_a", "logit_scale_t"}


def test_what_is_no_clap_is_refused(small):
    state = small[1].state_dict()
    with pytest.raises(ZooError, match=rf"not a CLAP audio .*: 1 of {len(state) + 1} keys unknown, first: cls_token$"):
        from_clap(state | {"cls_token": torch.zeros(1)})
    with pytest.raises(ZooError, match="0 of 0 keys"):
        from_clap({})
    del state["audio_encoder.layers.0.blocks.0.attention.self.key.weight"]
    with pytest.raises(ZooError, match=r"nothing becomes image\.stages\.0\.blocks\.0\.attn\.key\.weight"):
        from_clap(state)


@pytest.mark.parametrize("key, value", [
    ("spec_size", 128), ("num_mel_bins", 128), ("hidden_act", "relu"), ("num_attention_heads", [2, 4, 4]),
])
def test_a_config_of_another_shape_is_refused(key, value):
    from transformers import ClapAudioConfig

    config = ClapAudioConfig(**SMALL).to_dict() | {key: value}
    with pytest.raises(ZooError, match=f"config.json: {key} is "):
        arguments(config)
