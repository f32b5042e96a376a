"""Linear attention under every rule against all pairs written out: forward, gradients, padding, recorded weights, linear work."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from test_forms import DIM, HEADS, make, padded, sees

from zoo.bench.memory import peak
from zoo.core import CAUSAL, Axial, Band, Dilated, LinearAttention, Reach, Recorder, Slide, Whole, Windows

RULES = [(CAUSAL, (67,)), (CAUSAL, (9,)), (Reach(3, 1), (11,)), (Reach((1, None), (0, 2)), (9,)), (Band(2, block=4), (11,)),
         (Dilated(2, 3), (11,)), (Axial(1), (3, 5)), (Slide(1), (5, 6)), (Windows((4,), (2,)), (11,)),
         (Windows((3, 2), (1, 1)), (5, 7)), (Whole(), (9,)), (Whole(), (3, 4))]


def cells(pattern, axes, i, j) -> bool:
    """The windows' own rule, an axis no longer than a window being one cell."""
    for a, b, w, s, n in zip(i, j, pattern.size, pattern.shift, axes):
        if n > w and (a + w - s) // w != (b + w - s) // w:
            return False
    return True


def written_out(attn, x, mask):
    places = list(itertools.product(*map(range, x.shape[1:-1])))
    real = mask.flatten(1)
    q, k, v = attn.qkv(torch.where(mask[..., None], x, 0)).flatten(1, -2).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    if isinstance(attn.pattern, Windows):
        one = torch.tensor([[cells(attn.pattern, x.shape[1:-1], i, j) for j in places] for i in places])
        rule = one.expand(HEADS, -1, -1)
    else:
        rule = torch.tensor([[[sees(attn.pattern, i, j, h) for j in places] for i in places] for h in range(HEADS)])
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT) * (rule & real[:, None, None, :])
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return attn.proj((weights @ v).transpose(1, 2).flatten(2)).view(x.shape), weights


@pytest.mark.parametrize("pattern, axes", RULES, ids=str)
def test_under_every_rule(pattern, axes):
    attn = make(pattern, method=LinearAttention())
    x, mask = padded(axes, 0)
    for x, mask in ((x, mask), (x.nan_to_num(0.3), torch.ones_like(mask))):
        x.requires_grad_()
        given = None if mask.all() else mask
        ours, (theirs, weights) = attn(x, mask=given), written_out(attn, x, mask)
        torch.testing.assert_close(ours[mask], theirs[mask], rtol=1e-9, atol=1e-9)
        leaves = [x, *attn.parameters()]
        for a, b in zip(*(torch.autograd.grad(out[mask].square().sum(), leaves) for out in (ours, theirs))):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
        with Recorder(attn) as record, torch.no_grad():
            torch.testing.assert_close(attn(x, mask=given)[mask], ours[mask].detach())
        found = pattern.layout(axes).dense(record.maps[""])
        row = mask.flatten(1)[:, None, :, None]
        torch.testing.assert_close(torch.where(row, found, 0), torch.where(row, weights, 0).detach())
        x.requires_grad_(False)


def test_no_pairs_are_written_out_under_the_causal_rule():
    def train(n):
        attn, x = make(CAUSAL, method=LinearAttention()).float(), torch.randn(1, n, DIM)
        return lambda: attn(x).square().sum().backward()

    short, long = (peak(train(n)) for n in (4096, 16384))
    if short is None:
        pytest.skip("peak memory needs /proc")
    assert long < 16384 * 16384 / 2**20  # MiB: one byte a pair
    assert long < 8 * max(short, 2), (short, long)  # 4 times the tokens; the square would be 16 times
