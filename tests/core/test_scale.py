"""Temperature, the start of queries and keys, and absolute positions."""

import math

import pytest
import torch

from zoo.core import Attention, LearnedPosition, Recorder, SinusoidalPosition, Temperature, attention


def test_temperature_starts_at_1_is_positive_and_belongs_to_one_head():
    torch.manual_seed(0)
    attn, cold = (Attention(16, 4, temperature=t).double() for t in (None, Temperature(4)))
    assert cold.load_state_dict(attn.state_dict(), strict=False).missing_keys == ["temperature.log"]
    x = torch.randn(2, 6, 16).double()
    torch.testing.assert_close(cold(x), attn(x))
    tau = torch.tensor([1.0, 0.5, 3.0, 1e-3]).double()
    cold.temperature.log.data = tau.log()
    q, k, v = cold.qkv(x).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT / (2 * tau.view(4, 1, 1))).softmax(-1)
    torch.testing.assert_close(cold(x), cold.proj((weights @ v).transpose(1, 2).flatten(2)))
    cold(x).square().sum().backward()
    assert (cold.temperature.log.grad.abs() > 0).all()
    for value in (-1e4, -3.0, 0.0, 3.0):
        assert Temperature(1).log.data.fill_(value).exp() >= 0
    cross = Attention(16, 4, context_dim=8, temperature=Temperature(4)).double()
    cross.temperature.log.data.fill_(math.log(2.0))
    context = torch.randn(2, 5, 8).double()
    k, v = cross.kv(context).view(2, 5, 2, 4, 4).permute(2, 0, 3, 1, 4)
    out = attention(cross.q(x).view(2, 6, 4, 4).transpose(1, 2) / 2, k, v)
    torch.testing.assert_close(cross(x, context), cross.proj(out.transpose(1, 2).flatten(2)))


def entropy(attn, *x) -> float:
    """Mean entropy of the weights / that of uniform ones."""
    with Recorder(attn) as record, torch.no_grad():
        attn(*x)
    weights = record.maps[""]
    return float(torch.special.entr(weights).sum(-1).mean() / math.log(weights.shape[-1]))


@pytest.mark.parametrize("dim, heads", [(32, 1), (32, 8), (128, 4)])
def test_weights_start_near_uniform(dim, heads):
    torch.manual_seed(0)
    x = torch.nn.functional.layer_norm(torch.randn(2, 128, dim), (dim,))
    found = {gain: entropy(Attention(dim, heads, gain=gain), x) for gain in (2**-0.5, 1.0, 3.0)}
    assert found[2**-0.5] > 0.96 and found[3.0] < 0.7
    for gain in (2**-0.5, 1.0):  # scores of variance gain^4
        assert found[gain] == pytest.approx(1 - gain**4 / 2 / math.log(128), abs=0.04)
    cross = Attention(dim, heads, context_dim=dim, gain=2**-0.5)
    assert entropy(cross, x, torch.nn.functional.layer_norm(torch.randn(2, 128, dim), (dim,))) > 0.96


def test_the_start_changes_queries_and_keys_only():
    bound = math.sqrt(6 / 64) * 0.5  # each (32 32) by itself, not the fused (96 32)
    torch.manual_seed(0)
    plain = Attention(32, 2)
    torch.manual_seed(0)
    ours = Attention(32, 2, gain=0.5)
    weight = ours.qkv.weight.detach()
    assert torch.equal(weight[64:], plain.qkv.weight[64:]) and torch.equal(ours.qkv.bias[64:], plain.qkv.bias[64:])
    assert torch.equal(ours.proj.weight, plain.proj.weight) and (ours.qkv.bias[:64] == 0).all()
    for part in (weight[:32], weight[32:64]):
        assert 0.98 * bound < part.abs().max() <= bound


def test_sinusoidal_is_its_formula():
    out = SinusoidalPosition(8)(torch.zeros(2, 11, 8))
    for p in (0, 1, 10):
        for i in range(4):
            angle = p / 10000 ** (2 * i / 8)
            assert out[1, p, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert out[0, p, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)
    x, line = torch.randn(1, 3, 5, 8), SinusoidalPosition(4)
    both = SinusoidalPosition(8, axes=2)(x) - x
    for row in range(3):
        for col in range(5):
            expected = torch.cat([line(torch.zeros(1, 5, 4))[0, row], line(torch.zeros(1, 5, 4))[0, col]])
            torch.testing.assert_close(both[0, row, col], expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("position", [SinusoidalPosition(16), LearnedPosition((20,), 16)], ids=lambda p: type(p).__name__)
def test_order_counts_and_a_shorter_item_is_the_same(position):
    torch.manual_seed(0)
    attn, x, order = Attention(16, 2), torch.randn(1, 9, 16), torch.tensor([8, 2, 1, 0, 4, 3, 7, 5, 6])
    torch.testing.assert_close(attn(x[:, order]), attn(x)[:, order])
    assert (attn(position(x[:, order])) - attn(position(x))[:, order]).abs().max() > 1e-4
    assert torch.equal(position(x)[:, :4], position(x[:, :4]))


def test_learned_adds_its_rows():
    position, x = LearnedPosition((4, 5), 3), torch.randn(2, 3, 5, 3)
    torch.testing.assert_close(position(x) - x, position.table[:3].expand(2, 3, 5, 3))
    position(x).sum().backward()
    assert (position.table.grad[:3] == 2).all() and (position.table.grad[3] == 0).all()


def test_wrong_ones_are_named():
    with pytest.raises(ValueError, match=r"dim must be a multiple of 2 \* axes, got dim=6, axes=2"):
        SinusoidalPosition(6, axes=2)
    with pytest.raises(ValueError, match=r"SinusoidalPosition: 1 axes of 8 channels, got \[1, 2, 3, 8\]"):
        SinusoidalPosition(8)(torch.zeros(1, 2, 3, 8))
    with pytest.raises(ValueError, match=r"LearnedPosition: at most \[4, 8\] \(\*axes dim\), got \[5, 8\]"):
        LearnedPosition((4,), 8)(torch.zeros(1, 5, 8))
