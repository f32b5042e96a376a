"""Scaled dot-product attention against the formula written out, and what must never come out of it."""

from importlib import import_module

import pytest
import torch

from zoo.core import Attention, RelativePosition, Windows, attend, attention

attention_file = import_module("zoo.core.attention")  # the package's attribute of this name is the function
PATHS = ("plain", "fused")


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    monkeypatch.setattr(attention_file, "kernel", lambda *_: request.param)
    return request.param


def dense(q, k, v, mask=None, bias=None):
    """Row by row; a query without an allowed key gives 0."""
    b, h, n, _ = q.shape
    m = k.shape[2]
    mask = torch.ones(b, h, n, m, dtype=torch.bool) if mask is None else mask.expand(b, h, n, m)
    bias = torch.zeros(b, h, n, m) if bias is None else bias.expand(b, h, n, m)
    out = torch.zeros(b, h, n, v.shape[-1])
    for i in range(b):
        for j in range(h):
            for row in range(n):
                keys = mask[i, j, row]
                if keys.any():
                    score = k[i, j, keys] @ q[i, j, row] / q.shape[-1] ** 0.5 + bias[i, j, row, keys]
                    out[i, j, row] = score.softmax(0) @ v[i, j, keys]
    return out


def qkv(b=2, h=3, n=5, m=7, d=4, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(b, h, size, d, requires_grad=True) for size in (n, m, m)]


@pytest.mark.parametrize("mask_shape", [None, (2, 3, 5, 7), (2, 1, 1, 7), (5, 7), (1, 1, 5, 1), (2, 1, 5, 7)])
@pytest.mark.parametrize("bias_shape", [None, (3, 5, 7), (2, 3, 5, 7), (1, 1, 1, 7)])
def test_equals_the_formula(path, mask_shape, bias_shape):
    q, k, v = qkv()
    mask = None if mask_shape is None else torch.rand(mask_shape) < 0.5
    bias = None if bias_shape is None else torch.randn(bias_shape, requires_grad=True)
    out, expected = attention(q, k, v, mask, bias), dense(q, k, v, mask, bias)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    leaves, weight = [q, k, v] + ([] if bias is None else [bias]), torch.randn_like(out)
    ours = torch.autograd.grad((out * weight).sum(), leaves)
    theirs = torch.autograd.grad((expected * weight).sum(), leaves)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_nothing_allowed_gives_0_and_padding_may_hold_anything(path, poison):
    q, k, v = [t.detach() for t in qkv()]
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    mask[0, :, :, 4:] = False
    mask[1] = False
    mask[0, :, 2] = False
    clean = attention(q, k, v, mask)
    for t in (k, v):
        t[0, :, 4:], t[1] = poison, poison
    q[1] = poison
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = attention(*leaves, mask)
    assert torch.equal(out, clean)
    assert (out[1] == 0).all() and (out[0, :, 2] == 0).all()
    out.square().sum().backward()
    assert all(t.grad.isfinite().all() for t in leaves)
    assert (k.grad[0, :, 4:] == 0).all() and (q.grad[1] == 0).all()


@pytest.mark.parametrize("pattern", [None, Windows((4, 4), (2, 2))])
def test_an_item_of_padding_only_is_finite(path, pattern):
    attn = Attention(16, 2, pattern=pattern)
    shape = (2, 6, 5) if pattern else (2, 6)
    x, mask = torch.randn(*shape, 16), torch.ones(shape, dtype=torch.bool)
    mask[1], x[1] = False, torch.nan
    out = attn(x.requires_grad_(), mask=mask)
    out.sum().backward()
    assert out.isfinite().all() and all(p.grad.isfinite().all() for p in (x, *attn.parameters()))


def test_cross_attention_sees_the_real_context_only(path):
    attn = Attention(16, 2, context_dim=8)
    x, context, mask = torch.randn(3, 4, 16), torch.randn(3, 6, 8), torch.arange(6) < torch.tensor([[6], [2], [0]])
    context[~mask] = torch.nan
    out = attn(x, context, mask)
    for i, length in enumerate([6, 2]):
        alone = attn(x[i : i + 1], context[i : i + 1, :length])
        torch.testing.assert_close(out[i : i + 1], alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[2], attn.proj.bias.expand(4, 16))  # nothing to see: 0, projected


def test_alone_batched_and_padded_are_equal(path):
    attn = Attention(16, 2, position=RelativePosition((12,), 2))
    items = [torch.randn(n, 16) for n in (1, 4, 9)]
    x, mask = torch.full((3, 12, 16), torch.nan), torch.zeros(3, 12, dtype=torch.bool)
    for i, item in enumerate(items):
        x[i, : len(item)], mask[i, : len(item)] = item, True
    batched = attn(x, mask=mask)
    for i, item in enumerate(items):
        torch.testing.assert_close(batched[i, : len(item)], attn(item[None])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pattern, shape", [(None, (2, 9)), (Windows((4, 4), (2, 2)), (2, 9, 6)), (Windows((4,)), (2, 9))])
def test_bf16_autocast_is_close_to_fp32(path, pattern, shape):
    torch.manual_seed(0)
    position = RelativePosition(pattern.size, 2) if pattern else None
    attn = Attention(16, 2, pattern=pattern, position=position)
    for p in attn.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x = torch.randn(*shape, 16)
    outs, grads = [], []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = attn(x)
        outs.append(out.float())
        grads.append(torch.autograd.grad(out.float().square().sum(), list(attn.parameters())))
    assert out.dtype == torch.bfloat16
    assert (outs[1] - outs[0]).abs().max() < 0.02 * outs[0].abs().max()
    for a, b in zip(*grads):
        assert b.isfinite().all() and (b - a).norm() < 0.05 * a.norm() + 1e-3


def test_scores_are_fp32_under_autocast():
    position = torch.randn(2, 5, 5) * 1e-3 + 100  # bf16 would round the differences away
    q, k, v = (torch.zeros(1, 2, 5, 4, dtype=torch.bfloat16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        weights = attend(q, k, torch.eye(5).bfloat16().expand(1, 2, 5, 5), None, position.requires_grad_())
    expected = position.detach().softmax(-1)
    assert (weights[0].float() - expected).abs().max() < 1e-3


def test_the_kernel_is_chosen_for_reasons():
    kernel = attention_file.kernel

    def qk(n, dtype=torch.float32, grad=True, lead=()):
        return [torch.empty(1, *lead, 2, n, 8, dtype=dtype, requires_grad=grad) for _ in range(2)]

    table = torch.empty(2, 64, 64, requires_grad=True)
    windows = torch.ones(4, 1, 64, 64, dtype=torch.bool)
    assert kernel(*qk(64, grad=False), None, None) == "fused"  # no gradient
    assert kernel(*qk(64), None, None) == "plain" and kernel(*qk(129), None, None) == "fused"
    assert kernel(*qk(2000, torch.bfloat16), None, None) == "plain"
    assert kernel(*qk(4096, torch.bfloat16), None, None) == "fused"
    assert kernel(*qk(64, grad=False), None, table) == "plain"  # SDPA would fall back in silence
    assert kernel(*qk(64, grad=False), None, table.detach()) == "fused"
    assert kernel(*qk(64, grad=False, lead=(4,)), windows, None) == "plain"
    assert kernel(*qk(64, grad=False, lead=(4,)), windows[:1], None) == "fused"
    with torch.no_grad():
        assert kernel(*qk(64), None, table) == "fused"


def test_wrong_arguments_are_named():
    x, q = torch.randn(2, 5, 16), torch.randn(2, 3, 5, 4)
    with pytest.raises(ValueError, match="dim must be a multiple of heads, got dim=16, heads=3"):
        Attention(16, 3)
    with pytest.raises(ValueError, match=r"mask must be bool \(True = may attend\), got torch.float32"):
        attention(q, q, q, torch.ones(5, 5))
    with pytest.raises(ValueError, match=r"mask \[1, 1, 2, 5\] does not broadcast to \(b h n m\) = \[2, 3, 5, 5\]"):
        attention(q, q, q, torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"do not fit: \[2, 3, 5, 4\], \[2, 3, 5, 3\]"):
        attention(q, q[..., :3], q)
    for attn, args in [(Attention(16, 2), (x,)), (Attention(16, 2, context_dim=16), (x, x))]:
        with pytest.raises(ValueError, match=r"mask must be bool \(True = real token\), got torch.int64"):
            attn(*args, mask=torch.ones(2, 5, dtype=torch.long))
        with pytest.raises(ValueError, match=r"mask \[2, 4\] must have the shape of the tokens it marks, \[2, 5\]"):
            attn(*args, mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"2 axes of windows \(4, 4\) on a map of shape \(5,\)"):
        Attention(16, 2, pattern=Windows((4, 4)))(x)
