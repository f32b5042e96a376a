"""Runs on shards: they learn, a stopped one goes on exactly, two ranks train as one, what cannot be is said."""

from dataclasses import replace

import pytest

from tests.data.test_stream import write_parquet, write_tar
from tests.train import tiny
from tests.train.test_ranks import PLAIN, as_one
from tests.train.test_run import resumes_exactly
from zoo.data.images import open_images
from zoo.errors import UsageError, ZooError
from zoo.train import run


@pytest.fixture
def recipe(tmp_path):
    """The tiny pictures as three training shards and one of validation, in turn red and green."""
    made = tiny.recipe("image", tmp_path / "plain")
    items = open_images(made.data)
    items = items.subset([i for pair in zip(range(16), range(16, 32)) for i in pair])
    items.sources = [source.read_bytes() for source in items.sources]
    for number, name in enumerate(("train-0", "train-1", "train-2", "val-0")):
        write_tar(tmp_path / "tar" / f"{name}.tar", items, 8 * number, 8 * number + 8, "txt")
    (tmp_path / "table").mkdir()
    for number, name in enumerate(("train-0", "train-1", "train-2", "val-0")):
        write_parquet(tmp_path / "table" / f"{name}.parquet", items, 8 * number, 8 * number + 8)
    return replace(made, data=str(tmp_path / "tar"), val="val", buffer=10, batch_size=7)


@pytest.mark.parametrize("kind, batches, workers", [("tar", 6, 1), ("table", 2, 0)])
def test_resume_is_bit_exact(recipe, tmp_path, monkeypatch, capsys, kind, batches, workers):
    given = replace(recipe, data=str(tmp_path / kind), stream="always", workers=workers, ema=0.9)
    resumes_exactly(given, tmp_path, monkeypatch, batches)
    assert "data    24 training and 8 validation pictures, 2 classes" in capsys.readouterr().err


def test_two_ranks_train_as_one(recipe, tmp_path, capfd):
    size = {**tiny.SIZES["image"], "drop_path": 0.0}
    as_one(replace(recipe, arguments=size, **PLAIN), tmp_path, capfd)


def test_what_cannot_be_streamed_is_said(recipe, tmp_path):
    with pytest.raises(UsageError, match="balance: sampler; items of shards are read in turn"):
        run.train(replace(recipe, balance="sampler"), tmp_path / "runs")
    with pytest.raises(UsageError, match="audio_classification; only pictures with labels or captions are streamed"):
        run.train(replace(recipe, task="audio_classification", model="audio_pico", arguments={}), tmp_path / "runs")
    torn = tmp_path / "tar" / "train-1.tar"
    torn.write_bytes(torn.read_bytes()[:-11000])
    with pytest.raises(ZooError, match="train-1.tar: torn"):
        run.train(recipe, tmp_path / "runs")
    assert run.train(replace(recipe, epochs=1), tmp_path / "runs", skip_bad=True).score >= 0
