"""Rollout: equal to the product of matrices written out, through windows and merging; rows sum to 1."""

import numpy as np
import pytest
import torch
from small_models import audio, graph, image, text
from test_maps import MOLECULE, PICTURE, WAVE

import zoo
from zoo.explain.maps import Map, Maps
from zoo.explain.rollout import rollout


def mixed(weights):
    full = weights.mean(0) + np.eye(weights.shape[-1])
    return full / full.sum(-1, keepdims=True)


def merging(before, after):
    """(after before), token by token: 2 an axis, the share of each real one equal."""
    rows = [np.unravel_index(i, before) for i in range(np.prod(before))]
    full = np.zeros((np.prod(after), np.prod(before)))
    for i, place in enumerate(rows):
        full[np.ravel_multi_index([p // 2 for p in place], after), i] = 1
    return full / full.sum(1, keepdims=True)


@pytest.mark.parametrize("build, item", [(image, PICTURE), (audio, WAVE), (graph, MOLECULE), (text, "a b c d")])
def test_product_of_all_layers(build, item):
    maps = zoo.explain(build(), item)
    expected, axes = None, None
    for layer in maps.values():
        if expected is None:
            expected, axes = np.eye(np.prod(layer.axes)), layer.axes
        if layer.axes != axes:
            expected, axes = merging(axes, layer.axes) @ expected, layer.axes
        expected = mixed(layer.weights) @ expected
    found = rollout(maps)
    first, last = list(maps.values())[0], list(maps.values())[-1]
    assert found.heads == 1 and found.axes == first.axes and found.askers == (last.axes, last.step)
    np.testing.assert_allclose(found.weights[0], expected, atol=1e-6)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(found.received().flatten(), expected.mean(0), atol=1e-6)


def test_two_layers_by_hand():
    def layer(rows):
        return Map((2,), 1.0, torch.tensor([rows]), lambda some: some)

    maps = Maps({"a": layer([[1.0, 0.0], [1.0, 0.0]]), "b": layer([[0.0, 1.0], [0.0, 1.0]])}, torch.zeros(1, 1), None)
    # A1 = [[1, 0], [.5, .5]], A2 = [[.5, .5], [0, 1]]
    np.testing.assert_allclose(rollout(maps).weights[0], [[0.75, 0.25], [0.5, 0.5]])


def test_drawn(tmp_path):
    for build, item, query in ((image, PICTURE, "4,5px"), (audio, WAVE, "0.1s"), (graph, MOLECULE, "2"), (text, "a b c", 1)):
        zoo.explain.draw(build(), item, tmp_path / "a.png", layer="rollout", query=query)
        assert (tmp_path / "a.png").stat().st_size > 10000
