"""`zoo bench loop`: a whole epoch of `zoo train`, with loader, log, callbacks and saved states, against a bare PyTorch loop.

Both train the same model on the same pictures, drawn in memory, by the same optimiser with the same clipping and rates; the bare
loop has a plain DataLoader, keeps no log and saves nothing. Both losses of the last epoch are compared first.
"""

import io
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader

from zoo.bench import Settings
from zoo.bench.rounds import clock, ratio
from zoo.data.items import Items
from zoo.train import adapt, callbacks, resume, run, sets, task
from zoo.train.recipe import Recipe

STEPS, BATCH, CLASSES = 20, 32, 10
UNIT = "pictures"


def results(settings: Settings, progress: Callable[[str], None]) -> list[dict]:
    """A record each of zoo train, the same with a moving average, and the bare loop: ms of an epoch, median of the rounds."""
    steps, batch = (3, 8) if settings.quick else (STEPS, BATCH)
    given = Recipe(task="image_classification", model=settings.model or "image_nano", batch_size=batch, epochs=1, augment="none",
                   precision=settings.dtype, optimizer="adamw", data="drawn in memory")
    data = sets.Pictures(_pictures(steps * batch), _pictures(batch), sets.Pictures.steps(given, None))
    now = clock(settings)
    cases = {"zoo train": lambda: _ours(given, data, now), "bare loop": lambda: _bare(given, data, now),
             "zoo train with a moving average": lambda: _ours(Recipe(**{**given.to_dict(), "ema": 0.99}), data, now)}
    runs: dict[str, list[Epoch]] = {name: [] for name in cases}
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        for i in range(settings.rounds + 1):  # the first decodes the pictures and warms up
            progress(f"loop: round {i} of {settings.rounds}")
            for name in reversed(cases) if i % 2 else cases:
                runs[name].append(cases[name]())
    return [_record(name, epochs[1:], runs["zoo train"][1:], steps * batch) for name, epochs in runs.items()]


def said(results: list[dict], _settings: Settings) -> list[str]:
    """How much of the bare loop's speed the whole training has."""
    bare = next(record for record in results if record["case"] == "bare loop")
    if "refused" in bare:
        return []
    return [f"zoo train runs at {bare['ratio']:.2f} of the speed of the bare loop, saves and validation left out; saving weights "
            f"and state takes {results[0]['save_ms']:.0f} ms an epoch"]


@dataclass(frozen=True)
class Epoch:
    """Seconds of the steps and of what is saved after them, and the loss of the last step."""

    steps: float
    saves: float
    loss: float


def _record(name: str, epochs: list[Epoch], ours: list[Epoch], size: int) -> dict:
    record = {"row": "epoch", "size": size, "unit": UNIT, "case": name, "save_ms": 1e3 * median(epoch.saves for epoch in epochs),
              "error": abs(epochs[0].loss - ours[0].loss) / max(1.0, abs(ours[0].loss))}
    if not record["error"] < 1e-3:
        return {**record, "refused": f"another loss: {epochs[0].loss:.4f}, ours {ours[0].loss:.4f}"}
    times = [[epoch.steps for epoch in each] for each in (epochs, ours)]
    return {**record, "ms": 1e3 * median(times[0]), "ratio": ratio(*times)}


def _pictures(count: int) -> Items:
    """Noise of 32 x 32 as encoded files."""
    random, files = np.random.default_rng(0), []
    for _ in range(count):
        stream = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(stream, format="png")
        files.append(stream.getvalue())
    return Items([str(i) for i in range(count)], files, [i % CLASSES for i in range(count)], [str(i) for i in range(CLASSES)])


def _made(given: Recipe, data: sets.Sets) -> task.Task:
    torch.manual_seed(0)
    made, _ = adapt.build(given, data)
    return made


class Log(callbacks.Log):
    """Adds up what its own writing takes."""

    def on_train_epoch_start(self, *given) -> None:
        super().on_train_epoch_start(*given)
        self.began, self.saves = self.state.now(), 0.0

    def on_validation_epoch_end(self, *given) -> None:
        start = self.state.now()
        super().on_validation_epoch_end(*given)
        self.saves += self.state.now() - start

    def on_train_epoch_end(self, *given) -> None:
        start = self.state.now()
        super().on_train_epoch_end(*given)
        self.saves += self.state.now() - start


class KeepState(resume.KeepState):
    """The last of the callbacks: when it is done with a batch, all are."""

    def on_train_batch_end(self, trainer, made, outputs, batch, number: int) -> None:
        super().on_train_batch_end(trainer, made, outputs, batch, number)
        self.ended, self.loss = self.now(), outputs["loss"]

    def on_train_epoch_end(self, *given) -> None:
        start = self.now()
        super().on_train_epoch_end(*given)
        self.saves = self.now() - start


def _ours(given: Recipe, data: sets.Sets, now: Callable[[], float]) -> Epoch:
    made = _made(given, data)
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        state = KeepState(Path(folder) / "last.ckpt")
        state.now = now
        log = Log(Path(folder), state)
        run.fit(given, data, made, log)
    return Epoch(state.ended - log.began, log.saves + state.saves, state.loss.item())


def _bare(given: Recipe, data: sets.Sets, now: Callable[[], float]) -> Epoch:
    made = _made(given, data)
    model, order = made.model.train(), data.loaders(given)[0].order.order()
    loader = DataLoader(data.datasets(given)[0], given.batch_size, sampler=order, generator=torch.Generator())
    made.total_steps = len(loader)
    found = made.configure_optimizers()
    optimizer, rates = found["optimizer"], found["lr_scheduler"]["scheduler"]
    torch.manual_seed(given.seed)
    start = now()
    for x, label in loader:
        with torch.autocast("cpu", torch.bfloat16, enabled=given.precision == "bf16"):
            loss = F.cross_entropy(model(x).float(), label)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        optimizer.step()
        rates.step()
    return Epoch(now() - start, 0.0, loss.item())
