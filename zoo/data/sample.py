"""Parts of one big graph for training: the sampled neighbourhood of some nodes. torch only."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from zoo.data.augment import number
from zoo.errors import ZooError
from zoo.rawgraph import data_type

EDGE_PARTS = ("edge_index", "edge_cat", "edge_float")


@dataclass
class InEdges:
    """The edges sorted by target: those into node i are source[start[i]:start[i + 1]]; edge: their columns in edge_index."""

    start: Tensor  # (n + 1)
    source: Tensor  # (E)
    edge: Tensor  # (E)

    @classmethod
    def of(cls, edge_index: Tensor, n: int) -> "InEdges":
        """From (2, E) source and target."""
        edge = torch.argsort(edge_index[1], stable=True)
        start = torch.zeros(n + 1, dtype=torch.long)
        start[1:] = torch.bincount(edge_index[1], minlength=n).cumsum(0)
        return cls(start, edge_index[0, edge], edge)

    def into(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Places in `source` and `edge` of all edges into `nodes`, grouped in their order; and the count for each node."""
        first, count = self.start[nodes], self.start[nodes + 1] - self.start[nodes]
        before = count.cumsum(0) - count
        return torch.arange(int(count.sum())) + torch.repeat_interleave(first - before, count), count


def sample_nodes(edges: InEdges, seeds: Tensor, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """seeds, then the nodes first met in hop 1, 2, ...: up to sizes[hop] in-neighbours of each node met in the hop before.

    Without replacement, evenly; a size of -1 takes all (GraphSAGE, arXiv:1706.02216, section 3.1).
    """
    _check(seeds, sizes)
    met = torch.zeros(len(edges.start) - 1, dtype=torch.bool)
    met[seeds] = True
    nodes, front = [seeds], seeds
    for size in sizes:
        places, count = edges.into(front)
        if size >= 0:
            places = _few(places, count, size, generator)
        front = torch.unique(edges.source[places])
        front = front[~met[front]]
        met[front] = True
        nodes.append(front)
    return torch.cat(nodes)


def sample_neighbours(graph, edges: InEdges, seeds: Tensor, sizes: Sequence[int], generator: torch.Generator):
    """The part of an encoded graph around `seeds` (distinct nodes): its first len(seeds) nodes, also counted in `seeds`.

    Nodes as in `sample_nodes`, and every edge between them (as in ShaDow, arXiv:2012.01380): both directions of an
    undirected edge come together. With sizes of -1 in K hops, K layers give the seeds what they get in the whole graph, but
    for what is computed from the degrees at the rim.
    """
    part = induced(graph, edges, sample_nodes(edges, seeds, sizes, generator))
    part.seeds = len(seeds)
    return part


def induced(graph, edges: InEdges, nodes: Tensor):
    """The encoded graph on `nodes` (distinct) in that order, with all edges between them; `node` (m) are their old numbers."""
    n = len(edges.start) - 1
    place = torch.full((n,), -1)
    place[nodes] = torch.arange(len(nodes))
    places, count = edges.into(nodes)
    source = place[edges.source[places]]
    target = torch.repeat_interleave(torch.arange(len(nodes)), count)
    inside = source >= 0
    chosen = edges.edge[places[inside]]
    parts = {name: graph[name][chosen] for name in ("edge_cat", "edge_float")}
    parts |= {name: value[nodes] for name, value in graph.to_dict().items()
              if name not in EDGE_PARTS and isinstance(value, Tensor) and value.ndim and len(value) == n}
    edge_index = torch.stack([source[inside], target[inside]])
    return data_type()(**parts, edge_index=edge_index, num_nodes=len(nodes), node=nodes)


@dataclass
class Neighbourhoods:
    """Seeds as a data set: `part(places)` is the sampled subgraph of a batch of places (index, epoch, repeat) of EpochOrder.

    What is drawn depends on (seed, places) only: not on workers, or on what was drawn before.
    """

    graph: object
    seeds: Tensor
    sizes: Sequence[int]
    seed: int = 0

    def __len__(self) -> int:
        return len(self.seeds)

    @cached_property
    def edges(self) -> InEdges:
        return InEdges.of(self.graph.edge_index, self.graph.num_nodes)

    def part(self, places: list[tuple[int, int, int]]):
        generator = torch.Generator().manual_seed(number("neighbours", self.seed, places) >> 1)
        seeds = self.seeds[[index for index, _, _ in places]]
        return sample_neighbours(self.graph, self.edges, seeds, self.sizes, generator)


def _few(places: Tensor, count: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Up to `size` of each group: those that come first when every group is shuffled."""
    group = torch.repeat_interleave(torch.arange(len(count)), count)
    shuffled = torch.randperm(len(places), generator=generator)
    order = shuffled[torch.argsort(group[shuffled], stable=True)]
    rank = torch.arange(len(places)) - torch.repeat_interleave(count.cumsum(0) - count, count)
    return places[order[rank < size]]


def _check(seeds: Tensor, sizes: Sequence[int]) -> None:
    if len(torch.unique(seeds)) != len(seeds):
        raise ZooError(f"neighbours: {len(seeds)} seeds, but {len(torch.unique(seeds))} different ones; each may come once")
    if any(size < -1 for size in sizes):
        raise ZooError(f"neighbours: sizes are {list(sizes)}; allowed: -1 (all) or more")
