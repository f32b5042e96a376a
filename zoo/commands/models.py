"""list, info, recipes, check: what there is."""

from zoo.commands.app import Flag, app, out
from zoo.errors import ZooError


@app.command(name="list")
def list_(pattern: str = "*", *, json: Flag = False) -> None:
    """Models and checkpoints whose name matches the wildcard PATTERN."""
    from zoo import show

    rows = show.models(pattern)
    if not rows:
        raise ZooError(f"no model matches {pattern!r}; all of them: zoo list")
    out(rows, json, lambda: show.table(rows))


@app.command
def info(model: str, *, json: Flag = False) -> None:
    """What a model (registry name, checkpoint name, file or run folder) is: reads the header only."""
    from zoo import show

    facts = show.info(model)
    out(facts, json, lambda: show.lines(facts))


@app.command
def recipes(name: str | None = None, *, keys: Flag = False, json: Flag = False) -> None:
    """Shipped recipes; with NAME the recipe itself (zoo recipes image_finetune > mine.yaml); --keys: every key."""
    from zoo import show
    from zoo.train import recipe

    if keys:
        rows = [dict(zip(("key", "default", "meaning"), row)) for row in recipe.keys()]
        out(rows, json, lambda: show.table(rows))
    elif name:
        print(recipe.find(name).read_text(encoding="utf-8"), end="")
    else:
        rows = [{"recipe": name, "what": file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")}
                for name, file in recipe.shipped().items()]
        out(rows, json, lambda: show.table(rows))


@app.command
def check(*, json: Flag = False) -> int:
    """Versions, device, checksums and licences of what is installed."""
    from zoo import show

    rows, fine = show.check()
    out(rows, json, lambda: show.table(rows))
    return 0 if fine else 1
