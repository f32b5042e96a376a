"""timm's Swin and ours: the same weights give the same maps, logits and gradients."""

import pytest
import torch
from swin_peers import away_from_zero, close, old_layout

from zoo.convert.swin import from_timm
from zoo.errors import ZooError
from zoo.models.image import Image


def small():
    from timm.models.swin_transformer import SwinTransformer

    sizes = dict(patch_size=4, window_size=7, embed_dim=32, depths=(2, 2), num_heads=(1, 2), num_classes=5)
    theirs = away_from_zero(SwinTransformer(img_size=56, **sizes))
    return theirs, Image(5, dims=(32, 64), depths=(2, 2)).eval(), 56


def tiny():
    import timm

    return away_from_zero(timm.create_model("swin_tiny_patch4_window7_224")), Image().eval(), 224


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


def test_foreign_keys_are_counted_and_the_first_shown():
    theirs, _, _ = small()
    state = theirs.state_dict()
    known = len(state)
    state |= {f"layers.0.blocks.0.attn.cpb_mlp.{i}.weight": torch.zeros(512, 2) for i in range(7)}
    with pytest.raises(ZooError) as error:
        from_timm(state)
    head, first = str(error.value).split(", first: ")
    assert head == f"not a timm Swin state dict: 7 of {known + 7} keys unknown"
    assert first == ", ".join(f"layers.0.blocks.0.attn.cpb_mlp.{i}.weight" for i in range(3))
    with pytest.raises(ZooError, match="0 of 0 keys"):
        from_timm({})
