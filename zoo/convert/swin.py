"""Swin (timm layout, and the older one that the authors' files share) -> zoo.models.image.Image."""

import re

from torch import Tensor

from zoo.errors import ZooError

# theirs -> ours; block keys are matched by the last two rules
_RULES = [
    (r"patch_embed\.(proj|norm)\.", r"patch_embed.\1."),
    (r"norm\.", "norm."),
    (r"head\.(fc\.)?", "classifier."),
    (r"layers\.(\d+)\.downsample\.(norm|reduction)\.", r"stages.\1.merge.\2."),
    (r"layers\.(\d+)\.blocks\.(\d+)\.(norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.", r"stages.\1.blocks.\2.\3."),
    (r"layers\.(\d+)\.blocks\.(\d+)\.attn\.relative_position_bias_", r"stages.\1.blocks.\2.attn.position."),
]
_DROPPED = re.compile(r"layers\.\d+\.blocks\.\d+\.(attn\.relative_position_index|attn_mask)$")  # geometry: recomputed


def from_timm(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """A timm Swin (v1) state dict -> one that Image loads strictly.

    Today's layout merges at the start of a stage; the older one, also of the authors' files, at the end of the stage
    before, and calls the classifier `head`. ZooError shows a short table of keys that are not Swin's.
    """
    old = any(key.startswith("layers.0.downsample.") for key in state_dict)
    state, foreign = {}, []
    for key, value in state_dict.items():
        rule = next((rule for rule in _RULES if re.match(rule[0] + r"(weight|bias|table)$", key)), None)
        if rule:
            state[re.sub(*rule, _later(key) if old else key, count=1)] = value
        elif not _DROPPED.match(key):
            foreign.append(key)
    if foreign or not state:
        raise ZooError(_table(state_dict, foreign))
    return state


def _later(key: str) -> str:
    """The merging at the end of stage i is ours at the start of stage i + 1."""
    return re.sub(r"(?<=^layers\.)\d+(?=\.downsample)", lambda stage: str(int(stage[0]) + 1), key)


def _table(state_dict: dict, foreign: list[str]) -> str:
    """One line with the count, then the first five keys with their shapes."""
    head = f"not a timm Swin state dict: {len(foreign)} of {len(state_dict)} keys unknown"
    rows = [f"  {key}  {list(getattr(state_dict[key], 'shape', []))}" for key in foreign[:5]]
    return "\n".join([head, *rows])
