"""The links of one big graph in training, validation and test parts, and pairs without a link."""

from dataclasses import dataclass

import numpy as np
import torch

from zoo.errors import ZooError


@dataclass
class Links:
    """The links of a graph in training, validation and test parts (80, 10, 10 %), by a hash of (seed, link); and as many
    pairs without a link for the last two. Each array (2 m) names a link once; `graph` is the encoded graph."""

    graph: object
    part: dict[str, np.ndarray]
    absent: dict[str, np.ndarray]
    links: set

    @classmethod
    def of(cls, graph, seed: int) -> "Links":
        edges = graph.edge_index.numpy()
        both = _symmetric(edges)
        once = np.unique(edges[:, edges[0] < edges[1]] if both else edges[:, edges[0] != edges[1]], axis=1)
        draw = np.random.default_rng(seed).permutation(once.shape[1])
        held = max(1, once.shape[1] // 10)
        if once.shape[1] < 10:
            raise ZooError(f"link_prediction: {once.shape[1]} links; 10 or more are needed to hold some out")
        part = {"val": once[:, draw[:held]], "test": once[:, draw[held : 2 * held]], "train": once[:, draw[2 * held :]]}
        known = set(map(tuple, edges.T.tolist()))
        links = cls(graph, part, {}, known)
        links.absent = {name: links.without(part[name].shape[1], np.random.default_rng([seed, at]))
                        for at, name in enumerate(("val", "test"))}
        return links

    def without(self, count: int, random: np.random.Generator) -> np.ndarray:
        """(2 count) pairs of distinct nodes that no edge joins, in either direction."""
        n, found = self.graph.num_nodes, []
        for _ in range(100):
            tried = random.integers(0, n, (2, 2 * count))
            found += [(u, v) for u, v in tried.T.tolist() if u != v and (u, v) not in self.links and (v, u) not in self.links]
            if len(found) >= count:
                return np.array(found[:count], np.int64).T
        raise ZooError(f"link_prediction: the graph is too dense, no {count} pairs without a link were found")

    def sample(self, seen: np.ndarray, present: np.ndarray, absent: np.ndarray):
        """The encoded graph with the links `seen` only, and the pairs to score."""
        edges = self.graph.edge_index
        n = self.graph.num_nodes
        keep = torch.from_numpy(np.isin(_code(edges.numpy(), n), _code(np.concatenate([seen, seen[::-1]], 1), n)))
        graph = self.graph.clone()
        graph.edge_index, graph.edge_cat, graph.edge_float = edges[:, keep], graph.edge_cat[keep], graph.edge_float[keep]
        graph.edge_label_index = torch.from_numpy(np.concatenate([present, absent], 1))
        graph.y = torch.cat([torch.ones(present.shape[1]), torch.zeros(absent.shape[1])])
        return graph


def _symmetric(edges: np.ndarray) -> bool:
    n = int(edges.max(initial=0)) + 1
    return bool(np.isin(_code(edges[::-1], n), _code(edges, n)).all())


def _code(edges: np.ndarray, n: int) -> np.ndarray:
    return edges[0] * n + edges[1]
