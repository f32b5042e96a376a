"""Tokens kept in window order: the same as cutting and joining in every block, whatever the shift, the batch and the mode."""

import copy

import pytest
import torch

from zoo.core import Attention, Block, ClippedPosition, Recorder, RelativePosition, ShawPosition, Windows, fused, order

DIM, HEADS = 16, 2
SHIFTS = [((0, 0), (2, 2)), ((2, 2), (0, 0)), ((0, 3), (0, 3)), ((0, 0), (0, 0)), ((1, 0), (2, 3))]


def blocks(shifts, position=lambda: RelativePosition((4, 4), HEADS), drop_path=0.0):
    torch.manual_seed(0)
    made = [Block(Attention(DIM, HEADS, pattern=Windows((4, 4), shift), position=position()), DIM, drop_path=drop_path)
            for shift in shifts]
    for p in torch.nn.ModuleList(made).parameters():
        torch.nn.init.normal_(p, std=0.3)
    return torch.nn.ModuleList(made).eval()


def tokens(*shape):
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(1))


def in_order(made, x):
    ways = order.orders([block.attn for block in made], x)
    assert ways is not None
    return order.run(made, ways, x)


def on_map(made, x):
    for block in made:
        x = block(x)
    return x


@pytest.mark.parametrize("few", [0, order.FEW])
@pytest.mark.parametrize("shifts", SHIFTS)
@pytest.mark.parametrize("axes", [(8, 12), (4, 8), (4, 4)])
def test_forward_and_gradients_equal_the_map(monkeypatch, shifts, axes, few):
    monkeypatch.setattr(order, "FEW", few)
    order._pieces.cache_clear()
    made = blocks(shifts)
    with torch.no_grad():  # the fused kernel with kept terms
        torch.testing.assert_close(in_order(made, tokens(3, *axes)), on_map(made, tokens(3, *axes)), rtol=1e-5, atol=1e-5)
    found = []
    for way in (in_order, on_map):
        x = tokens(3, *axes).requires_grad_()
        made.zero_grad()
        way(made, x).square().sum().backward()
        found.append([x.grad, *(p.grad.clone() for p in made.parameters())])
    order._pieces.cache_clear()
    scale = max(float(grad.abs().max()) for grad in found[1])
    for ours, right in zip(*found):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-6 * scale)


def test_a_block_can_be_differentiated_twice():
    made = blocks(SHIFTS[0]).double()
    x = tokens(1, 8, 8).double().requires_grad_()
    first, = torch.autograd.grad(in_order(made, x).square().sum(), x, create_graph=True)
    right, = torch.autograd.grad(on_map(made, x).square().sum(), x, create_graph=True)
    second, expected = (torch.autograd.grad(grad.square().sum(), x)[0] for grad in (first, right))
    torch.testing.assert_close(second, expected)


@pytest.mark.parametrize("position", [lambda: None, lambda: ClippedPosition((2, 2), HEADS),
                                      lambda: ShawPosition((3, 3), HEADS, DIM // HEADS, values=True)])
@torch.no_grad()
def test_other_positions(position):
    made = blocks(SHIFTS[0], position)
    torch.testing.assert_close(in_order(made, tokens(2, 8, 8)), on_map(made, tokens(2, 8, 8)), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_changed_tables_count_however_they_were_changed():
    made = blocks(SHIFTS[0])
    before, table = in_order(made, tokens(2, 8, 8)), made[1].attn.position.table
    table.data[3] += 1  # behind autograd's back: no version tells
    changed = in_order(made, tokens(2, 8, 8))
    torch.testing.assert_close(changed, on_map(made, tokens(2, 8, 8)), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(changed, before)
    made.double()
    torch.testing.assert_close(in_order(made, tokens(2, 8, 8).double()), on_map(made, tokens(2, 8, 8).double()))


def test_drop_path_drops_the_same_items():
    made = blocks(SHIFTS[0], drop_path=0.5).train()
    found = []
    for way in (in_order, on_map):
        torch.manual_seed(3)
        found.append(way(made, tokens(6, 8, 8)))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_bf16_autocast_is_close():
    made = blocks(SHIFTS[0])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rough = in_order(made, tokens(2, 8, 8))
    exact = on_map(made, tokens(2, 8, 8))
    assert (rough - exact).norm() < 0.05 * exact.norm()


def test_terms_made_in_inference_mode_and_copies_do_not_disturb_training():
    made = blocks(SHIFTS[0])
    with torch.inference_mode():
        in_order(made, tokens(2, 8, 8))
    in_order(copy.deepcopy(made), tokens(2, 8, 8)).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(in_order(made, tokens(2, 8, 8)), on_map(made, tokens(2, 8, 8)), rtol=1e-5, atol=1e-5)


def test_who_has_to_see_the_map():
    def ways(made, x):
        return order.orders([block.attn for block in made], x)

    made = blocks(SHIFTS[0])
    assert ways(made, tokens(2, 8, 8)) and not ways(made, tokens(2, 8, 9)) and not ways(made, tokens(0, 8, 8))
    with Recorder(made):
        assert ways(made, tokens(2, 8, 8)) is None
    made[1].attn.pattern = None
    assert ways(made, tokens(2, 8, 8)) is None


@torch.no_grad()
def test_fused_linear_layers_give_the_same(monkeypatch):
    monkeypatch.setattr(fused, "ENOUGH", 0)
    linear, x, other = torch.nn.Linear(24, 40), torch.randn(3, 5, 24), torch.randn(3, 5, 40)
    torch.testing.assert_close(fused.linear_gelu(linear, x), torch.nn.functional.gelu(linear(x)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fused.linear_add(linear, x, other), other + linear(x), rtol=1e-5, atol=1e-5)


def test_a_torch_without_the_private_operators_runs(monkeypatch):
    monkeypatch.setattr(fused, "_gelu", lambda *_: torch.ops.mkldnn.no_such_operator())
    fused._works.cache_clear()
    try:
        assert fused._works() is False
    finally:
        fused._works.cache_clear()
