from collections import Counter

import pytest
import torch
from torch import nn

from zoo.bench import limit
from zoo.bench.limit import Product, collect, replay
from zoo.core import Attention, attention

F32 = torch.float32


def linear(rows, inner, cols, flipped=(False, True)):
    return Product("linear", 1, rows, inner, cols, F32, flipped)


def test_linear_layers_forward_and_backward():
    layer, x = nn.Linear(8, 16), torch.randn(2, 3, 8, requires_grad=True)
    with torch.no_grad():
        assert collect(lambda: layer(layer.weight.new_ones(2, 3, 8))) == Counter({linear(6, 8, 16): 1})
    products = collect(lambda: layer(x).square().sum().backward())
    assert sum(products.values()) == 3
    assert {(p.rows, p.inner, p.cols) for p in products} == {(6, 8, 16), (16, 6, 8), (6, 16, 8)}


@pytest.mark.parametrize("needs_grad", [False, True], ids=["fused", "written out"])
def test_attention_is_two_products_on_both_paths(needs_grad):
    q = torch.randn(2, 4, 5, 8, requires_grad=needs_grad)
    k, v = torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
    products = collect(lambda: attention(q, k, v))
    assert {p.part for p in products} == {"attention"}
    assert Counter({(p.batch, p.rows, p.inner, p.cols): n for p, n in products.items()}) == {(8, 5, 8, 7): 1, (8, 5, 7, 8): 1}


def test_fused_backward_is_five_products():
    q = torch.randn(1, 2, 300, 8, requires_grad=True)  # longer than what is written out at training
    forward = collect(lambda: attention(q, q, q))
    both = collect(lambda: attention(q, q, q).sum().backward())
    assert sum(forward.values()) == 2 and sum(both.values()) == 7


def test_sparse_products_are_no_part_of_it():
    matrix = torch.eye(4).to_sparse()
    assert not collect(lambda: matrix @ torch.ones(4, 4))


def test_replay_does_the_same_products():
    attn, x = Attention(16, 2), torch.randn(3, 150, 16, requires_grad=True)
    products = collect(lambda: attn(x).sum().backward())
    parts = [collect(replay(products, part)) for part in ("linear", "attention")]
    assert parts[0] + parts[1] == products and all(parts)


@pytest.mark.parametrize("batch, rows, piece", [(2, 100, (1, 20)), (30, 10, (2, 10)), (1, 20, (1, 20))])
def test_attention_goes_in_pieces(monkeypatch, batch, rows, piece):
    monkeypatch.setattr(limit, "PIECE", 1000)
    products = Counter({Product("attention", batch, rows, 8, 50, F32): 3})
    (done, times), = collect(replay(products, "attention")).items()
    assert (done.batch, done.rows) == piece
    assert done.batch * done.rows * times == 3 * batch * rows


def test_linear_layers_stay_whole(monkeypatch):
    monkeypatch.setattr(limit, "PIECE", 1000)
    products = Counter({linear(100, 8, 50): 3})
    assert collect(replay(products, "linear")) == products
