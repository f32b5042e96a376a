"""A checkpoint whose bytes, header or card are broken: zoo.load and zoo info answer, or say what is wrong with the file."""

import json
import struct

import numpy as np
import pytest
import torch
from fuzzing import broken, ends_well, fuzz, wrong
from hypothesis import given
from hypothesis import strategies as st

import zoo
from zoo import show

SMALL = {
    "image_pico": dict(num_classes=3, dims=[8, 16], depths=[1, 1], head_dim=8, window=4),
    "audio_pico": dict(num_classes=3, dims=[8, 16], depths=[1, 1], windows=[8, None], head_dim=8, mels=16, rate=4000, win=100,
                       hop=40),
    "graph_pico": dict(dim=8, depth=1, heads=2, pair_dim=4),
    "text_bert": dict(vocab_size=30522, dim=8, depth=1, heads=2, hidden=16),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{model: (metadata, file)} of small real checkpoints."""
    folder, found = tmp_path_factory.mktemp("real"), {}
    for name, arguments in SMALL.items():
        if name == "graph_pico":
            pytest.importorskip("torch_geometric")
        torch.manual_seed(0)
        model = zoo.create_model(name, **arguments)
        model.card.labels = ["a", "b", "c"] if arguments.get("num_classes") else None
        found[name] = zoo.save(model, folder / f"{name}.safetensors")
    return found


def parts(data: bytes) -> tuple[dict, bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def joined(header, tensors: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + tensors


ITEMS = {"image": np.zeros((9, 9, 3), np.uint8), "audio": (np.zeros(900, np.float32), 4000), "graph": "CCO"}


def answers(file):
    """Both ways in: the header alone, and the whole model, asked once where there is one."""
    ends_well(lambda: show.lines(show.info(str(file))), file.name)
    model = ends_well(lambda: zoo.load(file), file.name)
    if not isinstance(model, Exception) and model.card.modality in ITEMS:
        ends_well(lambda: model.predict([ITEMS[model.card.modality]]))


@pytest.mark.parametrize("name", ["image_pico", "graph_pico"])
def test_fuzz_bytes(files, tmp_path, name):
    file, data = tmp_path / "broken.safetensors", files[name].read_bytes()

    @fuzz(25)
    @given(broken(data, 1200))
    def run(given):
        file.write_bytes(given)
        answers(file)

    run()


@pytest.mark.parametrize("name", SMALL)
def test_fuzz_card(files, tmp_path, name):
    file = tmp_path / "broken.safetensors"
    header, tensors = parts(files[name].read_bytes())
    card = json.loads(header["__metadata__"]["zoo"])

    @fuzz(25)
    @given(wrong(card))
    def run(given):
        metadata = {**header["__metadata__"], "zoo": json.dumps(given)}
        file.write_bytes(joined({**header, "__metadata__": metadata}, tensors))
        answers(file)

    run()


def test_fuzz_header(files, tmp_path):
    file = tmp_path / "broken.safetensors"
    header, tensors = parts(files["image_pico"].read_bytes())

    @fuzz(25)
    @given(wrong(header), st.booleans())
    def run(given, whole):
        file.write_bytes(joined(given, tensors if whole else tensors[:64]))
        answers(file)

    run()
