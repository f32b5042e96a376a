"""A graph model as one program on padded dense graphs: all that numpy works out for `Collate` is worked out by the program.

    node_cat (b n C) int64, node_float (b n F), real (b n) bool, edge (b n n) bool: one from i to j,
    edge_cat (b n n Ce) int64, edge_float (b n n Fe); columns that the model does not have are left out

A padded node has real False; what its columns and edges hold changes nothing. An edge can be given once only.
"""

import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from zoo.core.adjacency import Plain, Walks
from zoo.core.packed import Square
from zoo.core.pairs import Pairs
from zoo.core.walks import HOPS, UNREACHABLE
from zoo.errors import ZooError
from zoo.models.graph_batch import GraphBatch

COLUMNS = ("node_cat", "node_float", "edge_cat", "edge_float")
LEAST = 2  # nodes of a square; torch takes 1 for a special case
DOUBLINGS = 5  # of HOPS: paths of up to 512 edges are found, as long as a path in a graph of 512 nodes can be


class DenseGraph(nn.Module):
    """forward(tensors named by `inputs`) -> logits (b classes) and unit vectors (b dim); of nodes (b n ...).

    ZooError where the model needs what a dense program cannot have.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        _fits(model)
        self.model = copy.deepcopy(model)
        self.smooth, self.model.smooth = self.model.smooth, 0  # done here, without sparse products
        for block in self.model.blocks:
            if block.local is not None:
                block.local = DenseSum(block.local.proj)
        widths = dict(zip(COLUMNS, model.schema.values()))
        self.inputs = [name for name in ("node_cat", "node_float", "real", "edge", "edge_cat", "edge_float")
                       if widths.get(name, 1)]
        self.axes = {name: {0: "batch", 1: "nodes"} | ({2: "nodes"} if name.startswith("edge") else {}) for name in self.inputs}

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(self.inputs, tensors))
        real = given["real"]
        edge = given["edge"] & real.unsqueeze(1) & real.unsqueeze(2)
        batch = self._batch(given, real, edge.float())
        x = self.model.forward_features(batch)
        x = x * rearrange(real, "b n -> (b n) 1")
        vector = self.model.forward_head(x, batch, pre_logits=True)
        found = self.model.classifier(vector), F.normalize(vector, dim=-1)
        if self.model.level == "graph":
            return found
        return tuple(rearrange(part, "(b n) d -> b n d", b=real.shape[0]) for part in found)

    def _batch(self, given: dict[str, Tensor], real: Tensor, a: Tensor) -> GraphBatch:
        """All places of all squares as nodes, all pairs as edges, of weight 0 where there is none."""
        b, n = real.shape
        place = torch.arange(b * n, device=real.device)
        index = rearrange(place, "(b n) -> b n", b=b)
        pair = rearrange(torch.arange(b * n * n, device=real.device), "(b i j) -> b i j", b=b, i=n)
        query, key = repeat(index, "b i -> (b i j)", j=n), repeat(index, "b j -> (b i j)", i=n)
        ways = [a, a.mT] if self.model.directed else [a]
        pairs = [pair, pair.mT] if self.model.directed else [pair]
        walks = [step for way in ways for step in powers(way, self.model.walks)]
        first = torch.arange(n, device=real.device) == 0
        seen = real | (~real.any(1, keepdim=True) & first)  # a graph without nodes has one open place, so that nothing is NaN
        given = {**given, "node_float": self._smooth(given["node_float"], a)} if self.smooth and "node_float" in given else given
        return GraphBatch(
            sizes=real.sum(1), graph=repeat(torch.arange(b, device=real.device), "b -> (b n)", n=n),
            x_cat=_rows(given, "node_cat", place, torch.long), x_float=_rows(given, "node_float", place, torch.float),
            edge_index=torch.stack([query, key]), edge_weight=a.flatten(),
            edge_cat=_rows(given, "edge_cat", query, torch.long), edge_float=_rows(given, "edge_float", query, torch.float),
            edge_pair=torch.stack([way.flatten() for way in pairs], 1),
            degree=rearrange(torch.stack([a.sum(1), a.sum(2)], -1), "b n ways -> (b n) ways").long(),
            loops=pair.diagonal(dim1=1, dim2=2).flatten(),
            walks=torch.stack([step.flatten() for step in walks], 1) if walks else a.new_zeros(query.shape[0], 0),
            hops=torch.stack([hops(way).flatten() for way in ways], 1),
            routes=pair.new_zeros(0, 3), route_weight=a.new_zeros(0),
            pairs=Pairs(query, key, squares=(Square(b, n, rearrange(seen, "b n -> b 1 1 n")),), index=place, spot=place),
        )

    def _smooth(self, x: Tensor, a: Tensor) -> Tensor:
        """See zoo.models.graph_parts.averaged; padding, which has no edges, averages itself."""
        a = a.mT + torch.eye(a.shape[1], device=a.device)
        for _ in range(self.smooth):
            x = torch.bmm(a, x) / a.sum(2, keepdim=True)
        return x


class DenseSum(nn.Module):
    """EdgeSum where edge number b, i, j goes from i to j, and has the weight 0 where there is none: a sum over i."""

    def __init__(self, proj: nn.Linear):
        super().__init__()
        self.proj = proj

    def forward(self, x: Tensor, edges: Tensor, batch: GraphBatch) -> Tensor:
        square = batch.pairs.squares[0]
        b, n = square.items, square.tokens
        there = rearrange(edges, "(b i j) d -> b i j d", b=b, i=n)
        weight = rearrange(batch.edge_weight, "(b i j) -> b i j 1", b=b, i=n)
        message = F.relu(rearrange(x, "(b i) d -> b i 1 d", b=b) + there) * weight
        return self.proj(x + rearrange(message.sum(1), "b j d -> (b j) d"))


def powers(a: Tensor, walks: int) -> Iterator[Tensor]:
    """I, P, P^2 ... of adjacency matrices (b n n); see zoo.core.walks. bmm, as @ takes a batch of 1 for a special case."""
    p = a / a.sum(2, keepdim=True).clamp(min=1)
    power = _ones(a)
    for k in range(walks):
        power = power if k == 0 else torch.bmm(power, p)
        yield power


def hops(a: Tensor) -> Tensor:
    """Buckets (b n n) int64 of the shortest path from i to j; see zoo.core.walks."""
    near = _ones(a)
    count = near  # how many of 0 .. HOPS steps are not enough
    for _ in range(HOPS):
        near = ((near + torch.bmm(near, a)) > 0).float()
        count = count + near
    far = near
    for _ in range(DOUBLINGS):
        far = (torch.bmm(far, far) > 0).float()
    found = HOPS + 1 - count  # within HOPS steps: the number of steps
    return torch.where(near > 0, found, torch.where(far > 0, float(HOPS), float(UNREACHABLE))).long()


def _ones(a: Tensor) -> Tensor:
    """The unit matrix for each of a (b n n); written out, as torch asks of an expanded batch whether it is 1."""
    return torch.eye(a.shape[1], device=a.device) + torch.zeros_like(a)


def _rows(given: dict[str, Tensor], name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """The columns `name`, one row a node or pair; none of width 0."""
    return given[name].flatten(0, -2) if name in given else torch.zeros(like.shape[0], 0, dtype=dtype, device=like.device)


def _fits(model: nn.Module) -> None:
    def refuse(why: str) -> None:
        raise ZooError(f"{model.card.name or model.card.model}: {why}, which no padded dense program can have; "
                       "take --to hf and zoo.load, or zoo predict")

    if type(model.position) not in (Walks, Plain):
        refuse("its score reads shortest paths or no pairs at all")
    if model.virtual is not None:
        refuse("it has a virtual node")
    if model.level == "edge":
        refuse("it scores links")
    if model.path == "edges":
        refuse("it looks along the edges of one big graph (path='edges')")


def collated(module: DenseGraph, graphs: list) -> tuple[Tensor, ...]:
    """Encoded graphs (see zoo.models.graph_batch) -> the tensors that `module` takes. ZooError for an edge given twice."""
    b, n = len(graphs), max(LEAST, *(len(graph.x_cat) for graph in graphs))
    of = {"node_cat": "x_cat", "node_float": "x_float", "edge_cat": "edge_cat", "edge_float": "edge_float"}
    found = {"real": torch.zeros(b, n, dtype=torch.bool), "edge": torch.zeros(b, n, n, dtype=torch.bool)}
    for name in module.inputs:
        if name in of:
            like = getattr(graphs[0], of[name])
            found[name] = like.new_zeros(b, n, *([n] if name.startswith("edge") else []), like.shape[1])
    for i, graph in enumerate(graphs):
        size, (source, target) = len(graph.x_cat), graph.edge_index
        if len(torch.unique(source * n + target)) < len(source):
            raise ZooError(f"graph {i}: an edge is listed twice, which a dense program cannot be given")
        found["real"][i, :size] = True
        found["edge"][i, source, target] = True
        for name in found.keys() & of.keys():
            values = getattr(graph, of[name])
            if name.startswith("edge"):
                found[name][i, source, target] = values
            else:
                found[name][i, :size] = values
    return tuple(found[name] for name in module.inputs)
