"""Attention over pairs, along edges and in squares, against the rule written out over all pairs under a mask."""

from functools import partial

import pytest
import torch
from einops import einsum

from zoo.core import Attention, Recorder
from zoo.core import edges as edges_module
from zoo.core.edges import edge_kernel
from zoo.core.packed import Square
from zoo.core.pairs import Pairs, layer_scores, pair_attention

NODES, HEADS, DIM, WIDTH = 7, 3, 4, 5


def case(dtype=torch.float32, seed: int = 0, alone: bool = True):
    """Random pairs of 7 nodes, sorted by query; node 6 sees nobody where `alone`."""
    generator = torch.Generator().manual_seed(seed)
    sees = torch.rand(NODES, NODES, generator=generator) < 0.4
    sees |= torch.eye(NODES, dtype=torch.bool)
    if alone:
        sees[6] = False
    query, key = sees.nonzero().unbind(1)
    pairs = Pairs(query, key, offsets=torch.searchsorted(query, torch.arange(NODES + 1)))
    tensors = [torch.randn(*shape, generator=generator, dtype=dtype) for shape in
               [(NODES, 3, HEADS, DIM), (len(query), HEADS), (len(query), WIDTH), (HEADS, WIDTH, DIM)]]
    return sees, pairs, tensors


def written_out(sees, pairs, qkv, bias, states, value):
    """softmax over the row of an n x n matrix, values that differ for every pair."""
    q, k, v = qkv.unbind(1)
    scores = torch.full((HEADS, NODES, NODES), float("-inf"), dtype=qkv.dtype)
    scores[:, pairs.query, pairs.key] = einsum(q[pairs.query], k[pairs.key], "p h d, p h d -> h p") / DIM**0.5 + bias.T
    weights = scores.masked_fill(~sees.any(1)[:, None], 0).softmax(-1) * sees
    values = v.expand(NODES, -1, -1, -1).clone()  # i j h d
    if value is not None:
        values[pairs.query, pairs.key] = v[pairs.key] + einsum(states, value, "p c, h c d -> p h d")
    return einsum(weights, values, "h i j, i j h d -> i h d")


def squares(pairs: Pairs) -> Pairs:
    """The same pairs as one square with a mask."""
    mask = torch.zeros(1, 1, NODES, NODES, dtype=torch.bool)
    mask[0, 0, pairs.query, pairs.key] = True
    return Pairs(pairs.query, pairs.key, squares=(Square(1, NODES, mask),), index=torch.arange(NODES),
                 place=pairs.query * NODES + pairs.key, spot=torch.arange(NODES))


def in_squares(pairs: Pairs, qkv, bias, states, value):
    """`pair_attention` in squares: the bias travels as states of which every layer takes its heads."""
    plan = squares(pairs)
    spread = layer_scores(plan.spread(bias), [torch.eye(HEADS, dtype=bias.dtype)], plan)[0]
    return pair_attention(qkv, plan, spread, plan.spread(states), value)


def along_edges(pairs: Pairs, qkv, bias, states, value):
    return pair_attention(qkv, pairs, bias, states, value)


@pytest.mark.parametrize("with_value", [True, False])
@pytest.mark.parametrize("run", ["gather", "sparse", "squares"])
def test_equals_the_rule_written_out(run, with_value):
    sees, pairs, (qkv, bias, states, value) = case(alone=run != "squares")
    value = value if with_value else None
    with torch.no_grad() if run == "sparse" else torch.enable_grad():
        if run != "sparse":
            qkv.requires_grad_()
        assert edge_kernel(qkv, bias) == ("sparse" if run == "sparse" else "gather")
        found = (in_squares if run == "squares" else along_edges)(pairs, qkv, bias, states, value)
    assert (found - written_out(sees, pairs, qkv, bias, states, value)).abs().max() < 1e-6
    assert run == "squares" or not found[6].any()


def test_gradients_in_squares_and_along_edges_are_those_of_the_rule():
    sees, pairs, tensors = case(torch.float64, alone=False)
    weight = torch.randn(NODES, HEADS, DIM, dtype=torch.float64)
    gradients = []
    for rule in (partial(written_out, sees), along_edges, in_squares):
        leaves = [t.clone().requires_grad_() for t in tensors]
        (rule(pairs, *leaves) * weight).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for other in gradients[1:]:
        assert all(torch.allclose(a, b, atol=1e-10) and a.any() for a, b in zip(gradients[0], other))


def test_a_node_that_sees_nobody_has_finite_gradients():
    _, pairs, tensors = case()
    leaves = [t.requires_grad_() for t in tensors]
    pair_attention(leaves[0], pairs, *leaves[1:]).square().sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves) and not leaves[0].grad[6, 0].any()


def test_large_scores_do_not_overflow():
    _, pairs, (qkv, bias, states, value) = case()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            found = pair_attention((qkv * 100).requires_grad_(grad), pairs, bias, states, value)
        assert found.isfinite().all()


def test_recorded_weights_sum_to_one():
    class Along(Attention):
        def forward(self, qkv, pairs, bias):
            return pair_attention(qkv, pairs, bias)

    _, pairs, (qkv, bias, _, _) = case()
    module = Along(12, HEADS)
    with torch.no_grad(), Recorder(module) as record:
        found = module(qkv, pairs, bias)
    total = torch.zeros(NODES, HEADS).index_add(0, pairs.query, record.maps[""])
    assert torch.allclose(total[:6], torch.ones(6, HEADS)) and not total[6].any()
    with torch.no_grad():
        assert torch.allclose(found, pair_attention(qkv, pairs, bias), atol=1e-6)


def test_without_nodes_or_without_pairs():
    none = torch.zeros(0, dtype=torch.long)
    pairs = Pairs(none, none, offsets=torch.zeros(1, dtype=torch.long))
    assert pair_attention(torch.zeros(0, 3, 2, 4), pairs, torch.zeros(0, 2)).shape == (0, 2, 4)
    pairs = Pairs(none, none, offsets=torch.zeros(4, dtype=torch.long))
    assert not pair_attention(torch.randn(3, 3, 2, 4), pairs, torch.zeros(0, 2)).any()


def test_another_build_of_torch_takes_the_other_kernel(monkeypatch):
    _, pairs, (qkv, bias, *_) = case()
    with torch.no_grad():
        assert edge_kernel(qkv, bias) == "sparse"
        monkeypatch.setattr(edges_module.torch.backends.mkl, "is_available", lambda: False)
        assert edge_kernel(qkv, bias) == "gather"
