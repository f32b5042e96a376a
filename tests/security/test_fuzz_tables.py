"""Tables with anything in them: items, or one error that names the table."""

import io
import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from fuzzing import broken, ends_well, fuzz, scalars
from hypothesis import given
from hypothesis import strategies as st

from zoo.data.graphs import open_graphs
from zoo.data.images import open_images, open_pairs, open_pictures
from zoo.data.sounds import open_tags
from zoo.data.stream import open_shards
from zoo.errors import ZooError

CSV = 'file,label,split,caption,smiles,y\na.png,cat,train,"a ""red"" cat",CCO,1.5\nb.png,dog,val,"b, c",c1ccccc1,\n'
WAYS = (open_images, open_pairs, open_pictures, open_tags, lambda path: open_graphs(path), lambda path: open_images(path, "val"))


def opened(file, *names):
    for way in WAYS:
        ends_well(lambda: way(file), file.name, str(file.parent), *names)


def test_fuzz_csv(tmp_path):
    file = tmp_path / "t.csv"
    bits = st.sampled_from([b'"', b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n\n", b";", b"\t", b",", b"x" * 70000, b'"""',
        b"\\",
                            b"=1+1", b"NaN", b"1e999", b"../../etc/passwd", b"/etc/passwd", b"file,file", "é".encode("utf-16"),
                            "é".encode("latin-1"), b"2020-01-01", b"true"])

    @fuzz(30)
    @given(broken(CSV.encode()), st.lists(st.tuples(st.floats(0, 1), bits), max_size=4))
    def run(data, inserted):
        for share, part in inserted:
            at = int(share * len(data))
            data = data[:at] + part + data[at:]
        file.write_bytes(data)
        opened(file)

    run()


def test_fuzz_jsonl(tmp_path):
    file = tmp_path / "t.jsonl"
    names = st.one_of(st.sampled_from(["file", "label", "split", "caption", "image", "smiles", "y"]), st.text(max_size=4))
    values = st.one_of(scalars(), st.lists(scalars(), max_size=3), st.dictionaries(st.text(max_size=3), scalars(), max_size=2))
    lines = st.lists(st.dictionaries(names, values, max_size=6).map(lambda row: json.dumps(row).encode()), max_size=4)
    junk = st.one_of(st.binary(max_size=20), st.sampled_from([b"[" * 5000, b'{"a":' * 2000, b'{"file": "\\u0000"}', b"{}",
        b"null"]))

    @fuzz(30)
    @given(lines, st.lists(junk, max_size=1))
    def run(rows, bad):
        file.write_bytes(b"\n".join(rows + bad))
        opened(file)

    run()


def columns():
    return {"file": pa.array(["a.png", "b.png"]), "image": pa.array([b"\x89PNG", b""]), "label": pa.array([0, 1]),
            "caption": pa.array([["a"], []], pa.list_(pa.string())), "smiles": pa.array(["CCO", None]), "y": pa.array([1.0,
            None])}


def parquet(table: dict, **metadata) -> bytes:
    out = io.BytesIO()
    pa.parquet.write_table(pa.table(table).replace_schema_metadata(metadata), out)
    return out.getvalue()


def test_fuzz_parquet_bytes(tmp_path):
    file, data = tmp_path / "t.parquet", parquet(columns(), label_names='["cat", "dog"]')

    @fuzz(25)
    @given(st.booleans().flatmap(lambda back: broken(data[::-1] if back else data, 700).map(lambda d: d[::-1] if back else d)))
    def run(given):
        file.write_bytes(given)
        opened(file)
        ends_well(lambda: open_shards([file])[0].readable(), file.name, str(file.parent))

    run()


KINDS = [pa.array([1, 2]), pa.array(["a", None]), pa.array([b"a", b"b"]), pa.array([1.5, float("nan")]), pa.array([True, False]),
         pa.array([None, None]), pa.array([["a"], None]), pa.array([{"bytes": b"x", "path": "../x"}, None]),
         pa.array([{"q": 1}, {"q": 2}]), pa.array(["a", "b"]).dictionary_encode(), pa.array([1, 2], pa.date32()),
         pa.array([1, 2], pa.decimal128(5, 2)), pa.array([10**15, 1], pa.timestamp("us")), pa.array([{"bytes": 1, "path": 5},
             None]),
         pa.array([[[1]], [[]]]), pa.array([-5, 2**40])]
NAMED = st.one_of(st.text(max_size=30), st.sampled_from(['["a"]', "[1, 2]", "5", "null", '{"info": 3}', "[",
    '{"info":{"features":[]}}',
                                                         '{"info":{"features":{"label":{"names":5}}}}', '["a", "b"]']))


def test_fuzz_parquet_types(tmp_path):
    file = tmp_path / "t.parquet"
    tables = st.dictionaries(st.sampled_from(sorted([*columns(), "split", "audio", "x"])), st.sampled_from(KINDS), min_size=1)

    @fuzz(30)
    @given(tables, st.sampled_from(["label_names", "huggingface"]), NAMED)
    def run(table, key, value):
        file.write_bytes(parquet(table, **{key: value.encode("utf-8", "replace")}))
        opened(file)
        ends_well(lambda: open_shards([file]), file.name, str(file.parent))

    run()


@pytest.mark.parametrize("line", ["null", "1", '{"a": 1} null', '{"a":' * 50_000 + "1" + "}" * 50_000, "[" * 10**5], ids=range(5))
def test_lines_that_end_the_process(tmp_path, line):
    """pyarrow 26 dies of these."""
    file = tmp_path / "t.jsonl"
    file.write_text(f'{{"file": "a.png"}}\n{line}\n')
    found = ends_well(lambda: open_pictures(file), "t.jsonl:1: a line of a table is one JSON object")
    assert isinstance(found, ZooError)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_fuzz_noise(tmp_path, name):
    file = tmp_path / name

    @fuzz(25)
    @given(st.binary(max_size=200))
    def run(data):
        file.write_bytes(data)
        opened(file)

    run()
