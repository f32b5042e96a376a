"""timm's Swin and ours: the same weights give the same maps, logits and gradients."""

import pytest
import torch
from torch import nn

from zoo.convert.swin import from_timm
from zoo.errors import ZooError
from zoo.models.image import Image


def away_from_zero(model: nn.Module) -> nn.Module:
    """Weights as in no initialisation, so that every bias and table takes part."""
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.05) if p.ndim > 1 else nn.init.normal_(p, 0.5, 0.2)
    return model.eval()


def small():
    from timm.models.swin_transformer import SwinTransformer

    sizes = dict(patch_size=4, window_size=7, embed_dim=32, depths=(2, 2), num_heads=(1, 2), num_classes=5)
    theirs = away_from_zero(SwinTransformer(img_size=56, **sizes))
    return theirs, Image(5, dims=(32, 64), depths=(2, 2)).eval(), 56


def tiny():
    import timm

    return away_from_zero(timm.create_model("swin_tiny_patch4_window7_224")), Image().eval(), 224


def close(ours: torch.Tensor, theirs: torch.Tensor, name: str, tolerance: float = 1e-5) -> None:
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < tolerance, f"{name}: {error:.1e} of the scale"


def old_layout(state: dict) -> dict:
    """What timm 0.6 and the authors wrote: merging at the end of the stage before, buffers, a flat head."""
    old = {}
    for key, value in state.items():
        if ".downsample." in key:
            stage = int(key.split(".")[1])
            key = key.replace(f"layers.{stage}.", f"layers.{stage - 1}.")
        old[key.replace("head.fc.", "head.")] = value
    old["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 49, 49)
    old["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49)
    return old


@pytest.mark.parametrize("make", [small, tiny])
def test_maps_logits_and_gradients_equal_timm(make):
    theirs, ours, size = make()
    ours.load_state_dict(from_timm(theirs.state_dict()), strict=True)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))

    inputs = [x.clone().requires_grad_() for _ in range(2)]
    last, maps = ours.forward_intermediates(inputs[0])
    theirs_last, their_maps = theirs.forward_intermediates(inputs[1], norm=False)
    assert len(maps) == len(their_maps)
    for i, (a, b) in enumerate(zip(maps, their_maps)):
        close(a, b, f"map {i}")
    close(last, theirs.forward_features(x), "features")
    close(ours.forward_features(x), last, "features")

    logits, expected = ours.forward_head(last), theirs(inputs[1])
    close(logits, expected, "logits")
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    for output in (logits, expected):
        (output * weights).sum().backward()
    close(inputs[0].grad, inputs[1].grad, "gradient of the input")
    grads = from_timm({name: p.grad for name, p in theirs.named_parameters()})
    scale = max(grad.abs().max() for grad in grads.values())
    for name, p in ours.named_parameters():
        # the bias of the keys has no gradient at all in exact arithmetic: rounding is compared with the whole
        assert (p.grad - grads[name]).abs().max() < 1e-5 * max(grads[name].abs().max(), 1e-3 * scale), name


def test_the_gradients_agree_to_rounding_in_double():
    theirs, ours, size = small()
    ours.load_state_dict(from_timm(theirs.state_dict()))
    ours, theirs = ours.double(), theirs.double()
    x = torch.randn(2, 3, size, size, dtype=torch.double)
    for model in (ours, theirs):
        model(x).square().sum().backward()
    grads = from_timm({name: p.grad for name, p in theirs.named_parameters()})
    for name, p in ours.named_parameters():
        close(p.grad, grads[name], name, 1e-9)


def test_the_older_layout_gives_the_same_weights():
    theirs, ours, _ = small()
    new = from_timm(theirs.state_dict())
    old = from_timm(old_layout(theirs.state_dict()))
    assert new.keys() == old.keys() == ours.state_dict().keys()
    assert all(torch.equal(new[key], old[key]) for key in new)


def test_without_a_classifier():
    theirs, _, _ = small()
    theirs.reset_classifier(0)
    state = from_timm(theirs.state_dict())
    Image(0, dims=(32, 64), depths=(2, 2)).load_state_dict(state, strict=True)


def test_foreign_keys_are_counted_and_the_first_five_shown():
    theirs, _, _ = small()
    state = theirs.state_dict()
    known = len(state)
    state |= {f"layers.0.blocks.0.attn.cpb_mlp.{i}.weight": torch.zeros(512, 2) for i in range(7)}
    with pytest.raises(ZooError) as error:
        from_timm(state)
    head, *rows = str(error.value).splitlines()
    assert head == f"not a timm Swin state dict: 7 of {known + 7} keys unknown"
    assert rows == [f"  layers.0.blocks.0.attn.cpb_mlp.{i}.weight  [512, 2]" for i in range(5)]
    with pytest.raises(ZooError, match="0 of 0 keys"):
        from_timm({})
