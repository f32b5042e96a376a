"""Words over pictures and patches over words, against the layer's attention written out."""

import numpy as np
import pytest
import torch
from einops import rearrange
from small_models import text_image
from test_draw import size
from test_maps import PICTURE

import zoo
from zoo.core import Recorder
from zoo.errors import UsageError
from zoo.explain.pairs import draw_patches, draw_words
from zoo.explain.words import layers, words


@torch.no_grad()
def written_out(model, side, text):
    """(h queries keys) of layer 0 of the fusion, from the towers' outputs."""
    ids, x = model.preprocess_text(text)[None], model.preprocess_image(PICTURE)[None]
    said = model.fusion.text_in(model.text_states(ids, torch.ones_like(ids, dtype=torch.bool)))
    seen = model.fusion.image_in(model.image.forward_features(x).flatten(1, 2))
    block = getattr(model.fusion, f"{side}_asks")[0]
    asking, asked = (said, seen) if side == "text" else (seen, said)
    q = rearrange(block.attn.q(block.norm1(asking)), "1 n (h d) -> h n d", h=block.attn.heads)
    k = rearrange(block.attn.kv(block.norm_context(asked)), "1 m (two h d) -> two h m d", two=2, h=block.attn.heads)[0]
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


def test_both_directions():
    model, text = text_image(), "a red car"
    heats = words(model, text, PICTURE, head=1)
    expected = written_out(model, "text", text)[1]
    for i, (_, heat) in enumerate(heats):
        np.testing.assert_allclose(heat.flatten(), expected[i + 1], atol=1e-6)
    names, weights = zoo.explain.patches(model, text, PICTURE, head=1)
    assert names == ["a", "red", "car", "(start)", "(end)"] and weights.shape == (4, 6, 5)
    np.testing.assert_allclose(weights.reshape(24, 5), written_out(model, "image", text)[1][:, [1, 2, 3, 0, 4]], atol=1e-6)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert not np.allclose(weights, zoo.explain.patches(model, text, PICTURE)[1])


def test_the_answer_stays():
    model, ids = text_image(), torch.arange(5)[None]
    mask, x = torch.ones_like(ids, dtype=torch.bool), torch.rand(1, 3, 16, 24)
    with torch.no_grad():
        states, tokens = model.text_states(ids, mask), model.image.forward_features(x).flatten(1, 2)
        plain = model.forward_match(states, mask, tokens)
        with Recorder(model.fusion):
            recorded = model.forward_match(states, mask, tokens)
    assert torch.allclose(plain, recorded, atol=1e-5)


def test_a_read_out_token_is_told_apart():
    model = text_image(fusion={"readout": "token", "self_attention": True})
    names, weights = zoo.explain.patches(model, "a car", PICTURE)
    assert names == ["a", "car", "(start)", "(end)", "(read-out)"] and weights.shape == (4, 6, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    ids, x = model.preprocess_text("a car")[None], model.preprocess_image(PICTURE)[None]
    with torch.no_grad(), Recorder(model.fusion) as record:
        model.forward_match(model.text_states(ids, ids >= 0), ids >= 0, model.image.forward_features(x).flatten(1, 2))
    row = record.maps["text_asks.0.attn"][0].mean(0)[3]  # read-out, start, a, car
    np.testing.assert_allclose(words(model, "a car", PICTURE)[1][1].flatten(), row[1:] / row[1:].sum(), atol=1e-6)


def test_one_direction_only(tmp_path):
    model = text_image(fusion={"directions": ("text",)})
    assert layers(model, "image") == [] and layers(model) == ["fusion.text_asks.0.attn"]
    with pytest.raises(UsageError, match="patches do not ask the words"):
        zoo.explain.patches(model, "a car", PICTURE)
    with pytest.raises(UsageError, match="where patches do: not there in this model"):
        zoo.explain.draw(model, PICTURE, tmp_path / "a.png", text="a car", query="0,0")
    zoo.explain.draw(model, PICTURE, tmp_path / "a.png", text="a car")
    other = text_image(fusion={"directions": ("image",)})
    zoo.explain.draw(other, PICTURE, tmp_path / "b.png", text="a car")
    assert (tmp_path / "a.png").is_file() and (tmp_path / "b.png").is_file()


def test_words():
    model, layer = text_image(fusion_depth=2), "fusion.text_asks.0.attn"
    figure = draw_words(model, "a red car parks", PICTURE, layer, 1)
    heats = words(model, "a red car parks", PICTURE, layer, 1)
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn[1:]] == [word for word, _ in heats] == ["a", "red", "car", "parks"]
    for axes, (_, heat) in zip(drawn[1:], heats):
        np.testing.assert_allclose(axes.images[-1].get_array(), heat * 24, rtol=1e-5)
        assert axes.images[-1].get_clim() == drawn[1].images[-1].get_clim() and axes.get_xlim() == (0, 24)
        assert list(axes.images[-1].get_extent()) == [0, 24, 16, 0]
    both = words(model, "a red car parks", PICTURE, layer)[0][1]
    other = words(model, "a red car parks", PICTURE, layer, 0)[0][1]
    np.testing.assert_allclose(both, (heats[0][1] + other) / 2, rtol=1e-5)
    assert not np.allclose(both, words(model, "a red car parks", PICTURE)[0][1])  # the last layer


def test_patches_over_words():
    model, layer = text_image(fusion_depth=2), "fusion.image_asks.0.attn"
    names, weights = zoo.explain.patches(model, "a red car", PICTURE, layer, 1)
    figure = draw_patches(model, "a red car", PICTURE, layer, 1)
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn[1:]] == names == ["a", "red", "car", "(start)", "(end)"]
    for i, axes in enumerate(drawn[1:]):
        np.testing.assert_allclose(axes.images[-1].get_array(), weights[..., i], rtol=1e-6)
    assert layer in figure.get_suptitle() and "head 1 of 0 to 1" in figure.get_suptitle()


def test_one_patch_over_words(tmp_path):
    model = text_image()
    names, weights = zoo.explain.patches(model, "a red car", PICTURE)
    figure = draw_patches(model, "a red car", PICTURE, None, None, "2,5")
    left, right = figure.axes[:2]
    np.testing.assert_allclose([bar.get_width() for bar in right.patches], weights[2, 5], rtol=1e-6)
    assert [text.get_text() for text in right.get_yticklabels()] == names
    assert left.patches[0].get_xy() == (20, 8) and left.patches[0].get_width() == 4
    zoo.explain.draw(model, PICTURE, tmp_path / "a.png", text="a red car", query="9,21px")  # the same by a pixel
    assert size(tmp_path / "a.png")[0] > 1000


@pytest.mark.parametrize("wish, message", [
    ({}, "text_image_test looks at pictures word by word: give words, --text 'a red car'"),
    ({"text": " "}, "give words"), ({"text": "car", "head": 2}, "head 2: the layer has heads 0 to 1"),
    ({"text": "car", "layer": "stages.0"}, "there are fusion.text_asks.0.attn, fusion.image_asks.0.attn$"),
    ({"text": "car", "layer": "fusion.text_asks.0.attn", "query": "0,0"}, "words ask, not patches; where .* fusion.image_asks.0"),
    ({"text": "car", "query": "0,9"}, "query '0,9': the layer has tokens ROW,COL from 0,0 to 3,5"),
])
def test_wrong_wishes_about_words(tmp_path, wish, message):
    with pytest.raises(UsageError, match=message):
        zoo.explain.draw(text_image(), PICTURE, tmp_path / "a.png", **wish)
