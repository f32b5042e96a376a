"""Texts, and the grid of all layers and heads: what is drawn is what was recorded."""

import numpy as np
import pytest
import torch
from small_models import audio, graph, image, text, text_image
from test_maps import MOLECULE, PICTURE, WAVE

import zoo
from zoo.errors import UsageError
from zoo.explain.heads import draw_grid, shrink
from zoo.explain.query import find_query
from zoo.explain.texts import draw_text


def test_text():
    model = text()
    maps = zoo.explain(model, "a b c")
    ids = model.preprocess("a b c")[None]
    plain = model(ids, torch.ones_like(ids, dtype=torch.bool))
    assert torch.allclose(maps.logits, plain, atol=1e-5) and list(maps) == ["blocks.0.attn", "blocks.1.attn"]
    shown = maps["blocks.1.attn"]
    np.testing.assert_allclose(shown.weights.sum(-1), 1, atol=1e-6)
    for query in (None, 2):
        figure = draw_text(model, "a b c", maps, "blocks.1.attn", slice(0, 1), query)
        top, bottom = figure.axes[:2]
        expected = shown.weights[0].mean(0) if query is None else shown.weights[0][query]
        np.testing.assert_allclose([bar.get_height() for bar in top.patches], expected * 5, rtol=1e-5)
        np.testing.assert_allclose(bottom.images[0].get_array(), shown.weights[0], rtol=1e-6)
        names = [label.get_text() for label in bottom.get_yticklabels()]
        assert names == [label.get_text() for label in bottom.get_xticklabels()] == ["p0", "p1", "p2", "p3", "p4"]
    assert "head 0 of 0 to 1, asked: p2 (2)" in figure.get_suptitle()


@pytest.mark.parametrize("build, item", [(audio, WAVE), (text, "a b"), (graph, MOLECULE)])
def test_every_layer_and_head_of_a_sequence(build, item):
    model = build()
    maps = zoo.explain(model, item)
    figure = draw_grid(model, item, maps)
    drawn = iter([axes for axes in figure.axes if axes.images])
    for name, shown in maps.items():
        for head in range(shown.heads):
            axes = next(drawn)
            np.testing.assert_allclose(axes.images[0].get_array(), shown.weights[head], rtol=1e-6)
            assert axes.get_title() == f"head {head}" and (head or axes.get_ylabel() == name.removesuffix(".attn"))
    assert next(drawn, None) is None and f"{len(maps)} layers" in figure.get_suptitle()


def test_grid_of_a_picture():
    model = image()
    maps = zoo.explain(model, PICTURE)
    asked = lambda shown: find_query("9,13px", shown, "image")  # noqa: E731
    for query in (None, asked):
        figure = draw_grid(model, PICTURE, maps, query)
        last = [axes for axes in figure.axes if axes.images][-1]
        shown = maps["stages.1.blocks.0.attn"]
        row = shown.weights[-1].mean(0) if query is None else shown.weights[-1][2 * 5 + 3]
        np.testing.assert_allclose(last.images[-1].get_array(), row.reshape(6, 5) * 30, rtol=1e-5)
    assert last.patches[0].get_xy() == (12, 8)


def test_many_tokens_are_put_together():
    weights = np.random.default_rng(0).dirichlet(np.ones(70), 50)
    small = shrink(weights, 20)
    assert small.shape == (17, 18)  # by 3 and 4
    np.testing.assert_allclose(small.sum(1), 1)
    assert small[0, 0] == pytest.approx(weights[:3, :4].sum() / 3) and small[16, 17] == pytest.approx(weights[48:, 68:].sum() / 2)
    assert shrink(weights, 70) is not None and (shrink(weights, 70) == weights).all()


def test_files_and_wrong_wishes(tmp_path):
    zoo.explain.grid(image(), PICTURE, tmp_path / "a.png", query="2,3")
    assert (tmp_path / "a.png").stat().st_size > 10000
    for model, item, query, message in (
        (image(), PICTURE, "9,9", "query '9,9': the layer has tokens ROW,COL from 0,0 to 5,4"),
        (text(), "a b", "1", "the grid shows all that look"),
        (text_image(), PICTURE, None, "text_image_test has two kinds of tokens"),
    ):
        with pytest.raises(UsageError, match=message):
            zoo.explain.grid(model, item, tmp_path / "b.png", query=query)
    assert not (tmp_path / "b.png").exists()
