"""Open a folder or a table of sounds: with one label each, with tags, or as they are."""

from pathlib import Path

from zoo.data.folders import split_name
from zoo.data.gather import existing, gathered, open_labelled, open_unlabelled, ordered_classes, splits, tables_at
from zoo.data.hear import SoundDataset
from zoo.data.items import Items
from zoo.data.media import SoundTable, unique_keys
from zoo.errors import ZooError

__all__ = ["SoundDataset", "open_clips", "open_sounds", "open_tags", "splits"]


def open_sounds(path: str | Path, split: str | None = None, label: str = "label", split_column: str = "split") -> Items:
    """Labelled sounds: class folders (below train/ val/ test/ or not), or a table with a label column.

    A table holds encoded bytes (`audio` or `sound`) or file names (`file`, `path`, `audio` ...). split: a folder, part
    of a file's name, or a value of `split_column` as text ("3" of a column `fold`); None: all. classes are those of all
    splits. Raises ZooError that names the path and what was looked for.
    """
    return open_labelled(path, SoundTable, split, label, split_column)


def open_tags(path: str | Path, split: str | None = None, label: str = "label", split_column: str = "split") -> Items:
    """Sounds of a table with any number of classes each, in `tags`: a column of lists, or of text like "dog;rain".

    An empty cell means that none of the classes is heard. Otherwise as open_sounds.
    """
    path, split = existing(path), split and split_name(split)
    tables = tables_at(path, SoundTable, (label, split_column))
    if not tables:
        raise ZooError(f"{path}: no table; tags need one, with a column {label!r} like 'dog;rain'")
    rows = {table: table.tags(label) for table in tables}
    present = {name for tags in rows.values() for row in tags for name in row}
    classes = ordered_classes(path, present, [table.label_names(label) for table in tables])
    position = {name: i for i, name in enumerate(classes)}

    def tagged(table: SoundTable) -> Items:
        items = table.items(without=(label,))
        items.tags, items.classes = [sorted(position[name] for name in row) for row in rows[table]], classes
        return items

    return unique_keys(gathered(path, split, tables, tagged, split_column))


def open_clips(path: str | Path) -> Items:
    """Unlabelled sounds: one file, every sound below a folder, or the rows of a table."""
    return open_unlabelled(path, SoundTable)
