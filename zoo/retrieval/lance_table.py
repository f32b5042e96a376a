"""A LanceDB table of an index: which of its columns are rows, and its partitions of the vectors."""

import math
from datetime import timedelta

import pyarrow as pa

from zoo.errors import ZooError
from zoo.retrieval.store import HEAVY
from zoo.retrieval.typed import is_filter_column

PROBED = 0.5  # share of the partitions that a search looks into: texts lie far from all pictures, see `zoo bench search`
INDEX_CACHE, METADATA_CACHE = 2 * 2**30, 32 * 2**20  # bytes; what changes leave in the second fills it: LanceDB's own is 1 GiB
GROWN = 2.0  # times the rows at its training, and the partitions are drawn anew


def partition(table) -> None:
    """A tree over the keys, and partitions of the vectors (IVF), drawn anew once the rows are GROWN times as many."""
    from lancedb.index import BTree, IvfFlat

    wanted, have = max(1, round(math.sqrt(table.count_rows()))), partitions(table)
    if "key_tree" not in {index.name for index in table.list_indices()}:
        table.create_index("key", config=BTree(), name="key_tree")
    if not have or wanted > have * math.sqrt(GROWN):
        if have:
            table.drop_index(index_name(have))
        config = IvfFlat(distance_type="cosine", num_partitions=wanted, sample_rate=64)
        table.create_index("vector", config=config, name=index_name(wanted))


def lancedb():
    """The package; ZooError with the pip command where it is missing."""
    try:
        import lancedb
    except ImportError as error:
        raise ZooError(
            f"this index keeps its rows in LanceDB, which is not installed: {error}\n"
            "pip install 'zoo-attention[retrieval]'   (or: pip install lancedb)"
        ) from None
    return lancedb


def connect(uri: str):
    """The database at `uri`, whose tables show at once what others wrote."""
    base = lancedb()
    session = base.Session(index_cache_size_bytes=INDEX_CACHE, metadata_cache_size_bytes=METADATA_CACHE)
    return base.connect(uri, read_consistency_interval=timedelta(0), session=session)


def light(table) -> list[str]:
    """The columns of a row but for the HEAVY ones."""
    return [name for name in table.schema.names if name not in HEAVY and not is_filter_column(name)]


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with all columns of `schema`, in its order; null where they have none."""
    names = rows.column_names
    columns = [rows[f.name].cast(f.type) if f.name in names else pa.nulls(len(rows), f.type) for f in schema]
    return pa.table(columns, schema=schema)


def partitions(table) -> int:
    """Of the index over the vectors; 0 where there is none."""
    names = [index.name for index in table.list_indices() if index.name.startswith("vector_in_")]
    return int(names[0].removeprefix("vector_in_")) if names else 0


def index_name(count: int) -> str:
    return f"vector_in_{count}"


def probes(count: int) -> int:
    """How many of `count` partitions a search looks into."""
    return max(20, round(PROBED * count))
