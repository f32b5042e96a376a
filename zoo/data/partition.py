"""Parts of one big graph for training: a partition into parts of equal size with few edges between them."""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import Tensor

from zoo.data.sample import InEdges, induced
from zoo.errors import ZooError


def partition(edge_index: Tensor, n: int, parts: int, seed: int = 0, rounds: int = 10) -> Tensor:
    """The part of each node, (n) int64 in 0 .. parts - 1, with few edges between parts; sizes differ by 10 % at most, or by 1.

    Grown breadth first, one part after the other, each from the rim of those before (Farhat 1988); then `rounds` of nodes
    moving to the part that most of their neighbours are in, where it has room. Directions of edges do not matter.
    """
    if not 1 <= parts <= max(n, 1):
        raise ZooError(f"partition: {parts} parts of {n} nodes; allowed: 1 to {n}")
    loops = edge_index[0] == edge_index[1]
    both = torch.cat([edge_index[:, ~loops], edge_index[:, ~loops].flip(0)], dim=1)
    random = np.random.default_rng(seed)
    part = _grown(InEdges.of(both, n), n, parts, random)
    return torch.from_numpy(_settled(part, both.numpy(), parts, random, rounds))


def cut_edges(edge_index: Tensor, part: Tensor) -> int:
    """Columns of edge_index whose ends lie in different parts."""
    return int((part[edge_index[0]] != part[edge_index[1]]).sum())


@dataclass
class Partitions:
    """Parts as a data set (Cluster-GCN, arXiv:1905.07953): `part(places)` joins those of a batch, with the edges between them."""

    graph: object
    of_node: Tensor  # (n), from `partition`

    def __len__(self) -> int:
        return int(self.of_node.max()) + 1

    @cached_property
    def edges(self) -> InEdges:
        return InEdges.of(self.graph.edge_index, self.graph.num_nodes)

    def part(self, places: list[tuple[int, int, int]]):
        chosen = torch.tensor([index for index, _, _ in places])
        return induced(self.graph, self.edges, torch.isin(self.of_node, chosen).nonzero().flatten())


def _grown(edges: InEdges, n: int, parts: int, random: np.random.Generator) -> np.ndarray:
    start, source = edges.start.tolist(), edges.source.tolist()
    part = [-1] * n
    rest = iter(random.permutation(n).tolist())  # where the next piece starts when there is no rim left
    rim: deque[int] = deque()
    for p in range(parts):
        room = (p + 1) * n // parts - p * n // parts
        queue: deque[int] = deque()
        while room:
            node = queue.popleft() if queue else rim.popleft() if rim else next(rest)
            if part[node] < 0:
                part[node], room = p, room - 1
                queue.extend(i for i in source[start[node]:start[node + 1]] if part[i] < 0)
        rim.extend(queue)
    return np.array(part, np.int64)


def _settled(part: np.ndarray, edges: np.ndarray, parts: int, random: np.random.Generator, rounds: int) -> np.ndarray:
    """Moves nodes to where more of their neighbours are, half of the candidates at a time; keeps what cuts fewer edges."""
    n = len(part)
    least, most = min(n // parts, ceil(0.95 * n / parts)), max(ceil(n / parts), int(1.05 * n / parts))
    for _ in range(rounds):
        moved = _moved(part, edges, parts, (least, most), random)
        before, after = ((p[edges[0]] != p[edges[1]]).sum() for p in (part, moved))
        part = moved if after < before else part
    return part


def _moved(part: np.ndarray, edges: np.ndarray, parts: int, limits: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    pairs, count = np.unique(edges[1] * parts + part[edges[0]], return_counts=True)  # (node, part of a neighbour)
    node, there = pairs // parts, pairs % parts
    here = np.zeros(len(part), np.int64)
    own = there == part[node]
    here[node[own]] = count[own]
    gain = count - here[node]
    useful = np.flatnonzero((gain > 0) & (random.random(len(gain)) < 0.5))
    part, sizes = part.copy(), np.bincount(part, minlength=parts)
    done = set()
    for i in useful[np.argsort(-gain[useful], kind="stable")].tolist():
        a, old, new = int(node[i]), int(part[node[i]]), int(there[i])
        if a not in done and sizes[new] < limits[1] and sizes[old] > limits[0]:
            part[a] = new
            sizes[old], sizes[new] = sizes[old] - 1, sizes[new] + 1
            done.add(a)
    return part
