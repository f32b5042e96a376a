"""train, eval: learn from data, and measure on it."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import zoo
from zoo.commands.app import Flag, app, out
from zoo.errors import UsageError, ZooError


@app.command
def train(
    recipe: str | None = None, /, *, runs: Path = Path("runs"), resume: Path | None = None, dry_run: Flag = False,
    skip_bad: Flag = False, find_lr: Flag = False, output: Annotated[Path | None, Parameter(name="--out")] = None, **keys: Any,
) -> int:
    """Train by RECIPE (a file or a shipped name) into a new folder below RUNS.

    Any key of the recipe can be given as a flag: --data DIR --epochs 5 --lr 1e-3 (all of them: zoo recipes --keys).
    --resume RUN continues exactly where a run stopped. --dry-run shows device, data, what would be loaded, one step.
    --find-lr trains nothing either: the learning rate is swept over 100 steps, the one to try goes to stdout, the curve to
    --out FILE.png (RUNS/MODEL-lr.png).
    """
    if (recipe is None) == (resume is None):
        raise UsageError("train: give a recipe (zoo recipes), or --resume RUN")
    from zoo.train import ranks, run
    from zoo.train import recipe as recipes

    overrides = {name.replace("-", "_"): value for name, value in keys.items()}
    if resume:
        if overrides:
            raise UsageError(f"train: --resume takes the recipe of the run as it is; drop --{', --'.join(overrides)}")
        settings = run.load_recipe(resume)
    else:
        settings = recipes.read(recipe, overrides)
    if dry_run:
        return run.dry_run(settings, skip_bad)
    if find_lr:
        from zoo.train import finder

        if resume:
            raise UsageError("train: --find-lr goes with a recipe, not with --resume")
        if ranks.launched() > 1:
            raise UsageError("train: --find-lr runs in one process; start it without torchrun")
        print(f"{finder.find(settings, skip_bad, output or runs / f'{run.base(settings)}-lr.png').rate:.1e}")
        return 0
    if output:
        raise UsageError("train: --out goes with --find-lr; the folder of runs is --runs")
    result = run.train(settings, runs, skip_bad, resume)
    if ranks.first():
        print(result.folder)
    return 128 + result.stopped if result.stopped else 0


@app.command(name="eval")
def eval_(
    model: str, data: Path, *, split: str | None = None, split_column: str | None = None, captions: str = "",
    window: float | None = None, rerank: int = 64, fit_rerank: Flag = False, skip_bad: Flag = False, save_score: Flag = False,
    probe: str | None = None, label: str | None = None, json: Flag = False,
) -> None:
    """Score of MODEL on DATA, in the metric of its task; SPLIT where the data has splits.

    --window S: long sounds are heard in overlapping windows of S seconds whose answers are averaged. Text-image models:
    --rerank N looks again at the first N candidates of each query (0: none); --fit-rerank finds the weight of the match score
    on DATA (give the validation split) and writes it into the checkpoint. --save-score writes the score into its card.

    --probe linear | knn: the model stays as it is, and a linear model or the nearest neighbours learn from its vectors of the
    training split of DATA, of any labels (column --label) or, for graphs, numbers; scored on --split, or test.
    """
    from zoo import evaluate, show

    if not data.expanduser().exists():
        raise ZooError(f"{data}: no such file or folder")
    if probe:
        if save_score or window or captions:
            raise UsageError("--probe goes with --split, --split-column and --label; its score is not the model's own")
        from zoo import probe as probes
        from zoo.probe.data import Asked

        result = probes.probe(zoo.load(model), data, probe, Asked(split, split_column or "split", label))
        return out(result, json, lambda: show.lines(result))
    if label:
        raise UsageError("--label goes with --probe; the model's own labels are in the column its recipe names")
    if rerank < 0 or fit_rerank and not rerank:
        raise UsageError(f"eval: --rerank {rerank}; allowed: >= {int(fit_rerank)}")
    options = evaluate.Options(split, split_column, [c for c in captions.split(",") if c], window, skip_bad, rerank=rerank,
                               fit_rerank=fit_rerank, progress=show.Progress("re-ranking"))
    result = evaluate.evaluate(zoo.load(model), data, options)
    if fit_rerank and "rerank" in result:
        evaluate.save_rerank_weight(model, result["rerank"]["weight"])
    if save_score:
        evaluate.save_scores(model, result)
    out(result, json, lambda: show.lines(result))
