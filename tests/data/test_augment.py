"""Augmentation: right shapes, the reflected crop equals padding, the global random state is kept."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.data import augment
from zoo.data.augment import LEVELS, augmentation, kept_random_state, number, seed_all
from zoo.errors import UsageError
from zoo.preprocess import ImagePreprocess


def noise(h, w, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (h, w, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [(32, 32), (8, 24), (1, 1), (3, 5)])
def test_crop_flip_equals_padding_by_reflection(size, monkeypatch):
    pixels, (border_h, border_w) = noise(*size), (size[0] // 8, size[1] // 8)
    padded = np.pad(pixels, ((border_h, border_h), (border_w, border_w), (0, 0)), mode="reflect")
    for dy in range(-border_h, border_h + 1):
        for dx in range(-border_w, border_w + 1):
            for flip in (False, True):
                draws = iter([dy, dx])
                monkeypatch.setattr(augment.random, "randint", lambda low, high: next(draws))
                monkeypatch.setattr(augment.random, "random", lambda: 0.1 if flip else 0.9)
                top, left = border_h + dy, border_w + dx
                expected = padded[top:top + size[0], left:left + size[1]]
                expected = expected[:, ::-1] if flip else expected
                assert np.array_equal(augment._crop_flip(pixels, border_h, border_w), expected)


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("size", [(32, 32), (24, 40), (2, 3)])
def test_levels_give_the_model_size_and_follow_the_seed(level, size):
    step = augmentation(level, ImagePreprocess(size))
    source = Image.fromarray(noise(50, 60)) if step.resize else noise(*size)
    before = np.array(source)

    def draw(seed):
        seed_all(seed)
        return step.pixels(source)

    views = [draw(seed) for seed in range(12)]
    assert all(view.shape == (*size, 3) and view.dtype == np.uint8 for view in views)
    assert all(np.array_equal(view, draw(seed)) for seed, view in enumerate(views))
    assert len({view.tobytes() for view in views}) > 1
    assert np.array_equal(np.array(source), before)  # the cached picture is never written to


def test_erasing_only_from_medium_on():
    image = torch.ones(3, 32, 32)
    preprocess = ImagePreprocess(32)
    assert augmentation("none", preprocess) is None and augmentation(None, preprocess) is None
    assert augmentation("light", preprocess).erase is None
    for level in ("medium", "strong"):
        erased = 0
        erase = augmentation(level, preprocess).erase
        for seed in range(200):
            seed_all(seed)
            erased += bool((erase(image.clone()) == 0).any())
        assert 25 < erased < 75  # one in four


def test_unknown_level_is_refused():
    with pytest.raises(UsageError, match="'heavy'; allowed: none, light, medium, strong"):
        augmentation("heavy", ImagePreprocess(32))


def test_random_state_is_kept():
    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()

    seed_all(1)
    expected = draws(), draws()
    seed_all(1)
    first = draws()
    with pytest.raises(KeyError), kept_random_state():
        seed_all(2)
        assert draws() != expected[1]
        raise KeyError
    assert (first, draws()) == expected


def test_numbers_depend_on_every_part():
    assert len({number(a, b, c) for a in range(5) for b in range(5) for c in range(5)}) == 125
    assert number("pixels", 1, 2, 3, 0) == 12490401522566423748  # the same on every machine
