"""CLAP's audio tower, as Hugging Face and as LAION names it -> zoo.models.htsat.HTSAT."""

from torch import Tensor

from zoo.convert.rules import GEOMETRY, Layout, translate
from zoo.errors import ZooError

_BLOCK = r"layers\.(\d+)\.blocks\.(\d+)\."
_OURS = r"image.stages.\1.blocks.\2."
_ENDS = "weight|bias|table|running_mean|running_var|num_batches_tracked"
_RULES = (
    (r"patch_embed\.(proj|norm|mel_conv2d|fusion_model\.(?:local|global)_att\.\d)\.", r"image.patch_embed.\1."),
    (r"norm\.", "image.norm."),
    # the merging at the end of stage i is ours at the start of stage i + 1
    (r"layers\.(\d+)\.downsample\.(norm|reduction)\.", lambda m: f"image.stages.{int(m[1]) + 1}.merge.{m[2]}."),
)
_STEM = r"patch_embed\.proj\.weight"
_REST = (r"(text_model|text_branch|text_transform|audio_transform|text_projection|audio_projection)\..*|logit_scale_[at]",
         "of the whole CLAP model, not of its audio tower")

HF = Layout(
    "CLAP audio",
    marks=(_STEM, r"layers\.0\.blocks\.0\.attention\.self\.query\.weight", r"batch_norm\.weight"),
    rules=(
        *_RULES,
        (r"batch_norm\.", "mel_norm."),
        (_BLOCK + r"layernorm_before\.", _OURS + "norm1."),
        (_BLOCK + r"attention\.self\.(query|key|value)\.", _OURS + r"attn.\3."),
        (_BLOCK + r"attention\.self\.relative_position_bias_", _OURS + "attn.position."),
        (_BLOCK + r"attention\.output\.dense\.", _OURS + "attn.proj."),
        (_BLOCK + r"layernorm_after\.", _OURS + "norm2."),
        (_BLOCK + r"intermediate\.dense\.", _OURS + "mlp.fc1."),
        (_BLOCK + r"output\.dense\.", _OURS + "mlp.fc2."),
    ),
    dropped=((_BLOCK + r"attention\.self\.relative_position_index", GEOMETRY), _REST),
    prefix=r"(audio_model\.)?(audio_encoder\.)?",
    ends=_ENDS,
)
LAION = Layout(
    "LAION CLAP audio",
    marks=(_STEM, r"layers\.0\.blocks\.0\.attn\.qkv\.weight", r"bn0\.weight"),
    rules=(
        *_RULES,
        (r"bn0\.", "mel_norm."),
        (_BLOCK + r"(norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.", _OURS + r"\3."),
        (_BLOCK + r"attn\.relative_position_bias_", _OURS + "attn.position."),
    ),
    dropped=(
        (_BLOCK + r"(attn\.relative_position_index|attn_mask)", GEOMETRY),
        (r"(spectrogram_extractor|logmel_extractor)\..*", "the front end, which has no learnt weights"),
        (r"(tscam_conv|head)\..*", "classifier of AudioSet, of another shape than ours"),
        _REST,
    ),
    prefix=r"audio_branch\.",
    ends=_ENDS,
)


def front(state: dict) -> str:
    """HTSAT's `front` by the names of ours: whether several mel pictures of a long clip are fused."""
    return "fused" if "image.patch_embed.mel_conv2d.weight" in state else "pieces"


def from_clap(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """State dict of ClapAudioModel, ClapAudioModelWithProjection or ClapModel, or of LAION -> one that HTSAT(0) loads strictly.

    query, key and value become one qkv. ZooError names what is not CLAP's; `rules.rename` says what is dropped.
    """
    return translate(LAION if LAION.fits(state_dict) else HF, state_dict)[0]


def arguments(config: dict) -> dict:
    """CLAP's config.json (whole, or its audio_config) -> arguments of HTSAT. ZooError names what HTSAT is not."""
    config = config.get("audio_config", config)
    fixed = {"spec_size": 256, "num_mel_bins": 64, "patch_size": 4, "patch_stride": [4, 4],
             "hidden_act": "gelu", "mlp_ratio": 4.0, "qkv_bias": True, "enable_patch_layer_norm": True, "layer_norm_eps": 1e-5}
    for key, allowed in fixed.items():
        value = config.get(key, allowed)
        if (list(value) if isinstance(value, tuple) else value) != allowed:
            raise ZooError(f"config.json: {key} is {value!r}; allowed: {allowed!r}")
    fused, kinds = config.get("enable_fusion", False), {"fusion_type": (None, "aff_2d"), "aff_block_r": (4,)}
    if wrong := [key for key, allowed in kinds.items() if fused and config.get(key, allowed[0]) not in allowed]:
        raise ZooError(f"config.json: {wrong[0]} is {config[wrong[0]]!r}; allowed: {kinds[wrong[0]][-1]!r}")
    dim, depths, heads = config["patch_embeds_hidden_size"], config["depths"], config["num_attention_heads"]
    dims = [dim * 2**i for i in range(len(depths))]
    if [d // (dim // heads[0]) for d in dims] != list(heads):
        raise ZooError(f"config.json: num_attention_heads is {heads!r}; allowed: doubling from stage to stage")
    return {"num_classes": 0, "dims": dims, "depths": list(depths), "window": config["window_size"], "head_dim": dim // heads[0],
            "front": "fused" if fused else "pieces"}
