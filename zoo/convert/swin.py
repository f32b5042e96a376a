"""Swin v1 as timm names it, and as the authors' files and timm before 0.9 do -> zoo.models.image.Image."""

from torch import Tensor

from zoo.convert.rules import GEOMETRY, Layout, translate

_TABLE = r"layers\.0\.blocks\.0\.attn\.relative_position_bias_table"
RULES = (
    (r"patch_embed\.(proj|norm)\.", r"patch_embed.\1."),
    (r"norm\.", "norm."),
    (r"head\.(fc\.)?", "classifier."),
    (r"layers\.(\d+)\.blocks\.(\d+)\.(norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.", r"stages.\1.blocks.\2.\3."),
    (r"layers\.(\d+)\.blocks\.(\d+)\.attn\.relative_position_bias_", r"stages.\1.blocks.\2.attn.position."),
)
_DROPPED = ((r"layers\.\d+\.blocks\.\d+\.(attn\.relative_position_index|attn_mask)", GEOMETRY),)
MERGE = r"layers\.(\d+)\.downsample\.(norm|reduction)\."

TIMM = Layout(
    "timm Swin",
    marks=(_TABLE, r"patch_embed\.proj\.weight"),
    never=r"layers\.0\.downsample\..*",
    rules=(*RULES, (MERGE, r"stages.\1.merge.\2.")),
    dropped=_DROPPED,
)
# the merging at the end of stage i is ours at the start of stage i + 1
ORIGINAL = Layout(
    "original Swin (also timm before 0.9)",
    marks=(_TABLE, r"patch_embed\.proj\.weight", r"layers\.0\.downsample\.reduction\.weight"),
    rules=(*RULES, (MERGE, lambda m: f"stages.{int(m[1]) + 1}.merge.{m[2]}.")),
    dropped=_DROPPED,
)


def from_timm(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """A timm Swin (v1) state dict, of either layout -> one that Image loads strictly. ZooError on foreign keys."""
    return translate(ORIGINAL if ORIGINAL.fits(state_dict) else TIMM, state_dict)[0]
