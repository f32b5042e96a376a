"""Bombs, ways out of the folder, absurd sizes: each refused with the reason, before memory or time is spent."""

import io
import json
import os
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from fuzzing import ends_well
from PIL import Image

import zoo
from zoo import checkpoint
from zoo.cli import main
from zoo.data.images import open_images, open_pictures
from zoo.data.networks import open_network
from zoo.data.stream import open_shards
from zoo.data.tables import Table
from zoo.errors import ZooError
from zoo.preprocess import load_image
from zoo.sound import check_sound, load_sound
from zoo.train import recipe as recipes


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def refused(call, *words: str) -> None:
    """`call` ends within the bounds of fuzzing.py, in a ZooError that says all of `words`."""
    found = ends_well(call)
    assert isinstance(found, ZooError), found
    assert all(word in str(found) for word in words), found


def test_a_picture_that_unfolds(tmp_path):
    file = tmp_path / "bomb.png"
    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND",
        b""))
    refused(lambda: load_image(file), str(file), "decompression bomb")


def test_arrays_that_unfold(tmp_path, monkeypatch):
    monkeypatch.setattr("zoo.data.arrays.DENSE", 2**24)  # a GiB takes long to write
    file = tmp_path / "g.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out, out.open("x.npy", "w", force_zip64=True) as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (2**23,)})
        for _ in range(2):
            stream.write(bytes(2**24))
    refused(lambda: open_network(file), str(file), "decompression bomb")
    with zipfile.ZipFile(file, "w") as out, out.open("edge_index.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<i8", "fortran_order": False, "shape": (2, 10**12)})
        stream.write(bytes(64))
    refused(lambda: open_network(file), str(file), "2x1000000000000", "holds 64 bytes")
    np.savez(file, edge_index=np.array([{"a": 1}], object))
    refused(lambda: open_network(file), str(file), "objects")


def test_sounds_that_say_they_are_long(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    wave = io.BytesIO()
    soundfile.write(wave, np.zeros(100), 16000, format="WAV")
    data = bytearray(wave.getvalue())
    data[40:44], data[4:8] = b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff"
    (tmp_path / "a.wav").write_bytes(data)
    ends_well(lambda: load_sound(tmp_path / "a.wav", 16000), "a.wav")  # libsndfile believes the file, not the header
    flac = io.BytesIO()
    soundfile.write(flac, np.zeros(100), 16000, format="FLAC")
    data = bytearray(flac.getvalue())
    at = data.index(b"fLaC") + 8 + 13  # the low nibble and four bytes: samples in all
    data[at] |= 0x0F
    data[at + 1 : at + 5] = b"\xff\xff\xff\xff"
    refused(lambda: load_sound(bytes(data), 16000, "a.flac"), "a.flac")
    refused(lambda: check_sound(bytes(data), "a.flac"), "a.flac", "broken sound")
    slow = io.BytesIO()
    soundfile.write(slow, np.zeros(100_000), 1, format="WAV")
    refused(lambda: load_sound(slow.getvalue(), 16000, "slow.wav"), "slow.wav", "1 samples a second")
    refused(lambda: load_sound((np.zeros(10**6, np.float32), 100), 16000, "long"), "long", "hours at 16000 Hz")


def test_parquet_that_says_it_is_long(tmp_path):
    file = tmp_path / "t.parquet"
    rows = 2 * 10**6
    pa.parquet.write_table(pa.table({"file": pa.array(["a.png"] * rows).dictionary_encode(), "label": pa.array([1] * rows)}),
        file)
    refused(lambda: open_images(file), str(file), "2000000 rows", "bomb")
    pa.parquet.write_table(pa.table({"label": pa.array([1] * 10**5)}), file)
    assert Table(file).count == 10**5


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def test_shards_are_never_unpacked(tmp_path):
    """Members are read where they lie in the tar file: no name leads anywhere, links and devices are no pictures."""
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    png = picture.getvalue()
    secret = tmp_path / "secret.png"
    secret.write_bytes(png)
    shards = tmp_path / "shards"
    shards.mkdir()
    file = shards / "train-0.tar"
    named = [(info(f"{name}.{kind}"), data) for name in ("../../x", "/etc/y", "z") for kind, data in (("png", png), ("cls",
        b"cat"))]
    linked = [(info("l.png", tarfile.SYMTYPE, str(secret)), b""), (info("l.cls"), b"dog"),
              (info("h.png", tarfile.LNKTYPE, "z.png"), b""), (info("d.png", tarfile.CHRTYPE), b""), (info("f.png",
              tarfile.FIFOTYPE), b"")]
    file.write_bytes(tar(*named, *linked))
    before = sorted(tmp_path.rglob("*"))
    items, torn = open_shards([file])
    assert len(items) == 3 and items.classes == ["cat"] and not torn
    assert list(items.keys) == ["train-0.tar:0", "train-0.tar:1", "train-0.tar:2"] and items.readable()[1] == []
    assert sorted(tmp_path.rglob("*")) == before
    file.write_bytes(tar(*linked))
    refused(lambda: open_shards([file]), str(shards), "no readable pictures")


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a/../../secret.png"])
def test_tables_stay_in_their_folder(tmp_path, name):
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    (tmp_path / "in").mkdir()
    for kind, text in (("csv", f"file,label\n{name},a\n"), ("jsonl", json.dumps({"file": name, "label": "a"}) + "\n")):
        file = tmp_path / "in" / f"t.{kind}"
        file.write_text(text)
        refused(lambda: open_images(file), name, "leads out of the table's folder")
    pa.parquet.write_table(pa.table({"image": [{"bytes": None, "path": name}], "label": ["a"]}), tmp_path / "in" / "t.parquet")
    refused(lambda: open_images(tmp_path / "in" / "t.parquet"), name, "leads out")


def test_links_in_a_folder_are_followed(tmp_path):
    """A link is the owner's own word for where pictures lie; only one that leads back up is left out."""
    Image.new("RGB", (4, 4)).save(tmp_path / "elsewhere.png")
    photos = tmp_path / "photos"
    photos.mkdir()
    os.symlink(tmp_path / "elsewhere.png", photos / "a.png")
    os.symlink(tmp_path, photos / "up")
    os.symlink("/nowhere/at/all.png", photos / "lost.png")
    assert [key for key in open_pictures(photos).keys if "up" not in key] == ["a.png", "lost.png"]
    refused(lambda: load_image(photos / "lost.png"), "lost.png", "no such file")


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "image_nano.cifar10/../x", "\0", "a" * 5000])
def test_checkpoint_names_lead_nowhere(name, capsys):
    refused(lambda: zoo.load(name))
    assert main(["info", name]) in (1, 2) and "Traceback" not in capsys.readouterr().err


def headed(size: int, header: bytes) -> bytes:
    return struct.pack("<Q", size) + header


def test_headers_of_a_hundred_megabytes(tmp_path):
    file = tmp_path / "big.safetensors"
    with open(file, "wb") as out:
        out.write(headed(100 * 2**20, b"{"))
        out.truncate(101 * 2**20)
    refused(lambda: zoo.load(file), str(file), f"header of {100 * 2**20} bytes")
    file.write_bytes(headed(2**63, b"{}"))
    refused(lambda: zoo.load(file), str(file), "header of")
    file.write_bytes(headed(20_000, b"[" * 20_000))
    refused(lambda: zoo.load(file), str(file), "no JSON")


def test_recipes_of_a_hundred_megabytes(tmp_path):
    file = tmp_path / "r.yaml"
    with open(file, "wb") as out:
        out.truncate(100 * 2**20)
    refused(lambda: recipes.read(file), str(file), "a recipe is a page of text")
    laughs = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdefghijklmn",
        "bcdefghijklmno"))
    file.write_text(laughs)
    refused(lambda: recipes.read(file), f"{file}:", "aliases written out")
    file.write_text("a: &a [*a]\n")
    refused(lambda: recipes.read(file), "holds itself")
    file.write_text("arguments: " + "[" * 60 + "]" * 60)
    refused(lambda: recipes.read(file), "levels deep")
    file.write_text("epochs: 1\nepochs: 2\n")
    refused(lambda: recipes.read(file), f"{file}:2", "'epochs' is there twice")
    file.write_text("name: !!python/object/apply:os.system ['true']\n")
    refused(lambda: recipes.read(file), "could not determine a constructor")


@pytest.mark.parametrize("name, arguments, word", [
    ("image_nano", {"depths": [10**9, 1, 1]}, "depths"), ("image_nano", {"dims": [10**7, 64, 64]}, "more than"),
    ("image_nano", {"num_classes": 10**12}, "num_classes"), ("image_pico", {"depths": [10**6, 1, 1]}, "layers and parts"),
    ("audio_pico", {"mels": 10**9}, "mels"), ("graph_pico", {"depth": 10**9}, "depth"), ("graph_pico", {"dim": 2 * 10**6},
    "more than"),
    ("text_bert", {"dim": 3 * 10**6}, ""), ("image_pico", {"window": 10**6}, "more than")])
def test_models_that_no_memory_holds(name, arguments, word):
    refused(lambda: zoo.create_model(name, **arguments), word)


def test_a_small_file_that_describes_a_large_model(tmp_path):
    model = zoo.create_model("image_pico", num_classes=2, dims=[8, 16], depths=[1, 1], head_dim=8, window=4)
    file = zoo.save(model, tmp_path / "small.safetensors")
    card = checkpoint.read_card(file)
    for changed in ({"dims": [8, 8 * 10**5]}, {"depths": [1, 10**6]}, {"num_classes": 9 * 10**6}):
        model.card.arguments = {**card.arguments, **changed}
        model.num_classes = model.card.arguments["num_classes"]
        zoo.save(model, file)
        refused(lambda: zoo.load(file), str(file), "the card does not give a model", "more than")


@pytest.mark.parametrize("words", [
    ["train", "image_scratch", "--arguments", "{depths: [1000000000, 1, 1]}", "--data", "."],
    ["train", "image_scratch", "--batch-size", "1000000000000", "--data", "."], ["train", "image_scratch", "--workers", "100000"],
    ["train", "image_scratch", "--lr", "1e999"],
    ["embed", "image_nano.cifar10", ".", "--out", "x.parquet", "--batch-size", "1000000000000"]])
def test_commands_with_absurd_numbers(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        for i in range(4):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("RGB", (8, 8), (60 * i, 0, 0)).save(tmp_path / name / f"{i}.png")
    assert main(words) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "runs").exists() and not (tmp_path / "x.parquet").exists()
