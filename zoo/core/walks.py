"""What the adjacency says about a pair of nodes: random walks, hops, the edge between them. numpy only, once per graph.

A_ij = 1 where an edge goes from i to j. An edge listed twice counts once (its features are averaged), an edge from a node to
itself is a step that stays there. P = D^-1 A; the row of a node without outgoing edges is 0, so nothing is infinite. Sources:
Ma et al. 2023, GRIT (walks P^0 .. P^(K-1)); Ying et al. 2021, Graphormer (hops, edges along shortest paths).
"""

from dataclasses import dataclass

import numpy as np

HOPS = 16  # this many hops or more share a bucket
UNREACHABLE, UNKNOWN, TO_VIRTUAL, FROM_VIRTUAL, IN_VIRTUAL = range(HOPS + 1, HOPS + 6)
BUCKETS = HOPS + 6
ROUTE = 5  # edges of a shortest path that Graphormer's bias reads
DENSE_NODES = 512  # up to here all pairs of a graph are cheap to look at
WALK_PRODUCTS = 5e9  # on a big graph walk powers of the edges are computed up to this many products, else only P^0 and P^1


@dataclass(frozen=True)
class Structure:
    """Pairs (query i, key j) of one graph of n nodes, sorted by i, then j; P pairs, E edges as given.

    query, key (P,) int64; walks (P W) float32, W = K, or 2 K when directed (also the walks of the reversed graph); hops (P 1)
    int64 buckets, (P 2) when directed (i to j, j to i); degree (n 2) int64: neighbours in, out; edge_pair (E 1 or 2): row of
    the pair (source, target), when directed also of (target, source); edge_weight (E,) = 1 / times listed; loops (n,): row of
    (i, i); routes (T 3): pair, edge, position of the edge on a shortest path, with route_weight (T,); empty unless asked for.
    """

    query: np.ndarray
    key: np.ndarray
    walks: np.ndarray
    hops: np.ndarray
    degree: np.ndarray
    edge_pair: np.ndarray
    edge_weight: np.ndarray
    loops: np.ndarray
    routes: np.ndarray
    route_weight: np.ndarray


def structure(edges: np.ndarray, n: int, walks: int, directed: bool, scope: str, routes: bool = False) -> Structure:
    """The pairs of a graph: edges (2 E) int64 in 0 .. n - 1, `walks` K >= 0; scope "all" pairs, or "edges" and every node itself.

    An undirected graph lists each edge both ways. On "edges" a directed graph is seen along and against its edges.
    """
    source, target = edges
    place = source * n + target
    first, back, count = np.unique(place, return_inverse=True, return_counts=True)
    weight = (1 / count[back]).astype(np.float32)
    degree = np.stack([np.bincount(first % n if n else first, minlength=n), np.bincount(first // max(n, 1), minlength=n)], 1)
    simple = np.stack([first // max(n, 1), first % max(n, 1)])
    ways = [simple, simple[::-1]] if directed else [simple]
    if scope == "all":
        pairs = np.arange(n * n)
    else:
        pairs = np.unique(np.concatenate([np.arange(n) * (n + 1), *(a * n + b for a, b in ways)]))
    query, key = pairs // max(n, 1), pairs % max(n, 1)
    row = (lambda at: at) if scope == "all" else (lambda at: np.searchsorted(pairs, at))
    edge_pair = np.stack([row(place), row(target * n + source)][: len(ways)], 1)
    if scope == "all":
        reach = [_hops(_matrix(way, n)) for way in ways]
        hops = np.stack([hop.reshape(-1) for hop, _ in reach], 1)
    else:
        hops = np.stack([_near(query, key, row(a * n + b)) for a, b in ways], 1)
    steps = np.concatenate([_walks(way, n, walks, query, key, scope) for way in ways], 1)
    found = np.zeros((0, 3), np.int64), np.zeros(0, np.float32)
    if routes:
        found = _routes(source, target, weight, *reach[0]) if scope == "all" else _steps(place, source, target, weight, row)
    loops = row(np.arange(n) * (n + 1))
    return Structure(query, key, steps, hops, degree.astype(np.int64), edge_pair, weight, loops, *found)


def _matrix(edges: np.ndarray, n: int) -> np.ndarray:
    a = np.zeros((n, n), np.float32)
    a[edges[0], edges[1]] = 1
    return a


def _walks(edges: np.ndarray, n: int, walks: int, query: np.ndarray, key: np.ndarray, scope: str) -> np.ndarray:
    """(P K): P^k_ij of the pairs."""
    if walks == 0:
        return np.zeros((len(query), 0), np.float32)
    if scope == "all" or n <= DENSE_NODES:
        powers = _powers(_matrix(edges, n), walks)
        return np.ascontiguousarray((powers.reshape(walks, -1) if scope == "all" else powers[:, query, key]).T)
    if walks * (edges.shape[1] + n) * n <= WALK_PRODUCTS:
        return _sparse_walks(edges, n, walks, query, key)
    steps = np.zeros((len(query), walks), np.float32)
    out = np.bincount(edges[0], minlength=n)
    rows = np.searchsorted(query * n + key, edges[0] * n + edges[1])
    steps[:, :1] = (query == key)[:, None]
    steps[rows, 1:2] = (1 / out[edges[0]])[:, None]
    return steps


def _powers(a: np.ndarray, walks: int) -> np.ndarray:
    """(K n n): I, P, P^2 ..."""
    p = a / np.maximum(a.sum(1, keepdims=True), 1)
    powers = np.empty((walks, *a.shape), np.float32)
    powers[:1] = np.eye(len(a), dtype=np.float32)
    for k in range(1, walks):
        np.matmul(powers[k - 1], p, out=powers[k])
    return powers


def _sparse_walks(edges: np.ndarray, n: int, walks: int, query: np.ndarray, key: np.ndarray, rows: int = 256) -> np.ndarray:
    """The same for pairs of a bigger graph: a few starting nodes at a time, each step a sum over the edges sorted by target."""
    order = np.argsort(edges[1], kind="stable")
    source, target = edges[0][order], edges[1][order]
    chance = (1 / np.bincount(edges[0], minlength=n).clip(1))[source].astype(np.float32)[:, None]
    ends, starts = np.unique(target, return_index=True)
    steps = np.zeros((len(query), walks), np.float32)
    for low in range(0, n, rows):
        a, b = np.searchsorted(query, [low, low + rows])
        here = np.zeros((n, min(rows, n - low)), np.float32)
        here[np.arange(low, low + here.shape[1]), np.arange(here.shape[1])] = 1
        for k in range(walks):
            steps[a:b, k] = here[key[a:b], query[a:b] - low]
            moved = np.zeros_like(here)
            if len(ends):
                moved[ends] = np.add.reduceat(here[source] * chance, starts)
            here = moved
    return steps


def _hops(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Buckets (n n) of the shortest path from i to j, and how many shortest paths there are (within HOPS)."""
    n = len(a)
    hops, count = np.full((n, n), UNREACHABLE), np.eye(n, dtype=np.float32)
    np.fill_diagonal(hops, 0)
    front = count
    for k in range(1, HOPS + 1):
        front = np.where(hops == UNREACHABLE, front @ a, 0)
        new = front > 0
        if not new.any():
            return hops, count
        hops[new] = k
        count = count + front
    near = (hops <= HOPS).astype(np.float32)
    while (more := (near @ near > 0) & (hops == UNREACHABLE)).any():
        hops[more] = HOPS
        near[more] = 1
    return hops, count


def _near(query: np.ndarray, key: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Hops of pairs on edges: 0 (itself), 1 (an edge that way), or unknown (only an edge the other way)."""
    hops = np.full(len(query), UNKNOWN)
    hops[edges] = 1
    hops[query == key] = 0
    return hops


def _routes(source, target, weight, hops: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges on shortest paths: the mean over all shortest paths from i to j, so that no order of nodes matters.

    Edge (u, v) lies at position p on a share count(i, u) count(v, j) / count(i, j) of them where p + 1 + hops(v, j) = hops(i, j).
    Weights sum to 1 over the first ROUTE edges of a pair.
    """
    found = []
    for i in range(len(hops)):
        position, rest = hops[i, source], hops[target]  # E, E n
        on = (position[:, None] + 1 + rest == hops[i]) & (hops[i] < HOPS) & (position < ROUTE)[:, None]
        edge, j = np.nonzero(on)
        p = position[edge]
        share = count[i, source[edge]] * count[target[edge], j] / count[i, j] * weight[edge] / np.minimum(hops[i, j], ROUTE)
        found.append((np.stack([i * len(hops) + j, edge, p], 1), share.astype(np.float32)))
    if not found:
        return np.zeros((0, 3), np.int64), np.zeros(0, np.float32)
    return np.concatenate([rows for rows, _ in found]), np.concatenate([share for _, share in found])


def _steps(place, source, target, weight, row) -> tuple[np.ndarray, np.ndarray]:
    """On edges the shortest path is the edge itself."""
    edge = np.flatnonzero(source != target)
    return np.stack([row(place[edge]), edge, np.zeros_like(edge)], 1), weight[edge]
