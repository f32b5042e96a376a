"""What is learnt from vectors: a linear model, or the nearest neighbours; classes, or values of which some may be missing."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Learnt:
    """x (n dim) unit vectors; y (n) int64 classes, or (n targets) float64 values, NaN where missing."""

    x: Tensor
    y: Tensor

    def part(self, places: Tensor) -> "Learnt":
        return Learnt(self.x[places], self.y[places])


@dataclass(frozen=True)
class Probe:
    """fit(learnt, setting) -> what turns vectors into scores of classes (n classes) or values (n targets).

    setting: what is called so is chosen from `grid`, whose first of equals is taken.
    """

    setting: str
    grid: tuple
    fit: Callable[[Learnt, float], Callable[[Tensor], Tensor]]

    def choose(self, train: Learnt, held: Tensor) -> float:
        """The setting that does best on the places `held` (bool) when learnt on the others."""
        inner, outer = train.part(~held), train.part(held)
        grid = [value for value in self.grid if value <= len(inner.x)]
        return min(grid, key=lambda value: round(_loss(self.fit(inner, value)(outer.x), outer.y), 9))


def _loss(found: Tensor, y: Tensor) -> float:
    """Share of wrong classes, or squared error in deviations of each target."""
    if y.ndim == 1:
        return float((found.argmax(-1) != y).double().mean())
    error = (found - y) / _deviation(y)
    return float(error[~y.isnan()].square().mean())


def _linear(train: Learnt, strength: float) -> Callable:
    """x -> scores: multinomial logistic regression, or ridge regression of each target.

    Minimises mean loss + strength / 2 * |W|^2; the constant is free. Vectors are centred and scaled by one number: each column by
    its own would blow up those that hardly differ in the training split.
    """
    mean, std = train.x.double().mean(0), train.x.double().var(0, correction=0).mean().sqrt().clamp(min=1e-9)

    def scaled(x: Tensor) -> Tensor:
        return (x.double() - mean) / std

    if train.y.ndim == 1:
        weight, bias = logistic(scaled(train.x), train.y, strength)
    else:
        parts = [_ridge_known(scaled(train.x), column, strength) for column in train.y.T]
        weight, bias = (torch.stack(part) for part in zip(*parts))
    return lambda x: F.linear(scaled(x), weight, bias)


def logistic(x: Tensor, y: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """x (n dim) float64, y (n) int64 -> weight (classes dim), bias (classes) by L-BFGS."""
    classes = int(y.max()) + 1
    weight = torch.zeros(classes, x.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=300, tolerance_grad=1e-7, tolerance_change=1e-12, history_size=20,
                               line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        value = F.cross_entropy(F.linear(x, weight, bias), y) + strength / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.inference_mode(False), torch.enable_grad():
        search.step(loss)
    return weight.detach(), bias.detach()


def _ridge_known(x: Tensor, y: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    known = ~y.isnan()
    return ridge(x[known], y[known], strength)


def ridge(x: Tensor, y: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """x (n dim), y (n) float64 -> weight (dim), bias (): least of mean((x w + b - y)^2) / 2 + strength / 2 |w|^2."""
    middle, center = x.mean(0), y.mean()
    x = x - middle
    gram = x.T @ x / len(x) + strength * torch.eye(x.shape[1], dtype=x.dtype)
    weight = torch.linalg.solve(gram, x.T @ (y - center) / len(x))
    return weight, center - middle @ weight


def _neighbours(train: Learnt, k: int) -> Callable:
    """x -> votes of the k nearest by cosine, among equal votes those of the nearer; or the mean of their values."""

    def ask(x: Tensor) -> Tensor:
        return torch.cat([_ask(part, train, k) for part in x.split(1024)])

    return ask


def _ask(x: Tensor, train: Learnt, k: int) -> Tensor:
    near, place = (x @ train.x.T).topk(k)
    if train.y.ndim == 1:
        votes = F.one_hot(train.y[place], int(train.y.max()) + 1).double()
        return (votes * (1 + 1e-3 * near.double().unsqueeze(-1) / k)).sum(1)
    return train.y[place].nanmean(1)


# strengths from strong to weak, neighbours from few to many
PROBES = {"linear": Probe("strength", (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5), _linear),
          "knn": Probe("k", (1, 3, 5, 10, 20, 50), _neighbours)}


def _deviation(y: Tensor) -> Tensor:
    known = ~y.isnan()
    mean = y.nanmean(0)
    return ((torch.where(known, y - mean, 0).square().sum(0)) / known.sum(0)).sqrt().clamp(min=1e-9)


def accuracy(found: Tensor, y: Tensor, classes: list[str]) -> dict:
    right = found.argmax(-1) == y
    per_class = {name: float(right[y == i].double().mean()) for i, name in enumerate(classes) if bool((y == i).any())}
    return {"accuracy": float(right.double().mean()), "per_class": per_class}


def errors(found: Tensor, y: Tensor, names: list[str]) -> dict:
    rows = {}
    for i, name in enumerate(names):
        error = (found[:, i] - y[:, i])[~y[:, i].isnan()]
        rows[name] = {"RMSE": float(error.square().mean().sqrt()), "MAE": float(error.abs().mean()), "items": len(error)}
    return next(iter(rows.values())) if len(rows) == 1 else {"targets": rows}
