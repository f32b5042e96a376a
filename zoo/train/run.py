"""`zoo train`: recipe -> data, model, trainer -> a run folder: best.safetensors, last.ckpt, log.csv, curves.png, recipe.yaml."""

import logging
import os
import re
import shutil
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import lightning.pytorch as pl
import torch
import yaml
from lightning.pytorch.loggers import TensorBoardLogger

from zoo import checkpoint
from zoo.errors import UsageError, ZooError
from zoo.train import adapt, callbacks, compiling, curves, ranks, resume, sets, sharded
from zoo.train import recipe as recipes
from zoo.train.recipe import Recipe
from zoo.train.task import Task

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # tips and device lists; ours is the first line


@dataclass
class Result:
    folder: Path
    score: float
    stopped: int = 0  # the signal, where one stopped the run


def device_line(recipe: Recipe) -> str:
    """First line of a run: which device and precision, and why."""
    precision, why = _precision(recipe)
    if torch.cuda.is_available():
        return f"device  {torch.cuda.get_device_name(0)} (CUDA found); {precision} ({why})"
    return f"device  cpu, {torch.get_num_threads()} cores (no CUDA device found); {precision} ({why})"


def precision_of(recipe: Recipe) -> str:
    """bf16 or fp32. bf16 products pay only where the processor has them."""
    return _precision(recipe)[0]


def _precision(recipe: Recipe) -> tuple[str, str]:
    """(bf16 or fp32, why)."""
    if recipe.precision != "auto":
        return recipe.precision, "the recipe says so"
    if torch.cuda.is_available():
        return "bf16", "auto"
    cpu = Path("/proc/cpuinfo")
    flags = cpu.read_text() if cpu.exists() else ""
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        return "bf16", "auto: this processor multiplies in it"
    return "fp32", "auto: this processor has no bf16 products"


def train(recipe: Recipe, runs: Path = Path("runs"), skip_bad: bool = False, resume_from: Path | None = None) -> Result:
    """Trains and returns the run folder. Continues exactly where `resume_from` (a run folder) stopped."""
    data, task = prepare(recipe, skip_bad)
    folder = ranks.same(resume_from or _new_folder(runs, recipe))
    folder.mkdir(parents=True, exist_ok=True)  # not before: a failed start leaves nothing behind
    if ranks.first():
        for part in folder.glob(".*.part"):  # of a run that was killed while it wrote
            part.unlink()
        checkpoint.write(folder / "recipe.yaml", yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True).encode())
    state = resume.KeepState(folder / "last.ckpt", data.fingerprint())
    log = callbacks.Log(folder, state)
    last = newest(folder, state.data) if resume_from else None
    try:
        fit(recipe, data, task, log, last)
    except (ZooError, OSError) as error:
        raise (type(error) if isinstance(error, ZooError) else ZooError)(f"{error}{_kept(folder)}") from error
    _draw(folder, task, log.best_epoch + 1)
    if state.caught:
        kept = folder / "last.ckpt"
        _say(f"saved   {kept}     continue: zoo train --resume {folder}" if kept.exists() else f"nothing saved yet in {folder}")
    else:
        _say(f"done    {folder / 'best.safetensors'}  val {task.score_name} {log.best:.4f} "
             f"(epoch {log.best_epoch + 1}), {log.seconds / 60:.1f} min")
    return Result(folder, log.best, state.caught or 0)


def prepare(recipe: Recipe, skip_bad: bool, check: bool = False) -> tuple[sets.Sets, Task]:
    """Data and task of a recipe, each said in a line or more; the device first. `check` reads every item once."""
    ranks.start(recipe.task)
    sharded.on(recipe)
    _say(device_line(recipe))
    pl.seed_everything(recipe.seed, verbose=False)
    data = sets.prepare(recipe, skip_bad, check)
    _say(data.summary())
    with ranks.in_turn():
        task, lines = adapt.build(recipe, data)
    ranks.join_norms(task.model)
    _say(*lines, *compiling.start(task.model, recipe))
    return data, task


def _kept(folder: Path) -> str:
    """The line that says what of a run that failed is kept."""
    kept = folder / "last.ckpt"
    if kept.exists():
        return f"\nkept    {kept}     continue: zoo train --resume {folder}"
    if ranks.first() and all(file.name in ("recipe.yaml", "log.csv") for file in folder.iterdir()):
        shutil.rmtree(folder)  # it failed before anything was learnt
        return "\nnothing was trained, no run folder is kept"
    return f"\nno epoch is kept in {folder}"


def _draw(folder: Path, task: Task, best: int) -> None:
    """The curves of a run; a full disk is said and does not take the run's result away."""
    if not ranks.first():
        return
    try:
        curves.draw(folder, f"val {task.score_name} {task.unit()}".rstrip(), best)
    except (ZooError, OSError) as error:
        _say(f"note: no curves.png ({str(error).splitlines()[0]})")


def fit(recipe: Recipe, data: sets.Sets, task: Task, log: callbacks.Log, last: Path | None = None) -> None:
    """Trains `task` on `data` as the recipe says, from the training state `last`. A signal that stops it: log.state.caught."""
    trainer = _trainer(recipe, precision_of(recipe), log)
    train_loader, val_loader = data.loaders(recipe)
    task.total_steps = recipe.epochs * -(-len(train_loader) // recipe.accumulate)
    pl.seed_everything(recipe.seed, verbose=False)
    with log.state, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning|torch.utils.data")  # worker counts and folders; we choose
        warnings.filterwarnings("ignore", "Grad strides do not match")  # of DDP, about 1x1 and depthwise kernels
        warnings.filterwarnings("ignore", "The ``compute`` method of metric")  # a rank without an item of validation
        try:
            trainer.fit(task, train_loader, val_loader, ckpt_path=last, weights_only=True)
        except (KeyboardInterrupt, SystemExit):  # a second signal; Lightning turns it into exit code 1
            log.state.caught = log.state.caught or signal.SIGINT


def dry_run(recipe: Recipe, skip_bad: bool) -> None:
    """Everything but the training: device, data with unreadable files, what is loaded, one step with time and memory."""
    import resource

    data, task = prepare(recipe, skip_bad, check=True)
    loader, _ = data.loaders(recipe)
    batch = next(iter(loader))
    start = time.monotonic()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision_of(recipe) == "bf16"):
        loss = task.training_step(batch, 0)
    loss.backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    stops = ["        a run would stop at what is unreadable; --skip-bad leaves it out"] * (bool(data.bad) and not skip_bad)
    _say(f"step    one batch of {len(batch[0])}: loss {loss.item():.3f}, {time.monotonic() - start:.2f} s, peak {peak:.1f} GiB",
         *stops, "Nothing was trained.")


def load_recipe(folder: Path) -> Recipe:
    """The resolved recipe of a run folder."""
    file = folder / "recipe.yaml"
    if not file.is_file():
        raise UsageError(f"{folder}: no recipe.yaml in it; --resume takes a run folder of zoo train")
    return recipes.read(file)


def newest(folder: Path, data: str = "") -> Path:
    """The newest complete training state of a run; a torn one is skipped and named.

    ZooError where there is none, or where it was trained on other data than `data`, the fingerprint of today's.
    """
    files = sorted(folder.glob("*.ckpt"), key=os.path.getmtime, reverse=True)
    for file in files:
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a torn zip raises whatever it trips over
            _say(f"skipped {file}: not complete ({type(error).__name__})")
            continue
        if data and state["callbacks"]["KeepState"]["data"] != data:
            raise ZooError(f"{folder}: the data has changed since (pictures, labels or captions), so it cannot go on exactly\n"
                           f"start anew from its weights: zoo train {folder / 'recipe.yaml'} --start {folder}")
        return file
    raise ZooError(f"{folder}: no complete training state (*.ckpt) in it; start anew: zoo train {folder / 'recipe.yaml'}")


def _trainer(recipe: Recipe, precision: str, log: callbacks.Log) -> pl.Trainer:
    averages = [callbacks.moving_average(recipe.ema)] if recipe.ema else []
    bars = [pl.callbacks.TQDMProgressBar()] if sys.stderr.isatty() else []
    early = [callbacks.EarlyStop(recipe.patience, log)] if recipe.patience else []
    board = [TensorBoardLogger(log.folder, name="", version="tensorboard")] if find_spec("tensorboard") else False
    return pl.Trainer(
        max_epochs=recipe.epochs, accelerator="auto", **ranks.trainer_options(recipe), logger=board, enable_checkpointing=False,
        precision="bf16-mixed" if precision == "bf16" else "32-true", accumulate_grad_batches=recipe.accumulate,
        gradient_clip_val=recipe.clip or None, enable_model_summary=False, enable_progress_bar=bool(bars),
        num_sanity_val_steps=0, use_distributed_sampler=False,
        callbacks=[log, *averages, resume.RandomState(), *early, log.state, *bars],
    )


def _new_folder(runs: Path, recipe: Recipe) -> Path:
    number = 1
    while (runs / f"{base(recipe)}-{number}").exists():
        number += 1
    return runs / f"{base(recipe)}-{number}"


def base(recipe: Recipe) -> str:
    """What the run folders of a recipe are called, before their number."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", recipe.name or recipe.model)


def _say(*lines: str) -> None:
    for line in lines if ranks.first() else ():
        print(line, file=sys.stderr, flush=True)
