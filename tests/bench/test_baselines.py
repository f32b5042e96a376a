"""The peers of the graph model: they run on encoded graphs, mix no graphs, and learn."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("torch_geometric")
pytest.importorskip("rdkit")

from zoo.bench.baselines import GraphBaseline, NodeGCN, stack  # noqa: E402
from zoo.errors import ZooError  # noqa: E402
from zoo.rawgraph import data_type  # noqa: E402
from zoo.schema import GraphPreprocess  # noqa: E402

SCHEMA = GraphPreprocess()
GRAPHS = [SCHEMA(smiles) for smiles in ("CCO", "[Na+].[Cl-]", "C", "c1ccccc1C(=O)N")]


@pytest.mark.parametrize("conv", ["gine", "gcn"])
@pytest.mark.parametrize("pool", ["sum", "mean"])
def test_a_batch_gives_what_each_graph_gives_alone(conv, pool):
    model = GraphBaseline(SCHEMA.arguments(), 2, conv, dim=16, layers=2, pool=pool).eval()
    together = model(stack(GRAPHS))
    alone = torch.cat([model(stack([graph])) for graph in GRAPHS])
    assert together.shape == (4, 2) and torch.allclose(together, alone, atol=1e-5)
    assert (alone[0] - alone[3]).abs().max() > 1e-4


def test_edge_features_reach_gine():
    model = GraphBaseline(SCHEMA.arguments(), 1, dim=16, layers=2).eval()
    changed = GRAPHS[0].clone()
    changed.edge_cat = changed.edge_cat.clone()
    changed.edge_cat[:, 0] = 2
    assert (model(stack([changed])) - model(stack(GRAPHS[:1]))).abs() > 1e-5


def test_gine_learns_the_number_of_atoms():
    torch.manual_seed(0)
    graphs = [SCHEMA("C" * n) for n in range(1, 17)]
    for graph in graphs:
        graph.y = torch.tensor([graph.num_nodes / 10])
    batch, model = stack(graphs), GraphBaseline(SCHEMA.arguments(), 1, dim=16, layers=2, pool="sum")
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        loss = F.mse_loss(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02  # variance 0.21


def test_gcn_labels_nodes():
    graph = data_type()(x_float=torch.eye(6), edge_index=torch.tensor([[0, 1, 3, 4], [1, 0, 4, 3]]), num_nodes=6)
    assert NodeGCN(6, 3)(graph).shape == (6, 3)


def test_wrong_words():
    with pytest.raises(ZooError, match="conv 'gat', pool 'mean'; allowed: gine, gcn and sum, mean"):
        GraphBaseline(SCHEMA.arguments(), 1, "gat")
