"""Swin v1 as Hugging Face names it -> zoo.models.image.Image. Files have the older names; transformers 5 has others in memory."""

from zoo.convert.rules import GEOMETRY, Layout

BLOCK = r"encoder\.layers\.(\d+)\.blocks\.(\d+)\."
_OURS = r"stages.\1.blocks.\2."
_PART = {"q": "query", "k": "key", "v": "value"}
RULES = (
    (r"embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"embeddings\.norm\.", "patch_embed.norm."),
    (r"layernorm\.", "norm."),
    (r"classifier\.", "classifier."),
    # the merging at the end of stage i is ours at the start of stage i + 1
    (r"encoder\.layers\.(\d+)\.downsample\.(norm|reduction)\.", lambda m: f"stages.{int(m[1]) + 1}.merge.{m[2]}."),
    (BLOCK + r"layernorm_before\.", _OURS + "norm1."),
    (BLOCK + r"layernorm_after\.", _OURS + "norm2."),
)
_DROPPED = (
    (BLOCK + r"attention\.(self|relative_position_bias)\.relative_position_index", GEOMETRY),
    (r"embeddings\.mask_token|decoder\..*", "of masked image modelling"),
)
STEM = r"embeddings\.patch_embeddings\.projection\.weight"

HF = Layout(
    "Hugging Face Swin",
    marks=(STEM, r"encoder\.layers\.0\.blocks\.0\.attention\.self\.query\.weight"),
    rules=(
        *RULES,
        (BLOCK + r"attention\.self\.(query|key|value)\.", _OURS + r"attn.\3."),
        (BLOCK + r"attention\.self\.relative_position_bias_", _OURS + "attn.position."),
        (BLOCK + r"attention\.output\.dense\.", _OURS + "attn.proj."),
        (BLOCK + r"intermediate\.dense\.", _OURS + "mlp.fc1."),
        (BLOCK + r"output\.dense\.", _OURS + "mlp.fc2."),
    ),
    dropped=_DROPPED,
    prefix=r"swin\.",
)
HF_IN_MEMORY = Layout(
    "Hugging Face Swin (names of transformers 5)",
    marks=(STEM, r"encoder\.layers\.0\.blocks\.0\.attention\.q_proj\.weight"),
    rules=(
        *RULES,
        (BLOCK + r"attention\.([qkv])_proj\.", lambda m: f"stages.{m[1]}.blocks.{m[2]}.attn.{_PART[m[3]]}."),
        (BLOCK + r"attention\.relative_position_bias\.relative_position_bias_", _OURS + "attn.position."),
        (BLOCK + r"attention\.o_proj\.", _OURS + "attn.proj."),
        (BLOCK + r"mlp\.(fc1|fc2)\.", _OURS + r"mlp.\3."),
    ),
    dropped=_DROPPED,
    prefix=r"swin\.",
)
