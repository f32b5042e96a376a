"""Tables of SMILES and data sets of Data: targets with gaps, labels, splits, keys, and their faults."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("torch_geometric")

from zoo.data.graphs import GraphItems, from_dataset, open_graphs, splits, unreadable  # noqa: E402
from zoo.data.items import split  # noqa: E402
from zoo.errors import ZooError  # noqa: E402
from zoo.rawgraph import data_type  # noqa: E402
from zoo.scaler import TargetScaler  # noqa: E402
from zoo.schema import GraphPreprocess  # noqa: E402

ROWS = [{"smiles": "CCO", "y": 1.5, "z": None, "fold": "a"}, {"smiles": "[Na+].[Cl-]", "y": None, "z": 3.0, "fold": "b"},
        {"smiles": "N", "y": 2.0, "z": 4.0, "fold": "a"}]


def write(file, rows):
    """The rows as CSV, JSONL or Parquet, by the suffix."""
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        file.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    return file


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_targets_with_gaps_in_every_format(tmp_path, suffix):
    items = open_graphs(write(tmp_path / f"m.{suffix}", ROWS), targets=("y", "z"))
    assert items.keys == [f"m.{suffix}:{row}" for row in range(3)] and items.sources == ["CCO", "[Na+].[Cl-]", "N"]
    assert items.names == ["y", "z"]
    assert [[None if math.isnan(v) else v for v in row] for row in items.targets] == [[1.5, None], [None, 3], [2, 4]]
    assert items.meta[1] == {"fold": "b"}


def test_splits_by_any_column_and_by_file_name(tmp_path):
    file = write(tmp_path / "m.csv", ROWS)
    assert splits(file, "fold") == ["a", "b"] and splits(file) == []
    assert open_graphs(file, "a", split_column="fold").keys == ["m.csv:0", "m.csv:2"]
    with pytest.raises(ZooError, match=r"m.csv: no split 'c' \(has: a, b\)"):
        open_graphs(file, "c", split_column="fold")
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "train.csv", ROWS[:2])
    write(folder / "valid.csv", ROWS[2:])
    assert splits(folder) == ["train", "val"]
    assert open_graphs(folder, "validation").sources == ["N"] and len(open_graphs(folder)) == 3


def test_labels_are_numbered_alike_in_every_split(tmp_path):
    rows = [{"smiles": "C", "kind": "10", "split": "train"}, {"smiles": "N", "kind": "9", "split": "test"}]
    file = write(tmp_path / "m.csv", rows)
    assert open_graphs(file, label="kind").labels == [1, 0]
    test = open_graphs(file, "test", label="kind")
    assert (test.classes, test.labels, test.targets) == (["9", "10"], [0], None)
    assert test.relabel(["10", "9"]).labels == [1]
    with pytest.raises(ZooError, match="only in data: 10   only in checkpoint: 8"):
        test.relabel(["9", "8"])


@pytest.mark.parametrize(("value", "words"), [("high", "m.csv:1: y is 'high'; expected a number"), ("inf", "m.csv:1: y is inf")])
def test_a_target_that_is_no_number(tmp_path, value, words):
    with pytest.raises(ZooError, match=words):
        open_graphs(write(tmp_path / "m.csv", [ROWS[0], {**ROWS[0], "y": value}]))


def test_missing_column_file_or_table(tmp_path):
    file = write(tmp_path / "m.csv", ROWS)
    for words, path, options in (
            ("no column 'SMILES' \\(columns: smiles, y", file, {"smiles": "SMILES"}),
            ("no column 'logP'", file, {"targets": ["logP"]}), ("no such file", tmp_path / "n.csv", {}),
            ("expected a table", write(tmp_path / "m.txt", ROWS), {})):
        with pytest.raises(ZooError, match=words):
            open_graphs(path, **options)


def test_bad_smiles_are_listed_and_named_when_met(tmp_path):
    pytest.importorskip("rdkit")
    file = write(tmp_path / "m.csv", [{"smiles": s, "y": 1} for s in ("C", "C(C", "", "CF(F)F")])
    items = open_graphs(file)
    bad = unreadable(items)
    assert [key for key, _ in bad] == ["m.csv:1", "m.csv:2", "m.csv:3"]
    assert bad[0][1].startswith("invalid SMILES 'C(C'") and bad[1][1] == "empty SMILES" and "valence" in bad[2][1]
    with pytest.raises(ZooError, match="m.csv:1: invalid SMILES"):
        items.encode(GraphPreprocess())


def test_encoded_graphs_carry_key_and_y(tmp_path):
    pytest.importorskip("rdkit")
    items = open_graphs(write(tmp_path / "m.csv", ROWS), targets=("y", "z"))
    graphs = items.encode(GraphPreprocess())
    assert [graph.key for graph in graphs] == items.keys and graphs[1].y[0].isnan() and graphs[1].y[1] == 3
    assert graphs[0].y.dtype == torch.float32 and graphs[1].num_nodes == 2 and graphs[1].edge_cat.shape == (0, 4)
    assert GraphItems(["a"], ["C"], labels=[1], classes=["x", "y"]).encode(GraphPreprocess())[0].y.dtype == torch.int64


def test_subset_sum_split_and_fingerprint(tmp_path):
    items = open_graphs(write(tmp_path / "m.csv", ROWS * 10))
    first, second = items.subset(range(10)), items.subset(range(10, 30))
    assert (first + second).fingerprint() == items.fingerprint() != first.fingerprint()
    assert second.keys[0] == "m.csv:10" and second.names == ["y"]
    train, held = split(items, 0.2, seed=1)
    assert len(held) == 6 and sorted(train.keys + held.keys) == sorted(items.keys)
    changed = items.subset(range(30))
    changed.targets[0] = [9.0]
    assert changed.fingerprint() != items.fingerprint()
    with pytest.raises(ZooError, match=r"\['y'\] and \['z'\] do not go together"):
        items + open_graphs(tmp_path / "m.csv", targets="z")


def graph(**parts):
    return data_type()(**{"x": torch.tensor([[1], [2]]), "edge_index": torch.tensor([[0, 1], [1, 0]]), **parts})


def test_data_sets_of_torch_geometric():
    values = open_graphs([graph(y=torch.tensor([[1.0, 2.0]])), graph(y=torch.tensor([[3.0, float("nan")]]))])
    assert values.names == ["y0", "y1"] and values.targets[0] == [1, 2] and values.keys == ["graph:0", "graph:1"]
    assert from_dataset([graph(y=torch.tensor([2])), graph(y=torch.tensor(0))]).labels == [2, 0]
    tags = from_dataset([graph(y=torch.tensor([[0, 1, 1]]))])
    assert tags.targets == [[0, 1, 1]] and tags.labels is None
    nodes = from_dataset([graph(y=torch.tensor([0, 1]))])
    assert nodes.targets is nodes.labels is None
    assert nodes.encode(GraphPreprocess.fit(nodes.sources))[0].y.tolist() == [0, 1]
    assert unreadable(from_dataset([graph(), graph(edge_index=torch.tensor([[0], [5]]))])) == [
        ("graph:1", "edge_index points at node 5, but there are 2 nodes (0 to 1)")]
    other = from_dataset([graph(), graph(x=torch.tensor([[1], [3]]))])
    assert other.fingerprint() != from_dataset([graph(), graph()]).fingerprint()


def test_esol(shared):
    pytest.importorskip("rdkit")
    file = shared / "molecules" / "esol.csv"
    assert splits(file, "split_random") == ["train", "val", "test"]
    train = open_graphs(file, "train", split_column="split_random")
    assert (len(train), len(open_graphs(file))) == (902, 1128) and unreadable(train) == []
    scaler = TargetScaler.fit(train.targets, train.names, ["mol/l"])
    assert scaler.mean[0] == pytest.approx(sum(y for y, in train.targets) / 902)
    graphs = train.subset(range(50)).encode(GraphPreprocess())
    assert not any((g.x_cat[:, 0] == 0).any() for g in graphs)
