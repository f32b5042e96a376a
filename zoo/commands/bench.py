"""bench: ours against peers on this machine."""

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from zoo.commands.app import Flag, app, out

group = App(name="bench")
app.command(group)


@group.default
def bench(
    name: str | None = None, /, *, quick: Flag = False, threads: int = 1, wall: Flag = False, rounds: int = 9,
    dtype: str = "fp32", model: str | None = None, budget: float = 2.0,
    compile: Flag = False, output: Annotated[Path | None, Parameter(name="--out")] = None, json: Flag = False,
) -> int:
    """Measure the bench NAME on this machine, ours against peers; without NAME: which there are.

    CPU time of one thread, unless --wall or --threads N (which is wall time). --dtype bf16: autocast. --quick: small sizes.
    --out FOLDER also writes results.md, results.json and results.png. A wrong output is refused and makes the exit code 1.
    --budget GIB: of the bench memory. --compile, of the bench image: inference with both sides through torch.compile.
    """
    from zoo import bench as benches
    from zoo import show

    if name is None:
        rows = [{"bench": name, "what": what} for name, what in benches.BENCHES.items()]
        out(rows, json, lambda: f"{show.table(rows)}\nand training runs: zoo bench baselines RECIPE")
        return 0
    if output:
        output.mkdir(parents=True, exist_ok=True)  # where it cannot be made, that is said before minutes of work
    settings = benches.Settings(threads, wall, rounds, quick, dtype, model, budget, compile)
    result = benches.run(name, settings, lambda line: print(line, file=sys.stderr, flush=True))
    from zoo.bench import report

    out(result, json, lambda: report.text(result))
    if output:
        for file in report.write(result, output):
            print(f"wrote {file}", file=sys.stderr)
    return 1 if any("refused" in record for record in result["results"]) else 0


@group.command
def baselines(
    recipe: str, /, *, conv: str = "gine", dim: int | None = None, layers: int | None = None, json: Flag = False, **keys: Any,
) -> None:
    """Train a GINE or GCN of torch-geometric by RECIPE just as `zoo train` trains ours, and score it once on the test split.

    For graph_regression (--dim 96 --layers 5) and node_classification (--conv gcn, --dim 16, two layers). Any key of the
    recipe can be given as a flag: --data FILE --split-column COLUMN --epochs 5.
    """
    from zoo.bench import baseline_runs
    from zoo.train import recipe as recipes

    settings = recipes.read(recipe, {name.replace("-", "_"): value for name, value in keys.items()})
    result = baseline_runs.run(settings, baseline_runs.Baseline(conv, dim, layers))
    out(result, json, lambda: baseline_runs.line(result))
