"""Chunked, linear and gated attention against their formulas written out; how far linear is from softmax; memory measured."""

import copy
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

from zoo.bench.memory import peak
from zoo.core import (
    CAUSAL,
    Attention,
    Band,
    Chunked,
    ClippedPosition,
    Gated,
    LinearAttention,
    Recorder,
    ShawPosition,
    SinusoidalPosition,
    Whole,
    attend,
    attention,
)
from zoo.core.gated import penalties
from zoo.core.linear import error, positive

attention_file = import_module("zoo.core.attention")  # the package's attribute of this name is the function
HEADS, DIM = 2, 8


def qkv(n=7, m=11, scale=1.0, dtype=torch.double, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, HEADS, n, 4), (2, HEADS, m, 4), (2, HEADS, m, 5)
    return [(scale * torch.randn(shape, dtype=dtype, generator=generator)).requires_grad_() for shape in shapes]


def padding(m=11):
    return torch.arange(m) < torch.tensor([[m], [4]])


def gradients(out, leaves):
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((out * weight).sum(), leaves)


def same(ours, theirs, leaves, tolerance=1e-9):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    for a, b in zip(gradients(ours, leaves), gradients(theirs, leaves), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("path", ["plain", "fused"])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_chunked_is_exact(size, path, monkeypatch):
    monkeypatch.setattr(attention_file, "kernel", lambda *_: path)
    q, k, v = leaves = qkv(dtype=torch.float32)
    term = torch.randn(HEADS, 7, 11, requires_grad=True)
    for mask in (None, padding()[:, None, None], torch.rand(2, 1, 7, 11) < 0.6):
        for bias in (None, term):
            own = [*leaves, *([] if bias is None else [bias])]
            same(attention(q, k, v, mask, bias, Chunked(size)), attention(q, k, v, mask, bias), own, 1e-5)


@pytest.mark.parametrize("pattern", [None, Whole(), Band(3, block=4), CAUSAL], ids=str)
def test_chunked_is_exact_in_the_module(pattern):
    torch.manual_seed(0)
    attn = Attention(DIM, HEADS, pattern=pattern, position=ClippedPosition(3, HEADS)).double()
    x, mask = torch.randn(2, 13, DIM).double(), torch.arange(13) < torch.tensor([[13], [5]])
    x[~mask] = torch.nan
    x.requires_grad_()
    whole = attn(x, mask=mask)[mask]
    with Recorder(attn) as record:
        attn(x, mask=mask)
    attn.method = Chunked(5)
    same(attn(x, mask=mask)[mask], whole, [x, *attn.parameters()])
    with Recorder(attn) as chunked:
        attn(x, mask=mask)
    assert torch.equal(chunked.maps[""], record.maps[""])


def test_the_memory_of_chunks_is_linear_forward_and_backward(monkeypatch):
    monkeypatch.setattr(attention_file, "kernel", lambda *_: "plain")  # the fused kernel alone would be linear too

    def train(method, n):
        q, k, v = (torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(3))
        return lambda: torch.autograd.grad(method(q, k, v).square().sum(), (q, k, v))

    short, long, dense = (peak(train(method, n)) for method, n in ((Chunked(64), 1024), (Chunked(64), 4096), (attend, 1024)))
    if dense is None:
        pytest.skip("peak memory needs /proc")
    assert dense > 2 * 2 * 4  # MiB: two heads, weights of 1024 x 1024, and their gradient
    assert short < dense / 2 and long < 8 * short, (short, long, dense)  # 4 times the tokens; the square would be 16 times


def linear_dense(q, k, v, mask=None):
    feature = lambda x: F.elu(x) + 1  # noqa: E731
    weights = feature(q) @ feature(k).mT
    weights = weights if mask is None else weights * mask
    return weights / weights.sum(-1, keepdim=True) @ v, weights / weights.sum(-1, keepdim=True)


def test_linear_is_its_formula_and_padding_is_in_neither_sum():
    q, k, v = leaves = qkv()
    mask = padding()[:, None, None]
    same(attention(q, k, v, None, None, LinearAttention()), linear_dense(q, k, v)[0], leaves)
    same(attention(q, k, v, mask, None, LinearAttention()), linear_dense(q, k, v, mask)[0], leaves)
    poisoned = [t.detach().clone() for t in leaves]
    for t in poisoned[1:]:
        t[1, :, 4:] = torch.nan
    torch.testing.assert_close(attention(*poisoned, mask, None, LinearAttention()), linear_dense(q, k, v, mask)[0].detach())
    assert (attention(q, k, v, torch.zeros(2, 1, 1, 11, dtype=torch.bool), None, LinearAttention()) == 0).all()


@pytest.mark.parametrize("pattern", [None, Whole()], ids=str)
def test_linear_in_the_module_is_the_same_alone_padded_and_recorded(pattern):
    torch.manual_seed(0)
    attn = Attention(DIM, HEADS, pattern=pattern, method=LinearAttention())
    x, mask = torch.full((3, 9, DIM), torch.nan), torch.arange(9) < torch.tensor([[9], [4], [1]])
    x[mask] = torch.randn(int(mask.sum()), DIM)
    out = attn(x, mask=mask)
    for i in range(3):  # also: graphs of one batch do not leak into each other
        torch.testing.assert_close(out[i][mask[i]], attn(x[i : i + 1, mask[i]])[0], rtol=1e-5, atol=1e-5)
    with Recorder(attn) as record:
        torch.testing.assert_close(attn(x, mask=mask), out, rtol=1e-5, atol=1e-5)
    weights = record.maps[""] if pattern is None else pattern.layout((9,)).dense(record.maps[""])
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, HEADS, 9))
    assert (weights[~mask[:, None, None].expand_as(weights)] == 0).all()
    clean = torch.where(mask[..., None], x, 0)
    q, k, v = attn.qkv(clean).view(3, 9, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    torch.testing.assert_close(weights, linear_dense(q, k, v, mask[:, None, None])[1], rtol=1e-5, atol=1e-6)


def test_the_error_of_linear_against_softmax_is_told():
    """About equal scores: nearly nothing is lost; sharp ones: most is. The number is that of the outputs."""
    near, far = (error(LinearAttention(), *qkv(64, 64, scale)) for scale in (0.05, 4.0))
    assert near < 0.1 < 0.5 < far
    q, k, v = (t.detach() for t in qkv())
    exact = attention(q, k, v)
    assert error(LinearAttention(), q, k, v) == pytest.approx(float((linear_dense(q, k, v)[0] - exact).norm() / exact.norm()))
    assert error(Chunked(3), q, k, v) < 1e-12


def test_features_are_positive_where_elu_plus_one_is_not():
    x = torch.tensor([-80.0, -20.0, 0.0, 3.0], requires_grad=True)
    assert (positive(x) > 0).all() and (F.elu(x) + 1)[1] == 0
    torch.testing.assert_close(positive(x)[2:], F.elu(x)[2:] + 1)
    positive(x).sum().backward()
    assert x.grad.isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(*(t.bfloat16() for t in qkv(64, 64, dtype=torch.float32)), method=LinearAttention())
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


def gated_dense(attn, x, mask):
    """Pair by pair, over the open keys only."""
    b, n, _ = x.shape
    q, k, v = attn.qkv(torch.where(mask[..., None], x, 0)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    gate, out, closed = attn.method, torch.zeros_like(v), []
    for i in range(b):
        for h in range(HEADS):
            for row in range(n):
                opened = [j for j in range(n) if mask[i, j] and torch.sigmoid(
                    q[i, h, row] @ gate.map[h] @ k[i, h, j] / 2 + gate.shift[h]) > gate.threshold]
                closed.append(int(mask[i].sum()) - len(opened))
                if opened:
                    weights = (k[i, h, opened] @ q[i, h, row] / 2).softmax(0)
                    out[i, h, row] = weights @ v[i, h, opened]
    return attn.proj(out.transpose(1, 2).flatten(2)), sum(closed) / (HEADS * n * int(mask.sum()))


def gated(shift=0.0) -> Attention:
    torch.manual_seed(0)
    attn = Attention(DIM, HEADS, method=Gated(HEADS, DIM // HEADS)).double()
    for p in attn.parameters():
        torch.nn.init.normal_(p, std=0.7)
    torch.nn.init.constant_(attn.method.shift, shift)
    return attn


@pytest.mark.parametrize("shift", [-1.5, 0.0, 1.0])
def test_gated_is_softmax_over_the_open_keys(shift):
    attn, x = gated(shift).eval(), torch.randn(2, 6, DIM).double()
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    x[~mask] = torch.nan
    expected, closed = gated_dense(attn, x, mask)
    with Recorder(attn) as record:
        torch.testing.assert_close(attn(x, mask=mask), expected)
    assert 0.02 < closed < 0.98 and record.closed[""] == pytest.approx(closed)
    sums = record.maps[""].sum(-1)
    assert ((sums - 1).abs() < 1e-9)[sums > 0].all() and (record.maps[""] == 0).double().mean() >= closed
    torch.testing.assert_close(attn.train()(x, mask=mask), expected)  # hard at training too; only the gradient differs


def test_all_closed_gives_0_and_all_open_is_softmax():
    x = torch.randn(2, 6, DIM).double()
    attn = gated(-100.0)
    for training in (True, False):
        out = attn.train(training)(x.requires_grad_())
        torch.testing.assert_close(out, attn.proj.bias.expand_as(out))
        grads = torch.autograd.grad(out.sum(), list(attn.parameters()), allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in grads)
    shift = torch.nn.init.constant_(attn.method.shift, -20.0)
    assert (torch.autograd.grad(attn.train()(x).sum(), shift)[0].abs() > 0).any()  # so it can open again
    attn, plain = gated(100.0), Attention(DIM, HEADS).double()
    plain.load_state_dict(attn.state_dict(), strict=False)
    torch.testing.assert_close(attn(x), plain(x))


def test_the_gate_learns_at_training_and_is_a_constant_in_eval():
    """One key is the answer, the others noise: a gate that starts open learns to close; in eval mode it gets no gradient."""
    attn, x = gated(1.0), torch.randn(4, 6, DIM).double()
    method = attn.method
    out = attn(x).square().sum()
    assert all(g.abs().max() > 0 for g in torch.autograd.grad(out, [method.map, method.shift]))
    attn.eval()
    grads = torch.autograd.grad(attn(x).square().sum(), [method.map, method.shift, attn.qkv.weight], allow_unused=True)
    assert grads[:2] == (None, None) and grads[2].abs().max() > 0
    gate = Gated(1, 2, start=2.0)
    q, k = torch.ones(1, 1, 1, 2), torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.5]])[None, None]
    v = torch.tensor([[1.0], [0.0], [0.0]])[None, None]
    optimizer, before = torch.optim.SGD(gate.parameters(), 5.0), (gate.gate(q, k) > 0).sum()
    for _ in range(30):
        optimizer.zero_grad()
        (gate(q, k, v) - 1).square().sum().backward()
        optimizer.step()
    assert before == 3 and (gate.gate(q, k) > 0).flatten().tolist() == [True, False, False]
    assert gate.eval()(q, k, v).item() == pytest.approx(1)


def test_heads_share_no_parameter():
    for module, names in ((Gated(3, 4), ("map", "shift")), (ShawPosition(2, 3, 4, True), ("keys", "values"))):
        assert all(getattr(module, name).shape[0] == 3 and getattr(module, name).is_contiguous() for name in names)
    attn, x = gated(0.5), torch.randn(1, 6, DIM).double()
    with Recorder(attn) as record:
        attn(x)
        before = record.maps[""]
        with torch.no_grad():
            attn.method.map[1] *= -1
        attn(x)
    assert torch.equal(record.maps[""][:, 0], before[:, 0]) and not torch.equal(record.maps[""][:, 1], before[:, 1])


@pytest.mark.parametrize("method", [Chunked(2), LinearAttention(), Gated(HEADS, 4)], ids=lambda m: type(m).__name__)
def test_cross_attention_has_every_method(method):
    torch.manual_seed(0)
    attn = Attention(DIM, HEADS, context_dim=6, method=method)
    x, context, mask = torch.randn(2, 3, DIM), torch.randn(2, 5, 6), torch.arange(5) < torch.tensor([[2], [0]])
    context[~mask] = torch.nan
    out = attn(x, context, mask)
    torch.testing.assert_close(out[:1], attn(x[:1], context[:1, :2]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[1], attn.proj.bias.expand(3, DIM))
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in attn.parameters())


def test_wrong_ones_are_named():
    x = torch.randn(1, 9, DIM)
    with pytest.raises(ValueError, match="Chunked: size=0; allowed: >= 1"):
        Chunked(0)
    with pytest.raises(ValueError, match="Gated: threshold=1.0; allowed: between 0 and 1"):
        Gated(2, 4, threshold=1.0)
    with pytest.raises(ValueError, match="LinearAttention: no term can be added to a score .* use position=None"):
        Attention(DIM, HEADS, position=ClippedPosition(2, HEADS), method=LinearAttention())(x)
    with pytest.raises(ValueError, match="values=True needs the weights, method=Chunked"):
        Attention(DIM, HEADS, position=ShawPosition(2, HEADS, 4, values=True), method=Chunked(3))(x)
    assert Attention(DIM, HEADS, method=LinearAttention())(SinusoidalPosition(DIM)(x)).isfinite().all()


def test_the_penalty_is_the_mean_gate_of_visible_pairs_and_read_once():
    attn, x, mask = gated(0.3), torch.randn(2, 6, DIM).double(), torch.arange(6) < torch.tensor([[6], [3]])
    attn.method.sparsity = 0.1
    stack = torch.nn.ModuleList([attn])
    assert penalties(stack) is None
    attn.eval()(x, mask=mask)
    assert penalties(stack) is None  # a forward in eval mode changes nothing
    attn.train()(x, mask=mask)
    copy.deepcopy(attn)
    found = penalties(stack)
    assert penalties(stack) is None
    q, k, _ = attn.qkv(torch.where(mask[..., None], x, 0)).view(2, 6, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    score = torch.einsum("bhnd,hde,bhme->bhnm", q, attn.method.map, k) / 2 + attn.method.shift.view(1, HEADS, 1, 1)
    expected = 0.1 * score.sigmoid()[mask[:, None, None].expand(2, HEADS, 6, 6)].mean()
    same(found, expected, [attn.method.map, attn.method.shift, attn.qkv.weight])


def test_the_penalty_closes_gates_that_nothing_needs():
    """Values are all alike, so that any open key will do."""
    torch.manual_seed(0)
    gate, q, k = Gated(2, 4, start=1.0, sparsity=1.0), torch.randn(3, 2, 8, 4), torch.randn(3, 2, 8, 4)
    optimizer, v = torch.optim.SGD(gate.parameters(), 1.0), torch.ones(3, 2, 8, 4)
    before = (gate.gate(q, k) > 0).float().mean()
    for _ in range(20):
        optimizer.zero_grad()
        ((gate(q, k, v) - 1).square().mean() + penalties(gate)).backward()
        optimizer.step()
    assert before > 0.8 and (gate.gate(q, k) > 0).float().mean() < 0.3


def test_eval_in_pieces_is_the_whole(monkeypatch):
    attn, x = gated(0.0).eval(), torch.randn(2, 23, DIM).double()
    whole = attn(x)
    monkeypatch.setattr(import_module("zoo.core.gated"), "PIECE", 5)
    torch.testing.assert_close(attn(x), whole)
    attn.pattern, attn.position = Band(3, block=4), ShawPosition(3, HEADS, 4, values=False).double()
    hard = attn(x)
    torch.testing.assert_close(attn.train()(x), hard)


def test_shaw_values_see_the_gated_weights():
    torch.manual_seed(0)
    attn = gated(0.0).eval()
    attn.pattern, attn.position = CAUSAL, ShawPosition(2, HEADS, 4, values=True).double()
    x = torch.randn(1, 7, DIM).double()
    with Recorder(attn) as record:
        out = attn(x)
    weights, v = record.maps[""][:, 0], attn.qkv(x)[..., 2 * DIM :].view(1, 7, HEADS, 4).transpose(1, 2)
    row = (torch.arange(7)[:, None] - torch.arange(7)).clamp(-2, 2) + 2
    expected = weights @ v + (weights[..., None] * attn.position.values[:, row]).sum(-2)
    torch.testing.assert_close(out, attn.proj(expected.transpose(1, 2).flatten(2)))
    assert 0 < record.closed[""] < 1
