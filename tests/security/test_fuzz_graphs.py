"""SMILES, arrays and tables of graphs with anything in them: a graph, or an error that names it."""

import io

import numpy as np
import pytest
from fuzzing import broken, ends_well, fuzz
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch_geometric")
pytest.importorskip("rdkit")

from zoo.data.networks import open_network  # noqa: E402
from zoo.molecules import molecule  # noqa: E402
from zoo.schema import GraphPreprocess  # noqa: E402

PIECES = ["C", "c1ccccc1", "(", ")", "[", "]", "=", "#", "%99", "1", "[Na+]", ".", "/", "\\", "@", "@@", "[13CH4]", "[#999]",
    "*", ":",
          "[C@@H]", "N", "[nH]", "é", "\0", " ", "\n", ">>", "{", "~", "$", "[Fe+99]", "->", "|", "C%(100)"]


def test_fuzz_smiles():
    encode = GraphPreprocess()

    @fuzz(25)
    @given(st.one_of(st.text(max_size=20), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
    def run(smiles):
        ends_well(lambda: encode(smiles, "row 3"), "row 3")

    run()


@pytest.mark.parametrize("smiles", ["C" * 20000, "(" * 50000, "C(" * 20000 + "C" + ")" * 20000, "C1" * 5000, "[" * 10**6,
                                    "C" + "(C)" * 20000, "C1CC1" * 3000, "." * 10**6], ids=range(8))
def test_long_smiles(smiles):
    ends_well(lambda: molecule(smiles, "row 3"), "row 3")


def arrays(**given) -> bytes:
    out = io.BytesIO()
    np.savez(out, **given)
    return out.getvalue()


GOOD = {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.ones((3, 2), np.float32), "y": np.array([0, 1, -1]),
        "split": np.array(["train", "val", "none"])}
ODD = [np.array(5), np.zeros((0, 3)), np.array([[0, 1, 2]]), np.array([[0, 10**12], [1, 1]]), np.array([[-1, 0], [0, 1]]),
       np.array([1.5, np.nan, np.inf]), np.array(["a", "b", "c"]), np.zeros((3, 2, 2)), np.array([2**62, 0, 0]), np.zeros(3,
           bool),
       np.array([1, 2, 3], "datetime64[s]"), np.zeros(3, [("a", int)]), np.array([1j, 0, 0]), np.zeros((3, 0)),
       np.array([b"x", b"y", b"z"]), np.array([10**15] * 3), np.zeros((2, 0), int)]
KEYS = ["edge_index", "x", "y", "split", "edge_attr", "feat_row", "feat_col", "feat_value", "num_features"]


def encoded(path):
    graph = open_network(path)
    return GraphPreprocess.fit([graph])(graph)


def test_fuzz_arrays(tmp_path):
    file = tmp_path / "g.npz"

    @fuzz(25)
    @given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(ODD), min_size=1, max_size=3),
        st.sets(st.sampled_from(KEYS[:4])))
    def run(odd, without):
        file.write_bytes(arrays(**{k: v for k, v in {**GOOD, **odd}.items() if k not in without or k in odd}))
        ends_well(lambda: encoded(file), file.name)

    run()


def test_fuzz_array_bytes(tmp_path):
    file = tmp_path / "g.npz"

    @fuzz(30)
    @given(broken(arrays(**GOOD), 2000))
    def run(data):
        file.write_bytes(data)
        ends_well(lambda: encoded(file), file.name)

    run()


NODES = b"id,age,colour,label,split\nann,30,red,cat,train\nbob,,blue,dog,train\n007,50,red,,test\n"
EDGES = b"source,target,years\nann,bob,2\nbob,007,4\n"


def test_fuzz_tables(tmp_path):
    @fuzz(25)
    @given(st.one_of(st.just(NODES), broken(NODES)), st.one_of(st.just(EDGES), broken(EDGES)))
    def run(nodes, edges):
        (tmp_path / "nodes.csv").write_bytes(nodes)
        (tmp_path / "edges.csv").write_bytes(edges)
        ends_well(lambda: encoded(tmp_path), "nodes", "edges", tmp_path.name)

    run()
