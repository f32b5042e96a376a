"""Attention maps of two models on one grid of tokens, and how far one is from the other.

Windows, bands and full attention all become a square over the tokens of the map; the finer of two maps is pooled to the
coarser one. Maps of unequal numbers of heads are compared by their mean over the heads.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from zoo.core import Attention, Recorder
from zoo.errors import ZooError

LEAST = 1e-8  # a smaller weight counts as "may not see"


@dataclass(frozen=True)
class Look:
    """What one Attention did with a batch: recorded weights, head axis third from last, over a map of `axes` tokens.

    real: bool (b n), n = prod(axes), in row-major order.
    """

    layout: object
    weights: Tensor
    axes: tuple[int, ...]
    real: Tensor

    @property
    def heads(self) -> int:
        return self.weights.shape[-3]

    def on(self, grid: tuple[int, ...], heads: int) -> tuple[Tensor, Tensor]:
        """Weights (b heads g g) over the g cells of `grid`, and which cells are real (b g). heads: 1 for the mean."""
        weights = self.weights if heads == self.heads else self.weights.mean(-3, keepdim=True)
        return pool(self.layout.dense(weights), self.real, self.axes, grid)


def attentions(model: nn.Module) -> list[Attention]:
    """In the order of the layers."""
    return [module for module in model.modules() if isinstance(module, Attention)]


def look(model: nn.Module, inputs: list[Tensor], layers: list[int]) -> tuple[Tensor, list[Look]]:
    """The logits of `model`, and the Look of those of its attentions; the gradient flows through both."""
    if not layers:
        return model(*inputs), []
    chosen, calls = nn.ModuleList(attentions(model)[i] for i in layers), {}
    with ExitStack() as stack:
        for i, module in enumerate(chosen):
            def keep(_module, args, given, i=i):
                calls[str(i)] = (args[0], given.get("mask"))

            stack.callback(module.register_forward_pre_hook(keep, with_kwargs=True).remove)
        recorder = stack.enter_context(Recorder(chosen, gradient=True))
        logits = model(*inputs)
    return logits, [_look(module, recorder.maps[str(i)], *calls[str(i)]) for i, module in enumerate(chosen)]


def _look(module: Attention, weights: Tensor, x: Tensor, mask: Tensor | None) -> Look:
    axes = tuple(x.shape[1:-1])
    real = x.new_ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask
    return Look(module.pattern.layout(axes), weights, axes, real.flatten(1))


def matched(students: int, teachers: int, which: str) -> list[tuple[int, int]]:
    """Pairs (layer of the student, layer of the teacher). "last": the last of each (Wang et al. 2020, MiniLM); "all": every one
    of the student's, with the teacher's evenly spread, the last with the last (Jiao et al. 2020, TinyBERT).
    """
    if which == "last":
        return [(students - 1, teachers - 1)]
    return [(i, -(-(i + 1) * teachers // students) - 1) for i in range(students)]


def difference(student: Look, teacher: Look) -> Tensor:
    """How far the student's map is from the teacher's: `divergence` on the coarser of both grids.

    Per head where both have as many, else of their means. ZooError where the maps have different numbers of axes.
    """
    if len(student.axes) != len(teacher.axes):
        raise ZooError(f"map_weight: the student's map has {len(student.axes)} axes, the teacher's {len(teacher.axes)}; "
                       "learn from the answers alone: --map-weight 0")
    grid = tuple(map(min, student.axes, teacher.axes))
    heads = student.heads if student.heads == teacher.heads else 1
    with torch.autocast(student.weights.device.type, enabled=False):  # the products of `pool` too
        (mine, here), (theirs, there) = student.on(grid, heads), teacher.on(grid, heads)
        return divergence(mine, theirs, here & there)


def divergence(student: Tensor, teacher: Tensor, real: Tensor) -> Tensor:
    """Mean over real queries and heads of KL(teacher, student) = sum_j t_j log(t_j / s_j).

    student, teacher (b h n n), real (b n) -> a number >= 0. Each row is normed over the keys that both may see: of what one of
    them cannot see, the other one's opinion says nothing. Source: Wang et al. 2020 (MiniLM), attention distribution transfer.
    """
    both = (student > LEAST) & (teacher > LEAST)
    log_s, log_t = (_normed(weights, both).where(both, 1).log() for weights in (student, teacher))
    rows = (_normed(teacher, both) * (log_t - log_s)).sum(-1) * real.unsqueeze(1)
    return rows.sum() / (real.sum() * rows.shape[1]).clamp(min=1)


def _normed(weights: Tensor, seen: Tensor) -> Tensor:
    weights = weights.where(seen, 0)
    return weights / weights.sum(-1, keepdim=True).clamp(min=LEAST)


def pool(weights: Tensor, real: Tensor, axes: tuple[int, ...], grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Tokens of a map merged into the cells of a coarser `grid`: mean over the real queries of a cell, sum over its keys.

    weights (b h n n), real (b n), n = prod(axes) -> (b h g g) whose real rows still sum to 1, real (b g): any token is.
    """
    if axes == grid:
        return weights, real
    member = F.one_hot(_cells(axes, grid, real.device), prod(grid)).to(weights)
    share = rearrange(real, "b n -> b n 1") * member
    count = share.sum(1, keepdim=True)
    share = share / count.clamp(min=1)
    return einsum(share, weights, member, "b n g, b h n m, m k -> b h g k"), count.squeeze(1) > 0


def _cells(axes: tuple[int, ...], grid: tuple[int, ...], device: torch.device) -> Tensor:
    """The cell (n,) of every token: along each axis, token i of n lies in cell floor(i g / n)."""
    cell = torch.zeros((), dtype=torch.long, device=device)
    for n, g in zip(axes, grid, strict=True):
        cell = cell.unsqueeze(-1) * g + torch.arange(n, device=device) * g // n
    return cell.flatten()
