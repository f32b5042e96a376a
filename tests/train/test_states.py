"""Kept token states: what the tower gives, stored once, made anew where the file is torn or another's, bounded."""

import pytest
import torch

import zoo
from tests.train.pair_data import small_tower
from zoo.train import states

TEXTS = ["a red picture", "", "something blue, far away", "a dog runs"]


@pytest.fixture
def model(tmp_path):
    return zoo.create_model("text_image_pico", **small_tower(tmp_path / "tower")).eval()


@pytest.fixture
def stored(home):
    return lambda: sorted((home / "states").glob("*.safetensors"))


@pytest.mark.parametrize("layers", [None, 0, 2])
def test_states_are_those_of_the_tower(model, layers):
    kept, _ = states.keep(model, TEXTS * 2, layers)
    found, mask = kept.batch(TEXTS)
    ids, real = model.preprocess_text.batch(TEXTS)
    x, every = model.text.forward_intermediates(ids, real)
    expected = model.text.embed_tokens(ids, real) if layers == 0 else x if layers is None else every[layers - 1]
    assert torch.equal(mask, real) and len(kept) == 4 and found.dtype == torch.float32
    assert torch.allclose(found[mask], expected[real].half().float(), atol=1e-3) and not found[~mask].any()


def test_the_second_run_reads_what_the_first_stored(model, stored, monkeypatch):
    first, line = states.keep(model, TEXTS)
    assert line.startswith("texts   4 captions through the text tower, once; ") and str(stored()[0]) in line
    monkeypatch.setattr(states, "compute", None)
    second, line = states.keep(model, list(reversed(TEXTS)))
    assert line == f"texts   4 captions, kept states read from {stored()[0]}"
    assert all(torch.equal(first[text], second[text]) for text in TEXTS)


def test_other_captions_layers_or_weights_are_another_file(model, stored):
    states.keep(model, TEXTS)
    states.keep(model, TEXTS[:3])
    states.keep(model, TEXTS, 1)
    assert len(stored()) == 3
    with torch.no_grad():
        model.text.blocks[1].mlp.fc1.weight.add_(1)
    states.keep(model, TEXTS, 1)  # block 1 has no part in it
    assert len(stored()) == 3
    kept, _ = states.keep(model, TEXTS)
    assert len(stored()) == 4 and torch.equal(kept["a dog runs"], states.keep(model, TEXTS)[0]["a dog runs"])


@pytest.mark.parametrize("damage", ["torn", "flipped", "foreign", "nonsense"])
def test_a_bad_file_is_made_anew_and_said(model, stored, damage):
    first, _ = states.keep(model, TEXTS)
    (file,), whole = stored(), stored()[0].read_bytes()
    states.keep(model, ["a blue picture", *TEXTS[1:]])  # of as many captions and tokens
    other = next(f for f in stored() if f != file)
    flipped = whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:]
    file.write_bytes({"torn": whole[:-10], "flipped": flipped, "foreign": other.read_bytes(), "nonsense": b"states"}[damage])
    again, line = states.keep(model, TEXTS)
    assert f"({file.name} in the cache is torn or another's: made anew)" in line
    assert all(torch.equal(first[text], again[text]) for text in TEXTS)
    assert states.keep(model, TEXTS)[1].startswith("texts   4 captions, kept states read")


def test_the_cache_is_bounded(model, stored, monkeypatch):
    import os

    states.keep(model, TEXTS)
    size = stored()[0].stat().st_size
    os.utime(stored()[0], (1, 1))
    monkeypatch.setattr(states, "BOUND", int(1.5 * size))
    line = states.keep(model, TEXTS, 1)[1]
    assert line.endswith(", 1 older files dropped") and len(stored()) == 1
    monkeypatch.setattr(states, "BOUND", 10)
    assert "more than 0 GiB: not stored" in states.keep(model, TEXTS, 2)[1]


def test_a_cache_that_cannot_be_written_is_no_error(model, home):
    home.mkdir()
    (home / "states").write_text("a file in the way")
    kept, line = states.keep(model, TEXTS)
    assert "not stored (" in line and len(kept) == 4
