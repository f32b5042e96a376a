"""Tables whose rows are media: a column of encoded bytes, or one of file names."""

from collections import Counter
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa

from zoo.data.folders import files_below
from zoo.data.items import Items
from zoo.data.medium import PICTURE, SOUND, Medium
from zoo.data.tables import Table, is_bytes, is_text
from zoo.errors import ZooError


class MediaTable(Table):
    """Rows of one medium, which a subclass names: bytes in a column of its name, or else files."""

    medium: Medium

    def __init__(self, file: Path, text_columns: tuple[str, ...] = ()):
        super().__init__(file, text_columns)
        kinds = {name: self.schema.field(name).type for name in self.columns}
        self.bytes_column = next((c for c in self.medium.bytes_columns if c in kinds and _is_encoded(kinds[c])), None)
        self.file_column = None if self.bytes_column else next(
            (c for c in self.medium.file_columns if c in kinds and is_text(kinds[c])), None)

    @property
    def has_media(self) -> bool:
        return bool(self.bytes_column or self.file_column)

    def items(self, without: tuple[str, ...] = ()) -> Items:
        """Every row as an item; meta: the plain columns except `without`. Keys: the file names, or TABLE:ROW.

        A row without a picture (a sound ...) has the source b"", which `unreadable` lists.
        """
        if not self.has_media:
            raise ZooError(f"{self.file}: no {self.medium.noun} column; looked for "
                           f"{' or '.join(map(repr, self.medium.bytes_columns))} (bytes) or a file name in "
                           f"{', '.join(map(repr, self.medium.file_columns))} (columns: {', '.join(self.columns)})")
        keys = self.keys
        if self.bytes_column:
            values = self.column(self.bytes_column)
            sources = [self._source(value, key) for value, key in zip(values, keys, strict=True)]
        else:
            names = self.column(self.file_column)
            sources = [self._path(name, key) if name else b"" for name, key in zip(names, keys, strict=True)]
            keys = [Path(name).as_posix() if name else key for name, key in zip(names, keys, strict=True)]
        return Items(keys, sources, meta=self.plain_rows({self.bytes_column, *without}), kind=self.medium.kind)

    def _source(self, value, key: str) -> Path | bytes:
        if isinstance(value, dict):  # {bytes, path}, as Hugging Face datasets writes it
            value = value.get("bytes") or (self._path(value["path"], key) if value.get("path") else None)
        return value or b""

    def _path(self, name: str, key: str) -> Path:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ZooError(f"{key}: {name!r} leads out of the table's folder; "
                           f"write it relative to {self.file.parent}")
        path = self.file.parent / name
        if not path.is_file() and len(found := self._files_by_name.get(Path(name).name, ())) == 1:
            return found[0]  # captions.csv beside images/, with bare names
        return path

    @cached_property
    def _files_by_name(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in files_below(self.file.parent, self.medium):
            found.setdefault(path.name, []).append(path)
        return found

    def captions(self, columns: tuple[str, ...]) -> list[list[str]]:
        """All texts of the columns, row by row: strings, lists or structs of strings; empty ones dropped."""
        parts = [self.column(column) for column in columns]
        return [texts(row) for row in zip(*parts, strict=True)]


class PictureTable(MediaTable):
    """Pictures: `image` (bytes) or files."""

    medium = PICTURE


class SoundTable(MediaTable):
    """Sounds: `audio` or `sound` (bytes) or files."""

    medium = SOUND


def merge_captions(items: Items) -> Items:
    """Rows that name the same file (one caption a row) become one item with all the captions, in order."""
    first: dict[str, int] = {}
    for i, key in enumerate(items.keys):
        if first.setdefault(key, i) != i:
            items.captions[first[key]] += items.captions[i]
    return items if len(first) == len(items) else items.subset(list(first.values()))


def unique_keys(items: Items) -> Items:
    """A file that is named again (a class made heavier by hand) gets the keys FILE#2, FILE#3 ..."""
    seen: Counter = Counter()
    for i, key in enumerate(items.keys):
        seen[key] += 1
        if seen[key] > 1:
            items.keys[i] = f"{key}#{seen[key]}"
    return items


def _is_encoded(kind: pa.DataType) -> bool:
    return is_bytes(kind) or pa.types.is_struct(kind)


def texts(values) -> list[str]:
    """All texts among values, each a string, a list or a struct of strings, or None; empty ones dropped."""
    return [normalize("NFC", text.strip()) for value in values for text in _texts(value) if text.strip()]


def _texts(value) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    values = value if isinstance(value, list) else [value]
    return [str(v) for v in values if v is not None]
