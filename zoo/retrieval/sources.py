"""What is to be indexed: a folder, a table or `Items`, with the captions and metadata beside it."""

import os
from pathlib import Path

from zoo.errors import ZooError


def open_source(source) -> tuple[object, Path | None]:
    """(Items, absolute path or None) of a folder of pictures, a table (CSV, JSONL, Parquet) or of `Items`.

    A folder may hold `captions.csv` (.jsonl, .parquet; its other columns become metadata) or a .txt beside
    each picture; pictures that those do not name are indexed all the same. Raises ZooError as zoo.data does.
    """
    if not isinstance(source, (str, os.PathLike)):
        return source, None
    from zoo.data.images import open_pictures

    path = Path(os.path.abspath(Path(source).expanduser()))
    items = open_pictures(path)
    if path.is_dir() and all(isinstance(s, Path) for s in items.sources):
        _add(items, _beside(path, items))
    elif path.suffix.lower() in _tables() or path.is_dir():
        items = _with_captions(path, items)
    return items, path


def need_one(items, index, source) -> None:
    """ZooError where none of the pictures can be read: an empty index would only look like one. Reads to the first good one."""
    from zoo.preprocess import load_image

    bad = []
    for key, picture in zip(items.keys, items.sources):
        try:
            load_image(picture, key)
            return
        except ZooError as error:
            bad.append(str(error))
    if bad:
        more = f"\n... and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise ZooError(f"{source}: none of its {len(bad)} pictures can be read, no index is made at {index}\n"
                       + "\n".join(bad[:3]) + more)


def _with_captions(path: Path, items):
    """The pairs of a table (or a folder of tables) that has a caption column, else the items as they are."""
    from zoo.data.images import CAPTION_COLUMNS, open_pairs
    from zoo.data.media import PictureTable
    from zoo.data.tables import tables_in

    tables = [PictureTable(file) for file in (tables_in(path) if path.is_dir() else [path])]
    captioned = all(set(CAPTION_COLUMNS) & set(table.columns) for table in tables if table.has_media)
    return open_pairs(path) if captioned else items


def _beside(folder: Path, items) -> list:
    """Items with captions found in the folder: a captions table, else sidecar texts, else none."""
    from zoo.data.folders import sidecar_pairs
    from zoo.data.images import open_pairs

    tables = [file for file in sorted(folder.glob("captions.*")) if file.suffix.lower() in _tables()]
    if tables:
        return [open_pairs(file) for file in tables]
    # notes.txt is no sidecar, only a file of a picture's own name is
    sidecars = any(_has_text(source.with_suffix(".txt")) for source in items.sources)
    return [sidecar_pairs(folder, None)] if sidecars else []


def _has_text(file: Path) -> bool:
    return file.is_file() and bool(file.read_bytes().strip())


def _add(items, parts: list) -> None:
    found = {source: (captions, meta) for part in parts
             for source, captions, meta in zip(part.sources, part.captions, part.meta)}  # fmt: skip
    if found:
        pairs = [found.get(source, ([], {})) for source in items.sources]
        items.captions, items.meta = [captions for captions, _ in pairs], [meta for _, meta in pairs]


def _tables() -> set[str]:
    from zoo.data.tables import TABLES

    return TABLES
