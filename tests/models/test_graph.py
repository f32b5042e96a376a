"""The graph model: who may influence whom, which symmetries hold, and that every path gives the same."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("torch_geometric")

from small_graphs import GRAPHS, SETTINGS, Data, build, graph, union  # noqa: E402

from zoo.core.packed import Square  # noqa: E402
from zoo.core.pairs import Pairs  # noqa: E402


@pytest.mark.parametrize("name", SETTINGS)
@torch.no_grad()
def test_a_graph_gives_the_same_alone_and_in_a_batch(name):
    model = build(**SETTINGS[name])
    together = model(model.collate(GRAPHS))
    assert together.isfinite().all() and len(together.unique(dim=0)) > 5
    for i, g in enumerate(GRAPHS):
        assert (model(model.collate([g]))[0] - together[i]).abs().max() < 1e-5


@pytest.mark.parametrize("name", SETTINGS)
@torch.no_grad()
def test_order_of_nodes_and_edges_does_not_matter(name):
    g, model = graph(12, 15, 8, both="directed" not in name), build(**SETTINGS[name], level="node")
    order, edges = torch.randperm(12), torch.randperm(g.edge_index.shape[1])
    place = order.argsort()  # where node i went
    moved = Data(x_cat=g.x_cat[order], x_float=g.x_float[order], edge_index=place[g.edge_index][:, edges],
                 edge_cat=g.edge_cat[edges], edge_float=g.edge_float[edges])
    first, second = model(model.collate([g])), model(model.collate([moved]))
    assert (first[order] - second).abs().max() < 1e-5 and (first - second).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["edges", "edges, distance", "edges, adjacency"])
@torch.no_grad()
def test_along_edges_a_disjoint_union_is_each_alone(name):
    model = build(**SETTINGS[name], level="node")
    parts = GRAPHS[:2] + GRAPHS[3:]
    assert (model(model.collate([union(parts)])) - model(model.collate(parts))).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["walks", "virtual", "edges", "distance"])
def test_no_gradient_and_no_nan_reaches_another_graph(name):
    model, graphs = build(**SETTINGS[name], level="node"), [graph(5, 5, 1), graph(7, 6, 2), graph(3, 2, 3)]
    batch = model.collate(graphs)
    x = batch.x_float.clone().requires_grad_()
    model(replace(batch, x_float=x))[5:12].square().sum().backward()
    assert x.grad[5:12].any() and not x.grad[:5].any() and not x.grad[12:].any()
    for g in range(3):  # the first, too: it must not stand in for the padding of others
        spoiled, own = batch.x_float.clone(), batch.graph == g
        spoiled[own] = float("nan")
        with torch.no_grad():
            before, after = (model(replace(batch, x_float=t)) for t in (batch.x_float, spoiled))
        assert torch.equal(before[~own], after[~own]) and after[own].isnan().any()


@pytest.mark.parametrize("path", ["dense", "edges"])
@pytest.mark.parametrize("bias", ["walks", "distance", "adjacency"])
@torch.no_grad()
def test_reversing_the_edges_of_a_directed_graph_changes_the_output(path, bias):
    g = graph(9, 10, 3, both=False)
    back = g.clone()
    back.edge_index = g.edge_index.flip(0)
    model = build(path=path, bias=bias, directed=True, local="none")
    assert (model(model.collate([g])) - model(model.collate([back]))).abs().max() > 1e-4


@torch.no_grad()
def test_an_edge_listed_twice_counts_once_and_a_loop_counts():
    g = graph(6, 6, 4)
    twice = g.clone()
    twice.edge_index, twice.edge_cat, twice.edge_float = (torch.cat([t, t], d) for t, d in
                                                          [(g.edge_index, 1), (g.edge_cat, 0), (g.edge_float, 0)])
    loop = g.clone()
    loop.edge_index = torch.cat([g.edge_index, torch.tensor([[0], [0]])], 1)
    loop.edge_cat, loop.edge_float = torch.cat([g.edge_cat, g.edge_cat[:1]]), torch.cat([g.edge_float, g.edge_float[:1]])
    for name in ("walks", "distance", "edges"):
        model = build(**SETTINGS[name])
        once, again, looped = (model(model.collate([item])) for item in (g, twice, loop))
        assert (once - again).abs().max() < 1e-5 and (once - looped).abs().max() > 1e-4


def as_squares(batch) -> object:
    """The batch of one graph seen along edges, laid out as a masked square."""
    n, pairs = len(batch.graph) + batch.virtual, batch.pairs
    mask = torch.zeros(1, 1, n, n, dtype=torch.bool)
    mask[0, 0, pairs.query, pairs.key] = True
    return replace(batch, pairs=Pairs(pairs.query, pairs.key, squares=(Square(1, n, mask),), index=torch.arange(n),
                                      place=pairs.query * n + pairs.key, spot=torch.arange(n)))


@pytest.mark.parametrize("name", [name for name in SETTINGS if name.startswith("edges")])
def test_dense_and_edge_path_agree_under_the_same_mask_and_features(name):
    model = build(**SETTINGS[name], level="node").train()
    batch, found = model.collate([graph(12, 14, 2)]), []
    for data in (batch, as_squares(batch)):
        model.zero_grad()
        out = model(data)
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    assert all((a - b).abs().max() <= 1e-5 * max(1, a.abs().max()) for a, b in zip(*found))
    with torch.no_grad():  # the kernel without gradients
        assert (model.eval()(batch) - found[1][0]).abs().max() < 1e-5


@torch.no_grad()
def test_all_pairs_are_the_edges_of_a_complete_graph():
    index = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T
    index = index[:, index[0] != index[1]]
    g = Data(x_cat=torch.randint(0, 5, (6, 2)), x_float=torch.randn(6, 3), edge_index=index,
             edge_cat=torch.randint(0, 4, (30, 1)), edge_float=torch.randn(30, 2))
    dense, edges = build(path="dense"), build(path="edges")
    assert (dense(dense.collate([g])) - edges(edges.collate([g]))).abs().max() < 1e-5


def test_one_set_of_weights_serves_all_levels():
    levels = {level: build(level=level) for level in ("graph", "node", "edge")}
    own = levels["graph"].state_dict()
    for model in levels.values():
        missing = model.load_state_dict({k: v for k, v in own.items() if not k.startswith("classifier")}, strict=False)
        assert all(key.startswith("classifier") for key in missing.missing_keys) and not missing.unexpected_keys
    g = graph(5, 6, 1)
    g.edge_label_index = torch.tensor([[0, 3, 1], [1, 2, 4]])
    shapes = {level: model(model.collate([g, g])).shape for level, model in levels.items()}
    assert shapes == {"graph": (2, 2), "node": (10, 2), "edge": (6, 2)}


@torch.no_grad()
def test_link_scores_forget_the_order_only_when_undirected():
    g, swapped = (graph(5, 6, 1) for _ in range(2))
    g.edge_label_index = torch.tensor([[0, 3, 1], [1, 2, 4]])
    swapped.edge_label_index = g.edge_label_index.flip(0)
    for directed in (False, True):
        model = build(level="edge", directed=directed)
        first, second = (model(model.collate([item])) for item in (g, swapped))
        assert torch.allclose(first, second, atol=1e-6) != directed
    with pytest.raises(ValueError, match="edge_label_index"):
        model(model.collate([graph(3, 2)]))


@torch.no_grad()
def test_head_reset_embedding_and_features():
    model = build(virtual_node=True)
    batch = model.collate(GRAPHS)
    features = model.forward_features(batch)
    assert features.shape == (len(batch.graph) + len(batch), 16)
    model.reset_classifier(5)
    assert model(batch).shape == (len(GRAPHS), 5) and torch.equal(model.forward_features(batch), features)
    vectors = model.forward_embed(batch)
    assert vectors.shape == (len(GRAPHS), 16) and torch.allclose(vectors.norm(dim=1), torch.ones(len(GRAPHS)))


@pytest.mark.parametrize("name", ["walks", "edges", "distance", "adjacency"])
def test_every_parameter_gets_a_finite_gradient_and_checkpointing_changes_nothing(name):
    model, gradients = build(**SETTINGS[name]).train(), []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(model.collate(GRAPHS)).square().sum().backward()
        gradients.append({key: p.grad.clone() for key, p in model.named_parameters()})
    assert all(g.isfinite().all() and g.any() for g in gradients[0].values())
    assert all(torch.allclose(g, gradients[1][key], rtol=1e-5, atol=1e-7) for key, g in gradients[0].items())


@torch.no_grad()
def test_bfloat16_stays_near():
    for path in ("dense", "edges"):
        model = build(path=path)
        exact = model(model.collate(GRAPHS))
        with torch.autocast("cpu", torch.bfloat16):
            assert (model(model.collate(GRAPHS)) - exact).abs().max() < 0.05


@torch.no_grad()
def test_only_floats_only_categories_or_nothing():
    for schema in ({"node_floats": 3}, {"node_categories": (5, 6)}, {"edge_floats": 2}, {}):
        model = build(**{"node_categories": (), "node_floats": 0, "edge_categories": (), "edge_floats": 0, **schema})
        g = graph(6, 6)
        keep = {"x_cat": "node_categories", "x_float": "node_floats", "edge_cat": "edge_categories", "edge_float": "edge_floats"}
        cut = Data(edge_index=g.edge_index, **{k: g[k] if name in schema else g[k][:, :0] for k, name in keep.items()})
        assert model(model.collate([cut])).isfinite().all()
    with pytest.raises(ValueError, match="x_float has 3 columns, expected 0"):
        model(model.collate([graph(6, 6)]))


@torch.no_grad()
def test_a_category_out_of_range_is_the_unknown_one():
    model, g, unknown = build(), graph(4, 4), graph(4, 4)
    g.x_cat[0, 0], unknown.x_cat[0, 0] = 99, 0
    assert torch.equal(*(model(model.collate([item])) for item in (g, unknown)))


@pytest.mark.parametrize("arguments, words", [
    ({"level": "tree"}, "level='tree'; allowed: 'graph', 'node', 'edge'"),
    ({"bias": "edges"}, "bias='edges'; allowed: 'walks'"),
    ({"heads": 5}, "heads=5; allowed: a divisor of dim=16"),
    ({"walks": 0}, "walks=0; allowed: an integer >= 1"),
    ({"pool": "virtual"}, "pool='virtual'; allowed: 'mean', 'sum' without virtual_node"),
    ({"node_categories": (3, 0)}, "node_categories=(3, 0); allowed: the number of values"),
    ({"dropout": 1}, "dropout=1; allowed: 0 <= dropout < 1"),
])
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ValueError) as error:
        build(**arguments)
    assert words in str(error.value)


def test_a_batch_for_another_model_is_refused():
    model, other = build(), build(walks=3)
    with pytest.raises(ValueError, match="use model.collate"):
        model(other.collate(GRAPHS))
