"""Pictures of a training: loss, score and rate over the epochs of a run; loss over the rate of a sweep."""

import io
from collections.abc import Sequence
from pathlib import Path

from zoo import checkpoint
from zoo.train.callbacks import read_log

INK, OTHER = "#0072B2", "#D55E00"  # told apart by the colour-blind (Okabe and Ito 2008)


def draw(folder: Path, score: str, best: int) -> Path | None:
    """curves.png of a run folder from its log.csv; `score` is its name, `best` the epoch of the best. None: nothing is logged."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = read_log(folder)
    if not rows:
        return None
    epochs = [int(row["epoch"]) for row in rows]
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    titles = {"train_loss": "training loss", "score": score, "lr": "learning rate"}
    for axis, (key, label) in zip(figure.subplots(1, 3), titles.items()):
        values = [float(row[key]) for row in rows]
        axis.plot(epochs, values, color=INK, marker="o" if len(rows) < 40 else None, markersize=3)
        axis.set(xlabel="epoch", title=label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
        if key == "score" and best in epochs:
            value = values[epochs.index(best)]
            axis.plot(best, value, "D", color=OTHER, label=f"best: {value:g}, epoch {best}")
            axis.legend(fontsize=8)
    figure.suptitle(folder.name, fontsize=10)
    return _write(figure, folder / "curves.png")


def draw_sweep(rates: Sequence[float], losses: Sequence[float], smooth: Sequence[float], rate: float, file: Path) -> Path:
    """Loss over the learning rate, raw and smoothed, with the suggested `rate` marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axis = figure.subplots()
    axis.plot(rates, losses, color=INK, alpha=0.25, linewidth=1, label="each step")
    axis.plot(rates, smooth, color=INK, linewidth=2, label="smoothed")
    axis.axvline(rate, color=OTHER, linestyle="--", label=f"suggested: {rate:.1e}")
    low = min(smooth)
    fall = max(smooth[: smooth.index(low) + 1]) - low + 1e-6  # what comes after may be many times as high
    axis.set(xscale="log", xlabel="learning rate", ylabel="training loss", title="Learning-rate sweep",
             ylim=(low - 0.5 * fall, low + 2 * fall))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9)
    return _write(figure, file)


def _write(figure, file: Path) -> Path:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    checkpoint.write(file, stream.getvalue())
    return file
