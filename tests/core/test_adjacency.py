"""The three forms of the adjacency's bias, each against its equation written out pair by pair."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from zoo.core.adjacency import Distance, NodeAttention, Plain, Walks, biases
from zoo.core.packed import Square
from zoo.core.pairs import Pairs
from zoo.core.walks import BUCKETS, structure

N, HEADS, WIDTH = 6, 2, 4
# a square, a tail, a loop, 1 -> 2 twice
EDGES = np.array([[0, 1, 1, 2, 2, 3, 3, 0, 0, 4, 1, 1], [1, 0, 2, 1, 3, 2, 0, 3, 4, 0, 1, 2]])


def batch(directed: bool = False):
    """Pair features of one graph as tensors, and its pairs as a square."""
    found = structure(EDGES, N, 3, directed, "all", routes=True)
    names = "walks hops edge_pair edge_weight routes route_weight degree".split()
    own = torch.arange(N)
    pairs = Pairs(*map(torch.from_numpy, (found.query, found.key)), squares=(Square(1, N),), index=own, spot=own)
    return SimpleNamespace(**{name: torch.from_numpy(getattr(found, name)) for name in names}), pairs


def edge_mean(edges: torch.Tensor, i: int, j: int) -> torch.Tensor:
    """Mean of the embedded edges from i to j, 0 where there is none."""
    rows = [e for e, edge in enumerate(EDGES.T.tolist()) if edge == [i, j]]
    return edges[rows].mean(0) if rows else torch.zeros(edges.shape[1])


@pytest.mark.parametrize("directed", [False, True])
def test_plain_is_the_seed_form(directed):
    data, pairs = batch(directed)
    edges = torch.randn(EDGES.shape[1], WIDTH)
    position = Plain(2 if directed else 1)
    layer = NodeAttention(8, HEADS, position.score(HEADS))
    a = torch.zeros(N, N)
    a[EDGES[0], EDGES[1]] = 1
    bias = biases(pairs.spread(position(data, edges)), [layer], pairs)[0]
    assert torch.equal(bias[0][0], a.expand(HEADS, N, N))  # as it starts: score + A
    x, none = torch.randn(N, 8), torch.zeros(N, 1)
    q, k, v = (t.unflatten(-1, (HEADS, 4)) for t in layer.qkv(x).chunk(3, -1))
    scores = torch.einsum("ihd,jhd->hij", q, k) / 2 + a
    expected = layer.proj(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1))
    assert torch.allclose(layer(x, pairs, bias, None, none), expected, atol=1e-6)


@pytest.mark.parametrize("directed", [False, True])
def test_walks_states_written_out(directed):
    data, pairs = batch(directed)
    ways = 2 if directed else 1
    edges, position = torch.randn(EDGES.shape[1], WIDTH), Walks(3, ways, WIDTH, WIDTH)
    torch.nn.init.normal_(position.table)
    states = pairs.spread(position(data, edges))[0][0]
    walks, hops = data.walks.view(N, N, -1), data.hops.view(N, N, -1)
    for i in range(N):
        for j in range(N):
            s = position.steps(walks[i, j]) + position.table[hops[i, j, 0]] + position.edges[0](edge_mean(edges, i, j))
            if directed:
                s = s + position.table[BUCKETS + hops[i, j, 1]] + position.edges[1](edge_mean(edges, j, i))
            expected = position.norm(s + position.mix(F.gelu(s)))
            assert torch.allclose(states[i, j], expected, atol=1e-5)


def test_distance_is_graphormers_form():
    """b_phi(i, j) + c_ij (Ying et al. 2021, eq. 6 and 7); in the square two paths from 0 to 2 are shortest: their mean."""
    data, pairs = batch()
    edges, position = torch.randn(EDGES.shape[1], WIDTH), Distance(1, HEADS, WIDTH)
    bias = biases(pairs.spread(position(data, edges)), [NodeAttention(8, HEADS, None)] * 2, pairs)
    assert len(bias) == 2 and torch.equal(bias[0][0], bias[1][0])
    w, table = position.route, position.table

    def along(*nodes: int) -> torch.Tensor:
        steps = list(zip(nodes, nodes[1:]))
        return sum(edge_mean(edges, u, v) @ w[n] for n, (u, v) in enumerate(steps)) / len(steps)

    expected = {
        (0, 0): table[0], (1, 1): table[0], (1, 2): table[1] + along(1, 2), (2, 1): table[1] + along(2, 1),
        (4, 1): table[2] + along(4, 0, 1), (0, 2): table[2] + (along(0, 1, 2) + along(0, 3, 2)) / 2,
        (4, 2): table[3] + (along(4, 0, 1, 2) + along(4, 0, 3, 2)) / 2, (0, 5): table[17], (5, 5): table[0],
    }
    for (i, j), value in expected.items():
        assert torch.allclose(bias[0][0][0, :, i, j], value, atol=1e-6), (i, j)


def test_the_walks_of_the_layers_are_their_own_maps_and_values_carry_the_states():
    data, pairs = batch()
    edges, position = torch.randn(EDGES.shape[1], WIDTH), Walks(3, 1, WIDTH, WIDTH)
    layers = [NodeAttention(8, HEADS, position.score(HEADS), WIDTH) for _ in range(2)]
    torch.nn.init.normal_(layers[1].scale)
    states = pairs.spread(position(data, edges))
    bias = biases(states, layers, pairs)
    for layer, term in zip(layers, bias):
        assert torch.allclose(term[0][0], torch.einsum("ijc,hc->hij", states[0][0], layer.score), atol=1e-6)
    x, degree, layer = torch.randn(N, 8), data.degree[:, 0].float(), layers[1]
    q, k, v = (t.unflatten(-1, (HEADS, 4)) for t in layer.qkv(x).chunk(3, -1))
    weights = (torch.einsum("ihd,jhd->hij", q, k) / 2 + bias[1][0][0]).softmax(-1)
    values = v[None] + torch.einsum("ijc,hcd->ijhd", states[0][0], layer.value)
    y = torch.einsum("hij,ijhd->ihd", weights, values).flatten(1)
    expected = layer.proj(layer.scale[0] * y + layer.scale[1] * (1 + degree).log()[:, None] * y)
    assert torch.allclose(layer(x, pairs, bias[1], states, degree[:, None].log1p()), expected, atol=1e-5)
