"""The picture of each modality: what is drawn is what was recorded, with named axes; wrong wishes are told in a line."""

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import audio, graph, image, text_image
from test_maps import MOLECULE, PICTURE, WAVE

import zoo
from zoo.errors import UsageError, ZooError
from zoo.explain.figure import answer, save
from zoo.explain.graphs import draw_graph, first_graph
from zoo.explain.maps import Map
from zoo.explain.pictures import draw_picture, draw_words
from zoo.explain.plane import molecule, spread
from zoo.explain.sounds import draw_sound
from zoo.explain.words import words

MEAN = slice(None)


def figure_of(draw, model, item, layer, head=MEAN):
    maps = zoo.explain(model, item)
    return draw(model, item, maps, layer, head), maps[layer]


def test_picture():
    model, layer = image(), "stages.0.blocks.1.attn"
    figure, shown = figure_of(draw_picture, model, PICTURE, layer, slice(1, 2))
    left, right = figure.axes[:2]
    heat = right.images[-1]
    np.testing.assert_allclose(heat.get_array(), shown.weights[1].mean(0).reshape(11, 9) * 99, rtol=1e-5)
    assert list(heat.get_extent()) == [0, 18, 22, 0] and right.get_xlim() == (0, 18) and right.get_ylim() == (22, 0)
    text = figure.get_suptitle()
    assert all(word in text for word in ("image_test says", "%)", layer, "head 1 of 0 to 1")) and left.get_ylabel() == "row"


def test_ragged_tokens_are_cut_at_the_edge_of_the_picture():
    figure, shown = figure_of(draw_picture, image(), PICTURE, "stages.1.blocks.0.attn")
    right = figure.axes[1]
    assert shown.axes == (6, 5) and list(right.images[-1].get_extent()) == [0, 20, 24, 0] and right.get_xlim() == (0, 18)


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


@pytest.mark.parametrize("wish, message", [
    ({}, "text_image_test looks at pictures word by word: give words, --text 'a red car'"),
    ({"text": " "}, "give words"), ({"text": "car", "head": 2}, "head 2: the layer has heads 0 to 1"),
    ({"text": "car", "layer": "stages.0"}, "no such attention layer; there are fusion.text_asks.0.attn$"),
])
def test_wrong_wishes_about_words(tmp_path, wish, message):
    with pytest.raises(UsageError, match=message):
        zoo.explain.draw(text_image(), PICTURE, tmp_path / "a.png", **wish)


@pytest.mark.parametrize("layer", ["stages.0.blocks.1.attn", "stages.1.blocks.0.attn"])
def test_sound(layer):
    figure, shown = figure_of(draw_sound, audio(), WAVE, layer)
    top, middle, bottom = figure.axes[:3]
    assert top.get_xlim() == middle.get_xlim() == bottom.get_xlim() == (0, pytest.approx(0.34))
    np.testing.assert_allclose(bottom.images[0].get_array(), shown.weight(), rtol=1e-6)
    assert bottom.images[0].get_extent()[1] == pytest.approx(shown.axes[0] * shown.step)
    (line,) = middle.patches
    np.testing.assert_allclose(line.get_data().values, shown.received() * shown.axes[0], rtol=1e-5)
    assert [axes.get_ylabel() for axes in (top, bottom)] == ["frequency (Hz)", "time that looks (s)"]


def test_spectrogram_axis_is_in_hertz():
    tone = np.sin(2 * np.pi * 2000 * np.arange(16000) / 16000).astype(np.float32)
    figure, _ = figure_of(draw_sound, audio(), (tone, 16000), "stages.0.blocks.0.attn")
    top = figure.axes[0]
    loudest = top.images[0].get_array().mean(1).argmax() + 0.5
    marks = {text.get_text(): at for text, at in zip(top.get_yticklabels(), top.get_yticks())}
    assert abs(loudest - marks["2,000"]) <= 1 < abs(loudest - marks["1,000"])


def test_molecule():
    model = graph()
    figure, shown = figure_of(draw_graph, model, "c1ccccc1[O-]", "blocks.0.attn")
    axes = figure.axes[0]
    lines, circles = axes.collections
    assert len(lines.get_segments()) == 10 and len(circles.get_offsets()) == 7  # 3 double and 4 single bonds
    assert sorted(text.get_text() for text in axes.texts) == ["C"] * 6 + ["O$^{-}$"]
    assert "logP" in figure.get_suptitle()


def test_colour_of_an_edge_is_attention_between_its_ends():
    from zoo.explain.graphs import _shares

    model = graph()
    shown = zoo.explain(model, MOLECULE)["blocks.1.attn"]
    received, between = _shares(shown, slice(0, 1))
    np.testing.assert_allclose(received, shown.weights[0].mean(0) * 13, rtol=1e-5)
    i, j = np.array([0, 5, 12]), np.array([1, 0, 12])
    np.testing.assert_allclose(between(i, j), shown.weights[0][i, j] * 13, rtol=1e-5)


def test_looking_evenly_along_edges_is_a_share_of_1():
    from zoo.explain.graphs import _shares

    pairs = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])  # a path of 3 nodes, each sees itself
    even = torch.tensor([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2]).view(1, 1, 7)
    received, between = _shares(Map((3,), 1.0, even, lambda some: some, pairs), MEAN)
    np.testing.assert_allclose(received, 1, rtol=1e-6)
    np.testing.assert_allclose(between(np.array([0, 0, 2]), np.array([1, 2, 2])), [1, 0, 1], rtol=1e-6)


def data(n, edges, directed=False):
    from zoo.rawgraph import RawGraph
    from zoo.schema import GraphPreprocess

    item = RawGraph(n, np.array(edges).T.reshape(2, -1), {"x": np.ones((n, 1), np.float32)})
    item = item if directed else item.both_ways()
    return item, graph(GraphPreprocess.fit([item], scaling="none", directed=directed))


@pytest.mark.parametrize("directed", [False, True])
def test_plain_graph(directed):
    item, model = data(4, [(0, 1), (1, 2), (2, 0), (3, 3)], directed)
    figure, _ = figure_of(draw_graph, model, item, "blocks.0.attn")
    axes = figure.axes[0]
    arrows = [text for text in axes.texts if hasattr(text, "arrow_patch") and text.arrow_patch]
    assert len(arrows) == (3 if directed else 0) and len(axes.collections) == (1 if directed else 2)
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["0", "1", "2", "3"]


def test_of_a_big_graph_what_lies_around_the_node_most_looked_at():
    item, model = data(100, [(i, i + 1) for i in range(99)])
    figure, shown = figure_of(draw_graph, model, item, "blocks.0.attn")
    named = sorted(int(text.get_text()) for text in figure.axes[0].texts)
    centre = shown.received().argmax()
    assert len(named) == 40 and named == list(range(named[0], named[0] + 40)) and centre in named
    assert f"the 40 nodes around node {centre} of 100" in figure.get_suptitle()


def test_a_path_is_drawn_as_a_line_and_circles_do_not_cover_each_other():
    n = 8
    plane = spread(np.stack([np.arange(n - 1), np.arange(1, n)]), np.arange(n))
    far = np.linalg.norm(plane.xy[:, None] - plane.xy[None], axis=-1)
    np.testing.assert_allclose(far, abs(np.arange(n)[:, None] - np.arange(n)), atol=0.1)
    crowd = spread(np.array(np.triu_indices(25, 1)), np.arange(25))  # all neighbours of each other
    far = np.linalg.norm(crowd.xy[:, None] - crowd.xy[None], axis=-1) + 9 * np.eye(25)
    assert far.min() >= crowd.size
    assert spread(np.zeros((2, 0), int), np.array([5])).names == ["5"]


def test_bonds_of_a_molecule_are_of_equal_length():
    plane = molecule("CC(=O)Oc1ccccc1")
    ends = np.array(list(plane.order))
    length = np.linalg.norm(plane.xy[ends[:, 0]] - plane.xy[ends[:, 1]], axis=1)
    assert np.ptp(length) < 0.01 and sorted(plane.order.values()) == [1] * 6 + [2] * 4


def size(file):
    with Image.open(file) as picture:
        picture.load()
        return picture.size


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".svg"])
def test_file_is_a_picture(tmp_path, suffix):
    file = tmp_path / "new" / f"explain{suffix}"
    zoo.explain.draw(image(), PICTURE, file)
    if suffix in (".png", ".jpg"):
        assert size(file)[0] > 1000
    else:
        assert file.read_bytes()[:5] == b"<?xml"


@pytest.mark.parametrize("smiles", ["C", "[Na+].[Cl-]"])
def test_smallest_molecules(tmp_path, smiles):
    zoo.explain.draw(graph(), smiles, tmp_path / "a.png")
    assert size(tmp_path / "a.png")[0] > 1000


def test_a_table_gives_its_first_molecule(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,y\nCCO,1\nC,2\n")
    assert first_graph(graph(), tmp_path / "a.csv") == "CCO" == first_graph(graph(), "CCO")
    _, model = data(2, [(0, 1)])
    with pytest.raises(ZooError, match="none.npz: no such file"):
        first_graph(model, "none.npz")


def test_answer_in_words():
    model, maps = image(), zoo.explain(image(), PICTURE)
    maps.logits = torch.tensor([[0.0, 3.0]])
    assert answer(model, maps) == "dog (95%)"
    model.card.head = "tags"
    assert answer(model, maps) == "dog, cat"
    model.card.labels = None
    assert answer(model, maps) == ""


@pytest.mark.parametrize("wish, message", [
    ({"layer": "stages.9"}, "layer 'stages.9': no such attention layer; there are stages.0.blocks.0.attn, stages.0"),
    ({"head": 2}, "head 2: the layer has heads 0 to 1"), ({"head": -1}, "head -1: the layer has heads 0 to 1"),
    ({"text": "a dog"}, "--text is for text-image models; image_test takes none"),
])
def test_wrong_wishes(tmp_path, wish, message):
    layer = {"layer": "stages.0.blocks.0.attn"} if "head" in wish else {}
    with pytest.raises(UsageError, match=message):
        zoo.explain.draw(image(), PICTURE, tmp_path / "a.png", **layer, **wish)
    assert not list(tmp_path.glob("*.png"))


def test_file_of_an_unknown_kind(tmp_path):
    with pytest.raises(UsageError, match="a.gif: a picture file, .png, .jpg, .pdf or .svg"):
        zoo.explain.draw(image(), PICTURE, tmp_path / "a.gif")


def test_saving_fails_in_one_line(tmp_path):
    from zoo.explain.figure import new_figure

    (tmp_path / "file").write_text("")
    with pytest.raises(ZooError, match="could not be written"):
        save(new_figure(1, 1), tmp_path / "file" / "a.png")


def test_command(tmp_path, capsys):
    from zoo.cli import main

    model = image()
    model.card.model, model.card.arguments = "image_pico", {}
    Image.fromarray((PICTURE * 255).astype(np.uint8)).save(tmp_path / "cat.png")
    torch.manual_seed(0)
    pico = zoo.create_model("image_pico", num_classes=2)
    pico.card.labels = ["cat", "dog"]
    zoo.save(pico, tmp_path / "m.safetensors")
    asked = ["explain", str(tmp_path / "m.safetensors"), str(tmp_path / "cat.png"), "--out", str(tmp_path / "e.png")]
    assert main([*asked, "--layer", "stages.1.blocks.0.attn", "--head", "1"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "e.png") and (tmp_path / "e.png").is_file()
    assert main([*asked, "--layer", "nowhere"]) == 2
    assert "layer 'nowhere': no such attention layer; there are stages.0" in capsys.readouterr().err
