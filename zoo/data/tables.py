"""Tables (CSV, JSONL, Parquet) whose rows are pictures: a column of bytes, or one of file names."""

import json
import re
from collections import Counter
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from zoo.data.folders import SPLITS, pictures_below, printable, split_name
from zoo.data.items import Items, natural
from zoo.errors import ZooError

TABLES = {".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"}
FILE_COLUMNS = ("file", "path", "image", "file_name", "filename")  # file_name: Hugging Face image folders
_WORDS = ("split", "caption", "captions", "text", *FILE_COLUMNS)


def tables_in(folder: Path) -> list[Path]:
    """The table files directly in a folder, in natural order."""
    files = [f for f in folder.iterdir() if f.suffix.lower() in TABLES and not f.name.startswith(".")]
    return sorted(files, key=lambda f: natural(f.name))


class PictureTable:
    """One table file; of Parquet only the columns asked for are read. Pictures: `image` (bytes) or files."""

    def __init__(self, file: Path, text_columns: tuple[str, ...] = ()):
        self.file = file
        with self._readable():
            if file.suffix.lower() == ".parquet":
                self._rows, self.schema = None, pa.parquet.read_schema(file)
                self.count = pa.parquet.read_metadata(file).num_rows
            else:
                self._rows = _read_text(file, (*text_columns, *_WORDS))
                self.schema, self.count = self._rows.schema, self._rows.num_rows
        self.columns = self.schema.names
        image = self.schema.field("image").type if "image" in self.columns else None
        is_bytes = image is not None and (_is_bytes(image) or pa.types.is_struct(image))
        self.bytes_column = "image" if is_bytes else None
        self.file_column = None if self.bytes_column else next(
            (c for c in FILE_COLUMNS if c in self.columns and _is_text(self.schema.field(c).type)), None)

    @contextmanager
    def _readable(self):
        try:
            yield
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            raise ZooError(f"{self.file}: not a readable table: {str(error).splitlines()[0]}") from error

    def _select(self, names: list[str]) -> pa.Table:
        with self._readable():
            if self._rows is not None:
                return self._rows.select(names)
            return pa.parquet.read_table(self.file, columns=names)

    @property
    def has_pictures(self) -> bool:
        return bool(self.bytes_column or self.file_column)

    @property
    def named_split(self) -> str | None:
        """The split in the file's name: cifar10_train.parquet, val.csv, test-00000-of-00001.parquet."""
        words = re.split(r"[-_.]", self.file.stem.lower())
        return next((split_name(w) for w in words if any(w in known for known in SPLITS.values())), None)

    @cached_property
    def row_splits(self) -> list[str | None]:
        """The split of each row, by the column `split` or else the file's name; None if nothing says it."""
        if "split" in self.columns:
            return [split_name(str(value)) for value in self.column("split")]
        return [self.named_split] * self.count

    def column(self, name: str) -> list:
        self.need(name)
        return self._select([name])[name].to_pylist()

    def need(self, *names: str) -> str:
        """The first of `names` that is a column. Raises ZooError with the columns there are."""
        found = next((name for name in names if name in self.columns), None)
        if found is None:
            wanted, have = " or ".join(map(repr, names)), ", ".join(self.columns)
            raise ZooError(f"{self.file}: no column {wanted} (columns: {have})")
        return found

    def items(self, without: tuple[str, ...] = ()) -> Items:
        """Every row as an item; meta: the plain columns except `without`. Keys: the file names, or TABLE:ROW.

        A row without a picture has the source b"", which `unreadable` lists.
        """
        if not self.has_pictures:
            raise ZooError(f"{self.file}: no picture column; looked for 'image' (bytes) or a file name in "
                           f"{', '.join(map(repr, FILE_COLUMNS))} (columns: {', '.join(self.columns)})")
        keys = [f"{printable(self.file.name)}:{row}" for row in range(self.count)]
        if self.bytes_column:
            values = self.column(self.bytes_column)
            sources = [self._source(value, key) for value, key in zip(values, keys, strict=True)]
        else:
            names = self.column(self.file_column)
            sources = [self._path(name, key) if name else b"" for name, key in zip(names, keys, strict=True)]
            keys = [Path(name).as_posix() if name else key for name, key in zip(names, keys, strict=True)]
        return Items(keys, sources, meta=self._meta({self.bytes_column, *without}))

    def _source(self, value, key: str) -> Path | bytes:
        if isinstance(value, dict):  # {bytes, path}, as Hugging Face datasets writes it
            value = value.get("bytes") or (self._path(value["path"], key) if value.get("path") else None)
        return value or b""

    def _path(self, name: str, key: str) -> Path:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ZooError(f"{key}: {name!r} leads out of the table's folder; "
                           f"write it relative to {self.file.parent}")
        path = self.file.parent / name
        if not path.is_file() and len(found := self._pictures_by_name.get(Path(name).name, ())) == 1:
            return found[0]  # captions.csv beside images/, with bare names
        return path

    @cached_property
    def _pictures_by_name(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in pictures_below(self.file.parent):
            found.setdefault(path.name, []).append(path)
        return found

    def _meta(self, without: set) -> list[dict]:
        plain = [f.name for f in self.schema if f.name not in without and _is_plain(f.type)]
        rows = self._select(plain).to_pylist() if plain else [{} for _ in range(self.count)]
        return [{k: v if v is None or isinstance(v, (str, int, float)) else str(v) for k, v in row.items()}
                for row in rows]

    def label_names(self, label: str) -> list[str] | None:
        """Ordered names stored in the Parquet metadata, by us (label_names) or by Hugging Face datasets."""
        metadata = self.schema.metadata or {}
        if b"label_names" in metadata:
            return list(json.loads(metadata[b"label_names"]))
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        return features.get(label, {}).get("names")

    def labels(self, label: str) -> list[str]:
        """The class name of each row."""
        values, names = self.column(label), self.label_names(label)
        kind = self.schema.field(label).type
        if not (_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise ZooError(f"{self.file}: column {label!r} holds {kind}; labels are text or integers")
        for row, value in enumerate(values):
            outside = names and isinstance(value, int) and not 0 <= value < len(names)
            if value is None or value == "" or outside:
                allowed = f"0 to {len(names) - 1}" if names else "a name or an integer"
                raise ZooError(f"{self.file.name}:{row}: {label} is {value!r}; expected {allowed}")
        if names and pa.types.is_integer(kind):
            return [names[value] for value in values]
        return [normalize("NFC", str(value)) for value in values]

    def captions(self, columns: tuple[str, ...]) -> list[list[str]]:
        """All texts of the columns, row by row: strings, lists or structs of strings; empty ones dropped."""
        parts = [self.column(column) for column in columns]
        return [[normalize("NFC", t.strip()) for part in row for t in _texts(part) if t.strip()]
                for row in zip(*parts, strict=True)]


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


def _texts(value) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    values = value if isinstance(value, list) else [value]
    return [str(v) for v in values if v is not None]


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind  # pandas categories
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_plain(kind: pa.DataType) -> bool:
    return _is_text(kind) or pa.types.is_primitive(kind) or pa.types.is_boolean(kind)


def _read_text(file: Path, words: tuple[str, ...]) -> pa.Table:
    if file.suffix.lower() in (".jsonl", ".ndjson"):
        return pa.json.read_json(file)
    with open(file, encoding="utf-8-sig") as lines:
        header = lines.readline()
    delimiter = max(",;\t", key=header.count)
    return pa.csv.read_csv(
        file, parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        # a label "007" or a caption "12" is text, whatever it looks like
        convert_options=pa.csv.ConvertOptions(column_types={word: pa.string() for word in words}))
