"""`zoo bench htsat`: the audio tower of CLAP against transformers' ClapAudioModel of equal weights, inference."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from zoo.bench import Settings
from zoo.bench.rounds import Case, Row
from zoo.convert.clap import arguments, from_clap
from zoo.errors import ZooError
from zoo.models.htsat import HTSAT, MELS

BATCHES, QUICK, FRAMES = (1, 8), (1,), 1001  # clips; mel frames of 10 s
SMALL = {"patch_embeds_hidden_size": 24, "depths": [1, 2], "num_attention_heads": [2, 4], "num_hidden_layers": 2,
         "hidden_size": 48}


def rows(settings: Settings) -> Iterator[Row]:
    """Rows by batch (size: clips of 10 s): mel pictures to the pooled vector. Released sizes, random weights.

    The front ends are left out: theirs is numpy, one clip after another. ZooError where transformers is not installed.
    """
    ours, peer = pair(SMALL if settings.quick else {})
    for batch in QUICK if settings.quick else BATCHES:
        mel = torch.randn(batch, 1, FRAMES, MELS, generator=torch.Generator().manual_seed(0)) * 15 - 30
        yield Row("mel pictures, inference", batch, "clips", (
            Case("audio_htsat", lambda m=mel: ours.forward_head(ours.forward_mel(m).mean(1), pre_logits=True)),
            Case("transformers ClapAudioModel", lambda m=mel: peer(m).pooler_output)))


def pair(sizes: dict) -> tuple[HTSAT, nn.Module]:
    """Ours and theirs (ClapAudioConfig of `sizes`) with equal weights, all of them and the batch norm away from their start."""
    try:
        from transformers import ClapAudioConfig, ClapAudioModel
    except ImportError as error:
        raise ZooError("bench htsat: transformers is not installed; pip install transformers") from error
    torch.manual_seed(0)
    peer = ClapAudioModel(ClapAudioConfig(**sizes)).eval()
    peer.load_state_dict({name: _away(name, value) for name, value in peer.state_dict().items()})
    ours = HTSAT(**arguments(peer.config.to_dict())).eval()
    ours.load_state_dict(from_clap(peer.state_dict()))
    return ours, peer


def _away(name: str, value: Tensor) -> Tensor:
    if "batch_norm.running" in name:
        return torch.full_like(value, -30.0 if name.endswith("mean") else 225.0)  # decibels
    return torch.empty_like(value).normal_(0.5, 0.2) if value.is_floating_point() and value.ndim == 1 else value
