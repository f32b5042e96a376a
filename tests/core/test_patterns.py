"""Windows against the rule written out over all pairs of tokens: forward, gradient, padding, leaks, no needless mask."""

import itertools
import random
from math import prod

import pytest
import torch

from zoo.core import Attention, Recorder, RelativePosition, Windows

HEADS, DIM = 2, 8


def seen(axes, windows) -> torch.Tensor:
    """Bool (tokens tokens): the rule, per axis cell = (i + w - shift) // w, one cell where the axis fits the window."""
    places = list(itertools.product(*[range(n) for n in axes]))

    def cell(place):
        fits = zip(place, axes, windows.size, windows.shift)
        return [0 if n <= w else (i + w - s) // w for i, n, w, s in fits]

    return torch.tensor([[cell(a) == cell(b) for b in places] for a in places])


def table_term(axes, windows, table) -> torch.Tensor:
    """(heads tokens tokens): table[row offset, col offset, ...], 0 where the offset leaves the table."""
    place = torch.tensor(list(itertools.product(*[range(n) for n in axes])))
    offset = place[:, None] - place[None]
    inside = (offset.abs() < torch.tensor(windows.size)).all(-1)
    table = table.view(*[2 * w - 1 for w in windows.size], -1)
    index = (offset + torch.tensor(windows.size) - 1) * inside[..., None]
    return (table[tuple(index.unbind(-1))] * inside[..., None]).permute(2, 0, 1)


def dense(attn, x, mask=None) -> torch.Tensor:
    """The whole module over all pairs; rows of padding are 0."""
    axes, windows = x.shape[1:-1], attn.pattern
    tokens = x.flatten(1, -2)
    real = torch.ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask.flatten(1)
    tokens = torch.where(real[..., None], tokens, 0)
    q, k, v = attn.qkv(tokens).view(*tokens.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + table_term(axes, windows, attn.position.table)
    allowed = seen(axes, windows) & real[:, None, None, :]
    weights = scores.masked_fill(~(allowed | ~real[:, None, :, None]), -torch.inf).softmax(-1)
    out = attn.proj((weights @ v).transpose(1, 2).flatten(2))
    return torch.where(real[..., None], out, 0).view(x.shape)


def make(windows, seed=0) -> Attention:
    torch.manual_seed(seed)
    attn = Attention(DIM, HEADS, pattern=windows, position=RelativePosition(windows.size, HEADS)).double()
    for p in attn.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return attn


def sample(maps, axes, seed):
    """Every map once, each with a random window and shift."""
    draw = random.Random(seed)
    for shape in maps:
        size = tuple(draw.randint(1, 8) for _ in range(axes))
        yield shape, Windows(size, tuple(draw.choice([0, w // 2, draw.randrange(w)]) for w in size))


def result(attn, function, x, weight, keep):
    """Output of the tokens in `keep`, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    attn.zero_grad()
    out = torch.where(keep[..., None], function(x), 0)
    (out * weight).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in attn.parameters())]


def agree(attn, x, mask, what):
    weight = torch.randn(x.shape, dtype=x.dtype)
    keep = torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask
    ours = result(attn, lambda x: attn(x, mask=mask), x, weight, keep)
    theirs = result(attn, lambda x: dense(attn, x, mask), x, weight, keep)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a.isfinite().all(), (what, i)
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda text: f"{what}, tensor {i}: {text}")


MAPS = list(itertools.product(range(1, 13), repeat=2))


@pytest.mark.parametrize("seed", [0, 1])
def test_any_map_equals_the_dense_rule(seed):
    for axes, windows in sample(MAPS, 2, seed):
        agree(make(windows, seed), torch.randn(2, *axes, DIM).double(), None, (axes, windows))


def test_only_real_tokens_are_seen_and_padding_may_hold_nan():
    for axes, windows in sample(MAPS, 2, 2):
        x, mask = torch.randn(2, *axes, DIM).double(), torch.rand(2, *axes) < 0.6
        x[~mask] = torch.nan
        agree(make(windows), x, mask, (axes, windows))


def test_swins_own_windows_on_small_maps():
    for n, m in itertools.product(range(3, 13), repeat=2):
        agree(make(Windows((4, 4), (2, 2))), torch.randn(1, n, m, DIM).double(), None, (n, m))


def test_one_axis_and_three():
    for axes, windows in sample([(n,) for n in range(1, 25)], 1, 3):
        agree(make(windows), torch.randn(2, *axes, DIM).double(), None, (axes, windows))
        x, mask = torch.randn(2, *axes, DIM).double(), torch.rand(2, *axes) < 0.6
        x[~mask] = torch.inf
        agree(make(windows), x, mask, (axes, windows))
    for axes in [(1, 1, 1), (3, 5, 2), (4, 3, 7)]:
        agree(make(Windows((2, 3, 4), (1, 0, 2))), torch.randn(1, *axes, DIM).double(), None, axes)


@pytest.mark.parametrize("axes, windows", [((11,), Windows((4,), (2,))), ((9, 10), Windows((4, 3), (2, 1)))])
def test_alone_batched_and_padded_are_equal(axes, windows):
    attn = make(windows).float()
    items = [torch.randn(*[n - cut for n in axes], DIM) for cut in (0, 1, 2)]
    x, mask = torch.full((3, *[n + 3 for n in axes], DIM), torch.nan), torch.zeros(3, *[n + 3 for n in axes], dtype=torch.bool)
    for i, item in enumerate(items):
        inside = (i, *map(slice, item.shape[:-1]))
        x[inside], mask[inside] = item, True
    batched = attn(x, mask=mask)
    for i, item in enumerate(items):
        alone = attn(item[None])[0]
        padded = attn(x[i : i + 1], mask=mask[i : i + 1])[0]
        inside = tuple(map(slice, item.shape[:-1]))
        torch.testing.assert_close(batched[i][inside], alone, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(padded[inside], alone, rtol=1e-5, atol=1e-5)


def test_a_corner_does_not_reach_another_edge_through_the_shift():
    for n, m in itertools.product(range(3, 13), repeat=2):
        attn, x = make(Windows((4, 4), (2, 2))), torch.randn(1, n, m, DIM).double()
        for row, col in itertools.product((0, n - 1), (0, m - 1)):
            other = x.clone()
            other[0, row, col] += torch.randn(DIM)  # random: a constant would vanish in a LayerNorm
            changed = (attn(other) - attn(x)).abs().amax(-1)[0] > 1e-12
            near = seen((n, m), attn.pattern)[row * m + col].view(n, m)
            assert torch.equal(changed, near), (n, m, row, col)


def test_no_mask_is_built_where_nothing_is_masked():
    for n, m in MAPS:
        built = Windows((4, 4)).layout((n, m)).mask(None, torch.device("cpu"))
        assert (built is None) == all(k <= 4 or k % 4 == 0 for k in (n, m)), (n, m)
        built = Windows((4, 4), (2, 2)).layout((n, m)).mask(None, torch.device("cpu"))
        assert (built is None) == (n <= 4 and m <= 4), (n, m)


def test_cut_and_join_are_inverse():
    for axes, windows in sample(MAPS, 2, 4):
        layout, x = windows.layout(axes), torch.randn(2, *axes, 3)
        cut = layout.cut(x)
        assert cut.shape == (2, prod(layout.counts), prod(layout.size), 3)
        assert torch.equal(layout.join(cut), x)


def test_recorded_weights_are_those_of_the_dense_rule():
    for axes, windows in sample(MAPS[::7], 2, 5):
        attn, x, mask = make(windows), torch.randn(2, *axes, DIM).double(), torch.rand(2, *axes) < 0.7
        for real in (None, mask):
            with Recorder(attn) as record, torch.no_grad():
                attn(x, mask=real)
            weights = record.maps[""]
            keep = torch.ones(2, *axes, dtype=torch.bool) if real is None else real
            rows = windows.layout(axes).cut(keep[..., None]).squeeze(-1)  # every window, every real query
            sums = weights.sum(-1).transpose(2, 3)[rows]
            torch.testing.assert_close(sums, torch.ones_like(sums))
            full = windows.layout(axes).dense(weights)
            kept = keep.flatten(1)
            allowed = (seen(axes, windows) & kept[:, None])[:, None].expand_as(full)
            real_rows = kept[:, None, :, None].expand_as(full)
            assert ((full > 0) == allowed)[real_rows].all(), (axes, windows)
            assert torch.allclose(full.sum(-1)[real_rows[..., 0]], torch.ones(()).double())
            tokens = torch.where(keep[..., None], x, 0).flatten(1, -2)
            v = attn.qkv(tokens)[..., 2 * DIM :].view(2, -1, HEADS, DIM // HEADS).transpose(1, 2)
            out = attn.proj((full @ v).transpose(1, 2).flatten(2))
            torch.testing.assert_close(out[kept], dense(attn, x, real).flatten(1, -2)[kept])


def test_wrong_windows_are_named():
    for size, shift in [((0, 4), ()), ((4, 4), (4, 0)), ((4, 4), (-1, 0)), ((4, 4), (2,))]:
        with pytest.raises(ValueError, match=r"Windows: need size >= 1 and 0 <= shift < size .* got size=\("):
            Windows(size, shift)
    with pytest.raises(ValueError, match=r"1 to 3 axes, got size=\(\)"):
        Windows(())
    with pytest.raises(ValueError, match=r"2 axes of windows \(4, 4\) on a map of shape \(9,\)"):
        make(Windows((4, 4)))(torch.randn(2, 9, DIM).double())
