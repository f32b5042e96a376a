"""The token that is asked what it looked at, from what a user writes: its place in the layer, or in the input.

    "2,5"      row and column of a picture's token          "120,80px"   a pixel of the model's input: row, column
    "17"       frame, word piece, node or atom, from 0      "1.5s"       a moment of a sound
"""

from zoo.errors import UsageError
from zoo.explain.maps import Map

UNITS = {"image": "px", "audio": "s"}


def find_query(query, shown: Map, modality: str) -> int:
    """Place of the token among those that look, in row-major order. `query`: a string as above, an int or a tuple of ints.

    UsageError says what is allowed.
    """
    axes, step = shown.askers
    said = ",".join(map(str, query)) if isinstance(query, tuple) else str(query)
    unit = UNITS.get(modality, "")
    in_input = bool(unit) and said.endswith(unit)
    try:
        numbers = [(float if in_input else int)(part) for part in said.removesuffix(unit).split(",")]
        places = [int(number // step) if in_input else number for number in numbers]
    except (ValueError, OverflowError):  # no number; nan, inf
        places = []
    if len(places) != len(axes) or not all(0 <= place < n for place, n in zip(places, axes)):
        raise UsageError(f"query {said!r}: {_allowed(axes, step, modality)}")
    at = 0
    for place, n in zip(places, axes):
        at = at * n + place
    return at


def _allowed(axes: tuple[int, ...], step: float, modality: str) -> str:
    last = ",".join(str(n - 1) for n in axes)
    if modality == "image":
        rows, cols = (int(n * step) - 1 for n in axes)
        return f"the layer has tokens ROW,COL from 0,0 to {last}; or give a pixel of the model's input, 0,0px to {rows},{cols}px"
    more = f"; or give seconds, 0s to {axes[0] * step:.4g}s" if modality == "audio" else ""
    return f"the layer has tokens 0 to {last}{more}"
