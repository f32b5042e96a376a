"""Regression targets to mean 0 and deviation 1 and back to their units. The statistics travel in the Card."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zoo.errors import ZooError


@dataclass(frozen=True)
class TargetScaler:
    """One mean and one deviation per target. Class numbers (integers) pass through both ways unchanged."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fit(cls, targets, names: Sequence[str], units: Sequence[str] = ()) -> "TargetScaler":
        """From the training targets (rows, targets), where NaN is missing; a constant target gets deviation 1.

        Raises ZooError for a target without any value, and where names or units do not fit the columns.
        """
        y = np.asarray(targets, np.float64)
        units = tuple(units) or ("",) * len(names)
        if y.ndim != 2 or not y.shape[1] == len(names) == len(units):
            raise ZooError(f"targets: shape {y.shape} for {len(names)} names and {len(units)} units; expected (rows, targets)")
        known = ~np.isnan(y)
        for name, count in zip(names, known.sum(0)):
            if not count:
                raise ZooError(f"targets: {name!r} has no value in the training split; leave it out")
        count = known.sum(0)
        mean = np.where(known, y, 0).sum(0) / count
        std = np.sqrt((np.where(known, y - mean, 0) ** 2).sum(0) / count)
        std = np.where(std <= 1e-9 * np.abs(mean), 1.0, std)  # a constant leaves rounding errors, not exactly 0
        return cls(tuple(names), units, tuple(mean.tolist()), tuple(std.tolist()))

    @classmethod
    def identity(cls, names: Sequence[str], units: Sequence[str] = ()) -> "TargetScaler":
        """Changes nothing: for multi-label targets (0, 1, NaN), which are no quantities."""
        n = len(names)
        return cls(tuple(names), tuple(units) or ("",) * n, (0.0,) * n, (1.0,) * n)

    def scale(self, y: Tensor) -> Tensor:
        """(..., targets) in units of the data -> mean 0, deviation 1; NaN stays NaN."""
        return (y - self._like(self.mean, y)) / self._like(self.std, y) if y.is_floating_point() else y

    def unscale(self, y: Tensor) -> Tensor:
        """(..., targets) as a model gives them -> units of the data."""
        return y * self._like(self.std, y) + self._like(self.mean, y) if y.is_floating_point() else y

    def to_targets(self) -> list[dict]:
        """The Card's `targets`."""
        rows = zip(self.names, self.units, self.mean, self.std)
        return [{"name": name, "unit": unit, "mean": mean, "std": std} for name, unit, mean, std in rows]

    @classmethod
    def from_targets(cls, targets: list[dict]) -> "TargetScaler":
        """From the Card's `targets`. ZooError where a key is missing."""
        try:
            return cls(*(tuple(target[key] for target in targets) for key in ("name", "unit", "mean", "std")))
        except KeyError as error:
            raise ZooError(f"targets: no {error.args[0]!r} in {targets}") from error

    def _like(self, values: tuple[float, ...], y: Tensor) -> Tensor:
        if y.shape[-1:] != (len(values),):
            raise ZooError(f"targets: shape {tuple(y.shape)} for {len(values)} targets ({', '.join(self.names)})")
        return torch.tensor(values, dtype=y.dtype, device=y.device)
