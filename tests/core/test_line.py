"""Band, Whole and SteadyWindows over one axis against the rule written out over all pairs: forward, gradients, padding, maps."""

from importlib import import_module

import pytest
import torch

from zoo.core import Attention, Band, ClippedPosition, Recorder, RelativePosition, SteadyWindows, Whole

attention_file = import_module("zoo.core.attention")  # the package's attribute of this name is the function
HEADS, DIM = 2, 8


def near(length, band) -> torch.Tensor:
    return torch.tensor([[abs(i - j) <= band.radius for j in range(length)] for i in range(length)])


def same_cell(length, windows) -> torch.Tensor:
    (w,), (s,) = windows.size, windows.shift
    return torch.tensor([[(i + w - s) // w == (j + w - s) // w for j in range(length)] for i in range(length)])


def everybody(length, _) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool)


RULES = {Band: near, SteadyWindows: same_cell, Whole: everybody}
PATTERNS = [
    Band(0), Band(1), Band(3), Band(3, block=2), Band(5, block=4), Band(8), Whole(),
    SteadyWindows((4,), (2,)), SteadyWindows((4,)), SteadyWindows((7,), (3,)),
]


def make(pattern) -> Attention:
    torch.manual_seed(0)
    if isinstance(pattern, SteadyWindows):
        position = RelativePosition(pattern.size, HEADS)
    else:
        position = ClippedPosition(pattern.radius if isinstance(pattern, Band) else 5, HEADS)
    attn = Attention(DIM, HEADS, pattern=pattern, position=position).double()
    for p in attn.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return attn


def dense(attn, x, mask=None) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole module over all pairs, and its weights; rows of padding are 0."""
    n, table = x.shape[1], attn.position.table
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    x = torch.where(real[..., None], x, 0)
    q, k, v = attn.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    limit = len(table) // 2
    term = torch.stack([torch.stack([table[min(max(i - j, -limit), limit) + limit] for j in range(n)]) for i in range(n)])
    allowed = RULES[type(attn.pattern)](n, attn.pattern) & real[:, None, None, :] & real[:, None, :, None]
    scores = (q @ k.mT / q.shape[-1] ** 0.5 + term.permute(2, 0, 1)).masked_fill(~allowed, -torch.inf)
    weights = torch.where(real[:, None, :, None], scores.masked_fill(~real[:, None, :, None], 0).softmax(-1), 0)
    out = attn.proj((weights @ v).transpose(1, 2).flatten(2))
    return torch.where(real[..., None], out, 0), weights


def padded(batch, length, seed):
    """x with NaN behind items of 1 .. length tokens, mask."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(1, length + 1, (batch, 1), generator=generator)
    x, mask = torch.randn(batch, length, DIM, dtype=torch.double, generator=generator), torch.arange(length) < ends
    x[~mask] = torch.nan
    return x, mask


def result(attn, function, x, keep):
    x = x.clone().requires_grad_()
    attn.zero_grad()
    out = torch.where(keep[..., None], function(x), 0)
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    (out * weight).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in attn.parameters())]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_any_length_equals_the_dense_rule(pattern, masked):
    attn = make(pattern)
    for length in [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33]:
        x, mask = padded(3, length, length)
        x, mask = (x, mask) if masked else (x.nan_to_num(0.3), None)
        keep = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        ours = result(attn, lambda x: attn(x, mask=mask), x, keep)
        theirs = result(attn, lambda x: dense(attn, x, mask)[0], x, keep)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert a.isfinite().all(), (length, i)
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda text: f"length {length}, tensor {i}: {text}")


@torch.no_grad()
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_an_item_is_the_same_alone_and_padded(pattern):
    attn = make(pattern).float()
    for length in (1, 3, 4, 5, 11, 30):
        item = torch.randn(1, length, DIM)
        x, mask = torch.full((1, 40, DIM), torch.nan), torch.arange(40)[None] < length
        x[:, :length] = item
        torch.testing.assert_close(attn(x, mask=mask)[:, :length], attn(item), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_recorded_weights_are_those_of_every_position(pattern):
    attn = make(pattern)
    for length in (1, 5, 16, 19):
        x, mask = padded(2, length, length)
        for x, mask in ((x, mask), (x.nan_to_num(0.3), None)):
            with Recorder(attn) as record:
                attn(x, mask=mask)
            full, expected = pattern.layout((length,)).dense(record.maps[""]), dense(attn, x, mask)[1]
            real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
            torch.testing.assert_close(torch.where(real[:, None, :, None], full, 0), expected)


@pytest.mark.parametrize("path", ["fused", "plain"])
def test_both_kernels_give_the_same(pattern_results, path, monkeypatch):
    monkeypatch.setattr(attention_file, "kernel", lambda *_: path)
    for (attn, x, mask), expected in pattern_results:
        keep = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        for a, b in zip(result(attn, lambda x: attn(x, mask=mask), x, keep), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def pattern_results():
    cases = []
    for pattern in (Band(3), Whole(), SteadyWindows((4,), (2,))):
        attn, (x, mask) = make(pattern), padded(3, 37, 0)
        for case in ((attn, x, mask), (attn, x.nan_to_num(0.3), None)):
            keep = torch.ones(x.shape[:2], dtype=torch.bool) if case[2] is None else mask
            cases.append((case, result(attn, lambda x: dense(attn, x, case[2])[0], case[1], keep)))
    return cases


def test_keys_of_a_band_are_a_view():
    layout, x = Band(4, block=8).layout((64,)), torch.randn(2, 8, 8, HEADS, 4)
    keys = layout.keys(x)
    assert keys.shape == (2, 8, HEADS, 16, 4)
    assert keys.untyped_storage().nbytes() == 4 * 2 * (64 + 2 * 4) * HEADS * 4  # not twice the keys


def test_the_bias_of_whole_is_a_view_and_no_mask_is_built():
    layout, position = Whole().layout((500,)), ClippedPosition(128, HEADS)
    assert layout.bias(position).untyped_storage().nbytes() == 4 * HEADS * 999
    assert layout.mask(None, torch.device("cpu")) is None
    assert SteadyWindows((4,)).layout((8,)).mask(None, torch.device("cpu")) is None


def test_wrong_ones_are_named():
    with pytest.raises(ValueError, match="Band: need radius >= 0 and block >= 0, got radius=-1, block=0"):
        Band(-1)
    with pytest.raises(ValueError, match=r"Band: one axis of tokens, got a map of shape \(3, 4\)"):
        Band(2).layout((3, 4))
    with pytest.raises(ValueError, match=r"1 axes of windows \(4,\) on a map of shape \(3, 4\)"):
        SteadyWindows((4,)).layout((3, 4))
