"""A graph, or a molecule drawn as one: attention on the edges, and what each node received."""

from pathlib import Path

import numpy as np

from zoo.data.graphs import open_graphs
from zoo.errors import ZooError
from zoo.explain.figure import answer, colour_bar, head_name, new_figure, title
from zoo.explain.maps import Map, Maps
from zoo.explain.plane import Plane, molecule, spread

MOST = 40  # nodes that can be told apart in one picture
WIDTH, HEIGHT = 8.5, 6.6  # inches
NOTE = "circle: attention received by the node; line: attention between its ends, mean of both directions"


def first_graph(model, item):
    """The graph to draw of a raw item: a file (table of SMILES, one big graph) gives its first; all else is left as it is."""
    if isinstance(item, (str, Path)) and Path(item).exists():
        return open_graphs(item, targets=()).sources[0]
    if isinstance(item, (str, Path)) and model.preprocess.source != "smiles":
        raise ZooError(f"{item}: no such file; a table, or a folder with nodes.csv and edges.csv")
    return item


def draw_graph(model, item, maps: Maps, layer: str, head: slice):
    """One plane: nodes and edges coloured by attention, 1 being an even share among those that a node sees."""
    shown, graph = maps[layer], maps.prepared
    edges, n = graph.edge_index.numpy(), len(graph.x_cat)
    if not n:
        raise ZooError("explain: the graph has no nodes")
    received, between = _shares(shown, head)
    nodes = np.arange(n) if model.preprocess.source == "smiles" else _around(edges, received[:n])
    edges = _once(edges, nodes, model.preprocess.directed)
    plane = molecule(item) if model.preprocess.source == "smiles" else spread(edges, nodes)
    lines = (between(*nodes[edges]) + between(*nodes[edges[::-1]])) / 2
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.subplots()
    drawn = _plane(axes, plane, edges, received[nodes], lines, model.preprocess.directed)
    colour_bar(drawn, axes, "attention (1: an even share)")
    figure.supxlabel(NOTE, fontsize=9)
    part = f", the {len(nodes)} nodes around node {nodes[0]} of {n:,}" if len(nodes) < n else ""
    title(figure, model, layer, head_name(shown, head) + part, answer(model, maps))
    return figure


def _shares(shown: Map, head: slice):
    """(received (n,), between(i, j) -> (m,)): multiples of what it were if each node looked evenly at all it sees."""
    n = shown.axes[0]
    query, key, weight = shown.listed(head)
    even = 1 / np.bincount(query, minlength=n)[query]
    received = np.bincount(key, weight, n) / np.maximum(np.bincount(key, even, n), 1e-12)
    place = query * n + key
    order = np.argsort(place)
    place, share = np.append(place[order], n * n), np.append((weight / even)[order], 0)

    def between(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        at = np.searchsorted(place, i * n + j)
        return np.where(place[at] == i * n + j, share[at], 0)

    return received, between


def _around(edges: np.ndarray, received: np.ndarray) -> np.ndarray:
    """All nodes, or those nearest to the node that received most; among equally near ones, those that received most."""
    n = len(received)
    if n <= MOST:
        return np.arange(n)
    found = np.array([received.argmax()])
    while len(found) < MOST:
        near = np.union1d(edges[1, np.isin(edges[0], found)], edges[0, np.isin(edges[1], found)])
        near = np.setdiff1d(near, found)
        if not len(near):
            break
        found = np.append(found, near[np.argsort(-received[near], kind="stable")])
    return found[:MOST]


def _once(edges: np.ndarray, nodes: np.ndarray, directed: bool) -> np.ndarray:
    """(2 m): each edge among `nodes` once, as places in `nodes`, without loops; in an undirected graph one of both directions."""
    place = np.full(max(edges.max(initial=0), nodes.max()) + 1, -1)
    place[nodes] = np.arange(len(nodes))
    edges = place[edges]
    edges = edges[:, (edges >= 0).all(0) & (edges[0] != edges[1])]
    return np.unique(edges if directed else np.sort(edges, 0), axis=1)


def _plane(axes, plane: Plane, edges: np.ndarray, circles: np.ndarray, lines: np.ndarray, directed: bool):
    """Draws edges below, nodes above; returns what the colour bar is made from."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import EllipseCollection, LineCollection
    from matplotlib.colors import ListedColormap, Normalize

    colours = ListedColormap(colormaps["YlGnBu"](np.linspace(0.18, 1, 256)))  # its palest tones vanish on white
    every = np.concatenate([circles, lines])
    scale = ScalarMappable(Normalize(every.min(), max(every.max(), every.min() + 0.02)), colours)
    unit = _fit(axes, plane)
    if directed:
        for (i, j), colour in zip(edges.T, scale.to_rgba(lines)):
            shape = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0.5 * plane.size * unit}
            axes.annotate("", plane.xy[j], plane.xy[i], arrowprops=shape, zorder=1)
    else:
        ends, value = plane.strokes(edges, lines)
        axes.add_collection(LineCollection(ends, colors=scale.to_rgba(value), linewidths=min(4, 0.1 * unit), zorder=1))
    size = np.full(len(circles), plane.size)
    axes.add_collection(EllipseCollection(
        size, size, np.zeros(len(size)), units="xy", offsets=plane.xy, offset_transform=axes.transData,
        facecolors=scale.to_rgba(circles), edgecolors="white", linewidths=1, zorder=2))
    for (x, y), name, colour in zip(plane.xy, plane.names, scale.to_rgba(circles)):
        ink = "white" if colour[:3] @ (0.299, 0.587, 0.114) < 0.55 else "black"
        points = min(12, plane.size * unit / (1 + len(name.split("$")[0]) / 2))
        axes.text(x, y, name, color=ink, ha="center", va="center", fontsize=points, zorder=3)
    return scale


def _fit(axes, plane: Plane) -> float:
    """Limits that fill the figure, with room for the circles; equal scales, no frame. Returns points per unit of the plane."""
    low, high = plane.xy.min(0) - plane.size, plane.xy.max(0) + plane.size
    room = 72 * np.array([WIDTH - 1.3, HEIGHT - 1.1])  # points beside the colour bar, below the title
    unit = min(room / np.maximum(high - low, 8 * plane.size))
    (left, below), (right, above) = (low + high - room / unit) / 2, (low + high + room / unit) / 2
    axes.set(xlim=(left, right), ylim=(below, above), aspect="equal")
    axes.axis("off")
    return unit
