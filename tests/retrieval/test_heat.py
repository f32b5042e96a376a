from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from zoo.retrieval.heat import CIVIDIS, COVER, overlay, seen


def test_blue_to_yellow_over_gray():
    picture = Image.new("RGB", (64, 32), (200, 200, 200))
    found = np.asarray(overlay(picture, np.array([[0.0, 1.0]])), float)
    assert found.shape == (32, 64, 3)
    for column, colour in ((0, CIVIDIS[0]), (63, CIVIDIS[-1])):
        assert np.allclose(found[:, column], COVER * np.array(colour) + (1 - COVER) * 200, atol=1)


def test_scale_and_resolution_of_the_heat_do_not_matter():
    picture = Image.new("RGB", (40, 40), "white")
    heat = np.random.default_rng(0).random((5, 5))
    assert np.array_equal(overlay(picture, heat), overlay(picture, heat / heat.sum()))
    flat = np.asarray(overlay(picture, np.zeros((3, 2))), float)  # nothing was looked at: no division by zero
    assert np.allclose(flat, COVER * np.array(CIVIDIS[0]) + (1 - COVER) * 255, atol=1)


def test_a_heat_that_is_everywhere_alike_stays_in_the_middle():
    flat = np.asarray(overlay(Image.new("RGB", (8, 8)), np.full((2, 2), 0.25)), float)
    assert np.allclose(flat, COVER * np.array(CIVIDIS[len(CIVIDIS) // 2]), atol=1)


def test_slight_preferences_are_seen_and_noise_is_not():
    for spread, end in ((0.4, 1.0), (0.1, 1.0), (0.05, 0.75)):  # the highest: 1/2 + spread / (2 max(spread, 1/10))
        heat = np.array([[1 - spread, 1 + spread]]) * 3
        right = np.asarray(overlay(Image.new("RGB", (2, 1)), heat), float)[:, -1]
        place = end * (len(CIVIDIS) - 1)
        low = min(int(place), len(CIVIDIS) - 2)
        colour = np.array(CIVIDIS[low]) + (place - low) * np.subtract(CIVIDIS[low + 1], CIVIDIS[low])
        assert np.allclose(right, COVER * colour, atol=2), spread


def test_lightness_of_the_colours_only_rises():
    light = [np.dot(colour, (0.2126, 0.7152, 0.0722)) for colour in CIVIDIS]
    assert light == sorted(light)


@pytest.mark.parametrize("nested", [False, True])
def test_seen_cuts_as_the_model_does(nested):
    picture = Image.new("RGB", (300, 100), "white")
    picture.paste((255, 0, 0), (0, 0, 90, 100))  # outside the middle square
    steps = {"size": [32, 32], "fit": "crop"}
    model = SimpleNamespace(card=SimpleNamespace(preprocess={"image": steps, "text": {}} if nested else steps))
    frame = seen(model, picture)
    assert frame.size == (288, 288) and np.asarray(frame).min() == 255
