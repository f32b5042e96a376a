"""Rows of `zoo bench audio`: one local layer against other ways to the same numbers, and what dispatch saves at training."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo import registry
from zoo.bench import compiler
from zoo.bench.rounds import Case, Row
from zoo.core import Attention, attend

FRAMES, QUICK_FRAMES = (1000, 8000), (40, 80)  # as many tokens
CLIPS, QUICK_CLIPS = 32, 2  # of one second


def layer_rows(name: str, quick: bool) -> Iterator[Row]:
    """What lies between the two linear layers of the first local layer of the model `name`, sliding windows, by frames.

    All get the same queries, keys, values and table, and what depends on the length alone (full attention's mask and bias in
    one tensor, FlexAttention's blocks and its compiled code) before the time is taken; ours makes its bias anew each time.
    FlexAttention is left out where there is no C++ compiler.
    """
    torch.manual_seed(0)
    attn = registry.build(name, local="band").stages[0].blocks[0].attn.eval()
    nn.init.normal_(attn.position.table)
    width = attn.qkv.in_features // attn.heads
    attn.qkv = attn.proj = nn.Identity()
    for frames in QUICK_FRAMES if quick else FRAMES:
        qkv = torch.randn(3, 1, attn.heads, frames, width, generator=torch.Generator().manual_seed(0))
        x = rearrange(qkv, "three b h n d -> b n (three h d)")
        cases = [Case("zoo", lambda x=x: attn(x))]
        for way, make in WAYS.items():
            if way == FLEX and not compiler():
                continue
            run = make(attn, *qkv)
            cases.append(Case(way, lambda run=run: rearrange(run(), "b h n d -> b n (h d)"), way != NO_MASK))
        yield Row("local layer, attention", frames, "frames", tuple(cases))


def _full(attn: Attention, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    n, radius = q.shape[2], attn.pattern.radius
    far = torch.ones(n, n, dtype=torch.bool).triu(radius + 1)
    term = attn.position((n,)).masked_fill(far | far.T, float("-inf")).unsqueeze(0)
    return lambda: attend(q, k, v, None, term)


def _flex(attn: Attention, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """FlexAttention (Dong et al. 2024) with the band as its block mask and the table as its score's change, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, radius, table = q.shape[2], attn.pattern.radius, attn.position.table.detach()
    block = create_block_mask(lambda b, h, i, j: (i - j).abs() <= radius, None, None, n, n, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)

    def run() -> Tensor:
        return compiled(q, k, v, block_mask=block, score_mod=lambda score, b, h, i, j: (
            score + table[(i - j).clamp(-radius, radius) + radius, h]))

    run()  # compiles here: the child that measures memory could not
    return run


def _loop(attn: Attention, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    n, radius = q.shape[2], attn.pattern.radius
    near = attn.position.table.detach().T.flip(1)[:, None]  # of the keys from i - radius to i + radius

    def run() -> Tensor:
        out = torch.empty_like(q)
        for i in range(n):
            first, last = max(0, i - radius), min(n, i + radius + 1)
            bias = near[..., first - i + radius : last - i + radius]
            out[:, :, i : i + 1] = attend(q[:, :, i : i + 1], k[:, :, first:last], v[:, :, first:last], None, bias)
        return out

    return run


FLEX, NO_MASK = "FlexAttention, compiled", "full attention, neither mask nor bias"
WAYS = {
    "full attention": _full,
    NO_MASK: lambda attn, q, k, v: lambda: attend(q, k, v),
    FLEX: _flex,
    "loop per position": _loop,
}


def training_rows(name: str, quick: bool) -> Iterator[Row]:
    """A training step (forward and backward, bf16 autocast) on clips of one second, with and without the core's dispatch.

    As the model is, and without its tables of relative positions: where a bias needs a gradient, torch itself leaves its fused
    kernel for products written out, and no slow backward is met.
    """
    for kind, arguments in {"": {}, ", no position": {"attention": {"position": "none"}}}.items():
        torch.manual_seed(0)
        step = _training(registry.build(name, **arguments).train(), QUICK_CLIPS if quick else CLIPS)

        def hard_coded(step=step) -> Tensor:
            with always_fused():
                return step()

        cases = Case(name, step), Case("the same, torch's fused attention hard-coded", hard_coded)
        yield Row(f"training step, bf16, 1 s{kind}", QUICK_CLIPS if quick else CLIPS, "clips", cases, tolerance=3e-2)


def _training(model: nn.Module, clips: int) -> Callable[[], Tensor]:
    """-> logits."""
    wave = torch.randn(clips, model.frontend.rate, generator=torch.Generator().manual_seed(0)) * 0.1
    target = torch.arange(clips) % model.num_classes

    @torch.enable_grad()
    def step() -> Tensor:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(wave).float()
        nn.functional.cross_entropy(out, target).backward()
        return out.detach()

    return step


@contextmanager
def always_fused() -> Iterator[None]:
    """The core asks nobody which kernel to take: torch's fused one, as models that call it by name do."""
    core = importlib.import_module("zoo.core.attention")  # zoo.core.attention as an attribute is the function
    before, core.kernel = core.kernel, lambda *_: "fused"
    try:
        yield
    finally:
        core.kernel = before
