"""Pair features against counting by hand: matrix powers, breadth-first search, all shortest paths."""

import time
from itertools import product

import numpy as np
import pytest

from zoo.core import walks
from zoo.core.walks import HOPS, ROUTE, UNKNOWN, UNREACHABLE, structure


def random_edges(n: int, count: int, seed: int, both: bool) -> np.ndarray:
    edges = np.random.default_rng(seed).integers(0, n, (2, count))
    return np.concatenate([edges, edges[::-1]], 1) if both else edges


def path(n: int) -> np.ndarray:
    line = np.stack([np.arange(n - 1), np.arange(1, n)])
    return np.concatenate([line, line[::-1]], 1)


def shortest_paths(edges: np.ndarray, i: int, j: int) -> list[list[tuple[int, int]]]:
    """All shortest paths from i to j as lists of edges, by breadth-first search over whole paths."""
    after = {a: sorted({b for s, b in edges.T.tolist() if s == a}) for a in range(edges.max() + 1)}
    front = [[i]]
    for _ in range(len(after) + 1):
        if done := [p for p in front if p[-1] == j]:
            return [list(zip(p, p[1:])) for p in done]
        front = [[*p, b] for p in front for b in after.get(p[-1], []) if b not in p]
    return []


@pytest.mark.parametrize("directed", [False, True])
def test_walks_are_powers_of_the_transition_matrix(directed):
    edges = random_edges(9, 12, 0, not directed)
    found = structure(edges, 9, 5, directed, "all").walks.reshape(9, 9, -1)
    a = np.zeros((9, 9))
    a[edges[0], edges[1]] = 1
    for way, matrix in enumerate([a, a.T][: 2 if directed else 1]):
        p = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
        for k in range(5):
            assert np.allclose(found[:, :, 5 * way + k], np.linalg.matrix_power(p, k), atol=1e-6)


@pytest.mark.parametrize("directed", [False, True])
def test_hops_and_routes_are_those_of_all_shortest_paths(directed):
    edges = random_edges(8, 9, 3, not directed)
    edges = np.concatenate([edges, edges[:, :2], [[4], [4]]], 1)  # two listed twice, one loop
    found = structure(edges, 8, 2, directed, "all", routes=True)
    hops = found.hops.reshape(8, 8, -1)
    listed = {}
    for u, v in edges.T.tolist():
        listed[u, v] = listed.get((u, v), 0) + 1
    for i, j in product(range(8), range(8)):
        paths = shortest_paths(edges, i, j)
        assert hops[i, j, 0] == (len(paths[0]) if paths else UNREACHABLE)
        if directed:
            assert hops[j, i, 1] == hops[i, j, 0]
        expected = {}
        for p in paths:
            for at, (u, v) in enumerate(p[:ROUTE]):
                for e, edge in enumerate(edges.T.tolist()):
                    if edge == [u, v]:
                        share = 1 / len(paths) / listed[u, v] / min(len(p), ROUTE)
                        expected[e, at] = expected.get((e, at), 0) + share
        rows = found.routes[:, 0] == i * 8 + j
        given = {(int(e), int(at)): w for (_, e, at), w in zip(found.routes[rows], found.route_weight[rows])}
        assert given == pytest.approx(expected, abs=1e-6)


def test_far_and_unreachable_have_their_own_buckets():
    n = HOPS + 20
    hops = structure(path(n), n + 1, 1, False, "all").hops.reshape(n + 1, n + 1)
    assert hops[0, : HOPS + 1].tolist() == list(range(HOPS + 1))
    assert (hops[0, HOPS:n] == HOPS).all() and hops[0, n] == UNREACHABLE and hops[n, n] == 0


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("small", [walks.DENSE_NODES, 0])
def test_edges_hold_the_same_as_all_pairs(directed, small, monkeypatch):
    monkeypatch.setattr(walks, "DENSE_NODES", small)  # 0: walk powers without an n x n matrix
    n, edges = 300, random_edges(300, 500, 1, not directed)
    whole, part = structure(edges, n, 6, directed, "all", True), structure(edges, n, 6, directed, "edges", True)
    rows = part.query * n + part.key
    assert (np.diff(rows) > 0).all()
    assert np.allclose(part.walks, whole.walks[rows], atol=1e-6)
    assert np.array_equal(rows[part.edge_pair], whole.edge_pair) and np.array_equal(rows[part.loops], whole.loops)
    known = part.hops != UNKNOWN
    assert (part.hops == np.where(known, whole.hops[rows], UNKNOWN)).all() and known.all() != directed
    assert np.array_equal(part.degree, whole.degree)


def test_on_a_big_graph_only_the_first_two_powers_are_given(monkeypatch):
    edges = random_edges(40, 60, 2, True)
    expected = structure(edges, 40, 2, False, "edges").walks
    monkeypatch.setattr(walks, "DENSE_NODES", 0)
    monkeypatch.setattr(walks, "WALK_PRODUCTS", 0)
    found = structure(edges, 40, 5, False, "edges").walks
    assert np.allclose(found[:, :2], expected) and not found[:, 2:].any()


@pytest.mark.parametrize("scope", ["all", "edges"])
def test_an_edge_listed_twice_counts_once(scope):
    edges = random_edges(6, 7, 5, True)
    once, twice = (structure(e, 6, 4, False, scope) for e in (np.unique(edges, axis=1), np.concatenate([edges, edges], 1)))
    assert np.allclose(once.walks, twice.walks) and np.array_equal(once.degree, twice.degree)
    total = np.bincount(twice.edge_pair[:, 0], twice.edge_weight)
    assert np.allclose(total[total > 0], 1)


@pytest.mark.parametrize("scope", ["all", "edges"])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_tiny_graphs(scope, n):
    found = structure(np.zeros((2, 0), np.int64), n, 3, True, scope, True)
    assert len(found.query) == (n * n if scope == "all" else n) and found.walks.shape == (len(found.query), 6)
    assert np.isfinite(found.walks).all() and not found.degree.any() and not len(found.routes)


def test_a_molecule_of_30_atoms_takes_no_more_than_2_ms():
    ring = random_edges(30, 4, 0, True)
    edges = np.concatenate([path(30), ring], 1)
    times = []
    for _ in range(20):
        start = time.thread_time()
        structure(edges, 30, 16, False, "all")
        times.append(time.thread_time() - start)
    assert min(times) < 2e-3
