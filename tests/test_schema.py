"""Declared columns: fit on training data, unknown bucket, scaling, every way in which a graph can fail to fit."""

import json
import sys
import time

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")

from zoo.columns import Category, Number  # noqa: E402
from zoo.errors import ZooError  # noqa: E402
from zoo.rawgraph import RawGraph, data_type, from_data  # noqa: E402
from zoo.schema import GraphPreprocess  # noqa: E402

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def data(**parts):
    return data_type()(**{"x": torch.tensor([[6], [7], [6]]), "edge_index": PATH, **parts})


def test_categories_are_those_of_the_training_items_the_rest_is_unknown():
    schema = GraphPreprocess.fit([data(edge_attr=torch.tensor([1, 1, 4, 4]))])
    assert schema.arguments() == {"node_categories": (3,), "node_floats": 0, "edge_categories": (3,), "edge_floats": 0,
                                  "directed": False}
    graph = schema(data(x=torch.tensor([[7], [6], [99]]), edge_attr=torch.tensor([4, 4, 2, 2])), "g")
    assert graph.x_cat.tolist() == [[2], [1], [0]] and graph.edge_cat.tolist() == [[2], [2], [0], [0]]
    assert graph.x_float.shape == (3, 0) and graph.edge_float.shape == (4, 0) and graph.key == "g" and graph.num_nodes == 3
    assert (graph.x_cat.dtype, graph.x_float.dtype, graph.edge_index.dtype) == (torch.int64, torch.float32, torch.int64)


def test_floats_are_standardised_missing_is_the_mean_constant_stays_finite():
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0], [float("nan"), 5.0]])
    schema = GraphPreprocess.fit([data(x=x)])
    number = schema.node_floats[0]
    assert (number.mean, number.std) == ((2.0, 5.0), (1.0, 1.0))
    assert schema(data(x=x)).x_float.tolist() == [[-1, 0], [1, 0], [0, 0]]
    assert schema(data(x=x)).x_cat.shape == (3, 0)


def test_a_column_that_is_constant_but_for_rounding():
    schema = GraphPreprocess.fit([data(x=torch.full((3, 1), 0.1, dtype=torch.float64))])
    assert schema.node_floats[0].std == (1.0,)


def test_rows_become_frequencies_and_zero_rows_stay():
    x = torch.tensor([[1.0, 1, 0, 2], [0, 0, 0, 0], [0, 0, 1, 0]])
    got = GraphPreprocess.fit([data(x=x)], scaling="rows")(data(x=x)).x_float
    assert got.tolist() == [[0.25, 0.25, 0, 0.5], [0, 0, 0, 0], [0, 0, 1, 0]]


def test_statistics_of_one_big_graph_come_from_its_training_nodes():
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = RawGraph(3, edges, {"size": np.array([[1.0], [3.0], [100.0]]), "kind": ["a", "b", "c"]},
                     {"length": np.array([[1.0], [3.0], [1000.0], [5.0]])}, split=np.array(["train", "train", "test"]))
    schema = GraphPreprocess.fit([graph])
    assert schema.node_floats[0].mean == (2.0,) and schema.edge_floats[0].mean == (3.0,)  # of edges into a training node
    assert schema.node_categories == (Category("kind", ("a", "b")),)
    encoded = schema(graph)
    assert encoded.x_cat.tolist() == [[1], [2], [0]]
    assert encoded.train_mask.tolist() == [True, True, False] and encoded.test_mask.tolist() == [False, False, True]


def test_the_card_gives_the_schema_back():
    x = torch.tensor([[1.5], [2.0], [4.0]])
    for schema in (GraphPreprocess(), GraphPreprocess.fit([data(x=x, edge_attr=torch.tensor([True, True, False, False]))])):
        assert GraphPreprocess.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert GraphPreprocess.from_dict({}) == GraphPreprocess()


@pytest.mark.parametrize(("values", "words"), [
    ({"colour": 1}, "unknown key 'colour'; allowed: source"), ({"source": "xyz"}, "source is 'xyz'; allowed: smiles, data"),
    ({"node_floats": [{"name": "a", "scaling": "log"}]}, "scaling of 'a' is 'log'; allowed: standard, rows, none"),
    ({"node_floats": [{"name": "a", "width": 2, "mean": [0], "std": [1]}]}, "'a' has 2 columns, 1 means and 1 deviations"),
    ({"node_categories": [{"nam": "a"}]}, "unexpected keyword argument 'nam'")])
def test_wrong_values_in_the_card(values, words):
    with pytest.raises(ZooError, match=words):
        GraphPreprocess.from_dict(values)


def test_edge_attr_as_a_vector_is_one_column():
    flat, column = torch.tensor([1.0, 1.0, 3.0, 3.0]), torch.tensor([[1.0], [1.0], [3.0], [3.0]])
    schema = GraphPreprocess.fit([data(edge_attr=flat)])
    assert schema == GraphPreprocess.fit([data(edge_attr=column)])
    assert schema(data(edge_attr=flat)).edge_float.tolist() == schema(data(edge_attr=column)).edge_float.tolist()


@pytest.mark.parametrize(("parts", "words"), [
    ({"edge_attr": torch.ones(4, 3)}, "edge column 'edge_attr' is 3 wide, but 2 in the model's schema"),
    ({}, "edge column 'edge_attr' is 0 wide, but 2"),
    ({"edge_attr": torch.ones(4, 2), "edge_weight": torch.ones(4)}, "edge column 'edge_weight' is 1 wide, but 0"),
    ({"edge_attr": torch.ones(3, 2)}, "edge_attr has 3 rows for 4 edges"),
    ({"edge_attr": torch.ones(4, 2), "x": torch.ones(3, 2)}, "node column 'x' is 2 wide, but 1"),
    ({"edge_attr": torch.ones(4, 2, 1)}, r"edge_attr has shape \(4, 2, 1\)"),
    ({"edge_attr": torch.full((4, 2), torch.inf)}, "'edge_attr' holds an infinite value in row 0")])
def test_a_graph_that_does_not_fit_is_named_with_both_widths(parts, words):
    schema = GraphPreprocess.fit([data(edge_attr=torch.ones(4, 2))])
    with pytest.raises(ZooError, match=f"bad: .*{words}"):
        schema(data(**parts), "bad")


@pytest.mark.parametrize(("edges", "words"), [
    ([[0, 1], [1, 3]], r"points at node 3, but there are 3 nodes \(0 to 2\)"), ([[0, -1], [1, 0]], "points at node -1"),
    ([[0, 1, 2]], r"shape \(1, 3\); expected \(2, edges\)"), ([[0.0, 1.0], [1.0, 0.0]], "holds float32; expected integers")])
def test_wrong_edges(edges, words):
    with pytest.raises(ZooError, match=words):
        from_data(data(edge_index=torch.tensor(edges)))


def test_the_number_of_nodes_comes_from_x_or_num_nodes_never_from_edges():
    assert from_data(data(x=torch.zeros(5, 1))).n == 5  # nodes 3 and 4 have no edge
    assert from_data(data_type()(num_nodes=4, edge_index=PATH)).n == 4
    with pytest.raises(ZooError, match="set data.num_nodes"):
        from_data(data_type()(edge_index=PATH))
    no_edges = GraphPreprocess.fit([data()])(data_type()(x=torch.tensor([[6], [6]])))
    assert no_edges.edge_index.shape == (2, 0) and no_edges.num_nodes == 2


def test_directed_as_the_graphs_are():
    one_way = data(edge_index=torch.tensor([[0, 1], [1, 2]]))
    assert GraphPreprocess.fit([data(), one_way]).directed and not GraphPreprocess.fit([data()]).directed
    with pytest.raises(ZooError, match="g: edge 0 -> 1 has no reverse, but the schema says undirected"):
        GraphPreprocess.fit([data()])(one_way, "g")
    assert GraphPreprocess.fit([data()], directed=True)(one_way).edge_index.tolist() == [[0, 1], [1, 2]]


def test_both_ways_adds_each_missing_reverse_once():
    raw = RawGraph(3, [[0, 1, 0, 2, 2, 0], [1, 0, 2, 2, 1, 2]], edges={"w": list("abcdef"), "v": np.arange(6.0)[:, None]})
    both = raw.both_ways()
    assert both.edge_index[:, 6:].tolist() == [[2, 1], [0, 2]]  # of 0 -> 2, given twice, and of 2 -> 1; not of the self loop
    assert both.edges["w"][6:] == ["c", "e"] and both.edges["v"][6:].tolist() == [[2], [4]]
    assert raw.one_way() == (0, 2) and both.one_way() is None


def test_masks_and_y_of_data_travel():
    masks = {f"{name}_mask": torch.tensor([i == k for i in range(3)]) for k, name in enumerate(("train", "val", "test"))}
    graph = GraphPreprocess.fit([data(**masks)])(data(**masks, y=torch.tensor([2, 0, 1], dtype=torch.int8)))
    assert all(torch.equal(graph[name], mask) for name, mask in masks.items())
    assert graph.y.tolist() == [2, 0, 1] and graph.y.dtype == torch.int64
    with pytest.raises(ZooError, match=r"train_mask has shape \(3, 2\) for 3 nodes"):
        from_data(data(train_mask=torch.ones(3, 2, dtype=torch.bool)))


def test_sparse_features_equal_dense_ones_and_a_flood_is_refused():
    x = torch.tensor([[0.0, 2.0], [0.0, 0.0], [1.0, 0.0]])
    schema = GraphPreprocess.fit([data(x=x)])
    assert torch.equal(schema(data(x=x.to_sparse())).x_float, schema(data(x=x)).x_float)
    huge = torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (1_000_000, 5_000),
                                   check_invariants=True)
    with pytest.raises(ZooError, match="1000000 nodes x 5000 features take 18.6 GiB"):
        from_data(data(x=huge))


def test_items_of_the_wrong_kind():
    with pytest.raises(ZooError, match="row 3: expected SMILES or an RDKit Mol, got Data"):
        GraphPreprocess()(data(), "row 3")
    with pytest.raises(ZooError, match="expected torch_geometric Data, got str"):
        GraphPreprocess.fit([data()])("CCO")
    with pytest.raises(ZooError, match="no graphs to fit on"):
        GraphPreprocess.fit([])


def test_molecules_in_the_fixed_vocabulary():
    pytest.importorskip("rdkit")
    schema = GraphPreprocess()
    ethanol = schema("CCO")
    assert ethanol.x_cat[:, 0].tolist() == [6, 6, 8] and ethanol.edge_cat[:, 0].tolist() == [1] * 4
    assert schema("*").x_cat[0, 0] == 0  # no element
    assert (ethanol.x_cat.max(0).values < torch.tensor(schema.arguments()["node_categories"])).all()
    fitted = GraphPreprocess.fit(["CCO", "CN"])
    assert fitted.node_categories[0].values == (6, 7, 8) and fitted("C[Si]").x_cat[1, 0] == 0
    with pytest.raises(ZooError, match=r"row 9: invalid SMILES 'C\(C'"):
        schema("C(C", "row 9")


def test_a_molecule_takes_about_a_millisecond(shared):
    pytest.importorskip("rdkit")
    schema, smiles = GraphPreprocess(), (shared / "molecules" / "zinc12k.csv").read_text().splitlines()[1:201]
    smiles = [line.split(",")[0] for line in smiles]
    start = time.thread_time()
    graphs = [schema(text) for text in smiles]
    assert (time.thread_time() - start) / len(smiles) < 3e-3  # 0.5 to 0.7 ms measured
    assert 20 < sum(graph.num_nodes for graph in graphs) / len(graphs) < 26


def test_a_number_column_of_words():
    with pytest.raises(ZooError, match="g: column 'a' is no column of numbers"):
        Number("a", 1, "none").scaled({"a": ["x", "y"]}, "g")


def test_without_torch_geometric_the_error_names_the_pip_command(monkeypatch):
    data_type.cache_clear()
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(ZooError, match=r"pip install 'zoo-attention\[graph\]'"):
        data_type()
