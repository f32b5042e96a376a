"""What happens around the steps: moving average, the log, the best weights."""

import csv
import io
import platform
import re
import sys
import time
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback, WeightAveraging

from zoo import checkpoint
from zoo.errors import ZooError
from zoo.train import ranks, sharded
from zoo.train.resume import KeepState
from zoo.train.task import Task


def moving_average(decay: float) -> WeightAveraging:
    """EMA of all parameters and buffers whose decay rises as (1 + n) / (10 + n) up to `decay`: right on short runs too."""

    def average(old: torch.Tensor, new: torch.Tensor, n) -> torch.Tensor:
        if not old.is_floating_point():
            return new
        return old.lerp(new, 1 - min(decay, (1 + float(n)) / (10 + float(n))))

    return WeightAveraging(avg_fn=average)


class Log(Callback):
    """One row an epoch to log.csv and one line to stderr; writes best.safetensors whenever the score is the best so far.

    data_wait: the share of the training time in which the loader had no batch ready.

    It must stand before the moving average among the callbacks: at the end of validation the averaged weights are
    still in the model.
    """

    fields = ("epoch", "train_loss", "score", "lr", "seconds", "items_per_second", "data_wait")

    def __init__(self, folder: Path, state: KeepState):
        self.folder, self.state = folder, state
        self.best, self.best_epoch, self.seconds = 0.0, -1, 0.0
        self._losses, self._score, self._start, self._rows = [], None, 0.0, []

    def state_dict(self) -> dict:
        return {"best": self.best, "best_epoch": self.best_epoch, "seconds": self.seconds}

    def load_state_dict(self, state: dict) -> None:
        self.__dict__.update(state)

    def on_train_start(self, trainer, _) -> None:
        """Takes over the rows of the epochs that the training state knows; a killed run may have logged one more."""
        self._rows = [row for row in read_log(self.folder) if int(row["epoch"]) <= trainer.current_epoch]
        self._begin()

    def _begin(self) -> None:
        self._losses, self._items, self._start = [], 0, time.monotonic()
        self._trained = self._start

    def on_train_epoch_start(self, *_) -> None:  # not called when a run goes on inside an epoch
        self._begin()

    def on_train_batch_end(self, trainer, task, outputs, batch, *_) -> None:
        loss = outputs["loss"].detach() * task.share
        if not loss.isfinite():
            epoch = trainer.current_epoch + 1
            raise ZooError(f"the loss is {loss.item()} in epoch {epoch}; lower --lr (it is {task.recipe.lr:g})")
        self._losses.append(loss)
        self._items += len(batch[0]) if task.real is None else task.real
        self._trained = time.monotonic()

    def on_validation_epoch_end(self, trainer, task: Task) -> None:
        self._score = task.score()
        if self.state.inside:  # stopped inside an epoch: it is scored and logged when it is whole
            return
        if self.best_epoch < 0 or task.sign * (self._score - self.best) >= 0:  # equal, on small sets: later has seen more
            self.best, self.best_epoch = self._score, trainer.current_epoch
            note(task.model.card, self._score, task, trainer.current_epoch, self.seconds + time.monotonic() - self._start)
            sharded.save(task, self.folder / "best.safetensors")

    def on_train_epoch_end(self, trainer, task: Task) -> None:
        if self.state.inside:
            return
        took = time.monotonic() - self._start
        self.seconds += took
        loss, lr = ranks.mean(torch.stack(self._losses)).mean().item(), trainer.optimizers[0].param_groups[0]["lr"]
        waited = trainer.train_dataloader.waited / max(self._trained - self._start, 1e-9)
        row = (trainer.current_epoch + 1, f"{loss:.4f}", f"{self._score:.4f}", f"{lr:.2e}", f"{took:.1f}",
               f"{ranks.total(self._items) / took:.0f}", f"{waited:.3f}")
        self._rows.append(dict(zip(self.fields, row)))
        if ranks.first():
            self._tell(trainer, task, row, loss, waited)

    def _tell(self, trainer, task: Task, row: tuple, loss: float, waited: float) -> None:
        self._write()
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        for logger in trainer.loggers:
            logger.log_metrics({"loss/train": loss, f"val/{task.score_name}": self._score, "lr": lr, "data_wait": waited}, row[0])
        star = "  best" if self.best_epoch == trainer.current_epoch else ""
        print(f"epoch {row[0]}/{trainer.max_epochs}  loss {row[1]}  val {task.score_name} {row[2]}{star}"
              f"  {row[4]} s  {row[5]} items/s  data wait {waited:.0%}", file=sys.stderr, flush=True)

    def _write(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.fields, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        checkpoint.write(self.folder / "log.csv", text.getvalue().encode())


def read_log(folder: Path) -> list[dict]:
    """Rows of log.csv of a run folder, its values as text; [] where there is none."""
    file = folder / "log.csv"
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines()) if file.exists() else []
    return [row for row in rows if (row.get("epoch") or "").isdigit()]


class EarlyStop(Callback):
    """Stops when `patience` epochs brought no better score."""

    def __init__(self, patience: int, scores: Log):
        self.patience, self.scores = patience, scores

    def on_train_epoch_end(self, trainer, _) -> None:
        if trainer.current_epoch - self.scores.best_epoch >= self.patience:
            trainer.should_stop = True


def note(card, score: float, task: Task, epoch: int, seconds: float) -> None:
    """The validation score, into the card, with what it took; it replaces an earlier one."""
    card.scores = [s for s in card.scores if s["split"] != "val"]
    unit = {"unit": task.unit()} if task.unit() else {}
    card.scores.append({"metric": task.score_name, "value": round(score, 5), **unit, "split": "val", "seed": task.recipe.seed,
                        "epoch": epoch + 1})
    card.notes = f"trained {seconds / 60:.1f} min, {torch.get_num_threads()} threads, {machine()}"


def machine() -> str:
    """The processor or GPU, as the system names it."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.*)$", info.read_text(), re.M) if info.exists() else []
    return names[0] if names else platform.machine()
