"""Encoded graphs -> batch: what is packed where, what is refused, what is kept."""

import pytest
import torch

pytest.importorskip("torch_geometric")

from small_graphs import GRAPHS, Data, build, graph  # noqa: E402
from torch_geometric.data import Batch  # noqa: E402

from zoo.core.walks import DENSE_NODES, TO_VIRTUAL  # noqa: E402
from zoo.errors import ZooError  # noqa: E402
from zoo.models.graph_batch import Collate  # noqa: E402


def test_nodes_edges_and_pairs_are_packed_in_order():
    graphs = [graph(3, 2, 1), graph(5, 4, 2)]
    graphs[1].edge_label_index = torch.tensor([[0], [4]])
    batch = Collate(4)(graphs)
    assert len(batch) == 2 and batch.sizes.tolist() == [3, 5] and batch.graph.tolist() == [0] * 3 + [1] * 5
    assert torch.equal(batch.edge_index, torch.cat([graphs[0].edge_index, graphs[1].edge_index + 3], 1))
    assert batch.links.tolist() == [[3], [7]]
    pairs = batch.pairs
    (square,) = pairs.squares
    assert (square.items, square.tokens) == (2, 5) and square.mask.tolist() == [[[[True] * 3 + [False] * 2]], [[[True] * 5]]]
    (found,) = pairs.spread(torch.stack([pairs.query, pairs.key], 1) + 1)  # each pair lies in its own cell
    for g, (n, first) in enumerate([(3, 0), (5, 3)]):
        nodes = torch.arange(first, first + n) + 1
        assert torch.equal(found[g, :n, :n], torch.cartesian_prod(nodes, nodes).view(n, n, 2))
    assert not found[0, 3:].any() and not found[0, :, 3:].any()
    source, target = batch.edge_index
    assert torch.equal(pairs.query[batch.edge_pair[:, 0]], source) and torch.equal(pairs.key[batch.edge_pair[:, 0]], target)
    assert torch.equal(pairs.query[batch.loops], torch.arange(8)) and torch.equal(pairs.key[batch.loops], torch.arange(8))


@pytest.mark.parametrize("path", ["dense", "edges"])
def test_virtual_nodes_follow_the_nodes_and_see_their_graph_only(path):
    batch = Collate(2, directed=True, virtual=True, path=path)(GRAPHS)
    n, pairs = len(batch.graph), batch.pairs
    owner = torch.cat([batch.graph, torch.arange(len(GRAPHS))])
    assert batch.virtual == len(GRAPHS) and torch.equal(owner[pairs.query], owner[pairs.key])
    asks = (batch.hops == TO_VIRTUAL).all(1)
    assert sorted(pairs.query[asks].tolist()) == list(range(n)) and (pairs.key[asks] >= n).all()
    seen = torch.zeros(n + len(GRAPHS)).index_add(0, pairs.query, torch.ones(len(pairs.query)))
    assert torch.equal(seen[n:], batch.sizes + 1.0)
    source, target = batch.edge_index
    for way, (a, b) in enumerate([(source, target), (target, source)]):
        rows = batch.edge_pair[:, way]
        assert torch.equal(pairs.query[rows], a) and torch.equal(pairs.key[rows], b)
    if path == "edges":
        assert (pairs.query.diff() >= 0).all()
        assert all(pairs.query[pairs.offsets[i] : pairs.offsets[i + 1]].eq(i).all() for i in range(n + len(GRAPHS)))


@torch.no_grad()
def test_a_graph_takes_the_path_of_its_own_size_whatever_its_companions():
    big, small = graph(DENSE_NODES + 1, 700, 1), graph(9, 12, 2)
    model = build()
    together = model(model.collate([small, big, small]))
    for i, g in enumerate([small, big, small]):
        assert (model(model.collate([g]))[0] - together[i]).abs().max() < 1e-5
    assert model.collate([small]).pairs.squares and not model.collate([big]).pairs.squares


@pytest.mark.parametrize("virtual", [False, True])
@torch.no_grad()
def test_many_graphs_lie_in_squares_of_similar_size_and_answer_as_alone(virtual):
    sizes = [40, 3, 21, 1, 39, 22, 2, 20, 38, 4, 19, 41] * 4
    graphs = [graph(n, n + 2 if n > 4 else n - 1, seed) for seed, n in enumerate(sizes)]
    model = build(virtual_node=virtual)
    batch = model.collate(graphs)
    squares = batch.pairs.squares
    assert [square.items for square in squares] == [16, 16, 16] and [square.tokens - virtual for square in squares] == [4, 22, 41]
    together = model(batch)
    for i, g in enumerate(graphs[:12]):
        assert (model(model.collate([g]))[0] - together[i]).abs().max() < 1e-5
    pairs = batch.pairs
    nodes = torch.arange(sum(sizes) + virtual * len(sizes))
    assert torch.equal(pairs.join(list(pairs.rows(nodes))), nodes)
    cells = torch.cat([part.flatten(0, 2) for part in pairs.spread(torch.stack([pairs.query, pairs.key], 1) + 1)])
    rows = [part - 1 for part in (cells[:, 0], cells[:, 1])]
    owner = torch.cat([batch.graph, torch.arange(batch.virtual)])
    filled = cells[:, 0] > 0
    assert filled.sum() == len(pairs.query) and torch.equal(owner[rows[0][filled]], owner[rows[1][filled]])


def test_too_many_pairs_are_refused_with_the_numbers_before_any_memory_is_taken():
    n = 200_000
    whole = {"x_cat": (n, 0), "edge_index": (2, 0), "edge_cat": (0, 0)}
    huge = Data(x_float=torch.zeros(n, 1), edge_float=torch.zeros(0, 0),
                **{name: torch.zeros(shape, dtype=torch.long) for name, shape in whole.items()})
    with pytest.raises(ZooError, match=r"1 graphs of up to 200000 nodes: all pairs need about \d+.\d GiB.*\n.*path='edges'"):
        Collate(path="dense")([huge])
    assert len(Collate(path="auto")([huge]).pairs.query) == 200_000
    with pytest.raises(ZooError, match="3 graphs of up to 12 nodes.*\n.*smaller batches"):
        Collate(limit_bytes=2**20, pair_bytes=2**14)([graph(12, 5)] * 3)


def test_features_are_computed_once_and_again_when_the_edges_change():
    g, collate = graph(6, 5), Collate(3)
    first = collate.structure(g, "all")
    assert collate.structure(g, "all") is first
    assert Collate(4).structure(g, "all") is not first
    first = collate.structure(g, "all")
    g.edge_index[0, 0] = (g.edge_index[0, 0] + 1) % 6
    second = collate.structure(g, "all")
    g.edge_index = g.edge_index.clone()
    third = collate.structure(g, "all")
    g.edge_index = g.edge_index.flip(1).clone()
    assert second is not first and third is not second and collate.structure(g, "all") is not third
    g.num_nodes = 6
    assert Batch.from_data_list([g, g]).num_graphs == 2  # torch_geometric does not stumble over what is kept


def test_targets_are_stacked_per_graph_or_joined_per_node():
    graphs = [graph(3, 2, 1), graph(5, 4, 2)]
    for i, g in enumerate(graphs):
        g.y = torch.tensor([float(i)])
    assert Collate()(graphs).y.tolist() == [0, 1]
    for g in graphs:
        g.y = torch.ones(1, 3)
    assert Collate()(graphs).y.shape == (2, 3)
    for g in graphs:
        g.y = torch.arange(len(g.x_cat))
    assert Collate(level="node")(graphs).y.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_moving_a_batch_moves_all_of_it():
    batch = Collate(virtual=True, routes=True)(GRAPHS).to("meta")
    parts = [*vars(batch).values(), *vars(batch.pairs).values()]
    assert all(part.device.type == "meta" for part in parts if isinstance(part, torch.Tensor))


@pytest.mark.parametrize("spoil, words", [
    (lambda g: g.edge_index.__setitem__((0, 0), 9), r"graph 1: edge_index holds 9, but there are 4 nodes \(0 .. 3\)"),
    (lambda g: g.edge_index.__setitem__((1, 1), -2), r"graph 1: edge_index holds -2, but there are 4 nodes"),
    (lambda g: setattr(g, "x_float", g.x_float[:2]), "graph 1: x_cat has 4 nodes, x_float 2"),
    (lambda g: setattr(g, "edge_cat", g.edge_cat[:2]), "graph 1: edge_cat has 2 rows for 6 edges"),
    (lambda g: setattr(g, "x_float", g.x_float[:, :2]), r"x_float of widths \[2, 3\]"),
    (lambda g: setattr(g, "batch", torch.tensor([0, 1, 0, 1])), "item 1 of the batch holds several graphs.*to_data_list"),
])
def test_what_does_not_fit_together_is_named(spoil, words):
    g = graph(4, 3)
    spoil(g)
    with pytest.raises(ZooError, match=words):
        Collate()([graph(4, 3), g])


def test_a_batch_of_no_graphs_is_refused():
    with pytest.raises(ZooError, match="at least one graph"):
        Collate()([])
