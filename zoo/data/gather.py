"""What opening pictures and opening sounds share: the tables of a path, splits, classes of all tables, rows as one Items."""

import warnings
from collections.abc import Callable
from pathlib import Path

from zoo.data.folders import class_folders, file_items, files_below, layers, split_name
from zoo.data.items import Items, joined, natural
from zoo.data.media import MediaTable, PictureTable, SoundTable, unique_keys
from zoo.data.medium import MEDIA, Medium
from zoo.data.tables import TABLES, tables_in
from zoo.errors import ZooError


def existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if not path.exists():
        raise ZooError(f"{path}: no such file or folder")
    return path


def tables_at(path: Path, kind: type[MediaTable], text_columns: tuple[str, ...] = ()) -> list[MediaTable]:
    """The tables at `path`. In a folder that also holds files of the medium only those that name such files count."""
    if path.is_file():
        if path.suffix.lower() not in TABLES:
            raise ZooError(f"{path}: expected a folder or a table ({', '.join(sorted(TABLES))})")
        return [kind(path, text_columns)]
    tables = [kind(file, text_columns) for file in tables_in(path)]
    useful = [table for table in tables if table.has_media]
    return useful if useful or files_below(path, kind.medium) else tables


def open_labelled(path: str | Path, kind: type[MediaTable], split: str | None, label: str, split_column: str) -> Items:
    """Labelled items of a medium: see open_images, open_sounds."""
    path, split = existing(path), split and split_name(split)
    tables = tables_at(path, kind, (label, split_column))
    if tables and path.is_dir() and not any(label in table.columns for table in tables) and _in_folders(path, kind.medium):
        aside = ", ".join(table.file.name for table in tables)
        warnings.warn(f"{path}: the class folders are taken; {aside} has no column {label!r} (to take it: --data FILE, "
                      "--targets COLUMN)", stacklevel=3)
        tables = []
    if not tables:
        return class_folders(path, split, kind.medium)
    names = {table: table.labels(label) for table in tables}
    present = {name for rows in names.values() for name in rows}
    classes = ordered_classes(path, present, [table.label_names(label) for table in tables])
    position = {name: i for i, name in enumerate(classes)}

    def labelled(table: MediaTable) -> Items:
        items = table.items(without=(label,))
        items.labels, items.classes = [position[name] for name in names[table]], classes
        return items

    return unique_keys(gathered(path, split, tables, labelled, split_column))


def _in_folders(path: Path, medium: Medium) -> bool:
    """Whether two folders or more hold files of the medium."""
    return len({file.relative_to(path).parts[0] for file in files_below(path, medium) if file.parent != path}) > 1


def open_unlabelled(path: str | Path, kind: type[MediaTable]) -> Items:
    """One file, every file of the medium below a folder, or the rows of a table."""
    path, medium = existing(path), kind.medium
    if path.is_file() and path.suffix.lower() not in TABLES:
        return Items([path.name], [path], kind=medium.kind)
    if path.is_dir() and (files := files_below(path, medium)):
        return file_items(path, files, medium)
    tables = tables_at(path, kind)
    if not tables:
        raise ZooError(f"{path}: no {medium.noun}s ({', '.join(sorted(medium.suffixes))}) and no table")
    return unique_keys(gathered(path, None, tables, kind.items))


def ordered_classes(path: Path, present: set[str], stored: list[list[str] | None]) -> list[str]:
    """The stored order of the classes, or else the natural order of all names."""
    stored = [classes for classes in stored if classes]
    if not stored:
        return sorted(present, key=natural)
    if any(classes != stored[0] for classes in stored):
        raise ZooError(f"{path}: its tables store different label names: {stored[0]} and {stored[-1]}")
    if unknown := sorted(present - set(stored[0])):
        raise ZooError(f"{path}: label {unknown[0]!r} is none of the stored names {', '.join(stored[0])}")
    return stored[0]


def splits(path: str | Path, split_column: str = "split") -> list[str]:
    """The names of the splits that a folder or table has, whatever its rows or files are; [] where it has none."""
    path = existing(path)
    tables = next((found for kind in (PictureTable, SoundTable) if (found := tables_at(path, kind, (split_column,)))), [])
    named = {s for table in tables for s in table.row_splits(split_column) if s}
    found = named if tables else {name for medium in MEDIA.values() for name in layers(path, medium)}
    return sorted(found, key=lambda s: (s != "train", s == "test", natural(s)))


def gathered(path: Path, split: str | None, tables: list[MediaTable], build: Callable, split_column: str = "split") -> Items:
    """build(table) of every table that has rows of the split, cut to these rows, as one Items."""
    row_splits = [table.row_splits(split_column) for table in tables]
    have = sorted({s for rows in row_splits for s in rows if s}, key=natural)
    if split is not None and split not in have:
        known = ", ".join(have) or f"neither a column {split_column} nor files named by split"
        raise ZooError(f"{path}: no split {split!r} (has: {known})")
    parts = []
    for table, of_row in zip(tables, row_splits, strict=True):
        rows = [i for i, s in enumerate(of_row) if split in (None, s)]
        if rows:
            items = build(table)
            parts.append(items if len(rows) == len(items) else items.subset(rows))
    if not parts:
        raise ZooError(f"{path}: no rows")
    return joined(parts)
