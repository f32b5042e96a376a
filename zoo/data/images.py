"""Open a folder or a table of pictures: with labels, with captions, or as they are."""

from collections.abc import Callable
from pathlib import Path

from zoo.data.folders import PICTURES, class_folders, layers, picture_items, pictures_below, sidecar_pairs, split_name
from zoo.data.items import Items, natural, split, unreadable
from zoo.data.tables import TABLES, PictureTable, merge_captions, tables_in, unique_keys
from zoo.errors import ZooError

__all__ = ["Items", "open_images", "open_pairs", "open_pictures", "split", "splits", "unreadable"]

CAPTION_COLUMNS = ("caption", "captions", "text")


def open_images(path: str | Path, split: str | None = None, label: str = "label") -> Items:
    """Labelled pictures: class folders (below train/ val/ test/ or not), or a table with a label column.

    split: "train", "val" or "test": a folder, part of a file's name, or a value of column `split`; None: all.
    classes are those of all splits, so that one that is missing here shifts no label.
    Raises ZooError that names the path and what was looked for.
    """
    path, split = _existing(path), split and split_name(split)
    tables = _tables(path, (label,))
    if not tables:
        return class_folders(path, split)
    names = {table: table.labels(label) for table in tables}
    classes = _classes(path, names, [table.label_names(label) for table in tables])
    position = {name: i for i, name in enumerate(classes)}

    def labelled(table: PictureTable) -> Items:
        items = table.items(without=(label,))
        items.labels, items.classes = [position[name] for name in names[table]], classes
        return items

    return unique_keys(_gathered(path, split, tables, labelled))


def _classes(path: Path, names: dict[PictureTable, list[str]], stored: list[list[str] | None]) -> list[str]:
    """The stored order of the classes, or else the natural order of all names."""
    present = {name for rows in names.values() for name in rows}
    stored = [classes for classes in stored if classes]
    if not stored:
        return sorted(present, key=natural)
    if any(classes != stored[0] for classes in stored):
        raise ZooError(f"{path}: its tables store different label names: {stored[0]} and {stored[-1]}")
    if unknown := sorted(present - set(stored[0])):
        raise ZooError(f"{path}: label {unknown[0]!r} is none of the stored names {', '.join(stored[0])}")
    return stored[0]


def open_pairs(path: str | Path, split: str | None = None, captions: tuple[str, ...] | None = None) -> Items:
    """Pictures with captions: a table, a folder with a captions table, or a .txt beside each picture.

    captions: columns, each a string, a list or a struct of strings; all are captions of the item, in order.
    None takes the first there is of caption, captions, text. Rows that name the same file are one item.
    """
    path, split = _existing(path), split and split_name(split)
    captions = (captions,) if isinstance(captions, str) else captions
    tables = _tables(path, captions or ())
    if not tables:
        return sidecar_pairs(path, split)

    def captioned(table: PictureTable) -> Items:
        columns = tuple(captions or (table.need(*CAPTION_COLUMNS),))
        items = table.items(without=columns)
        items.captions = table.captions(columns)
        return items

    return merge_captions(_gathered(path, split, tables, captioned))


def open_pictures(path: str | Path) -> Items:
    """Unlabelled pictures: one file, every picture below a folder, or the rows of a table."""
    path = _existing(path)
    if path.is_file() and path.suffix.lower() not in TABLES:
        return Items([path.name], [path])
    if path.is_dir() and (files := pictures_below(path)):
        return picture_items(path, files)
    tables = _tables(path)
    if not tables:
        raise ZooError(f"{path}: no pictures ({', '.join(sorted(PICTURES))}) and no table")
    return unique_keys(_gathered(path, None, tables, PictureTable.items))


def splits(path: str | Path) -> list[str]:
    """The names of the splits that a folder or table has; [] where it has none."""
    path = _existing(path)
    tables = _tables(path)
    found = {s for table in tables for s in table.row_splits if s} if tables else set(layers(path))
    return sorted(found, key=lambda s: (s != "train", s == "test", s))


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if not path.exists():
        raise ZooError(f"{path}: no such file or folder")
    return path


def _tables(path: Path, text_columns: tuple[str, ...] = ()) -> list[PictureTable]:
    """The tables at `path`. In a folder that also holds pictures only those that name pictures count."""
    if path.is_file():
        if path.suffix.lower() not in TABLES:
            raise ZooError(f"{path}: expected a folder or a table ({', '.join(sorted(TABLES))})")
        return [PictureTable(path, text_columns)]
    tables = [PictureTable(file, text_columns) for file in tables_in(path)]
    useful = [table for table in tables if table.has_pictures]
    return useful if useful or pictures_below(path) else tables


def _gathered(path: Path, split: str | None, tables: list[PictureTable], build: Callable) -> Items:
    """build(table) of every table that has rows of the split, cut to these rows, as one Items."""
    have = sorted({s for table in tables for s in table.row_splits if s})
    if split is not None and split not in have:
        known = ", ".join(have) or "neither a column split nor files named by split"
        raise ZooError(f"{path}: no split {split!r} (has: {known})")
    parts = []
    for table in tables:
        rows = [i for i, s in enumerate(table.row_splits) if split in (None, s)]
        if rows:
            items = build(table)
            parts.append(items if len(rows) == len(items) else items.subset(rows))
    if not parts:
        raise ZooError(f"{path}: no rows")

    def chain(name: str) -> list | None:
        lists = [getattr(items, name) for items in parts]
        return None if lists[0] is None else [value for values in lists for value in values]

    return Items(chain("keys"), chain("sources"), chain("labels"), parts[0].classes, chain("captions"),
                 chain("meta"))
