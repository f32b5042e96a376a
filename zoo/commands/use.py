"""predict, explain: what a trained model says about files, and what it looked at."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import zoo
from zoo.commands.app import Flag, app, dumps


@app.command
def predict(
    model: str, items: Annotated[list[str], Parameter(negative=())], /, *, frames: Flag = False, threshold: float = 0.5,
    window: float | None = None, output: Annotated[Path | None, Parameter(name="--out")] = None, json: Flag = False,
) -> int:
    """Answers for ITEMS: pictures, sounds, folders of them, tables; of molecules also SMILES, or a table with them.

    Sounds: --frames says when each label fired (probability >= THRESHOLD); --window S hears long ones in overlapping
    windows of S seconds and averages. --out FILE.csv writes a table, values under their units. A file that cannot be
    read is reported and makes the exit code 1.
    """
    from zoo import predict as predictions

    asked = predictions.Asked(frames, threshold, window)
    loaded = zoo.load(model)
    good, bad = predictions.predict(loaded, items, asked)
    units = predictions.units(loaded.card)
    if output:
        predictions.write_csv(good, output, units)
    elif json:
        print(dumps({"results": good, "bad": [{"item": item, "reason": why} for item, why in bad], "units": units}))
    else:
        print("\n".join(predictions.lines(good, units)))
    for item, why in bad:
        print(f"bad     {item}: {why}", file=sys.stderr)
    return 1 if bad else 0


@app.command
def explain(
    model: str, item: str, /, *, text: str | None = None, layer: str | None = None, head: int | None = None,
    output: Annotated[Path, Parameter(name="--out")] = Path("explain.png"),
) -> None:
    """Draw what MODEL looked at in ITEM (--out): attention of LAYER (default: the last) and HEAD (default: the mean).

    Pictures: heat over the picture. Sounds: the spectrogram, the attention below. Graphs and SMILES: attention on the
    edges. Text-image models: heat per word of TEXT. Names of the layers: give a wrong one.
    """
    from zoo.explain import draw

    draw(zoo.load(model), item, output, text=text, layer=layer, head=head)
    print(output)
