"""train, eval: learn from data, and measure on it."""

from pathlib import Path
from typing import Any

import zoo
from zoo.commands.app import Flag, app, out
from zoo.errors import UsageError


@app.command
def train(
    recipe: str | None = None, /, *, runs: Path = Path("runs"), resume: Path | None = None, dry_run: Flag = False,
    skip_bad: Flag = False, **keys: Any,
) -> int:
    """Train by RECIPE (a file or a shipped name) into a new folder below RUNS.

    Any key of the recipe can be given as a flag: --data DIR --epochs 5 --lr 1e-3 (all of them: zoo recipes --keys).
    --resume RUN continues exactly where a run stopped. --dry-run shows device, data, what would be loaded, one step.
    """
    if (recipe is None) == (resume is None):
        raise UsageError("train: give a recipe (zoo recipes), or --resume RUN")
    from zoo.train import recipe as recipes
    from zoo.train import run

    overrides = {name.replace("-", "_"): value for name, value in keys.items()}
    if resume:
        if overrides:
            raise UsageError(f"train: --resume takes the recipe of the run as it is; drop --{', --'.join(overrides)}")
        settings = run.load_recipe(resume)
    else:
        settings = recipes.read(recipe, overrides)
    if dry_run:
        return run.dry_run(settings, skip_bad)
    result = run.train(settings, runs, skip_bad, resume)
    print(result.folder)
    return 128 + result.stopped if result.stopped else 0


@app.command(name="eval")
def eval_(
    model: str, data: Path, *, split: str | None = None, split_column: str | None = None, captions: str = "",
    window: float | None = None, skip_bad: Flag = False, save_score: Flag = False, json: Flag = False,
) -> None:
    """Score of MODEL on DATA, in the metric of its task; SPLIT where the data has splits.

    --window S: long sounds are heard in overlapping windows of S seconds whose answers are averaged. --save-score writes
    the score into the card of the checkpoint.
    """
    from zoo import evaluate, show

    options = evaluate.Options(split, split_column, [c for c in captions.split(",") if c], window, skip_bad)
    result = evaluate.evaluate(zoo.load(model), data, options)
    if save_score:
        evaluate.save_scores(model, result)
    out(result, json, lambda: show.lines(result))
