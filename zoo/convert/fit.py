"""Windowed image models under our names: their sizes, read off the shapes, and tables and stems fitted to other sizes."""

import re
from math import isqrt

import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import Tensor

from zoo.errors import ZooError

Size = tuple[int, int]
_TABLE = re.compile(r"(?:image\.)?stages\.(\d+)\.blocks\.(\d+)\.attn\.position\.table")


def sizes(state: dict[str, Tensor], prefix: str = "") -> dict:
    """in_chans, patch, dims, depths and head_dim of an Image whose keys begin with `prefix`. ZooError: not one of its shapes."""
    tables = _tables(state)
    depths = [sum(stage == i for stage, _ in tables) for i in range(1 + max(stage for stage, _ in tables))]
    dims, heads = [], []
    for i in range(len(depths)):
        dims.append(len(_need(state, f"{prefix}stages.{i}.blocks.0.norm1.weight")))
        heads.append(tables[i, 0].shape[1])
    widths = {dim / n for dim, n in zip(dims, heads)}
    if len(widths) > 1:
        raise ZooError(f"heads {heads} of widths {dims}: allowed is one width of all heads")
    stem = _need(state, f"{prefix}patch_embed.proj.weight")
    return {"in_chans": stem.shape[1], "patch": stem.shape[2], "dims": dims, "depths": depths, "head_dim": dims[0] // heads[0]}


def _tables(state: dict[str, Tensor]) -> dict[Size, Tensor]:
    found = {tuple(map(int, m.groups())): value for key, value in state.items() if (m := _TABLE.fullmatch(key))}
    if not found:
        raise ZooError("incomplete state dict: no table of relative positions")
    return found


def _need(state: dict[str, Tensor], key: str) -> Tensor:
    if key not in state:
        raise ZooError(f"incomplete state dict: nothing becomes {key}")
    return state[key]


def windows(state: dict[str, Tensor], raw: dict[str, Tensor], given: Size | None = None) -> dict[str, Size]:
    """The window of each table, {our key: (height, width)}.

    A table has (2 height - 1)(2 width - 1) rows. Which is which says `given`, or an index buffer among the file's own
    tensors `raw`, or the window is square. ZooError where none fits.
    """
    found = {}
    indices = [value for key, value in raw.items() if key.endswith("relative_position_index")]
    for key, table in state.items():
        if not _TABLE.fullmatch(key):
            continue
        rows, side = len(table), isqrt(len(table))
        fitting = [w for w in map(_of_index, indices) if _rows(w) == rows]
        if given and _rows(given) == rows:
            found[key] = given
        elif fitting:
            found[key] = fitting[0]
        elif side * side == rows and side % 2:
            found[key] = ((side + 1) // 2,) * 2
        else:
            raise ZooError(f"{key} has {rows} rows, of no square window; say which: --source-window HEIGHTxWIDTH")
    return found


def _rows(window: Size) -> int:
    return (2 * window[0] - 1) * (2 * window[1] - 1)


def _of_index(index: Tensor) -> Size:
    """Along the first row of a window the index falls by 1 from token to token; at the next row it falls by more."""
    n = isqrt(index.numel())
    falls = -index.reshape(n, n)[0].diff()
    width = next((i + 1 for i, fall in enumerate(falls.tolist()) if fall != 1), n)
    return n // width, width


def fit_tables(state: dict[str, Tensor], of: dict[str, Size], window: int) -> list[str]:
    """Brings every table to a square window, in place; one line per kind of change. The same window: not a bit changes.

    A stage whose window is smaller than that of others had a map that small: its offsets keep their values and those
    beyond take the nearest (`reach`), so that the model computes what it did. Then a bicubic resize where `window` differs.
    """
    common = max(w[0] for w in of.values()), max(w[1] for w in of.values())
    counts: dict[tuple[Size, Size, str], int] = {}
    for key, own in of.items():
        for target, how in ((common, "nearest"), ((window, window), "bicubic")):
            if own != target:
                state[key] = (reach if how == "nearest" else resize)(state[key], own, target)
                counts[own, target, how] = counts.get((own, target, how), 0) + 1
            own = target
    return [f"{count} tables of windows {a[0]}x{a[1]} -> {b[0]}x{b[1]} ({how})" for (a, b, how), count in counts.items()]


def resize(table: Tensor, window: Size, target: Size) -> Tensor:
    """(rows heads) of one window -> of another, bicubic over the two offsets. Source: the authors' utils.load_pretrained."""
    if window == target:
        return table
    grid = rearrange(table.float(), "(h w) heads -> 1 heads h w", h=2 * window[0] - 1)
    grid = F.interpolate(grid, tuple(2 * n - 1 for n in target), mode="bicubic", align_corners=False)
    return rearrange(grid, "1 heads h w -> (h w) heads").to(table.dtype)


def reach(table: Tensor, window: Size, target: Size) -> Tensor:
    """(rows heads) of one window -> of a larger one: offsets beyond the old window take the nearest that it has."""
    grid = rearrange(table, "(h w) heads -> 1 heads h w", h=2 * window[0] - 1)
    top, left = target[0] - window[0], target[1] - window[1]
    return rearrange(F.pad(grid, (left, left, top, top), mode="replicate"), "1 heads h w -> (h w) heads")


def fit_channels(weight: Tensor, channels: int) -> Tensor:
    """Stem (out in h w) for another number of channels: their sum for one, else repeated in turn and scaled by in / channels.

    Source: timm's adapt_input_conv. A picture whose channels are all alike gives what it gave before.
    """
    known = weight.shape[1]
    if channels == known:
        return weight
    if channels == 1:
        return reduce(weight, "out c h w -> out 1 h w", "sum")
    tiled = repeat(weight, "out c h w -> out (times c) h w", times=-(-channels // known))
    return tiled[:, :channels] * (known / channels)
