"""Open a folder or a table of pictures: with labels, with captions, or as they are."""

from pathlib import Path

from zoo.data.folders import sidecar_pairs, split_name
from zoo.data.gather import existing, gathered, open_labelled, open_unlabelled, splits, tables_at
from zoo.data.items import Items, split, unreadable
from zoo.data.media import PictureTable, merge_captions

__all__ = ["Items", "open_images", "open_pairs", "open_pictures", "split", "splits", "unreadable"]

CAPTION_COLUMNS = ("caption", "captions", "text")


def open_images(path: str | Path, split: str | None = None, label: str = "label", split_column: str = "split") -> Items:
    """Labelled pictures: class folders (below train/ val/ test/ or not), or a table with a label column.

    split: "train", "val" or "test": a folder, part of a file's name, or a value of `split_column`; None: all.
    classes are those of all splits, so that one that is missing here shifts no label.
    Raises ZooError that names the path and what was looked for.
    """
    return open_labelled(path, PictureTable, split, label, split_column)


def open_pairs(path: str | Path, split: str | None = None, captions: tuple[str, ...] | None = None) -> Items:
    """Pictures with captions: a table, a folder with a captions table, or a .txt beside each picture.

    captions: columns, each a string, a list or a struct of strings; all are captions of the item, in order.
    None takes the first there is of caption, captions, text. Rows that name the same file are one item.
    """
    path, split = existing(path), split and split_name(split)
    captions = (captions,) if isinstance(captions, str) else captions
    tables = tables_at(path, PictureTable, captions or ())
    if not tables:
        return sidecar_pairs(path, split)

    def captioned(table: PictureTable) -> Items:
        columns = tuple(captions or (table.need(*CAPTION_COLUMNS),))
        items = table.items(without=columns)
        items.captions = table.captions(columns)
        return items

    return merge_captions(gathered(path, split, tables, captioned))


def open_pictures(path: str | Path) -> Items:
    """Unlabelled pictures: one file, every picture below a folder, or the rows of a table."""
    return open_unlabelled(path, PictureTable)
