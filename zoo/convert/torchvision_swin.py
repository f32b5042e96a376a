"""Swin v1 as torchvision names it -> zoo.models.image.Image. `features` holds the stem, then stages and mergings in turn."""

from zoo.convert.rules import GEOMETRY, Layout

BLOCK = r"features\.(\d+)\.(\d+)\."


def in_block(ours: str):
    """Stage i is features.{2i + 1}."""
    return lambda m: f"stages.{int(m[1]) // 2}.blocks.{m[2]}.{m.expand(ours)}"


TORCHVISION = Layout(
    "torchvision Swin",
    marks=(r"features\.1\.0\.attn\.relative_position_bias_table", r"features\.0\.0\.weight"),
    rules=(
        (r"features\.0\.0\.", "patch_embed.proj."),
        (r"features\.0\.2\.", "patch_embed.norm."),
        (r"features\.(\d+)\.(norm|reduction)\.", lambda m: f"stages.{int(m[1]) // 2}.merge.{m[2]}."),
        (BLOCK + r"(norm1|norm2|attn\.qkv|attn\.proj)\.", in_block(r"\3.")),
        (BLOCK + r"mlp\.0\.", in_block("mlp.fc1.")),
        (BLOCK + r"mlp\.3\.", in_block("mlp.fc2.")),
        (BLOCK + r"attn\.relative_position_bias_", in_block("attn.position.")),
        (r"norm\.", "norm."),
        (r"head\.", "classifier."),
    ),
    dropped=((BLOCK + r"attn\.relative_position_index", GEOMETRY),),
)

# the shorter side before the crop of 224, which torchvision chose per model, by (dim, depth of the third stage)
RESIZED = {(96, 6): 232, (96, 18): 246, (128, 18): 238}
