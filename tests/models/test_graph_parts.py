"""Averaging float columns over neighbours: the dense matrix power, written out; graphs of a batch stay apart."""

import pytest
import torch

import zoo
from zoo.models.graph_parts import averaged

pytest.importorskip("torch_geometric")


def test_averaged_is_a_power_of_the_row_normalised_adjacency():
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 1, 2, 3, 3], [1, 0, 2, 1, 1, 3]])  # sources, targets; node 4 has no edge, node 3 a loop
    x = torch.randn(5, 3)
    dense = torch.eye(5)
    for source, target in edges.T.tolist():
        dense[target, source] += 1
    dense = dense / dense.sum(1, keepdim=True)
    for steps in (1, 2, 4):
        assert torch.allclose(averaged(x, edges, steps), torch.linalg.matrix_power(dense, steps) @ x, atol=1e-6)
    assert averaged(x, edges, 0) is x and torch.equal(averaged(x, edges, 3)[4], x[4])


def test_a_smoothing_model_answers_each_graph_as_alone():
    from torch_geometric.data import Data

    torch.manual_seed(0)
    model = zoo.create_model("graph_pico", node_floats=4, node_categories=(), edge_categories=(), smooth=2, dim=16, depth=1).eval()

    def graph(n, edges):
        both = torch.tensor(edges + [(v, u) for u, v in edges]).T.reshape(2, -1)
        return Data(x_cat=torch.zeros(n, 0, dtype=torch.long), x_float=torch.randn(n, 4), edge_index=both,
                    edge_cat=torch.zeros(both.shape[1], 0, dtype=torch.long), edge_float=torch.zeros(both.shape[1], 0))

    graphs = [graph(4, [(0, 1), (1, 2), (2, 3)]), graph(3, [(0, 2)]), graph(5, [(0, 1), (3, 4)])]
    with torch.no_grad():
        together = model(model.collate(graphs))
        for i, one in enumerate(graphs):
            assert torch.allclose(model(model.collate([one]))[0], together[i], atol=1e-5)
    with pytest.raises(ValueError, match="smooth=-1; allowed: an integer >= 0"):
        zoo.create_model("graph_pico", smooth=-1)
