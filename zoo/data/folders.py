"""Pictures or sounds in folders: which files count, the train/val/test layer, class folders, sidecar captions."""

import os
from pathlib import Path
from unicodedata import normalize

from zoo.data.items import Items, natural
from zoo.data.medium import PICTURE, Medium
from zoo.errors import ZooError

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev"),
          "test": ("test", "testing")}


def split_name(word: str) -> str:
    """The canonical name of a split ("validation" -> "val"); any other word is its own name."""
    return next((name for name, words in SPLITS.items() if word.lower() in words), word)


def printable(text: str) -> str:
    """Bytes that are no UTF-8 (a file name can hold any) become escapes, so that the text can be stored."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def files_below(folder: Path, medium: Medium) -> list[Path]:
    """Every file of the medium at any depth, in natural order; no hidden files, no links that lead back up."""
    found = _walk(folder, medium.suffixes, (os.path.realpath(folder),))
    return sorted(found, key=lambda path: [natural(part) for part in path.relative_to(folder).parts])


def _walk(folder: Path, suffixes: frozenset[str], above: tuple[str, ...]):
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__MACOSX")):
                continue
            if entry.is_dir():
                real = os.path.realpath(entry.path)
                if real not in above:
                    yield from _walk(Path(entry.path), suffixes, (*above, real))
            elif Path(entry.name).suffix.lower() in suffixes:
                yield Path(entry.path)


def layers(folder: Path, medium: Medium) -> dict[str, list[Path]]:
    """Split name -> its folders directly below `folder`; empty where there is no train/val/test layer."""
    found: dict[str, list[Path]] = {}
    for top in dict.fromkeys(file.relative_to(folder).parts[0] for file in files_below(folder, medium)):
        found.setdefault(split_name(top), []).append(folder / top)
    return found if set(found) <= set(SPLITS) else {}  # beside other classes, "train" is a class


def file_items(folder: Path, files: list[Path], medium: Medium) -> Items:
    """Unlabelled items; keys are the paths below `folder`, written with "/"."""
    keys = [printable(file.relative_to(folder).as_posix()) for file in files]
    return Items(keys, list(files), kind=medium.kind)


def class_folders(folder: Path, split: str | None, medium: Medium) -> Items:
    """CLASS/**/file, below a split layer if there is one. Classes: of all splits, in natural order."""
    by_split = layers(folder, medium)
    roots = [root for found in by_split.values() for root in found] or [folder]
    files, names = [], []
    for root in roots:
        for file in files_below(root, medium):
            parts = file.relative_to(root).parts
            if len(parts) > 1:
                files.append(file)
                names.append(normalize("NFC", printable(parts[0])))  # macOS writes decomposed names
    if not files:
        raise ZooError(f"{folder}: no {medium.noun}s in class folders; expected {folder.name}/CLASS/{medium.example}")
    classes = sorted(set(names), key=natural)
    position = {name: i for i, name in enumerate(classes)}
    items = file_items(folder, files, medium)
    items.labels, items.classes = [position[name] for name in names], classes
    return _of_split(items, folder, by_split, split)


def sidecar_pairs(folder: Path, split: str | None) -> Items:
    """picture.jpg + picture.txt with one caption a line. A picture without captions keeps an empty list."""
    by_split = layers(folder, PICTURE)
    items = file_items(folder, files_below(folder, PICTURE), PICTURE)
    items.captions = [_sidecar(file) for file in items.sources]
    if not any(items.captions):
        raise ZooError(f"{folder}: no captions; expected a table (captions.csv with columns file, caption) "
                       "or a .txt file of the same name beside each picture")
    return _of_split(items, folder, by_split, split)


def _sidecar(picture: Path) -> list[str]:
    file = picture.with_suffix(".txt")
    if not file.is_file():
        return []
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ZooError(f"{file}: not UTF-8 text (byte {error.start})") from error
    return [normalize("NFC", line.strip()) for line in lines if line.strip()]


def _of_split(items: Items, folder: Path, by_split: dict[str, list[Path]], split: str | None) -> Items:
    if split is None:
        return items
    if split not in by_split:
        have = ", ".join(by_split) or "no train/val/test folders"
        raise ZooError(f"{folder}: no split {split!r} (has: {have})")
    tops = {root.name for root in by_split[split]}
    return items.subset([i for i, f in enumerate(items.sources) if f.relative_to(folder).parts[0] in tops])
