"""The picture of each modality: what is drawn is what was recorded, with named axes; wrong wishes are told in a line."""

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import audio, image
from test_maps import PICTURE, WAVE

import zoo
from zoo.errors import UsageError, ZooError
from zoo.explain.figure import answer, save
from zoo.explain.pictures import draw_picture
from zoo.explain.sounds import draw_sound

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


def test_a_picture_token_is_asked():
    model, layer = image(), "stages.1.blocks.0.attn"
    maps = zoo.explain(model, PICTURE)
    figure = draw_picture(model, PICTURE, maps, layer, MEAN, 5 * 1 + 3)
    left, right = figure.axes[:2]
    np.testing.assert_allclose(right.images[-1].get_array(), maps[layer].weights.mean(0)[8].reshape(6, 5) * 30, rtol=1e-5)
    assert left.patches[0].get_xy() == right.patches[0].get_xy() == (12, 4) and right.patches[0].get_width() == 4
    assert "asked: the outlined token 1,3" in figure.get_suptitle()


def test_a_moment_of_a_sound_is_asked():
    model, layer = audio(), "stages.0.blocks.1.attn"
    maps = zoo.explain(model, WAVE)
    figure = draw_sound(model, WAVE, maps, layer, MEAN, 3)
    middle, bottom = figure.axes[1:3]
    np.testing.assert_allclose(middle.patches[0].get_data().values, maps[layer].weight()[3] * maps[layer].axes[0], rtol=1e-5)
    assert {round(line.get_ydata()[0], 6) for line in bottom.lines} == {0.06, 0.08}
    assert "asked: the frame at 0.06 s" in figure.get_suptitle() and middle.get_ylabel().startswith("looked at")


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
    ({"query": "1,5"}, r"query '1,5': the layer has tokens ROW,COL from 0,0 to 5,4; or give a pixel .*, 0,0px to 23,19px"),
    ({"query": "3"}, "query '3': the layer has tokens ROW,COL"), ({"query": "-1,0"}, "query '-1,0': the layer"),
    ({"query": "nanpx,3px"}, "query 'nanpx,3px'"), ({"query": "a,b"}, "query 'a,b'"), ({"query": "1.5,2"}, "query '1.5,2'"),
    ({"layer": "rollout", "head": 1}, "head 1: rollout takes the mean of all heads; leave --head out"),
    ({"text": "a dog"}, "--text is for text-image models; image_test takes none"),
])
def test_wrong_wishes(tmp_path, wish, message):
    layer = {"layer": "stages.0.blocks.0.attn"} if list(wish) == ["head"] else {}
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
    assert main([*asked, "--query", "0,1", "--layer", "rollout"]) == 0 and main([*asked, "--grid"]) == 0
    assert main([*asked, "--grid", "--head", "1"]) == 2 and "--grid shows all layers and heads" in capsys.readouterr().err
    assert main([*asked, "--layer", "nowhere"]) == 2
    assert "layer 'nowhere': no such attention layer; there are stages.0" in capsys.readouterr().err
