"""CLAP's audio tower (Hugging Face layout, not fused) -> zoo.models.htsat.HTSAT."""

import re

import torch
from torch import Tensor

from zoo.errors import ZooError

_BLOCK = r"layers\.(\d+)\.blocks\.(\d+)\."
# theirs, without leading "audio_model.audio_encoder." -> ours
_RULES = [
    (r"batch_norm\.", "mel_norm."),
    (r"patch_embed\.(proj|norm)\.", r"image.patch_embed.\1."),
    (r"norm\.", "image.norm."),
    (r"layers\.(\d+)\.downsample\.(norm|reduction)\.", r"image.stages.\1.merge.\2."),
    (_BLOCK + r"layernorm_before\.", r"image.stages.\1.blocks.\2.norm1."),
    (_BLOCK + r"attention\.self\.(query|key|value)\.", r"image.stages.\1.blocks.\2.attn.\3."),
    (_BLOCK + r"attention\.self\.relative_position_bias_", r"image.stages.\1.blocks.\2.attn.position."),
    (_BLOCK + r"attention\.output\.dense\.", r"image.stages.\1.blocks.\2.attn.proj."),
    (_BLOCK + r"layernorm_after\.", r"image.stages.\1.blocks.\2.norm2."),
    (_BLOCK + r"intermediate\.dense\.", r"image.stages.\1.blocks.\2.mlp.fc1."),
    (_BLOCK + r"output\.dense\.", r"image.stages.\1.blocks.\2.mlp.fc2."),
]
_ENDS = r"(weight|bias|table|running_mean|running_var|num_batches_tracked)$"
_GEOMETRY = _BLOCK + r"attention\.self\.relative_position_index$"  # recomputed
_OTHER = r"(text_model|text_projection|audio_projection)\.|logit_scale_[at]$"  # of a whole ClapModel
_DROPPED = re.compile(f"{_GEOMETRY}|{_OTHER}")
_FUSED = re.compile(r"patch_embed\.(fusion_model|mel_conv2d)\.")


def rename(keys) -> dict[str, str | None]:
    """Their key -> ours, None where dropped; query, key, value still apart. ZooError on a fused tower or a foreign key."""
    table, foreign = {}, []
    for key in keys:
        short = key.removeprefix("audio_model.").removeprefix("audio_encoder.")
        if _FUSED.match(short):
            raise ZooError(f"fused CLAP ({key}) is not supported; take an unfused one, such as laion/clap-htsat-unfused")
        rule = next((rule for rule in _RULES if re.match(rule[0] + _ENDS, short)), None)
        if rule is None and not _DROPPED.match(short):
            foreign.append(key)
        table[key] = re.sub(*rule, _later(short), count=1) if rule else None
    if foreign or not any(table.values()):
        first = f", first: {foreign[0]}" if foreign else ""
        raise ZooError(f"not a CLAP audio state dict: {len(foreign)} of {len(table)} keys unknown{first}")
    return table


def from_clap(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """State dict of ClapAudioModel, ClapAudioModelWithProjection or ClapModel -> one that HTSAT(0) loads strictly.

    query, key and value become one qkv. ZooError names what is not CLAP's; `rename` says what is dropped.
    """
    state = {ours: state_dict[theirs] for theirs, ours in rename(state_dict).items() if ours}
    for key in [key for key in state if ".attn.query." in key]:
        parts = [key.replace("query", part) for part in ("query", "key", "value")]
        if missing := [part for part in parts if part not in state]:
            raise ZooError(f"incomplete CLAP state dict: nothing becomes {missing[0]}")
        state[key.replace("query", "qkv")] = torch.cat([state.pop(part) for part in parts])
    return state


def arguments(config: dict) -> dict:
    """CLAP's config.json (whole, or its audio_config) -> arguments of HTSAT. ZooError names what HTSAT is not."""
    config = config.get("audio_config", config)
    fixed = {"enable_fusion": False, "spec_size": 256, "num_mel_bins": 64, "patch_size": 4, "patch_stride": [4, 4],
             "hidden_act": "gelu", "mlp_ratio": 4.0, "qkv_bias": True, "enable_patch_layer_norm": True, "layer_norm_eps": 1e-5}
    for key, allowed in fixed.items():
        value = config.get(key, allowed)
        if (list(value) if isinstance(value, tuple) else value) != allowed:
            raise ZooError(f"config.json: {key} is {value!r}; allowed: {allowed!r}")
    dim, depths, heads = config["patch_embeds_hidden_size"], config["depths"], config["num_attention_heads"]
    dims = [dim * 2**i for i in range(len(depths))]
    if [d // (dim // heads[0]) for d in dims] != list(heads):
        raise ZooError(f"config.json: num_attention_heads is {heads!r}; allowed: doubling from stage to stage")
    return {"num_classes": 0, "dims": dims, "depths": list(depths), "window": config["window_size"], "head_dim": dim // heads[0]}


def _later(key: str) -> str:
    """The merging at the end of stage i is ours at the start of stage i + 1."""
    return re.sub(r"(?<=^layers\.)\d+(?=\.downsample)", lambda stage: str(int(stage[0]) + 1), key)
