"""`zoo bench attention`: each form of attention the core has against the same rule written out over all pairs.

A new form is a line in FORMS.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, isqrt

import torch
from einops import einsum, rearrange
from torch import Tensor

from zoo.bench import Settings
from zoo.bench.rounds import Case, Row
from zoo.core import (
    CAUSAL,
    Attention,
    Axial,
    Band,
    Chunked,
    ClippedPosition,
    Dilated,
    Gated,
    LinearAttention,
    Reach,
    RelativePosition,
    ShawPosition,
    Slide,
    Temperature,
    Whole,
    Windows,
    attention,
)
from zoo.core.attention import weigh
from zoo.core.pairs import Pairs, pair_attention

LENGTHS, QUICK, WRITTEN_OUT = (1000, 2000, 4000, 8000), (64, 128), 2000  # tokens; all pairs are written out up to WRITTEN_OUT
DIM, HEADS, TEXT, DEGREE = 128, 4, 64, 10
CHUNK = 256  # queries: the truth of a long sequence is computed piece by piece

APART = (4, 16, 64, None)  # by head
LINEAR = "linear (another function)"
LOOSE = {name: inf for name in (LINEAR, f"{LINEAR}, causal", f"{LINEAR}, band")}  # the error against softmax is what it tells
LOOSE["gated"] = 1e-2  # rounding opens or closes a gate that stands at the threshold

FORMS = {
    "everybody": lambda n: _tokens((n,), None, None, None),
    "everybody, relative position": lambda n: _tokens((n,), Whole(), ClippedPosition(128, HEADS), None),
    "windows of 16, shifted": lambda n: _tokens((n,), Windows((16,), (8,)), RelativePosition((16,), HEADS), _cells(16, 8)),
    "windows of 7x7, shifted": lambda n: _tokens(_map(n), Windows((7, 7), (3, 3)), RelativePosition((7, 7), HEADS), _cells(7, 3)),
    "band of radius 16": lambda n: _tokens((n,), Band(16), ClippedPosition(16, HEADS), _near(16)),
    "band of radius 16, Shaw": lambda n: _tokens((n,), Band(16), ShawPosition(16, HEADS, DIM // HEADS), _near(16)),
    "square of 7x7, sliding": lambda n: _tokens(_map(n), Slide(3), ClippedPosition((3, 3), HEADS), _square(3)),
    "every 4th of 16 each way": lambda n: _tokens((n,), Dilated(4, 4), None, _every(4, 4)),
    "axial, within rows": lambda n: _tokens(_map(n), Axial(1), None, lambda places: places[:, None, 0] == places[:, 0]),
    "map, 2-D table": lambda n: _tokens(_map(n), Whole(), ClippedPosition((16, 16), HEADS), None),
    "causal": lambda n: _tokens((n,), CAUSAL, None, lambda places: places >= places.T),
    "at most 4, 16, 64, any apart": lambda n: _tokens((n,), Reach(APART, APART), None, _apart),
    "everybody, 256 at a time": lambda n: _tokens((n,), None, None, None, method=Chunked(256)),
    "temperature per head": lambda n: _tokens((n,), None, None, None, temperature=_temperature()),
    "gated": lambda n: _gated(n),
    LINEAR: lambda n: _tokens((n,), None, None, None, method=LinearAttention()),
    f"{LINEAR}, causal": lambda n: _tokens((n,), CAUSAL, None, lambda places: places >= places.T, method=LinearAttention()),
    f"{LINEAR}, band": lambda n: _tokens((n,), Band(16), None, _near(16), method=LinearAttention()),
    f"{TEXT} words ask all": lambda n: _cross(n),
    f"{DEGREE} edges a node": lambda n: _edges(n),
}


@dataclass(frozen=True)
class Form:
    """A form at one length: `run` of the core; q, k, v (1 h n d), mask ((h) n m) and bias (h n m) of the same over all pairs.

    `finish` maps the attended values (1 h n d) to what `run` gives.
    """

    run: Callable[[], Tensor]
    project: Callable[[], tuple[Tensor, Tensor, Tensor]]
    finish: Callable[[Tensor], Tensor]
    mask: Tensor | None = None
    bias: Tensor | None = None


def rows(settings: Settings) -> Iterator[Row]:
    """Rows by form and length, inference, one item. Peers see all pairs under the form's mask and bias, fused and written out."""
    for name, form_at in FORMS.items():
        for length in QUICK if settings.quick else LENGTHS:
            torch.manual_seed(0)
            form = form_at(length)
            cases = [Case("zoo", form.run), Case("all pairs, fused", lambda f=form: _all_pairs(f, attention))]
            if length <= WRITTEN_OUT:
                cases.append(Case("all pairs, written out", lambda f=form: _all_pairs(f, _written_out)))
            yield Row(name, length, "tokens", tuple(cases), lambda f=form: _all_pairs(f, _in_chunks), LOOSE.get(name, 1e-5))


def _all_pairs(form: Form, attend: Callable) -> Tensor:
    return form.finish(attend(*form.project(), form.mask, form.bias))


def _written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    return einsum(weigh(q, k, mask, bias).to(v.dtype), v, "b h n m, b h m d -> b h n d")


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    out = []
    for start in range(0, q.shape[2], CHUNK):
        at = slice(start, start + CHUNK)
        own = (None if term is None else term[..., at, :] for term in (mask, bias))
        out.append(_written_out(q[:, :, at], k, v, *own))
    return torch.cat(out, 2)


def _tokens(axes: tuple[int, ...], pattern, position, sees: Callable[[Tensor], Tensor] | None, **settings) -> Form:
    """Self-attention of a map of tokens; `sees` maps the places (n axes) to the mask ((h) n n); `settings` go to Attention."""
    attn = Attention(DIM, HEADS, pattern=pattern, position=position, **settings).eval()
    x = torch.randn(1, *axes, DIM)
    places = torch.stack(torch.meshgrid(*map(torch.arange, axes), indexing="ij"), -1).flatten(0, -2)

    def project():
        q, k, v = rearrange(attn.qkv(x.flatten(1, -2)), "b n (three h d) -> three b h n d", three=3, h=HEADS)
        return q if attn.temperature is None else attn.temperature(q), k, v

    def finish(out):
        return attn.proj(rearrange(out, "b h n d -> b n (h d)")).view(1, *axes, DIM)

    return Form(lambda: attn(x), project, finish, sees and sees(places), position and _table(position, places, project()[0]))


def _table(position, places: Tensor, q: Tensor) -> Tensor:
    """bias (h n n) = table[offset, clipped per axis]; of Shaw's kind q (1 h n d) times the key's."""
    index = 0
    for axis, far in enumerate(position.limit):
        offset = (places[:, None, axis] - places[None, :, axis]).clamp(-far, far) + far
        index = index * (2 * far + 1) + offset
    if isinstance(position, ShawPosition):
        asked = einsum(q[0] * q.shape[-1] ** -0.5, position.keys, "h n d, h r d -> h n r")
        return asked.gather(-1, index.expand(HEADS, -1, -1))
    return torch.stack([column[index] for column in position.table.T])


def _cells(size: int, shift: int) -> Callable[[Tensor], Tensor]:
    """Both in the same cell of every axis: of `size` tokens, moved by `shift`; an axis no longer than that is one cell."""
    def sees(places):
        cell = torch.where(places.amax(0) < size, 0, (places + size - shift) // size)
        return (cell[:, None] == cell[None]).all(-1)

    return sees


def _square(radius: int) -> Callable[[Tensor], Tensor]:
    return lambda places: ((places[:, None] - places[None]).abs() <= radius).all(-1)


def _near(radius: int) -> Callable[[Tensor], Tensor]:
    return lambda places: (places - places.T).abs() <= radius


def _every(step: int, radius: int) -> Callable[[Tensor], Tensor]:
    return lambda places: ((places - places.T) % step == 0) & ((places - places.T).abs() <= step * radius)


def _apart(places: Tensor) -> Tensor:
    """(h n n): the rule of each head in APART."""
    return torch.stack([(places - places.T).abs() <= (len(places) if far is None else far) for far in APART])


def _temperature() -> Temperature:
    temperature = Temperature(HEADS)
    torch.nn.init.uniform_(temperature.log, -1, 1)
    return temperature


def _gated(length: int) -> Form:
    """About half of the gates are closed; the peers see the open ones as a mask."""
    gate = Gated(HEADS, DIM // HEADS, start=0.0)
    form = _tokens((length,), None, None, None, method=gate)
    q, k, _ = form.project()
    return replace(form, mask=gate.gate(q, k)[0] > 0)


def _map(tokens: int) -> tuple[int, int]:
    """The most nearly square map of so many tokens."""
    rows = next(n for n in range(isqrt(tokens), 0, -1) if tokens % n == 0)
    return rows, tokens // rows


def _cross(length: int) -> Form:
    """TEXT queries ask `length` tokens of which the last quarter is padding."""
    attn = Attention(DIM, HEADS, context_dim=DIM).eval()
    text, context = torch.randn(1, TEXT, DIM), torch.randn(1, length, DIM)
    real = torch.arange(length)[None] < length - length // 4

    def project():
        k, v = rearrange(attn.kv(context), "b m (two h d) -> two b h m d", two=2, h=HEADS)
        return rearrange(attn.q(text), "b n (h d) -> b h n d", h=HEADS), k, v

    def finish(out):
        return attn.proj(rearrange(out, "b h n d -> b n (h d)"))

    return Form(lambda: attn(text, context, real), project, finish, real.expand(TEXT, length))


def _edges(nodes: int) -> Form:
    """Every node sees itself and about DEGREE others, a random term on each edge."""
    mask = (torch.rand(nodes, nodes) < DEGREE / nodes) | torch.eye(nodes, dtype=torch.bool)
    query, key = mask.nonzero().T
    pairs = Pairs(query, key, offsets=torch.searchsorted(query, torch.arange(nodes + 1)))
    linear, x, term = torch.nn.Linear(DIM, 3 * DIM), torch.randn(nodes, DIM), torch.randn(len(query), HEADS)
    bias = torch.zeros(HEADS, nodes, nodes).index_put((torch.arange(HEADS)[:, None], query, key), term.T)

    def run():
        qkv = rearrange(linear(x), "n (three h d) -> n three h d", three=3, h=HEADS)
        return rearrange(pair_attention(qkv, pairs, term), "n h d -> n (h d)")

    def project():
        return rearrange(linear(x), "n (three h d) -> three 1 h n d", three=3, h=HEADS)

    return Form(run, project, lambda out: rearrange(out, "1 h n d -> n (h d)"), mask, bias)
