"""Who sees whom: one axis of a map at a time, rows then columns. The layout is that of windows as long as the axis."""

from dataclasses import dataclass

from torch import Tensor

from zoo.core.patterns import Layout


@dataclass(frozen=True)
class Axial:
    """Tokens see each other where they differ in their place on `axis` only: of a picture, 1 is within a row, 0 within a column.

    One block with Axial(1) and one with Axial(0) join all tokens; a map of r x c tokens costs r c (r + c), not (r c)^2. A
    position (one axis) goes by the offset on that axis. Raises ValueError where the map has no such axis. Source: Ho et al. 2019.
    """

    axis: int

    def __post_init__(self):
        if not 0 <= self.axis < 3:
            raise ValueError(f"Axial: axis={self.axis}; allowed: 0, 1, 2")

    def layout(self, axes: tuple[int, ...]) -> "AxialLayout":
        if self.axis >= len(axes):
            raise ValueError(f"Axial: no axis {self.axis} on a map of shape {tuple(axes)}")
        size = tuple(n if i == self.axis else 1 for i, n in enumerate(axes))
        return AxialLayout(tuple(axes), size, (0,) * len(axes))


class AxialLayout(Layout):
    """Windows of one whole row (or column) each."""

    def bias(self, position) -> Tensor:
        return position((max(self.size),))
