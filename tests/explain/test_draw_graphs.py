"""Graphs and molecules drawn: colours and thickness are the recorded attention, the plane is readable."""

import numpy as np
import pytest
import torch
from small_models import graph
from test_draw import MEAN, figure_of, size
from test_maps import MOLECULE

import zoo
from zoo.errors import UsageError, ZooError
from zoo.explain.graphs import draw_graph, first_graph
from zoo.explain.maps import Map
from zoo.explain.plane import molecule, spread


def test_molecule():
    model = graph()
    figure, shown = figure_of(draw_graph, model, "c1ccccc1[O-]", "blocks.0.attn")
    axes = figure.axes[0]
    lines, circles = axes.collections
    assert len(lines.get_segments()) == 10 and len(circles.get_offsets()) == 7  # 3 double and 4 single bonds
    assert sorted(text.get_text() for text in axes.texts) == ["C"] * 6 + ["O$^{-}$"]
    assert "logP" in figure.get_suptitle()


def test_thickness_of_an_edge_is_its_attention():
    figure, shown = figure_of(draw_graph, graph(), "CCO", "blocks.0.attn")
    weight, lines = shown.weight(), figure.axes[0].collections[0]
    thick = dict(zip([(0, 1), (1, 2)], lines.get_linewidths()))
    more = max(thick, key=lambda edge: weight[edge] + weight[edge[::-1]])
    assert thick[more] == max(thick.values()) > 3 * min(thick.values())


def test_an_atom_is_asked():
    model, layer = graph(), "blocks.0.attn"
    maps = zoo.explain(model, "CC(=O)N")
    figure = draw_graph(model, "CC(=O)N", maps, layer, MEAN, 2)
    axes = figure.axes[0]
    scale = axes.child_axes[0]
    assert "of the ringed node 2 to it" in figure.get_supxlabel() and len(axes.patches) == 2 and scale.get_ylabel()
    colours, row = axes.collections[1].get_facecolor(), maps[layer].weight()[2]
    bright = colours[:, :3].sum(1)
    assert bright.argmin() == row.argmax() and bright.argmax() == row.argmin()
    with pytest.raises(UsageError, match="query '4': the layer has tokens 0 to 3"):
        zoo.explain.draw(model, "CC(=O)N", "a.png", query=4)


def test_the_virtual_node_is_not_asked(tmp_path):
    with pytest.raises(UsageError, match="query '3': the graph has nodes 0 to 2"):
        zoo.explain.draw(graph(virtual_node=True), "CCO", tmp_path / "a.png", query=3)


def test_colour_of_an_edge_is_attention_between_its_ends():
    from zoo.explain.graphs import _shares

    model = graph()
    shown = zoo.explain(model, MOLECULE)["blocks.1.attn"]
    received, between = _shares(shown, slice(0, 1))
    np.testing.assert_allclose(received, shown.weights[0].mean(0) * 13, rtol=1e-5)
    i, j = np.array([0, 5, 12]), np.array([1, 0, 12])
    np.testing.assert_allclose(between(i, j), shown.weights[0][i, j] * 13, rtol=1e-5)


def test_looking_evenly_along_edges_is_a_share_of_1():
    from zoo.explain.graphs import _shares

    pairs = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])  # a path of 3 nodes, each sees itself
    even = torch.tensor([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2]).view(1, 1, 7)
    received, between = _shares(Map((3,), 1.0, even, lambda some: some, pairs), MEAN)
    np.testing.assert_allclose(received, 1, rtol=1e-6)
    np.testing.assert_allclose(between(np.array([0, 0, 2]), np.array([1, 2, 2])), [1, 0, 1], rtol=1e-6)


def data(n, edges, directed=False):
    from zoo.rawgraph import RawGraph
    from zoo.schema import GraphPreprocess

    item = RawGraph(n, np.array(edges).T.reshape(2, -1), {"x": np.ones((n, 1), np.float32)})
    item = item if directed else item.both_ways()
    return item, graph(GraphPreprocess.fit([item], scaling="none", directed=directed))


@pytest.mark.parametrize("directed", [False, True])
def test_plain_graph(directed):
    item, model = data(4, [(0, 1), (1, 2), (2, 0), (3, 3)], directed)
    figure, _ = figure_of(draw_graph, model, item, "blocks.0.attn")
    axes = figure.axes[0]
    arrows = [text for text in axes.texts if hasattr(text, "arrow_patch") and text.arrow_patch]
    assert len(arrows) == (3 if directed else 0) and len(axes.collections) == (1 if directed else 2)
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["0", "1", "2", "3"]


def test_of_a_big_graph_what_lies_around_the_node_most_looked_at():
    item, model = data(100, [(i, i + 1) for i in range(99)])
    figure, shown = figure_of(draw_graph, model, item, "blocks.0.attn")
    named = sorted(int(text.get_text()) for text in figure.axes[0].texts)
    centre = shown.received().argmax()
    assert len(named) == 40 and named == list(range(named[0], named[0] + 40)) and centre in named
    assert f"the 40 nodes around node {centre} of 100" in figure.get_suptitle()


def test_a_path_is_drawn_as_a_line_and_circles_do_not_cover_each_other():
    n = 8
    plane = spread(np.stack([np.arange(n - 1), np.arange(1, n)]), np.arange(n))
    far = np.linalg.norm(plane.xy[:, None] - plane.xy[None], axis=-1)
    np.testing.assert_allclose(far, abs(np.arange(n)[:, None] - np.arange(n)), atol=0.1)
    crowd = spread(np.array(np.triu_indices(25, 1)), np.arange(25))  # all neighbours of each other
    far = np.linalg.norm(crowd.xy[:, None] - crowd.xy[None], axis=-1) + 9 * np.eye(25)
    assert far.min() >= crowd.size
    assert spread(np.zeros((2, 0), int), np.array([5])).names == ["5"]


def test_bonds_of_a_molecule_are_of_equal_length():
    plane = molecule("CC(=O)Oc1ccccc1")
    ends = np.array(list(plane.order))
    length = np.linalg.norm(plane.xy[ends[:, 0]] - plane.xy[ends[:, 1]], axis=1)
    assert np.ptp(length) < 0.01 and sorted(plane.order.values()) == [1] * 6 + [2] * 4


@pytest.mark.parametrize("smiles", ["C", "[Na+].[Cl-]"])
def test_smallest_molecules(tmp_path, smiles):
    zoo.explain.draw(graph(), smiles, tmp_path / "a.png")
    assert size(tmp_path / "a.png")[0] > 1000


def test_a_table_gives_its_first_molecule(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,y\nCCO,1\nC,2\n")
    assert first_graph(graph(), tmp_path / "a.csv") == "CCO" == first_graph(graph(), "CCO")
    _, model = data(2, [(0, 1)])
    with pytest.raises(ZooError, match="none.npz: no such file"):
        first_graph(model, "none.npz")
