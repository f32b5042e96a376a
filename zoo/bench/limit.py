"""The limit of a row: the time of its matrix products alone, on random numbers of the same shapes and memory order.

Products of linear layers (mm, addmm) are told from those of attention (bmm; two inside a fused kernel, five in its backward).
Convolutions and sparse products are not counted. A fused kernel can come out a little below the products it is made of,
because these write what they give.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PIECE = 2**18  # numbers of one output of attention: a fused kernel keeps its scores in the cache


@dataclass(frozen=True)
class Product:
    """(batch rows inner) @ (batch inner cols); `flipped`: it lies transposed in memory; `part` "linear" or "attention"."""

    part: str
    batch: int
    rows: int
    inner: int
    cols: int
    dtype: torch.dtype
    flipped: tuple[bool, bool] = (False, False)


def collect(run: Callable) -> Counter:
    """How often each Product happens in one call of `run`, backward included where it has one."""
    with _Products() as seen:
        run()
    return seen.products


def replay(products: Counter, part: str) -> Callable[[], None]:
    """Does one `part` ("linear" or "attention") of the products; those of attention in pieces that stay in the cache."""
    work = []
    for product, times in products.items():
        if product.part == part:
            batch, rows = _piece(product)
            a = _random(batch, rows, product.inner, product.dtype, product.flipped[0])
            b = _random(batch, product.inner, product.cols, product.dtype, product.flipped[1])
            work.append((a, b, times * ceil(product.batch / batch) * ceil(product.rows / rows)))

    def multiply() -> None:
        for a, b, times in work:
            for _ in range(times):
                a @ b

    return multiply


def _piece(product: Product) -> tuple[int, int]:
    """Batch and rows of a piece: some whole products, or some rows of one; equal pieces, so that little is done twice."""
    batch, rows = product.batch, product.rows
    if product.part == "linear" or batch * rows * product.cols <= PIECE:
        return batch, rows
    if rows * product.cols > PIECE:
        return 1, ceil(rows / ceil(rows * product.cols / PIECE))
    return ceil(batch / ceil(batch * rows * product.cols / PIECE)), rows


def _random(batch: int, rows: int, cols: int, dtype: torch.dtype, flipped: bool) -> Tensor:
    shape = (cols, rows) if flipped else (rows, cols)
    x = torch.randn(*((batch,) if batch > 1 else ()), *shape).to(dtype)
    return x.transpose(-1, -2) if flipped else x


class _Products(TorchDispatchMode):
    """Counts the matrix products that pass by."""

    def __init__(self):
        super().__init__()
        self.products = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        if any(isinstance(arg, Tensor) and arg.layout != torch.strided for arg in args):
            return func(*args, **(kwargs or {}))
        if name in ("mm", "bmm"):
            self._add(*args[:2])
        elif name in ("addmm", "baddbmm", "_addmm_activation"):
            self._add(*args[1:3])
        elif name == "_linear_pointwise":  # oneDNN's layer with what follows it: x, weight; with a sum x, other, weight
            weight = args[2] if "binary" in func.__name__ else args[1]
            self._add(args[0].flatten(0, -2), weight.T)
        elif name.endswith("flash_attention_for_cpu"):
            self._fused(*args[:3])
        elif name.endswith("flash_attention_for_cpu_backward"):
            self._fused_backward(*args[1:4])
        return func(*args, **(kwargs or {}))

    def _add(self, a: Tensor, b: Tensor, times: int = 1) -> None:
        part = "linear" if a.ndim == 2 else "attention"
        batch = 1 if a.ndim == 2 else a.shape[:-2].numel()
        flipped = tuple(t.stride(-1) != 1 and t.stride(-2) == 1 for t in (a, b))
        self.products[Product(part, batch, a.shape[-2], a.shape[-1], b.shape[-1], a.dtype, flipped)] += times

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        batch, n, m, width = q.shape[:-2].numel(), q.shape[-2], k.shape[-2], q.shape[-1]
        self.products[Product("attention", batch, n, width, m, q.dtype, (False, True))] += 1
        self.products[Product("attention", batch, n, m, v.shape[-1], q.dtype)] += 1

    def _fused_backward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Scores again, then the gradients of weights, values, queries and keys."""
        batch, n, m, width = q.shape[:-2].numel(), q.shape[-2], k.shape[-2], q.shape[-1]
        self.products[Product("attention", batch, n, width, m, q.dtype, (False, True))] += 2
        self.products[Product("attention", batch, m, n, width, q.dtype, (True, False))] += 2
        self.products[Product("attention", batch, n, m, width, q.dtype)] += 1
