"""Swin v2 as timm, the authors, Hugging Face and torchvision name it -> zoo.models.image_v2.ImageV2.

The weights fit any window: what it was is said by buffers of coordinates in a file, by its config, or by the caller.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.convert import hf_swin, swin, torchvision_swin
from zoo.convert.rules import GEOMETRY, Layout
from zoo.errors import ZooError

_ENDS = "weight|bias|logit_scale"
_OURS = r"stages.\1.blocks.\2."
_V1 = r".*relative_position_bias_table"
_BUFFERS = r"(relative_position_index|relative_coords_table)"

_BLOCK = r"layers\.(\d+)\.blocks\.(\d+)\."
_TIMM_RULES = (
    *swin.RULES[:3],
    (_BLOCK + r"(norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.", _OURS + r"\3."),
    (_BLOCK + r"attn\.([qv])_", _OURS + r"attn.\3_"),
    (_BLOCK + r"attn\.cpb_mlp\.([02])\.", _OURS + r"attn.position.mlp.\3."),
    (_BLOCK + r"attn\.(?=logit_scale)", _OURS + "attn.method."),
)
_TIMM_DROPPED = ((_BLOCK + rf"(attn\.{_BUFFERS}|attn_mask)", GEOMETRY),)
_TIMM_MARKS = (r"layers\.0\.blocks\.0\.attn\.cpb_mlp\.0\.weight", r"patch_embed\.proj\.weight")
TIMM = Layout("timm Swin v2", _TIMM_MARKS, (*_TIMM_RULES, (swin.MERGE, r"stages.\1.merge.\2.")), _TIMM_DROPPED,
              never=rf"layers\.0\.downsample\..*|{_V1}", ends=_ENDS)
ORIGINAL = Layout(
    "original Swin v2 (also timm before 0.9)", (*_TIMM_MARKS, r"layers\.0\.downsample\.reduction\.weight"),
    (*_TIMM_RULES, (swin.MERGE, lambda m: f"stages.{int(m[1]) + 1}.merge.{m[2]}.")), _TIMM_DROPPED, never=_V1,
    ends=_ENDS)

_SELF = hf_swin.BLOCK + r"attention\.self\."
HF = Layout(
    "Hugging Face Swin v2",
    marks=(hf_swin.STEM, r"encoder\.layers\.0\.blocks\.0\.attention\.self\.continuous_position_bias_mlp\.0\.weight"),
    rules=(
        *hf_swin.RULES,
        (_SELF + r"(query|key|value)\.(?=weight)", _OURS + r"attn.\3."),
        (_SELF + r"query\.(?=bias)", _OURS + "attn.q_"),
        (_SELF + r"value\.(?=bias)", _OURS + "attn.v_"),
        (_SELF + r"continuous_position_bias_mlp\.([02])\.", _OURS + r"attn.position.mlp.\3."),
        (_SELF + r"(?=logit_scale)", _OURS + "attn.method."),
        (hf_swin.BLOCK + r"attention\.output\.dense\.", _OURS + "attn.proj."),
        (hf_swin.BLOCK + r"intermediate\.dense\.", _OURS + "mlp.fc1."),
        (hf_swin.BLOCK + r"output\.dense\.", _OURS + "mlp.fc2."),
    ),
    dropped=((_SELF + _BUFFERS, GEOMETRY), (r"embeddings\.mask_token|decoder\..*", "of masked image modelling")),
    prefix=r"swinv2\.",
    ends=_ENDS,
)
_IN = torchvision_swin.in_block
TORCHVISION = Layout(
    "torchvision Swin v2",
    marks=(r"features\.1\.0\.attn\.cpb_mlp\.0\.weight", r"features\.0\.0\.weight"),
    rules=(
        *torchvision_swin.TORCHVISION.rules,
        (torchvision_swin.BLOCK + r"attn\.cpb_mlp\.([02])\.", _IN(r"attn.position.mlp.\3.")),
        (torchvision_swin.BLOCK + r"attn\.(?=logit_scale)", _IN("attn.method.")),
    ),
    dropped=((torchvision_swin.BLOCK + rf"attn\.{_BUFFERS}", GEOMETRY),),
    never=_V1,
    ends=_ENDS,
)


@dataclass(frozen=True)
class Geometry:
    """Tokens per side of the largest window, and of the window that the position of each stage has seen."""

    window: int
    trained: list[int]


def settle(state: dict[str, Tensor]) -> None:
    """Brings what has another form in place: 1 / tau a number a head, one bias of queries, keys (none) and values."""
    for key in [key for key in state if key.endswith("attn.method.logit_scale")]:
        state[key.replace("logit_scale", "log_scale")] = state.pop(key).flatten()
    for key in [key for key in state if key.endswith("attn.q_bias")]:
        q, v = state.pop(key), state.pop(key.replace("q_bias", "v_bias"))
        state[key.replace("q_bias", "qkv.bias")] = torch.cat([q, torch.zeros_like(q), v])


def renamed(ours: str) -> str:
    """The tensor of ours that a renamed key became, or a part of, after `settle`."""
    return re.sub(r"attn\.[qv]_bias$", "attn.qkv.bias", ours.replace("method.logit_scale", "method.log_scale"))


def sizes(state: dict[str, Tensor]) -> dict:
    """in_chans, patch, dims, depths and head_dim. ZooError: not one of ImageV2's shapes."""
    blocks = [tuple(map(int, m.groups())) for key in state if (m := re.fullmatch(_OURS_SCALE, key))]
    depths = [sum(stage == i for stage, _ in blocks) for i in range(1 + max(stage for stage, _ in blocks))]
    first = [f"stages.{i}.blocks.0." for i in range(len(depths))]
    if missing := [key for at in first for key in (at + "norm1.weight", at + "attn.method.log_scale") if key not in state]:
        raise ZooError(f"incomplete state dict: nothing becomes {missing[0]}")
    dims, heads = [len(state[at + "norm1.weight"]) for at in first], [len(state[at + "attn.method.log_scale"]) for at in first]
    if len({dim / n for dim, n in zip(dims, heads)}) > 1:
        raise ZooError(f"heads {heads} of widths {dims}: allowed is one width of all heads")
    stem = state["patch_embed.proj.weight"]
    return {"in_chans": stem.shape[1], "patch": stem.shape[2], "dims": dims, "depths": depths, "head_dim": dims[0] // heads[0]}


_OURS_SCALE = r"stages\.(\d+)\.blocks\.(\d+)\.attn\.method\.log_scale"


def geometry(raw: dict[str, Tensor], config: dict, told: tuple[int, int] | None, patch: int, stages: int) -> Geometry:
    """What is known of the windows, from buffers of the file, its config, or what the caller told. ZooError where nothing is."""
    tables = [value for key, value in raw.items() if key.endswith("relative_coords_table")]
    if tables:
        return _of_tables(raw)
    if "window_size" in config and "image_size" in config:  # Hugging Face
        own, size, before = config["window_size"], config["image_size"], config.get("pretrained_window_sizes") or [0] * stages
        fitted = [min(own, size // (patch * 2**i)) for i in range(stages)]
        return Geometry(own, [b or f for b, f in zip(before, fitted)])
    if name := re.search(r"window(\d+)(?:to(\d+))?_(\d+)", config.get("architecture", "")):  # timm
        seen, size = int(name[1]), int(name[3])
        return Geometry(int(name[2] or seen), [min(seen, size // (patch * 2**i)) for i in range(stages)])
    if told:
        if told[0] != told[1]:
            raise ZooError(f"windows of {told[0]}x{told[1]}: allowed are square ones")
        return Geometry(told[0], [told[0]] * stages)
    raise ZooError("the window of a Swin v2 is not in its weights; bring the model's config.json beside the file, or say which: "
                   "--source-window HEIGHTxWIDTH")


def _of_tables(raw: dict[str, Tensor]) -> Geometry:
    """A buffer holds sign(o) log2(1 + |o|) / 3 of all offsets, o = 8 offset / (trained - 1)."""
    windows, trained = [], {}
    for key, table in raw.items():
        if not key.endswith("relative_coords_table"):
            continue
        height, width = ((side + 1) // 2 for side in table.shape[1:3])
        if height != width:
            raise ZooError(f"{key}: windows of {height}x{width}: allowed are square ones")
        farthest = (2 ** (3 * table.abs().max().item()) - 1) / 8
        windows.append(height)
        stage = int(re.search(r"(?:layers|features)\.(\d+)", key)[1])
        trained[stage] = 1 + round((height - 1) / farthest) if farthest else height
    return Geometry(max(windows), [trained[stage] for stage in sorted(trained)])


def crop_pct(sizes: dict) -> float:
    """256 over the shorter side before the crop, which torchvision chose per model, by (dim, depth of the third stage)."""
    depth = sizes["depths"][2] if len(sizes["depths"]) > 2 else 0
    return 256 / {(96, 6): 260, (96, 18): 260, (128, 18): 272}.get((sizes["dims"][0], depth), 256)
