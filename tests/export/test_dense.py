"""A graph model as one program on padded squares: the same answers, and the same walks and hops as numpy finds."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import zoo
from zoo.core.walks import structure
from zoo.errors import ZooError
from zoo.export import dense

SMALL = dict(dim=16, depth=2, heads=2, pair_dim=4, walks=5, node_categories=(5, 4), edge_categories=(3,), node_floats=2)


def graph(n: int, seed: int, directed: bool = False, density: float = 1.5) -> SimpleNamespace:
    draw = torch.Generator().manual_seed(seed)
    a = torch.rand(n, n, generator=draw) < density / n
    a = a if directed else a | a.T
    edges = a.nonzero().T
    labels = torch.randint(0, 3, (n, n, 1), generator=draw)
    labels = labels if directed else torch.maximum(labels, labels.transpose(0, 1))
    return SimpleNamespace(x_cat=torch.randint(0, 4, (n, 2), generator=draw), x_float=torch.randn(n, 2, generator=draw),
                           edge_index=edges, edge_cat=labels[edges[0], edges[1]], edge_float=torch.zeros(edges.shape[1], 0))


def make(**arguments):
    torch.manual_seed(0)
    model = zoo.create_model("graph_pico", **SMALL | {"num_classes": 3} | arguments).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)  # nothing may hide behind a 0 or a 1
    return model


@pytest.mark.parametrize("a", [
    np.diag(np.ones(39, bool), 1),  # a path of 39 edges, one way: longer than the last bucket
    np.diag(np.ones(6, bool), 1) | np.diag(np.ones(6, bool), -1),
    np.eye(3, dtype=bool),  # steps that stay
    np.zeros((4, 4), bool),
], ids=["path", "both ways", "loops", "no edges"])
def test_walks_and_hops_are_those_of_the_structure(a):
    known = structure(np.stack(a.nonzero()), len(a), 5, False, "all")
    ours = torch.from_numpy(a)[None].float()
    assert np.array_equal(dense.hops(ours).flatten().numpy(), known.hops[:, 0])
    walks = torch.stack([step.flatten() for step in dense.powers(ours, 5)], 1)
    assert np.allclose(walks.numpy(), known.walks, atol=1e-6)


def test_the_longest_path_of_512_nodes_is_found():
    hops = dense.hops(torch.diag(torch.ones(511), 1)[None])[0]
    assert hops[0, 511] == 16 and hops[511, 0] == 17 and hops[0, 15] == 15


@torch.no_grad()
@pytest.mark.parametrize("arguments", [
    {}, {"directed": True}, {"bias": "adjacency"}, {"bias": "adjacency", "directed": True}, {"local": "none"}, {"pool": "sum"},
    {"smooth": 3}, {"num_classes": 0},
], ids=str)
def test_graphs_get_the_same_logits_and_vectors(arguments):
    model, directed = make(**arguments), arguments.get("directed", False)
    graphs = [graph(n, i, directed) for i, n in enumerate((7, 1, 12, 4))]
    module = dense.DenseGraph(model)
    logits, vectors = module(*dense.collated(module, graphs))
    batch = model.collate(graphs)
    assert torch.allclose(logits, model(batch), atol=2e-5) and torch.allclose(vectors, model.forward_embed(batch), atol=1e-5)


@torch.no_grad()
def test_nodes_get_the_same_logits():
    model, graphs = make(level="node", smooth=2, directed=True), [graph(n, n, True) for n in (9, 5)]
    module = dense.DenseGraph(model)
    logits, vectors = module(*dense.collated(module, graphs))
    assert logits.shape == (2, 9, 3) and vectors.shape == (2, 9, 16)
    real = torch.cat([logits[0], logits[1, :5]])
    assert torch.allclose(real, model(model.collate(graphs)), atol=2e-5)


@torch.no_grad()
def test_a_single_node_is_padded_to_two_places():
    model, lone = make(), graph(1, 0)
    module = dense.DenseGraph(model)
    tensors = dense.collated(module, [lone])
    assert tensors[module.inputs.index("real")].tolist() == [[True, False]]
    assert torch.allclose(module(*tensors)[0], model(model.collate([lone])), atol=1e-5)


@torch.no_grad()
def test_what_padding_holds_changes_nothing():
    model, graphs = make(), [graph(8, 1), graph(3, 2)]
    module = dense.DenseGraph(model)
    tensors = dict(zip(module.inputs, dense.collated(module, graphs)))
    before = module(*tensors.values())[0]
    tensors["node_cat"][1, 3:], tensors["node_float"][1, 3:], tensors["edge_cat"][1, 3:] = 3, 7.0, 2
    tensors["edge"][1, 3:] = True
    tensors["edge"][1, :, 3:] = True
    assert torch.allclose(module(*tensors.values())[0], before, atol=1e-6)
    tensors["real"][1] = False  # a graph without nodes
    assert module(*tensors.values())[0].isfinite().all()


@pytest.mark.parametrize("arguments, why", [
    ({"bias": "distance"}, "reads shortest paths"), ({"virtual_node": True}, "virtual node"), ({"level": "edge"}, "scores links"),
    ({"path": "edges"}, r"along the edges of one big graph \(path='edges'\)"),
])
def test_what_cannot_be_dense_is_said(arguments, why):
    with pytest.raises(ZooError, match=why) as error:
        dense.DenseGraph(make(**arguments))
    assert "--to hf" in str(error.value)


def test_an_edge_listed_twice_is_refused():
    twice = graph(4, 0)
    twice.edge_index = torch.cat([twice.edge_index, twice.edge_index[:, :1]], 1)
    with pytest.raises(ZooError, match="graph 0: an edge is listed twice"):
        dense.collated(dense.DenseGraph(make()), [twice])
