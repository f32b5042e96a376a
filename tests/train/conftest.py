"""Small real runs: class folders of drawn pictures, a model of a few thousand parameters."""

import numpy as np
import pytest
from PIL import Image

SMALL = {"dims": [16, 32], "depths": [1, 2], "head_dim": 8, "window": 4, "drop_path": 0.1}
COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 230)}


@pytest.fixture
def folder(tmp_path):
    """30 noisy pictures of each of three colours, as class folders."""
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (tmp_path / "colours" / name).mkdir(parents=True)
        for i in range(30):
            noise = rng.normal(0, 60, (32, 32, 3)) + colour
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(tmp_path / "colours" / name / f"{i}.png")
    return tmp_path / "colours"


@pytest.fixture
def recipe(folder):
    """A short recipe on `folder`: everything random that there is, is on."""
    from zoo.train.recipe import Recipe

    return Recipe(task="image_classification", model="image_pico", arguments=dict(SMALL), data=str(folder), val=0.2,
                  augment="medium", epochs=4, batch_size=16, optimizer="nmuon", lr=3e-3, ema=0.9, precision="fp32",
                  label_smoothing=0.1, seed=3)
