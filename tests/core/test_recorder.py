"""The recorder: the weights of real rows sum to 1, the answers stay, and it ends with its block and its thread."""

import threading

import pytest
import torch

from zoo.core import Attention, Block, Recorder, RelativePosition, Windows


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    blocks = [
        Block(Attention(16, 2, pattern=Windows((4, 4), (s, s)), position=RelativePosition((4, 4), 2)), 16) for s in (0, 2)
    ]
    return torch.nn.Sequential(*blocks).eval()


X = torch.randn(2, 7, 6, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("grad", [False, True])
def test_fused_and_recorded_agree(grad):
    m = model()
    with torch.set_grad_enabled(grad):
        plain = m(X)
        with Recorder(m) as record:
            recorded = m(X)
    torch.testing.assert_close(recorded, plain, rtol=1e-5, atol=1e-5)
    assert list(record.maps) == ["0.attn", "1.attn"]
    for weights in record.maps.values():
        assert weights.shape == (2, 4, 2, 16, 16) and not weights.requires_grad
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 2, 16))


def test_full_and_cross_attention():
    x, context, mask = torch.randn(2, 5, 8), torch.randn(2, 3, 4), torch.tensor([[True, True, False], [True, False, False]])
    attn, cross = Attention(8, 2), Attention(8, 2, context_dim=4)
    with Recorder(torch.nn.ModuleList([attn, cross])) as record, torch.no_grad():
        attn(x)
        cross(x, context, mask)
    assert record.maps["0"].shape == (2, 2, 5, 5)
    weights = record.maps["1"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5))
    assert (weights[~mask[:, None, None].expand_as(weights)] == 0).all()


def test_it_ends_with_the_block():
    m = model()
    before = {name: dict(module.__dict__["_forward_pre_hooks"]) for name, module in m.named_modules()}
    with pytest.raises(RuntimeError, match="stop"):
        with Recorder(m) as record:
            raise RuntimeError("stop")
    m(X)
    assert record.maps == {}
    for name, module in m.named_modules():
        assert module._forward_pre_hooks == before[name] and not module._forward_hooks


def test_another_model_and_another_thread_are_not_recorded():
    m, other = model(), model()
    with Recorder(m) as record, torch.no_grad():
        other(X)
        thread = threading.Thread(target=m, args=(X,))
        thread.start()
        thread.join()
        assert record.maps == {}
        m(X)
        kept = {name: weights.clone() for name, weights in record.maps.items()}
        other(X * 2)
        thread = threading.Thread(target=m, args=(X * 2,))
        thread.start()
        thread.join()
    assert all(torch.equal(record.maps[name], kept[name]) for name in kept)


def test_a_recorder_inside_another():
    m = model()
    with torch.no_grad(), Recorder(m) as outer:
        with Recorder(m) as inner:
            m(X)
        assert outer.maps == {} and len(inner.maps) == 2
        m(X)
    assert len(outer.maps) == 2
