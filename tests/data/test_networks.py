"""One big graph from node and edge tables or from arrays."""

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")

from zoo.data.graphs import open_graphs, splits  # noqa: E402
from zoo.data.networks import open_network  # noqa: E402
from zoo.errors import ZooError  # noqa: E402
from zoo.schema import GraphPreprocess  # noqa: E402

NODES = "id,age,colour,member,label,split\nann,30,red,true,cat,train\nbob,,blue,false,dog,train\n007,50,red,true,,test\n"
EDGES = "source,target,years,kind\nann,bob,2,friend\nbob,007,4,foe\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "edges.csv").write_text(EDGES)
    return tmp_path


def test_tables(folder):
    raw = open_network(folder)
    assert raw.edge_index.tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]]  # the reverse of each is added
    assert raw.nodes["colour"] == ["red", "blue", "red"] and raw.nodes["member"] == [True, False, True]
    assert raw.edges["kind"] == ["friend", "foe", "friend", "foe"] and raw.edges["years"].ravel().tolist() == [2, 4, 2, 4]
    assert raw.y.tolist() == [0, 1, -1] and raw.classes == ["cat", "dog"]
    assert raw.split.tolist() == ["train", "train", "test"]
    schema = GraphPreprocess.fit([raw])
    graph = schema(raw)
    assert [c.name for c in schema.node_categories] == ["colour", "member"] and graph.x_float[1] == 0  # no age: the mean, 30
    assert graph.x_float[0] == 0 and graph.x_float[2] == 20 and graph.train_mask.tolist() == [True, True, False]
    assert graph.x_cat.tolist() == [[2, 2], [1, 1], [2, 2]] and graph.edge_cat.tolist() == [[2], [1], [2], [1]]


def test_directed_categories_and_regression(folder):
    raw = open_network(folder, directed=True, categories=["years"], targets=["age"])
    assert raw.edge_index.tolist() == [[0, 1], [1, 2]] and raw.edges["years"] == [2, 4]
    assert raw.y[[0, 2], 0].tolist() == [30, 50] and np.isnan(raw.y[1, 0]) and "age" not in raw.nodes
    assert "label" not in raw.nodes and raw.classes is None


def test_as_items(folder):
    items = open_graphs(folder)
    assert len(items) == 1 and items.classes == ["cat", "dog"] and splits(folder) == []
    assert items.encode(GraphPreprocess.fit(items.sources))[0].y.tolist() == [0, 1, -1]
    assert items.fingerprint() == open_graphs(folder).fingerprint()
    with pytest.raises(ZooError, match="one big graph holds the splits of its nodes"):
        open_graphs(folder, "train")


@pytest.mark.parametrize(("file", "text", "words"), [
    ("edges.csv", EDGES + "ann,eve,1,friend\n", "edges.csv:2: target is 'eve', no id in the node table"),
    ("nodes.csv", NODES + "ann,1,red,true,cat,train\n", "nodes.csv:3: node id 'ann' is already in row 0"),
    ("nodes.csv", NODES.replace("id,", "name,"), "no column 'id'"),
    ("edges.csv", EDGES.replace("target", "to"), "no column 'target'")])
def test_faults_of_tables(folder, file, text, words):
    (folder / file).write_text(text)
    with pytest.raises(ZooError, match=words):
        open_network(folder)


def test_no_edges_file_and_no_edges(folder):
    (folder / "edges.csv").write_text("source,target\n")
    assert open_network(folder).edge_index.shape == (2, 0)
    (folder / "edges.csv").unlink()
    with pytest.raises(ZooError, match="no edges.csv; one big graph needs"):
        open_network(folder)


ARRAYS = {"edge_index": np.array([[0, 1], [1, 0]]), "y": np.array([1, 0, 2], np.int8), "num_features": np.array(4),
          "feat_row": np.array([0, 2]), "feat_col": np.array([3, 1]), "split": np.array(["train", "none", "valid"])}


def test_arrays(tmp_path):
    np.savez(tmp_path / "g.npz", **ARRAYS)
    raw = open_network(tmp_path / "g.npz")
    assert raw.nodes["x"].tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]] and raw.y.tolist() == [1, 0, 2]
    assert raw.split.tolist() == ["train", "", "val"] and raw.classes == ["0", "1", "2"]
    np.savez(tmp_path / "h.npz", edge_index=ARRAYS["edge_index"], x=np.ones((3, 2), np.float32))
    assert open_network(tmp_path / "h.npz").n == 3


@pytest.mark.parametrize(("change", "words"), [
    ({"feat_col": np.array([3, 4])}, "feat_col runs from 3 to 4; allowed: 0 to 3"),
    ({"split": np.array(["train"])}, "number of nodes"),
    ({"edge_index": np.array([[0], [3]])}, "points at node 3"), ({"num_features": np.array(10**9)}, "GiB as float32"),
    ({"y": np.array([{}, 0, 1], object)}, "not a readable .npz of plain arrays")])
def test_faults_of_arrays(tmp_path, change, words):
    np.savez(tmp_path / "g.npz", **{**ARRAYS, **change})
    with pytest.raises(ZooError, match=words):
        open_network(tmp_path / "g.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ZooError, match="text.npz: not a readable .npz"):
        open_network(tmp_path / "text.npz")


def test_cora(shared):
    raw = open_network(shared / "planetoid" / "cora.npz")
    graph = GraphPreprocess.fit([raw], scaling="rows")(raw)
    assert graph.x_float.shape == (2708, 1433) and graph.edge_index.shape == (2, 10556)
    assert [int(graph[f"{part}_mask"].sum()) for part in ("train", "val", "test")] == [140, 500, 1000]
    assert torch.allclose(graph.x_float.sum(1), torch.ones(2708)) and len(raw.classes) == 7
