"""Cached geometry serves every later caller, whoever came first."""

import pytest
import torch

from zoo.core import Attention, RelativePosition, Windows
from zoo.core.bias import offsets
from zoo.core.cache import cached
from zoo.core.patterns import _cell_mask


@pytest.fixture(autouse=True)
def empty():
    for function in (offsets, _cell_mask):
        function.cache_clear()


def make():
    return Attention(8, 2, pattern=Windows((3, 3), (1, 1)), position=RelativePosition((3, 3), 2))


def test_trains_after_inference_mode():
    attn, x = make(), torch.randn(1, 7, 5, 8)
    with torch.inference_mode():
        attn(x)
    attn(x).sum().backward()
    assert attn.position.table.grad.isfinite().all()


def test_runs_after_an_export():
    attn, x = make(), torch.randn(1, 7, 5, 8)
    program = torch.export.export(attn, (x,))
    torch.testing.assert_close(attn(x), program.module()(x))


def test_the_same_tensor_is_given_again():
    calls = []

    @cached
    def build(n):
        calls.append(n)
        return torch.arange(n)

    assert build(3) is build(3) and build(4) is not build(3) and calls == [3, 4]
