"""Blocks, merging, pooling."""

import math

import pytest
import torch
import torch.nn.functional as F

from zoo.core import Attention, Block, CrossBlock, Merge, PostNormBlock, Windows, masked_mean, merge_mask
from zoo.core.block import DropPath


def test_block_is_pre_norm_and_post_norm_block_is_not():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    pre, post = Block(Attention(16, 2), 16), PostNormBlock(Attention(16, 2), 16)

    def mlp(m, x):
        hidden = m.mlp.fc1(x)
        return m.mlp.fc2(0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2))))

    y = x + pre.attn(pre.norm1(x))
    torch.testing.assert_close(pre(x), y + mlp(pre, pre.norm2(y)))
    y = post.norm1(x + post.attn(x))
    torch.testing.assert_close(post(x), post.norm2(y + mlp(post, y)))


@pytest.mark.parametrize("kind", [Block, PostNormBlock])
@pytest.mark.parametrize("pattern", [None, Windows((3,), (1,))])
def test_nan_in_padding_reaches_neither_tokens_nor_gradients(kind, pattern):
    torch.manual_seed(0)
    block = kind(Attention(16, 2, pattern=pattern), 16)
    x, mask = torch.randn(2, 9, 16), torch.arange(9) < torch.tensor([[9], [5]])
    outs, grads = [], []
    for value in (0.0, torch.nan, 1e30):
        x[~mask] = value
        leaf = x.clone().requires_grad_()
        out = masked_mean(block(leaf, mask), mask)
        outs.append(out)
        grads.append(torch.autograd.grad(out.square().sum(), [leaf, *block.parameters()]))
    for out, grad in zip(outs[1:], grads[1:]):
        assert torch.equal(out, outs[0])
        assert all(torch.equal(a, b) for a, b in zip(grad, grads[0]))


def test_cross_block_ignores_padding_of_the_context():
    torch.manual_seed(0)
    block = CrossBlock(16, 2, context_dim=8)
    x, context, mask = torch.randn(2, 4, 16), torch.randn(2, 6, 8), torch.arange(6) < torch.tensor([[6], [3]])
    context[~mask] = torch.nan
    out = block(x, context, mask)
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in block.parameters())
    torch.testing.assert_close(out[1:], block(x[1:], context[1:, :3]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("h, w", [(1, 1), (1, 4), (2, 2), (3, 5), (4, 3), (6, 8)])
def test_merge_order_and_odd_maps(h, w):
    merge, x = Merge(3, 7), torch.randn(2, h, w, 3)
    padded = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
    quarters = [padded[:, p::2, q::2] for q in (0, 1) for p in (0, 1)]  # column outside, row inside, as Swin
    expected = merge.reduction(merge.norm(torch.cat(quarters, -1)))
    assert merge(x).shape == (2, (h + 1) // 2, (w + 1) // 2, 7)
    torch.testing.assert_close(merge(x), expected)


@pytest.mark.parametrize("t", [1, 2, 5])
def test_merge_of_one_axis(t):
    merge, x = Merge(3, 7, axes=1), torch.randn(2, t, 3)
    padded = F.pad(x, (0, 0, 0, t % 2))
    torch.testing.assert_close(merge(x), merge.reduction(merge.norm(torch.cat([padded[:, ::2], padded[:, 1::2]], -1))))


def test_padding_is_merged_as_zero_and_a_token_with_a_real_part_is_real():
    merge, x = Merge(3, 7, axes=1), torch.randn(2, 6, 3)
    mask = torch.arange(6) < torch.tensor([[5], [2]])
    x[~mask] = torch.nan
    out, real = merge(x, mask), merge_mask(mask)
    assert real.tolist() == [[True, True, True], [True, False, False]]
    for i, end in enumerate((5, 2)):
        torch.testing.assert_close(out[i, real[i]], merge(x[i : i + 1, :end])[0])
    assert merge_mask(mask[:, :5]).tolist() == real.tolist() and merge_mask(None) is None


def test_masked_mean():
    x, mask = torch.randn(3, 4, 5, 2), torch.rand(3, 4, 5) < 0.5
    mask[2] = False
    expected = torch.stack([x[i][mask[i]].mean(0) for i in (0, 1)] + [torch.zeros(2)])
    x[~mask] = torch.nan
    leaf = x.requires_grad_()
    out = masked_mean(leaf, mask)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert leaf.grad.isfinite().all() and (leaf.grad[~mask] == 0).all()
    whole = torch.randn(3, 4, 5, 2)
    torch.testing.assert_close(masked_mean(whole, torch.ones_like(mask)), masked_mean(whole))
    with pytest.raises(ValueError, match="mask must be bool"):
        masked_mean(x, mask.float())


def test_drop_path_keeps_the_mean_and_drops_whole_items():
    torch.manual_seed(0)
    drop, x = DropPath(0.25), torch.ones(4000, 2, 3)
    out = drop(x)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(out.amin((1, 2)), out.amax((1, 2))) and abs(out.mean() - 1) < 0.05
    assert drop.eval()(x) is x


@pytest.mark.parametrize("rows", [1, 2])
def test_few_queries_ask_the_context_without_projecting_it(rows):
    """The same numbers and gradients as with keys and values, which are projected; heads of 4, so that two rows are few."""
    torch.manual_seed(0)
    attn = Attention(32, 4, context_dim=20)
    attn.kv.bias.data.normal_()
    x, context = torch.randn(3, rows, 32, requires_grad=True), torch.randn(3, 9, 20)
    mask = torch.arange(9) < torch.tensor([9, 4, 0])[:, None]  # the last sees nothing
    context = context.masked_fill(~mask[..., None], float("nan"))
    assert attn._few(x, context)
    results = []
    for asked in (context, attn.keys_values(context, mask)):
        attn.zero_grad()
        out = attn(x, asked, mask)
        results.append([out, *torch.autograd.grad(out.pow(3).sum(), [x, *attn.parameters()])])
    for ours, expected in zip(*results):
        assert torch.allclose(ours, expected, atol=1e-5)
    one = attn(x[:1], context[:2], mask[:2])
    assert torch.allclose(one, attn(x[:1].expand(2, -1, -1), attn.keys_values(context[:2], mask[:2]), mask[:2]), atol=1e-5)
    assert not attn._few(x.expand(3, 9, 32) if rows == 1 else x.repeat(1, 2, 1), context)


def test_an_adapter_in_place_of_a_projection_is_not_passed_by():
    attn = Attention(32, 4, context_dim=20)
    attn.kv = torch.nn.Sequential(attn.kv)
    x, context = torch.zeros(1, 1, 32), torch.zeros(1, 9, 20)
    assert not attn._few(x, context) and attn(x, context).any()
