"""A padded batch in groups of rows of like length, so that padding is hardly computed."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from zoo.core.recorder import recorder

TOKENS = 256  # of a group, at least: fewer rows than that slow the matrix products down more than padding does
WORTH = 0.9  # of the batch's tokens; where more would be left, the batch is run as it is


def by_length(run: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, mask: Tensor | None) -> Tensor:
    """run(x, mask), for a `run` that treats each row by itself: x (b n dim), mask (b n) -> (b n dim), 0 in what was left out.

    Each group is cut to its real tokens, padding on either side. A trace, whose steps may not depend on lengths, and a recorder,
    which wants the maps of the batch in one piece, get it whole.
    """
    if mask is None or torch.compiler.is_compiling() or recorder() is not None:
        return run(x, mask)
    groups = list(_groups(mask))
    if len(groups) == 1 and groups[0][1] == slice(0, x.shape[1]):
        return run(x, None if bool(mask.all()) else mask)
    out = None
    for rows, columns in groups:
        real = mask[rows, columns]
        part = run(x[rows, columns], None if bool(real.all()) else real)
        out = part.new_zeros(*x.shape[:-1], part.shape[-1]) if out is None else out
        out[rows, columns] = part
    return x if out is None else out


def _groups(mask: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """(rows, columns that hold all their real tokens), rows by length; the whole batch where little would be saved."""
    b, n = mask.shape
    place = torch.arange(n, device=mask.device)
    first = torch.where(mask, place, n).amin(1).tolist()
    stop = torch.where(mask, place + 1, 0).amax(1).tolist()
    length = [max(e - s, 1) for s, e in zip(first, stop)]
    order, start, found, tokens = sorted(range(b), key=length.__getitem__), 0, [], 0
    for end in range(1, b + 1):
        full = (end - start) * length[order[end - 1]] >= TOKENS
        if end == b or full and length[order[end]] > length[order[end - 1]]:
            rows, start = order[start:end], end
            columns = slice(min(min(first[i] for i in rows), n - 1), max(max(stop[i] for i in rows), 1))
            found.append((torch.tensor(rows, device=mask.device), columns))
            tokens += len(rows) * (columns.stop - columns.start)
    if tokens > WORTH * b * n:
        found = [(torch.arange(b, device=mask.device), slice(0, n))]
    yield from found
