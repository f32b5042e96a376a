"""Where the nodes of a graph lie in the plane: molecules as chemists draw them, other graphs with edges of equal length."""

from dataclasses import dataclass

import numpy as np

from zoo.molecules import parse

STEPS = 300  # of stress majorisation; small graphs settle in about 100
SIZE = 0.45  # diameter of a circle where an edge is 1 long


@dataclass(frozen=True)
class Plane:
    """xy (n 2), a name for each node, `size` (diameter of a circle), order {(i, j), i < j: lines of the edge} (default 1)."""

    xy: np.ndarray
    names: list[str]
    size: float
    order: dict[tuple[int, int], int]

    def strokes(self, edges: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lines (m 2 2) of edges (2 e), two or three beside each other for double and triple bonds, and the value of each."""
        ends, value = [np.zeros((0, 2, 2))], []
        for (i, j), what in zip(edges.T.tolist(), values):
            count = self.order.get((i, j), 1)
            along = self.xy[j] - self.xy[i]
            across = np.array([-along[1], along[0]]) / max(np.hypot(*along), 1e-9) * 0.26 * self.size
            for at in np.arange(count) - (count - 1) / 2:
                ends.append((self.xy[[i, j]] + at * across)[None])
                value.append(what)
        return np.concatenate(ends), np.array(value)


def molecule(item) -> Plane:
    """RDKit's coordinates of a SMILES string or Mol; aromatic rings with alternating double bonds."""
    mol = parse(item) if isinstance(item, str) else item
    from rdkit import Chem
    from rdkit.Chem import rdDepictor

    mol = Chem.Mol(mol)
    Chem.SanitizeMol(mol)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    rdDepictor.Compute2DCoords(mol)
    xy = mol.GetConformer().GetPositions()[:, :2]
    ends = {tuple(sorted((b.GetBeginAtomIdx(), b.GetEndAtomIdx()))): b for b in mol.GetBonds()}
    order = {pair: min(3, max(1, round(bond.GetBondTypeAsDouble()))) for pair, bond in ends.items()}
    return Plane(xy, [_symbol(atom) for atom in mol.GetAtoms()], 0.75, order)


def _symbol(atom) -> str:
    charge = atom.GetFormalCharge()
    if not charge:
        return atom.GetSymbol()
    count = "" if abs(charge) == 1 else str(abs(charge))
    return f"{atom.GetSymbol()}$^{{{count}{'+' if charge > 0 else '-'}}}$"


def spread(edges: np.ndarray, nodes: np.ndarray) -> Plane:
    """Distances in the plane near those along edges (2 m). Source: Gansner et al. 2004, stress majorization, eq. 4."""
    hops = _hops(edges, len(nodes))
    near = np.divide(1, hops**2, out=np.zeros_like(hops), where=hops > 0)
    solve = np.linalg.pinv(np.diag(near.sum(1)) - near)
    xy = np.random.default_rng(0).normal(size=(len(nodes), 2))
    for _ in range(STEPS):
        apart = np.linalg.norm(xy[:, None] - xy[None], axis=-1)
        pull = near * hops / np.maximum(apart, 1e-9)
        xy = solve @ (np.diag(pull.sum(1)) - pull) @ xy
    xy = _apart(xy - xy.mean(0), SIZE)
    if len(nodes) > 1:
        xy = xy @ np.linalg.svd(xy, full_matrices=False)[2].T  # the longer way lies flat
    return Plane(xy, [str(node) for node in nodes], SIZE, {})


def _apart(xy: np.ndarray, size: float) -> np.ndarray:
    """Circles of that size pushed aside until none covers another, or nearly so."""
    for _ in range(STEPS):
        gap = xy[:, None] - xy[None]
        far = np.linalg.norm(gap, axis=-1) + 10 * size * np.eye(len(xy))
        push = np.maximum(1.15 * size - far, 0) / np.maximum(far, 1e-9)
        if not push.any():
            break
        xy = xy + 0.25 * (push[..., None] * gap).sum(1)
    return xy


def _hops(edges: np.ndarray, n: int) -> np.ndarray:
    """(n n) steps along edges either way; parts that do not hang together lie a little farther than the longest way."""
    linked = np.eye(n, dtype=bool)
    linked[edges[0], edges[1]] = linked[edges[1], edges[0]] = True
    hops, reach = np.full((n, n), np.inf), np.eye(n, dtype=bool)
    np.fill_diagonal(hops, 0)
    for step in range(1, n):
        further = (reach.astype(np.float32) @ linked > 0) & np.isinf(hops)
        if not further.any():
            break
        hops[further] = step
        reach |= further
    longest = hops[np.isfinite(hops)].max()
    return np.where(np.isinf(hops), longest + 2, hops)
