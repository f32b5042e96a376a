"""Attention rollout: how much of each first token has come down to each last one through all layers.

    R = A_L ... A_2 A_1,   A = rows of (mean over heads of the weights + I) that sum to 1

Source: Abnar & Zuidema 2020, eq. 1. Windows are put over all pairs of tokens first. Where a model merges neighbours between
two layers, each real one passes an equal share of the merged token on. Convolutions, the graph models' local sums and how much
a layer adds to what it is given are left out.
"""

import numpy as np
import torch

from zoo.explain.maps import Map, Maps

NAME = "rollout"  # stands for a layer


def rollout(maps: Maps) -> Map:
    """One head: weights (1 m n) from the n tokens of the first layer to the m of the last; each row sums to 1."""
    layers = list(maps.values())
    first, last = layers[0], layers[-1]
    flow = np.eye(np.prod(last.axes), dtype=np.float32)
    for layer, before in zip(layers[::-1], [*layers[-2::-1], first]):
        weight = layer.weight()
        mixed = flow + flow @ weight  # (weight + I) / 2, of which each row sums to 1
        flow = _merged(mixed / mixed.sum(-1, keepdims=True), layer.axes, before.axes)
    asking = None if last.axes == first.axes else (last.axes, last.step)
    return Map(first.axes, first.step, torch.from_numpy(flow)[None], lambda some: some, asking=asking)


def _merged(flow: np.ndarray, axes: tuple[int, ...], before: tuple[int, ...]) -> np.ndarray:
    """Columns of the tokens that a merging layer made -> of those it was given, 2 an axis; an odd one at the end was alone."""
    if axes == before:
        return flow
    parent = np.zeros(1, int)
    for n, m in zip(before, axes):
        parent = (parent[:, None] * m + np.arange(n) // 2).flatten()
    return flow[:, parent] / np.bincount(parent)[parent]
