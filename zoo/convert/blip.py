"""BLIP's image-text matching (BlipForImageTextRetrieval of Hugging Face) -> zoo.models.blip.Blip.

Theirs leaves [CLS] before the text; the authors put [ENC] there to match, which the weights were trained with. Ours has it as a
setting: `first`. Their two match logits become one, the difference: its sigmoid is their softmax.
"""

import torch
from torch import Tensor

from zoo.convert.rules import GEOMETRY, Layout
from zoo.errors import ZooError

ENC = 30523  # of the released tokenizer: BERT's 30,522 words, then [DEC] and [ENC]
RELEASED = 768, 12  # width and heads of the released text encoders
_VISION, _TEXT = r"vision_model\.encoder\.layers\.(\d+)\.", r"text_encoder\.encoder\.layer\.(\d+)\."
_BLOCK, _ASKS = r"image.blocks.\1.", r"fusion.text_asks.\1."
HF = Layout(
    "BLIP image-text matching",
    marks=(r"vision_model\.embeddings\.class_embedding", r"text_encoder\.encoder\.layer\.0\.crossattention\.self\.query\.weight",
           r"itm_head\.weight"),
    rules=(
        (r"vision_model\.embeddings\.(?=class_embedding|position_embedding)", "image."),
        (r"vision_model\.embeddings\.patch_embedding\.", "image.proj."),
        (r"vision_model\.post_layernorm\.", "image.norm."),
        (_VISION + r"self_attn\.qkv\.", _BLOCK + "attn.qkv."),
        (_VISION + r"self_attn\.projection\.", _BLOCK + "attn.proj."),
        (_VISION + r"layer_norm([12])\.", _BLOCK + r"norm\2."),
        (_VISION + r"mlp\.(fc1|fc2)\.", _BLOCK + r"mlp.\2."),
        (r"text_encoder\.embeddings\.(word|position)_embeddings\.", lambda m: f"text.{_TABLE[m[1]]}."),
        (r"text_encoder\.embeddings\.LayerNorm\.", "text.norm."),
        (_TEXT + r"attention\.self\.query\.", _ASKS + "self_attn.q."),
        (_TEXT + r"attention\.self\.(key|value)\.", _ASKS + r"self_attn.\2."),
        (_TEXT + r"attention\.output\.dense\.", _ASKS + "self_attn.proj."),
        (_TEXT + r"attention\.output\.LayerNorm\.", _ASKS + "norm_self."),
        (_TEXT + r"crossattention\.self\.query\.", _ASKS + "attn.q."),
        (_TEXT + r"crossattention\.self\.(key|value)\.", _ASKS + r"attn.\2."),
        (_TEXT + r"crossattention\.output\.dense\.", _ASKS + "attn.proj."),
        (_TEXT + r"crossattention\.output\.LayerNorm\.", _ASKS + "norm1."),
        (_TEXT + r"intermediate\.dense\.", _ASKS + "mlp.fc1."),
        (_TEXT + r"output\.dense\.", _ASKS + "mlp.fc2."),
        (_TEXT + r"output\.LayerNorm\.", _ASKS + "norm2."),
        (r"vision_proj\.", "image_proj."),
        (r"text_proj\.", "text_proj."),
        (r"itm_head\.", "fusion.head."),
    ),
    dropped=((r"text_encoder\.embeddings\.position_ids", GEOMETRY), (r"text_encoder\.pooler\..*", "a head of pre-training")),
    ends="weight|bias|class_embedding|position_embedding",
)
_TABLE = {"word": "token", "position": "position"}


def renamed(ours: str) -> str:
    """The tensor of ours that a renamed key became, or a part of, after `settle`."""
    ours = ours.replace("image.class_embedding", "image.first").replace("image.position_embedding", "image.position")
    return ours.replace("attn.key.", "attn.kv.").replace("attn.value.", "attn.kv.")


def settle(state: dict[str, Tensor]) -> None:
    """Brings what has another form in place. ZooError: a part is missing."""
    for key in [key for key in state if "attn.key." in key]:
        value = key.replace("attn.key.", "attn.value.")
        if value not in state:
            raise ZooError(f"incomplete BLIP state dict: nothing becomes {value}")
        state[key.replace("attn.key.", "attn.kv.")] = torch.cat([state.pop(key), state.pop(value)])
    state["image.first"] = state.pop("image.class_embedding")[0, 0]
    state["image.position"] = state.pop("image.position_embedding")[0]
    for end in ("weight", "bias"):
        none, match = state[f"fusion.head.{end}"].split(1)
        state[f"fusion.head.{end}"] = match - none
    state["logit_scale"] = torch.tensor(0.07).log().neg()  # not among the weights


def arguments(config: dict, state: dict[str, Tensor]) -> dict:
    """BLIP's config.json and the shapes -> arguments of Blip. ZooError names what Blip is not, or where heads cannot be right."""
    text, vision = config.get("text_config", {}), config.get("vision_config", {})
    dim = state["text.token.weight"].shape[1]
    fixed = ((text, "text_config", {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "intermediate_size": 4 * dim}),
             (vision, "vision_config", {"hidden_act": "gelu"}))
    for part, name, values in fixed:
        for key, allowed in values.items():
            if part.get(key, allowed) != allowed:
                raise ZooError(f"config.json: {name}.{key} is {part[key]!r}; allowed: {allowed!r}")
    heads = text.get("num_attention_heads")
    if heads is None or dim == RELEASED[0] and heads == 8:
        raise ZooError(f"config.json: text_config.num_attention_heads is {heads or 'missing'}; transformers' default, 8, is not "
                       f"what the released weights have: write {RELEASED[1]} there, or what yours were trained with")
    words = len(state["text.token.weight"])
    patch = state["image.proj.weight"].shape[2]
    image = {"size": vision.get("image_size", 384), "patch": patch, "dim": len(state["image.first"]),
             "depth": _count(state, "image.blocks"), "heads": vision.get("num_attention_heads", 12),
             "hidden": len(state["image.blocks.0.mlp.fc1.weight"]), "in_chans": state["image.proj.weight"].shape[1],
             "eps": vision.get("layer_norm_eps", 1e-5)}
    return {"image": image, "vocab_size": words, "max_length": len(state["text.position.weight"]), "dim": dim,
            "depth": _count(state, "fusion.text_asks"), "heads": heads, "embed_dim": len(state["text_proj.weight"]),
            "first": ENC if words > ENC else None}


def _count(state: dict, prefix: str) -> int:
    return len({key.split(".")[2] for key in state if key.startswith(f"{prefix}.")})
