"""`zoo predict`: a loaded model on files, folders, tables and SMILES, with what could not be read listed."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from zoo import checkpoint
from zoo.data.images import open_pictures
from zoo.data.items import unreadable
from zoo.errors import UsageError, ZooError


@dataclass(frozen=True)
class Asked:
    """What is wanted of sounds: frames (when each label fired, at `threshold`), window (seconds; long ones in pieces)."""

    frames: bool = False
    threshold: float = 0.5
    window: float | None = None


def predict(model, items: list[str], asked: Asked = Asked()) -> tuple[list[dict], list[tuple[str, str]]]:
    """(answers, unreadable (item, reason)) in the order given."""
    card = model.card
    if not hasattr(model, "predict"):
        raise UsageError(f"{card.name}: a {card.modality} model has no labels to predict; "
                         "index pictures with it: zoo index build")
    if (asked.frames or asked.window) and card.modality != "audio":
        raise UsageError(f"--frames and --window are for sounds; {card.name or card.model} is a {card.modality} model")
    if asked.frames and asked.window:
        raise UsageError("--frames and --window do not go together; give one")
    if card.modality == "graph":
        from zoo import graph_answers

        return graph_answers.predict(model, items)
    good, bad = [], []
    for item in map(Path, items):
        try:
            found = _open(card.modality, item)
        except ZooError as error:
            bad.append((str(item), str(error).removeprefix(f"{item}: ")))
            continue
        broken = dict(unreadable(found))
        bad += [(str(item / key) if item.is_dir() else str(item) if len(found) == 1 else key, why) for key, why in broken.items()]
        fine = found.subset([i for i, key in enumerate(found.keys) if key not in broken])
        names = [str(source) if isinstance(source, Path) else key for key, source in zip(fine.keys, fine.sources)]
        rows = model.predict_frames(fine.sources, asked.threshold) if asked.frames else _rows(model, fine.sources, asked)
        good += [{**row, "item": name} for row, name in zip(rows, names)]
    return good, bad


def _rows(model, sources: list, asked: Asked) -> list[dict]:
    return model.predict(sources, window=asked.window) if asked.window else model.predict(sources)


def _open(modality: str, path: Path):
    if modality == "audio":
        from zoo.data.sounds import open_clips

        return open_clips(path)
    return open_pictures(path)


def lines(results: list[dict], units: dict[str, str]) -> list[str]:
    """One line an answer for the terminal."""
    out = []
    for row in results:
        if "label" in row:
            out.append(f"{row['item']}  {row['label']}  {row['probability']:.3f}")
        elif "tags" in row:
            out.append(f"{row['item']}  {', '.join(row['tags']) or '-'}")
        elif "events" in row:
            out += [f"{row['item']}  {event['start']:.2f}-{event['end']:.2f} s  {event['label']}  {event['probability']:.3f}"
                    for event in row["events"]]
        else:
            values = [f"{name} {value:.4g} {units.get(name, '')}".rstrip() for name, value in row.items() if name != "item"]
            out.append("  ".join([row["item"], *values]))
    return out


def units(card) -> dict[str, str]:
    """Target name -> unit, of a model that answers with numbers."""
    return {target["name"]: target["unit"] for target in card.targets or ()}


def write_csv(results: list[dict], file: Path, units: dict[str, str]) -> None:
    """One row an answer (or an event), values under NAME [UNIT]; whole or not at all."""
    flat = []
    for row in results:
        for event in row.get("events", [{}]):
            flat.append({f"{key} [{units[key]}]" if units.get(key) else key: ";".join(value) if key == "tags" else value
                         for key, value in {**row, **event}.items() if key not in ("top", "events")})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in flat for key in row)) or ["item"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    checkpoint.write(file, text.getvalue().encode())
