"""A graph, or a molecule drawn as one: attention on the edges, and what each node received."""

from pathlib import Path

import numpy as np

from zoo.data.graphs import open_graphs
from zoo.errors import UsageError, ZooError
from zoo.explain.figure import answer, colour_bar, head_name, new_figure, title
from zoo.explain.maps import Map, Maps
from zoo.explain.plane import Plane, molecule, spread

MOST = 40  # nodes that can be told apart in one picture
WIDTH, HEIGHT = 8.5, 6.6  # inches
NOTE = "circle: attention {}; line, its colour and thickness: attention between its ends, mean of both directions"
THIN, THICK = 0.45, 1.7  # lines of the least and the most attention, by the usual thickness


def first_graph(model, item):
    """The graph to draw of a raw item: a file (table of SMILES, one big graph) gives its first; all else is left as it is."""
    if isinstance(item, (str, Path)) and Path(item).exists():
        return open_graphs(item, targets=()).sources[0]
    if isinstance(item, (str, Path)) and model.preprocess.source != "smiles":
        raise ZooError(f"{item}: no such file; a table, or a folder with nodes.csv and edges.csv")
    return item


def draw_graph(model, item, maps: Maps, layer: str, head: slice, query: int | None = None):
    """One plane: nodes and edges coloured by attention, 1 being an even share among those that a node sees.

    A node's is what it received from all, or what node `query` took from it.
    """
    shown, graph = maps[layer], maps.prepared
    edges, n = graph.edge_index.numpy(), len(graph.x_cat)
    if not n:
        raise ZooError("explain: the graph has no nodes")
    if query is not None and query >= n:
        raise UsageError(f"query '{query}': the graph has nodes 0 to {n - 1}")  # the virtual node is not drawn
    received, between = _shares(shown, head)
    centre = received[:n].argmax() if query is None else query
    if query is not None:
        received = _asked(shown, head, query)
    nodes = np.arange(n) if model.preprocess.source == "smiles" else _around(edges, received[:n], centre)
    edges = _once(edges, nodes, model.preprocess.directed)
    plane = molecule(item) if model.preprocess.source == "smiles" else spread(edges, nodes)
    lines = (between(*nodes[edges]) + between(*nodes[edges[::-1]])) / 2
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.subplots()
    drawn = _plane(axes, plane, edges, received[nodes], lines, model.preprocess.directed)
    colour_bar(drawn, axes, "attention (1: an even share)")
    if query is not None:
        _ring(axes, plane, int(np.flatnonzero(nodes == query)[0]))
    figure.supxlabel(NOTE.format("received by the node" if query is None else f"of the ringed node {query} to it"), fontsize=9)
    part = f", the {len(nodes)} nodes around node {nodes[0]} of {n:,}" if len(nodes) < n else ""
    title(figure, model, layer, head_name(layer, shown, head) + part, answer(model, maps))
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


def _asked(shown: Map, head: slice, asked: int) -> np.ndarray:
    """(n,): what node `asked` took from each, as a multiple of an even look at all it sees."""
    query, key, weight = shown.listed(head)
    own = query == asked
    return np.bincount(key[own], weight[own], shown.axes[0]) * max(own.sum(), 1)


def _ring(axes, plane: Plane, node: int) -> None:
    from matplotlib.patches import Circle

    for colour, width in (("black", 4), ("#e69f00", 2.4)):
        axes.add_patch(Circle(plane.xy[node], 0.6 * plane.size, fill=False, edgecolor=colour, linewidth=width, zorder=4))


def _around(edges: np.ndarray, received: np.ndarray, centre: int) -> np.ndarray:
    """All nodes, or those nearest to node `centre`; among equally near ones, those that received most."""
    n = len(received)
    if n <= MOST:
        return np.arange(n)
    found = np.array([centre])
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
        for (i, j), colour, width in zip(edges.T, scale.to_rgba(lines), 1.8 * _thickness(lines)):
            shape = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0.5 * plane.size * unit}
            axes.annotate("", plane.xy[j], plane.xy[i], arrowprops=shape, zorder=1)
    else:
        ends, value = plane.strokes(edges, lines)
        width = min(4, 0.1 * unit) * _thickness(value)
        axes.add_collection(LineCollection(ends, colors=scale.to_rgba(value), linewidths=width, zorder=1))
    size = np.full(len(circles), plane.size)
    axes.add_collection(EllipseCollection(
        size, size, np.zeros(len(size)), units="xy", offsets=plane.xy, offset_transform=axes.transData,
        facecolors=scale.to_rgba(circles), edgecolors="white", linewidths=1, zorder=2))
    for (x, y), name, colour in zip(plane.xy, plane.names, scale.to_rgba(circles)):
        ink = "white" if colour[:3] @ (0.299, 0.587, 0.114) < 0.55 else "black"
        points = min(12, plane.size * unit / (1 + len(name.split("$")[0]) / 2))
        axes.text(x, y, name, color=ink, ha="center", va="center", fontsize=points, zorder=3)
    return scale


def _thickness(values: np.ndarray) -> np.ndarray:
    """THIN for the least of the values to THICK for the most; 1 where they are all the same."""
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    return np.ones(len(values)) if high - low < 1e-6 else THIN + (THICK - THIN) * (values - low) / (high - low)


def _fit(axes, plane: Plane) -> float:
    """Limits that fill the figure, with room for the circles; equal scales, no frame. Returns points per unit of the plane."""
    low, high = plane.xy.min(0) - plane.size, plane.xy.max(0) + plane.size
    room = 72 * np.array([WIDTH - 1.3, HEIGHT - 1.1])  # points beside the colour bar, below the title
    unit = min(room / np.maximum(high - low, 8 * plane.size))
    (left, below), (right, above) = (low + high - room / unit) / 2, (low + high + room / unit) / 2
    axes.set(xlim=(left, right), ylim=(below, above), aspect="equal")
    axes.axis("off")
    return unit
