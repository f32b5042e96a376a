"""The first shortest path between two nodes that Floyd-Warshall finds, as Graphormer reads it. numpy only, once per graph.

zoo.core.walks takes the mean over all shortest paths in its place, which no order of the nodes changes; this is for imported
weights, which saw one path. Source: transformers 4.57, models/deprecated/graphormer/algos_graphormer.pyx.
"""

from dataclasses import replace

import numpy as np

from zoo.core.walks import BUCKETS, HOPS, UNREACHABLE, Structure, structure

ENDLESS = 510  # this many hops or more count as unreachable
FAR = ENDLESS - 1  # hops that can be told apart


def first_paths(edges: np.ndarray, n: int, route: int, far: int) -> Structure:
    """All pairs of a graph of n nodes, as zoo.core.walks.structure gives them, but for hops, routes and route_weight.

    hops: up to `far` told apart, as `bucket` numbers them. routes: the first `route` edges of the path that is found first.
    An edge listed twice is read where it is listed last.
    """
    hops, via = _floyd_warshall(edges, n)
    pair, start, end, position = _steps(hops, via, route)
    edge = np.zeros(n * n, np.int64)
    edge[edges[0] * n + edges[1]] = np.arange(edges.shape[1])
    rows = np.stack([pair, edge[start * n + end], position], 1)
    weight = 1 / np.minimum(hops.reshape(-1)[pair], route)
    found = structure(edges, n, 0, False, "all")
    return replace(found, hops=bucket(hops, far).reshape(-1, 1), routes=rows, route_weight=weight.astype(np.float32))


def bucket(hops: np.ndarray, far: int) -> np.ndarray:
    """Hops 0, 1 .. -> rows of a table: 0 .. 16 as they are, then walks' codes for pairs without a distance, then 17 .. far."""
    near = np.minimum(hops, far)
    return np.where(hops >= ENDLESS, UNREACHABLE, np.where(near <= HOPS, near, near + BUCKETS - HOPS - 1))


def _floyd_warshall(edges: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Hops from i to j (n n), ENDLESS where there is no path, and a node in between, -1 where the path is an edge."""
    hops, via = np.full((n, n), ENDLESS), np.full((n, n), -1)
    hops[edges[0], edges[1]] = 1
    np.fill_diagonal(hops, 0)
    for k in range(n):
        through = hops[:, k, None] + hops[k]
        shorter = through < hops
        hops[shorter], via[shorter] = through[shorter], k
    return hops, via


def _steps(hops: np.ndarray, via: np.ndarray, route: int) -> tuple[np.ndarray, ...]:
    """Pair, start, end and position of the first `route` edges of every path: stretches are cut at `via` until they are edges."""
    n = len(hops)
    pair = np.flatnonzero((hops > 0) & (hops < ENDLESS))
    start, end = pair // max(n, 1), pair % max(n, 1)
    while (between := via[start, end]).max(initial=-1) >= 0:
        cut = between >= 0
        which = np.repeat(np.arange(len(cut)), 1 + cut)
        second = np.concatenate([[False], which[1:] == which[:-1]])
        first_half = cut[which] & ~second
        middle = between[which]
        pair, start, end = pair[which], np.where(second, middle, start[which]), np.where(first_half, middle, end[which])
    begin = np.concatenate([[True], pair[1:] != pair[:-1]]) if len(pair) else np.zeros(0, bool)
    position = np.arange(len(pair)) - np.maximum.accumulate(np.where(begin, np.arange(len(pair)), 0))
    kept = position < route
    return pair[kept], start[kept], end[kept], position[kept]
