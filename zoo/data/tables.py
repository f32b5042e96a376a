"""Tables (CSV, JSONL, Parquet): columns, splits, labels and tags of the rows, whatever the rows are."""

import json
import re
from contextlib import contextmanager
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from zoo.data.folders import SPLITS, printable, split_name
from zoo.data.items import natural
from zoo.errors import ZooError

MOST_ROWS, ROWS_A_BYTE = 10**6, 8  # of a Parquet file: more rows than these are a column of one value, or none at all
TABLES = {".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"}
_WORDS = ("split", "caption", "captions", "text", "file", "path", "image", "audio", "sound", "file_name", "filename")


def tables_in(folder: Path) -> list[Path]:
    """The table files directly in a folder, in natural order."""
    files = [f for f in folder.iterdir() if f.suffix.lower() in TABLES and not f.name.startswith(".")]
    return sorted(files, key=lambda f: natural(f.name))


class Table:
    """One table file; of Parquet only the columns asked for are read.

    text_columns: columns of a CSV that are text whatever they look like ("007"), besides file names, captions and `split`.
    """

    def __init__(self, file: Path, text_columns: tuple[str, ...] = ()):
        self.file = file
        with self._readable():
            if file.suffix.lower() == ".parquet":
                self._rows, self.schema = None, pa.parquet.read_schema(file)
                self.count = _rows_in(file)
            else:
                self._rows = _read_text(file, (*text_columns, *_WORDS))
                self.schema, self.count = self._rows.schema, self._rows.num_rows
        self.columns = self.schema.names

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
    def keys(self) -> list[str]:
        """TABLE:ROW of each row."""
        return [f"{printable(self.file.name)}:{row}" for row in range(self.count)]

    @property
    def named_split(self) -> str | None:
        """The split in the file's name: cifar10_train.parquet, val.csv, test-00000-of-00001.parquet."""
        words = re.split(r"[-_.]", self.file.stem.lower())
        return next((split_name(w) for w in words if any(w in known for known in SPLITS.values())), None)

    def row_splits(self, split_column: str = "split") -> list[str | None]:
        """The split of each row, as text: by `split_column`; without a column `split` by the file's name, else None.

        Raises ZooError if any other column is asked for and missing.
        """
        if split_column not in self.columns and split_column == "split":
            return [self.named_split] * self.count
        values = self.column(split_column)
        return [None if value is None or value == "" else split_name(str(value)) for value in values]

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

    def plain_rows(self, without: set) -> list[dict]:
        """Text, numbers and truth values of each row, except the columns `without`; dates and the like as text."""
        plain = [f.name for f in self.schema if f.name not in without and _is_plain(f.type)]
        rows = self._select(plain).to_pylist() if plain else [{} for _ in range(self.count)]
        return [{k: v if v is None or isinstance(v, (str, int, float)) else str(v) for k, v in row.items()}
                for row in rows]

    def label_names(self, label: str) -> list[str] | None:
        """Ordered names stored in the Parquet metadata, by us (label_names) or by Hugging Face datasets."""
        metadata = self.schema.metadata or {}
        names = None
        try:
            if b"label_names" in metadata:
                names = json.loads(metadata[b"label_names"])
            elif b"huggingface" in metadata:
                feature = json.loads(metadata[b"huggingface"]).get("info", {}).get("features", {}).get(label, {})
                feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)  # a list of labels
                names = feature.get("names")
            if names is None or isinstance(names, list) and all(isinstance(name, str) for name in names):
                return names
        except (AttributeError, LookupError, RecursionError, ValueError):  # JSON of another shape, or none
            pass
        raise ZooError(f"{self.file}: the names of the labels in its metadata are no list of texts; leave them out")

    def labels(self, label: str) -> list[str]:
        """The class name of each row."""
        values, names = self.column(label), self.label_names(label)
        kind = self.schema.field(label).type
        if not _is_label(kind):
            raise ZooError(f"{self.file}: column {label!r} holds {kind}; labels are text or integers")
        return [self._name(label, row, value, names) for row, value in enumerate(values)]

    def tags(self, label: str) -> list[list[str]]:
        """The names of each row, any number of them: a list, or text with ";" between the names."""
        values, names = self.column(label), self.label_names(label)
        kind = self.schema.field(label).type
        if not _is_label(getattr(kind, "value_type", kind)):
            raise ZooError(f"{self.file}: column {label!r} holds {kind}; tags are lists of names, or text like 'dog;rain'")
        lists = [_parted(value) for value in values]
        return [list(dict.fromkeys(self._name(label, row, v, names) for v in part)) for row, part in enumerate(lists)]

    def _name(self, label: str, row: int, value, names: list[str] | None) -> str:
        outside = names and isinstance(value, int) and not 0 <= value < len(names)
        if value is None or value == "" or outside:
            allowed = f"0 to {len(names) - 1}" if names else "a name or an integer"
            raise ZooError(f"{self.file.name}:{row}: {label} is {value!r}; expected {allowed}")
        is_place = names and isinstance(value, int) and not isinstance(value, bool)
        return names[value] if is_place else normalize("NFC", str(value))


def _rows_in(file: Path) -> int:
    """Rows that a Parquet file says it has. ZooError where it cannot: a list of as many keys would fill the memory."""
    found, size = pa.parquet.read_metadata(file), file.stat().st_size
    rows = sum(found.row_group(i).num_rows for i in range(found.num_row_groups))
    if rows != found.num_rows or not 0 <= rows <= max(MOST_ROWS, size * ROWS_A_BYTE):
        raise ZooError(f"{file}: damaged, or a bomb: says it has {found.num_rows} rows ({rows} in its groups) in {size} bytes")
    return rows


def _parted(value) -> list:
    if isinstance(value, str):
        return [part.strip() for part in value.split(";") if part.strip()]
    return [] if value is None else value if isinstance(value, list) else [value]


def is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind  # pandas categories
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_label(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def _is_plain(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_primitive(kind) or pa.types.is_boolean(kind)


def _flat(file: Path) -> None:
    """ZooError for a line that is no JSON object: `null`, and what is nested too deeply, end the process in pyarrow's parser."""
    with open(file, "rb") as lines:
        for row, line in enumerate(lines):
            try:
                if line.strip() and not isinstance(json.loads(line), dict):
                    raise ValueError("no object {...}")
            except (ValueError, RecursionError) as error:
                why = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:100]
                raise ZooError(f"{printable(file.name)}:{row}: a line of a table is one JSON object ({why})") from error


def _read_text(file: Path, words: tuple[str, ...]) -> pa.Table:
    if file.suffix.lower() in (".jsonl", ".ndjson"):
        _flat(file)
        return pa.json.read_json(file)
    with open(file, encoding="utf-8-sig") as lines:
        header = lines.readline()
    delimiter = max(",;\t", key=header.count)
    return pa.csv.read_csv(
        file, parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        # a label "007" or a caption "12" is text, whatever it looks like
        convert_options=pa.csv.ConvertOptions(column_types={word: pa.string() for word in words}))
