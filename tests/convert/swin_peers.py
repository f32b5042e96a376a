"""Small models of other libraries with random weights, to compare with."""

import torch
from torch import nn

SIDE = 32  # pictures they were made for: maps of 8 and 4 tokens, windows of 4
SIZES = {"embed_dim": 32, "depths": (2, 2), "num_heads": (1, 2)}


def away_from_zero(model: nn.Module) -> nn.Module:
    """Weights as in no initialisation, so that every bias and table takes part."""
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.05) if p.ndim > 1 else nn.init.normal_(p, 0.5, 0.2)
    return model.eval()


def timm_swin(**changes) -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    sizes = {"img_size": SIDE, "patch_size": 4, "window_size": 4, "num_classes": 5, **SIZES}
    return away_from_zero(SwinTransformer(**sizes | changes))


def torchvision_swin(window=(4, 4)) -> nn.Module:
    from torchvision.models import SwinTransformer

    sizes = [SIZES[key] for key in ("embed_dim", "depths", "num_heads")]
    return away_from_zero(SwinTransformer([4, 4], *map(list_, sizes), list(window), num_classes=5))


def list_(value):
    return list(value) if isinstance(value, tuple) else value


def hf_swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    names = {0: "ant", 1: "bee", 2: "cat", 3: "dog", 4: "elk"}
    config = SwinConfig(image_size=SIDE, window_size=4, id2label=names, drop_path_rate=0.0,
                        **{key: list_(value) for key, value in SIZES.items()})
    return away_from_zero(SwinForImageClassification(config))


def old_layout(state: dict) -> dict:
    """What timm 0.6 and the authors wrote: merging at the end of the stage before, buffers, a flat head."""
    old = {}
    for key, value in state.items():
        if ".downsample." in key:
            stage = int(key.split(".")[1])
            key = key.replace(f"layers.{stage}.", f"layers.{stage - 1}.")
        old[key.replace("head.fc.", "head.")] = value
    old["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    old["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16)
    return old


def picture(height: int, width: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))


def close(ours: torch.Tensor, theirs: torch.Tensor, name: str, tolerance: float = 1e-5) -> None:
    assert ours.shape == theirs.shape, name
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < tolerance, f"{name}: {error:.1e} of the scale"


def timm_swin_v2(**changes) -> nn.Module:
    from timm.models.swin_transformer_v2 import SwinTransformerV2

    sizes = {"img_size": SIDE, "patch_size": 4, "window_size": 4, "num_classes": 5, **SIZES}
    return sharp(away_from_zero(SwinTransformerV2(**sizes | changes)))


def torchvision_swin_v2() -> nn.Module:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    sizes = [list_(SIZES[key]) for key in ("embed_dim", "depths", "num_heads")]
    return sharp(away_from_zero(SwinTransformer([4, 4], *sizes, [4, 4], num_classes=5, block=SwinTransformerBlockV2,
                                                downsample_layer=PatchMergingV2)))


def hf_swin_v2(**changes) -> nn.Module:
    from transformers import Swinv2Config, Swinv2ForImageClassification

    names = {0: "ant", 1: "bee", 2: "cat", 3: "dog", 4: "elk"}
    sizes = {"image_size": SIDE, "window_size": 4, **{key: list_(value) for key, value in SIZES.items()}}
    config = Swinv2Config(id2label=names, drop_path_rate=0.0, **sizes | changes)
    return sharp(away_from_zero(Swinv2ForImageClassification(config)))


def sharp(model: nn.Module) -> nn.Module:
    """Temperatures on both sides of the largest that counts; offsets that matter."""
    for i, (name, p) in enumerate(model.named_parameters()):
        if name.endswith("logit_scale"):
            p.data = torch.linspace(1, 2.5, p.numel()).view(p.shape) + 3 * (i % 2)
        elif "mlp.0.weight" in name and "cpb" in name or "bias_mlp.0.weight" in name:
            p.data *= 10
    return model
