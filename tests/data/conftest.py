"""Small random pictures, made here."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.data.items import Items

torch.set_num_threads(1)


def random_items(n: int = 12, size: int = 20) -> Items:
    """n pictures with labels of three classes and 1 to 5 captions."""
    sources = []
    for i in range(n):
        out = io.BytesIO()
        pixels = np.random.default_rng(i).integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(out, "PNG")
        sources.append(out.getvalue())
    captions = [[f"caption {i}.{k}" for k in range(1 + i % 5)] for i in range(n)]
    return Items([f"t:{i}" for i in range(n)], sources, [i % 3 for i in range(n)], ["a", "b", "c"], captions)


@pytest.fixture
def items():
    """The function that makes them: items(n)."""
    return random_items
