"""Every pattern and every position against the rule written out over all pairs: forward, gradients, padding, recorded weights."""

import itertools

import pytest
import torch

from zoo.core import (
    CAUSAL,
    Attention,
    Axial,
    Band,
    Block,
    ClippedPosition,
    Dilated,
    Reach,
    Recorder,
    ShawPosition,
    Slide,
    Temperature,
    Whole,
)

HEADS, DIM = 2, 8


def sees(pattern, i, j, head) -> bool:
    """Whether the token at place i (a tuple) sees the one at j."""
    gap = i[0] - j[0]
    match pattern:
        case None | Whole():
            return True
        case Band():
            return abs(gap) <= pattern.radius
        case Dilated():
            return gap % pattern.step == 0 and abs(gap) <= pattern.radius * pattern.step
        case Slide():
            return all(abs(a - b) <= pattern.radius for a, b in zip(i, j))
        case Axial():
            return all(a == b for axis, (a, b) in enumerate(zip(i, j)) if axis != pattern.axis)
    behind, ahead = (limit[head] if isinstance(limit, tuple) else limit for limit in (pattern.behind, pattern.ahead))
    return (behind is None or gap <= behind) and (ahead is None or -gap <= ahead)


def offset(pattern, i, j) -> list[int]:
    """What a position goes by."""
    if isinstance(pattern, Axial):
        return [i[pattern.axis] - j[pattern.axis]]
    return [(a - b) // (pattern.step if isinstance(pattern, Dilated) else 1) for a, b in zip(i, j)]


def table_row(limits, offsets) -> int:
    """Row of a table of offsets, clipped by axis, the last axis inside."""
    row = 0
    for limit, far in zip(limits, offsets, strict=True):
        row = row * (2 * limit + 1) + max(-limit, min(limit, far)) + limit
    return row


def dense(attn, x, mask=None) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole module, pair by pair, and its weights (b h t t); rows of padding are 0."""
    places = list(itertools.product(*map(range, x.shape[1:-1])))
    n, position = len(places), attn.position
    tokens = x.flatten(1, -2)
    real = torch.ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask.flatten(1)
    q, k, v = attn.qkv(torch.where(real[..., None], tokens, 0)).view(-1, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
    if attn.temperature is not None:
        q = q / attn.temperature.log.exp().view(1, HEADS, 1, 1)
    rule = torch.tensor([[[sees(attn.pattern, i, j, h) for j in places] for i in places] for h in range(HEADS)])
    if position is not None:
        row = torch.tensor([[table_row(position.limit, offset(attn.pattern, i, j)) for j in places] for i in places])
    scores, moved = q @ k.mT, v[:, :, None].expand(-1, -1, n, -1, -1)
    term = 0
    if isinstance(position, ShawPosition):
        scores = (q[:, :, :, None] * (k[:, :, None] + position.keys[:, row])).sum(-1)  # eq. 4 as it stands
        if position.values is not None:
            moved = moved + position.values[:, row]  # eq. 3
    elif position is not None:
        term = position.table[row].permute(2, 0, 1)
    allowed = rule & real[:, None, None, :] & real[:, None, :, None]
    scores = (scores / (DIM // HEADS) ** 0.5 + term).masked_fill(~allowed, -torch.inf)
    weights = torch.where(real[:, None, :, None], scores.masked_fill(~real[:, None, :, None], 0).softmax(-1), 0)
    out = attn.proj((weights[..., None] * moved).sum(-2).transpose(1, 2).flatten(2))
    return torch.where(real[..., None], out, 0).view(x.shape), weights


def make(pattern, position=None, **settings) -> Attention:
    torch.manual_seed(0)
    attn = Attention(DIM, HEADS, pattern=pattern, position=position, **settings).double()
    for p in attn.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return attn


def padded(axes, seed):
    """Three items with NaN at about a third of the places, mask."""
    generator = torch.Generator().manual_seed(seed)
    x, mask = torch.randn(3, *axes, DIM, dtype=torch.double, generator=generator), torch.rand(3, *axes, generator=generator) < 0.7
    mask.view(3, -1)[:, 0] = True
    x[~mask] = torch.nan
    return x, mask


def result(attn, function, x, keep):
    x = x.clone().requires_grad_()
    attn.zero_grad()
    out = torch.where(keep[..., None], function(x), 0)
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    (out * weight).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in attn.parameters())]


def agree(attn, x, mask):
    keep = torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask
    ours = result(attn, lambda x: attn(x, mask=mask), x, keep)
    theirs = result(attn, lambda x: dense(attn, x, mask)[0], x, keep)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a.isfinite().all(), i
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda text: f"{tuple(x.shape)}, tensor {i}: {text}")


LINES = [
    CAUSAL, Reach(3, 3), Reach(2, 0), Reach((1, None), (0, 2)), Reach((16, 4)), Reach(ahead=(0, None)), Reach(0, 0),
    Dilated(2, 3), Dilated(1, 2), Dilated(3, 1), Dilated(0, 4), Dilated(9, 5),
]
POSITIONS = {
    "none": lambda: None,
    "clipped": lambda: ClippedPosition(2, HEADS),
    "shaw": lambda: ShawPosition(2, HEADS, DIM // HEADS),
    "shaw, values too": lambda: ShawPosition(3, HEADS, DIM // HEADS, values=True),
}


@pytest.mark.parametrize("pattern", LINES, ids=str)
def test_any_length_equals_the_dense_rule(pattern):
    attn = make(pattern, ClippedPosition(2, HEADS))
    for length in (1, 2, 5, 9, 16, 19):
        x, mask = padded((length,), length)
        agree(attn, x, mask)
        agree(attn, x.nan_to_num(0.3), None)


@pytest.mark.parametrize("axis, axes", [(0, (1, 1)), (0, (4, 3)), (1, (4, 3)), (0, (1, 5)), (2, (2, 3, 4)), (1, (2, 3, 2))])
def test_axial_equals_the_dense_rule(axis, axes):
    attn = make(Axial(axis), ClippedPosition(2, HEADS))
    x, mask = padded(axes, 0)
    agree(attn, x, mask)
    agree(attn, x.nan_to_num(0.3), None)


MAPS = [(1, 1), (3, 4), (1, 9), (7, 5), (4, 8), (9, 9)]
MAP_POSITIONS = {
    "none": lambda: None,
    "clipped": lambda: ClippedPosition((1, 2), HEADS),
    "shaw, values too": lambda: ShawPosition((2, 1), HEADS, DIM // HEADS, values=True),
}


@pytest.mark.parametrize("position", MAP_POSITIONS)
@pytest.mark.parametrize("pattern", [Slide(0), Slide(1), Slide(2, block=3), Slide(1, block=1), Slide(9), Whole()], ids=str)
def test_maps_equal_the_dense_rule(pattern, position):
    attn = make(pattern, MAP_POSITIONS[position](), temperature=Temperature(HEADS))
    for axes in MAPS if position == "clipped" else MAPS[1:4]:
        x, mask = padded(axes, sum(axes))
        agree(attn, x, mask)
        agree(attn, x.nan_to_num(0.3), None)


@torch.no_grad()
def test_the_square_of_a_token_is_all_that_a_slide_sees():
    attn, x = make(Slide(1, block=3), ClippedPosition((1, 1), HEADS)), torch.randn(1, 7, 8, DIM).double()
    for row, col in itertools.product((0, 2, 6), (0, 3, 7)):
        other = x.clone()
        other[0, row, col] += torch.randn(DIM).double()
        changed = (attn(other) - attn(x)).abs().amax(-1)[0] > 1e-12
        near = torch.zeros(7, 8, dtype=torch.bool)
        near[max(0, row - 1) : row + 2, max(0, col - 1) : col + 2] = True
        assert torch.equal(changed, near), (row, col)


def test_the_work_of_a_slide_is_linear():
    def pairs(n):
        layout = Slide(2).layout((n, n))
        x = layout.cut(torch.zeros(1, n, n, 1))
        keys = layout.keys(x.unsqueeze(-1))
        return x.shape[1] * x.shape[2] * keys.shape[3]

    assert pairs(32) == 4 * pairs(16) == 32 * 32 * 64  # 64 keys a token for the 25 that it sees


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pattern", [None, Whole(), Band(2, block=4), Dilated(2, 2), CAUSAL, Axial(1)], ids=str)
def test_every_position_with_every_pattern(pattern, position):
    attn = make(pattern, POSITIONS[position](), temperature=Temperature(HEADS))
    axes = (3, 5) if isinstance(pattern, Axial) else (11,)
    x, mask = padded(axes, 0)
    agree(attn, x, mask)
    agree(attn, x.nan_to_num(0.3), None)


@torch.no_grad()
@pytest.mark.parametrize("pattern, axes", [
    *((p, (17,)) for p in LINES), (Axial(0), (4, 5)), (Axial(1), (4, 5)), (Slide(1), (5, 7)), (Slide(2, 2), (4, 3)),
    (Whole(), (4, 3)),
], ids=str)
def test_recorded_weights_are_those_of_every_position(pattern, axes):
    limit = 2 if len(axes) == 1 or isinstance(pattern, Axial) else (2, 2)
    attn = make(pattern, ShawPosition(limit, HEADS, DIM // HEADS, values=True))
    x, mask = padded(axes, 3)
    for x, mask in ((x, mask), (x.nan_to_num(0.3), None)):
        with Recorder(attn) as record:
            recorded = attn(x, mask=mask)
        full, expected = pattern.layout(axes).dense(record.maps[""]), dense(attn, x, mask)[1]
        real = torch.ones(expected.shape[0], expected.shape[-1], dtype=torch.bool) if mask is None else mask.flatten(1)
        torch.testing.assert_close(torch.where(real[:, None, :, None], full, 0), expected)
        keep = torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask
        torch.testing.assert_close(recorded[keep], attn(x, mask=mask)[keep])


@torch.no_grad()
@pytest.mark.parametrize("pattern", LINES[:5] + LINES[7:9], ids=str)
def test_an_item_is_the_same_alone_and_padded(pattern):
    attn = make(pattern, ClippedPosition(2, HEADS)).float()
    for length in (1, 5, 12):
        item, x = torch.randn(1, length, DIM), torch.full((1, 20, DIM), torch.nan)
        x[:, :length] = item
        out = attn(x, mask=torch.arange(20)[None] < length)
        torch.testing.assert_close(out[:, :length], attn(item), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_future_is_never_seen():
    stack = torch.nn.Sequential(*[Block(make(CAUSAL, ClippedPosition(4, HEADS)), DIM).double() for _ in range(3)])
    x = torch.randn(1, 9, DIM).double()
    for cut in range(1, 9):
        other = x.clone()
        other[:, cut:] = torch.randn(1, 9 - cut, DIM).double()
        assert torch.equal(stack(other)[:, :cut], stack(x)[:, :cut]) and not torch.equal(stack(other)[:, cut:], stack(x)[:, cut:])


@torch.no_grad()
def test_rows_then_columns_join_all_tokens():
    rows, columns = make(Axial(1)), make(Axial(0))
    x = torch.randn(1, 4, 5, DIM).double()
    other = x + torch.nn.functional.pad(torch.randn(DIM).double().view(1, 1, 1, DIM), (0, 0, 0, 4, 0, 3))  # the first token
    assert ((rows(other) - rows(x)).abs().amax(-1) > 1e-9).sum() == 5
    assert ((columns(rows(other)) - columns(rows(x))).abs().amax(-1) > 1e-9).all()


@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS)
def test_order_counts_only_where_a_position_is_set(position):
    attn, x, order = make(None, POSITIONS[position]()), torch.randn(1, 9, DIM).double(), torch.randperm(9)
    same = torch.allclose(attn(x[:, order]), attn(x)[:, order])
    assert same == (position == "none")


def test_wrong_ones_are_named():
    for wrong in ({"behind": -1}, {"ahead": (1, -2)}, {"behind": (1, 2), "ahead": (1, 2, 3)}, {"behind": ()}):
        with pytest.raises(ValueError, match="Reach: need limits >= 0 or None"):
            Reach(**wrong)
    with pytest.raises(ValueError, match=r"heads=2, but Reach\(behind=\(1, 2, 3\), ahead=None\) has limits for 3 heads"):
        Attention(DIM, HEADS, pattern=Reach((1, 2, 3)))
    for radius, step in ((-1, 1), (1, 0)):
        with pytest.raises(ValueError, match=f"Dilated: need radius >= 0 and step >= 1, got radius={radius}, step={step}"):
            Dilated(radius, step)
    with pytest.raises(ValueError, match="Axial: axis=3; allowed: 0, 1, 2"):
        Axial(3)
    with pytest.raises(ValueError, match=r"Axial: no axis 1 on a map of shape \(4,\)"):
        Axial(1).layout((4,))
    for pattern in (CAUSAL, Dilated(1, 2)):
        with pytest.raises(ValueError, match=rf"{type(pattern).__name__}: one axis of tokens, got a map of shape \(3, 4\)"):
            pattern.layout((3, 4))
    with pytest.raises(ValueError, match="ShawPosition: limit=-1"):
        ShawPosition(-1, HEADS, 4)
    with pytest.raises(ValueError, match=r"ClippedPosition: limit=\(2, -1\); allowed: >= 0"):
        ClippedPosition((2, -1), HEADS)
    for radius, block in ((-1, 0), (1, -2)):
        with pytest.raises(ValueError, match=f"Slide: need radius >= 0 and block >= 0, got radius={radius}, block={block}"):
            Slide(radius, block)
    with pytest.raises(ValueError, match=r"Slide: two axes of tokens, got a map of shape \(4,\)"):
        Slide(1).layout((4,))
    with pytest.raises(ValueError, match=r"position of 1 axes on a map of shape \(3, 4\)"):
        Attention(DIM, HEADS, pattern=Whole(), position=ClippedPosition(2, HEADS))(torch.zeros(1, 3, 4, DIM))
