"""Exact attention a few queries at a time: the weights of one piece are there at once, forward and backward."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.core.attention import attend
from zoo.core.recorder import recorder


@dataclass(frozen=True)
class Chunked:
    """A method of Attention: `attend` for `size` queries at a time, done again in the backward instead of kept.

    Memory size * m instead of n * m, whichever kernel runs; the result is that of `attend`. A mask or a term that differs
    between queries is still as large as it is, so long sequences want padding only (or Band). Where the fused kernel runs it
    is linear by itself; this is for what it does not take: a term with a gradient, half precision at training on CPU. An
    open recorder asks for all weights, so they are written out at once; a trace (torch.compile, torch.export) is that of
    `attend`: torch 2.14 takes wrong gradients of pieces. Gradients of gradients are refused by torch.
    ValueError where size < 1. Source: Rabe & Staats 2021, sec. 3 (the keys stay in one piece here).
    """

    size: int = 256

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"Chunked: size={self.size}; allowed: >= 1")

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if recorder() is not None or torch.compiler.is_compiling():
            return attend(q, k, v, mask, bias)
        return _Pieces.apply(self.size, q, k, v, mask, bias)


class _Pieces(torch.autograd.Function):
    """One result that is filled in and no graph: kept between large pieces, small tensors would tear the allocator's memory."""

    @staticmethod
    def forward(ctx, size: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(q, k, v, mask, bias)
        kind = q.device.type
        ctx.size, ctx.cast = size, (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        out = None
        for at in pieces(q, size):
            part = attend(q[..., at, :], k, v, rows(mask, at), rows(bias, at))
            out = part.new_empty(*part.shape[:-2], q.shape[-2], part.shape[-1]) if out is None else out
            out[..., at, :] = part
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, bias = ctx.saved_tensors
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        total = [t.new_zeros(t.shape) if i in wanted else None for i, t in enumerate((q, k, v, mask, bias))]
        for at in pieces(q, ctx.size):
            own = [None if t is None else t.detach() for t in (q[..., at, :], k, v, rows(mask, at), rows(bias, at))]
            leaves = [own[i].requires_grad_() for i in wanted]
            with torch.enable_grad(), torch.autocast(*ctx.cast):
                out = attend(*own)
            for i, part in zip(wanted, torch.autograd.grad(out, leaves, grad[..., at, :])):
                (rows(total[i], at) if i in (0, 4) else total[i]).add_(part)
        return None, *total


def pieces(q: Tensor, size: int) -> Iterator[slice]:
    """Slices of the queries (... n d); one even where n is 0."""
    for start in range(0, max(q.shape[-2], 1), size):
        yield slice(start, min(start + size, q.shape[-2]))


def rows(term: Tensor | None, at: slice) -> Tensor | None:
    """The rows `at` of (... n m) or (... n d), a view; the term itself where all queries share it."""
    return term if term is None or term.shape[-2] == 1 else term[..., at, :]
