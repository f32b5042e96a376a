"""`zoo train --find-lr`: a sweep of the learning rate, from far too small to far too large, on the recipe's own batches.

The suggestion is where the loss falls steepest over log(rate), by least squares over a sixth of the sweep: a single step says
little. Sources: Smith 2017, sec. 3.3; the smoothed loss and the end at four times its lowest are fastai's (Howard, Gugger 2020).
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch

from zoo.errors import ZooError
from zoo.train import curves, run
from zoo.train.recipe import Recipe
from zoo.train.sets import Sets
from zoo.train.task import Task

LOW, HIGH, STEPS = 1e-6, 10.0, 100
MEMORY = 0.9  # of the moving average of the loss
WORSE = 4.0  # times the lowest loss: the end


@dataclass(frozen=True)
class Sweep:
    """rates, loss and smoothed loss of each step; `rate` is the suggested one, `lowest` that of the lowest loss."""

    rates: list[float]
    losses: list[float]
    smooth: list[float]
    rate: float
    lowest: float


def find(recipe: Recipe, skip_bad: bool, file: Path, steps: int = STEPS) -> Sweep:
    """Sweeps and draws the curve into `file`. Nothing of the training is kept. ZooError where no rate made the loss fall."""
    data, task = run.prepare(recipe, skip_bad)
    rates, losses = sweep(recipe, data, task, steps)
    found = suggest(rates, losses)
    curves.draw_sweep(rates, losses, found.smooth, found.rate, file)
    print(f"sweep   {len(rates)} steps from {rates[0]:.0e} to {rates[-1]:.1e}; the loss fell fastest at {found.rate:.1e} and was "
          f"lowest at {found.lowest:.1e}\ncurve   {file}\ntry     --lr {found.rate:.1e}\nNothing was trained.", file=sys.stderr)
    return found


def sweep(recipe: Recipe, data: Sets, task: Task, steps: int) -> tuple[list[float], list[float]]:
    """(rates, losses) of at most `steps` optimiser steps; the rate rises exponentially until the loss is far worse.

    The recipe's optimiser, precision, clipping, accumulation and rates relative to each other of layers.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task.to(device).train()
    optimizer = task.configure_optimizers()["optimizer"]
    share = [group["initial_lr"] / recipe.lr for group in optimizer.param_groups]
    batches = _batches(data.loaders(recipe)[0])
    rates, losses = [], []
    for rate in np.geomspace(LOW, HIGH, steps).tolist():
        for group, part in zip(optimizer.param_groups, share):
            group["lr"] = rate * part
        loss = _step(recipe, task, optimizer, batches)
        if not np.isfinite(loss):
            break
        rates.append(rate)
        losses.append(loss)
        smooth = smoothed(losses)
        if len(losses) > 10 and smooth[-1] > WORSE * min(smooth):
            break
    return rates, losses


def suggest(rates: list[float], losses: list[float]) -> Sweep:
    """The rate where the loss falls fastest over log(rate), before the lowest point of the smoothed one."""
    smooth, side = smoothed(losses), max(1, len(losses) // 12)
    last = int(np.argmin(smooth)) if smooth else 0
    middles = range(side, last + 1 - side)
    parts = [slice(i - side, i + side + 1) for i in middles]
    slopes = [np.polyfit(np.log(rates[part]), losses[part], 1)[0] for part in parts]
    if not slopes or min(slopes) >= 0:
        raise ZooError(f"find-lr: the loss did not fall at any rate from {LOW:.0e} to {HIGH:g}; look at the data and at start:")
    return Sweep(rates, losses, smooth, rates[middles[int(np.argmin(slopes))]], rates[last])


def smoothed(losses: list[float]) -> list[float]:
    """Moving average without the pull of its start: m_t / (1 - MEMORY^t)."""
    found, mean = [], 0.0
    for i, loss in enumerate(losses, 1):
        mean = MEMORY * mean + (1 - MEMORY) * loss
        found.append(mean / (1 - MEMORY**i))
    return found


def _step(recipe: Recipe, task: Task, optimizer: torch.optim.Optimizer, batches: Iterator) -> float:
    total, device = 0.0, task.device
    optimizer.zero_grad()
    for _ in range(recipe.accumulate):
        batch = task.transfer_batch_to_device(next(batches), device, 0)
        with torch.autocast(device.type, torch.bfloat16, enabled=run.precision_of(recipe) == "bf16"):
            loss = task.training_step(batch, 0) / recipe.accumulate
        task.backward(loss)
        total += loss.item()
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(task.parameters(), recipe.clip)
    optimizer.step()
    return total


def _batches(loader) -> Iterator:
    """Of one epoch after another."""
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader
