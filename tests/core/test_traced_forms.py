"""Every form under torch.export with unknown lengths and under torch.compile, against the eager module."""

import pytest
import torch

from zoo.core import (
    CAUSAL,
    Attention,
    Axial,
    Band,
    Chunked,
    ClippedPosition,
    Dilated,
    Gated,
    LearnedPosition,
    LinearAttention,
    Reach,
    ShawPosition,
    SinusoidalPosition,
    Slide,
    Temperature,
    Whole,
)

DIM, HEADS = 16, 2
LINE_SHAW, MAP_SHAW = (lambda limit=limit: ShawPosition(limit, HEADS, 8, values=True) for limit in (3, (2, 2)))
FORMS = {  # axes, settings
    "all": (1, lambda: dict(pattern=Whole(), position=ClippedPosition(3, HEADS))),
    "band": (1, lambda: dict(pattern=Band(2), position=LINE_SHAW())),
    "dilated": (1, lambda: dict(pattern=Dilated(2, 3), position=ClippedPosition(2, HEADS))),
    "causal": (1, lambda: dict(pattern=CAUSAL, position=LINE_SHAW())),
    "distance": (1, lambda: dict(pattern=Reach((2, None), (1, 3)), temperature=Temperature(HEADS))),
    "gated": (1, lambda: dict(pattern=Whole(), method=Gated(HEADS, 8, start=0.5, sparsity=0.1), gain=0.7)),
    "chunked": (1, lambda: dict(pattern=Whole(), position=ClippedPosition(3, HEADS), method=Chunked(5))),
    "linear": (1, lambda: dict(pattern=Whole(), method=LinearAttention())),
    "linear, causal": (1, lambda: dict(pattern=CAUSAL, method=LinearAttention())),
    "linear, band": (1, lambda: dict(pattern=Band(2), method=LinearAttention())),
    "map": (2, lambda: dict(pattern=Whole(), position=ClippedPosition((3, 3), HEADS))),
    "slide": (2, lambda: dict(pattern=Slide(1), position=ClippedPosition((1, 1), HEADS))),
    "slide, Shaw": (2, lambda: dict(pattern=Slide(2), position=MAP_SHAW())),
    "rows": (2, lambda: dict(pattern=Axial(1), position=LINE_SHAW())),
    "columns": (2, lambda: dict(pattern=Axial(0), position=ClippedPosition(3, HEADS))),
    "slide, gated": (2, lambda: dict(pattern=Slide(1), method=Gated(HEADS, 8, start=0.5))),
}
SIZES = {1: [(3, 19), (2, 64), (3, 100)], 2: [(3, 5, 9), (2, 17, 6)]}
# torch 2.14 tells a batch of 1 (or one block) apart for the others, and asserts that there are two
SINGLE = {"all", "band", "chunked", "dilated", "linear", "linear, causal", "linear, band", "map", "slide", "rows", "columns"}


def make(name):
    axes, settings = FORMS[name]
    torch.manual_seed(0)
    attn = Attention(DIM, HEADS, **settings())
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return axes, attn


def data(sizes, masked):
    x = torch.randn(*sizes, DIM)
    mask = torch.rand(sizes) < 0.7
    mask.view(sizes[0], -1)[:, 0] = True
    return (x, None, mask) if masked else (x,)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_export_with_dynamic_sizes(name, masked):
    axes, attn = make(name)
    attn.eval()
    free = {0: torch.export.Dim("b", min=1)} | {i + 1: torch.export.Dim("nm"[i], min=2) for i in range(axes)}
    shapes = (free, None, free) if masked else (free,)
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        program = torch.export.export(attn, data((2, *((41,), (11, 13))[axes - 1]), masked), dynamic_shapes=shapes,
                                      prefer_deferred_runtime_asserts_over_guards=True)
    exported = program.module()
    alone = [(1, *sizes) for _, *sizes in SIZES[axes]] if name in SINGLE else []
    for sizes in [*SIZES[axes], *alone]:
        given = data(sizes, masked)
        keep = given[2] if masked else torch.ones(sizes, dtype=torch.bool)
        torch.testing.assert_close(exported(*given)[keep], attn(*given)[keep], rtol=1e-5, atol=1e-5)


def results(module, attn, given):
    attn.zero_grad()
    out = module(*given)
    keep = given[2] if len(given) == 3 else torch.ones(out.shape[:-1], dtype=torch.bool)
    out[keep].square().sum().backward()
    return [out[keep].detach(), *(p.grad.clone() for p in attn.parameters())]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_compiled_forward_and_backward(name):
    """Without breaks in the graph; the code generator itself runs for two forms, which takes its time."""
    axes, attn = make(name)
    torch.compiler.reset()
    backend = "inductor" if name in ("slide", "gated") else "aot_eager"
    compiled = torch.compile(attn, dynamic=False, fullgraph=True, backend=backend)
    for masked in (False, True):
        given = data((2, *(13, 9)[:axes]), masked)
        for a, b in zip(results(attn, attn, given), results(compiled, attn, given), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max()) + 1e-6)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("make, axes", [(lambda: SinusoidalPosition(DIM), 1), (lambda: SinusoidalPosition(DIM, 2), 2),
                                        (lambda: LearnedPosition((200,), DIM), 1), (lambda: LearnedPosition((30, 30), DIM), 2)])
def test_absolute_positions_are_exported(make, axes):
    position = make()
    most = (200, 30)[axes - 1]
    free = {0: torch.export.Dim("b", min=1)} | {i + 1: torch.export.Dim("nm"[i], min=2, max=most) for i in range(axes)}
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        program = torch.export.export(position, data((2, *(11, 13)[:axes]), False), dynamic_shapes=(free,),
                                      prefer_deferred_runtime_asserts_over_guards=True)
    for sizes in SIZES[axes]:
        given = data(sizes, False)
        torch.testing.assert_close(program.module()(*given), position(*given), rtol=1e-5, atol=1e-5)
