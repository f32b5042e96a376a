"""Pairs of any origin train: tables, captions.csv in the folder, sidecar .txt; every picture once an epoch."""

import csv
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet
import pytest

import zoo
from tests.train.pair_data import draw, small_tower
from zoo.cli import main
from zoo.train import adapt, recipe, sets


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """An untrained text-image checkpoint on a small tower."""
    folder = tmp_path_factory.mktemp("start")
    return zoo.save(zoo.create_model("text_image_pico", **small_tower(folder / "tower")), folder / "start.safetensors")


def write(folder, form: str, rows: list[dict]):
    """The same 16 pairs in one of the forms; what goes into --data, and the column of the captions."""
    if form == "sidecar":
        for row in rows:
            (folder / row["file"]).with_suffix(".txt").write_text("\n".join(row["captions"]))
        return folder, ""
    if form == "jsonl":
        (folder / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        return folder / "pairs.jsonl", "captions"
    if form == "parquet":
        whole = [{"image": (folder / row["file"]).read_bytes(), "captions": row["captions"]} for row in rows]
        pa.parquet.write_table(pa.Table.from_pylist(whole), folder / "pairs.parquet")
        return folder / "pairs.parquet", "captions"
    file = folder / ("captions.csv" if form == "folder" else "pairs.csv")
    with open(file, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerows([("file", "said"), *((row["file"], text) for row in rows for text in row["captions"])])
    return (folder if form == "folder" else file), "said"


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl", "folder", "sidecar"])
def test_your_own_pairs_finetune(form, start, tmp_path, capsys):
    data, column = write(tmp_path / "own", form, draw(tmp_path / "own", 4))
    given = ["--start", str(start), "--model", "text_image_pico", "--preprocess", "{size: [32, 32]}", "--val", "0.25"]
    given += ["--captions", column] if column else []
    assert main(["train", "text_image_finetune", "--data", str(data), *given, "--dry-run"]) == 0
    err = capsys.readouterr().err
    assert "12 training and 4 validation pictures, 24 captions" in err
    assert "tensors from" in err and "one batch of 12: loss" in err


def test_the_recipe_finetunes_to_a_model_that_answers(start, tmp_path, capsys):
    data, column = write(tmp_path / "own", "csv", draw(tmp_path / "own", 4))
    assert main(["train", "text_image_finetune", "--data", str(data), "--captions", column, "--start", str(start), "--runs",
                 str(tmp_path / "runs"), "--model", "text_image_pico", "--preprocess", "{size: [32, 32]}", "--epochs", "1"]) == 0
    model = zoo.load(capsys.readouterr().out.strip())
    assert model.embed_text(["a red picture"]).shape == (1, 16) and model.card.recipe["soft_targets"] == 0.1


def test_every_picture_once_an_epoch_with_one_of_its_captions(tmp_path):
    """48 of 64 pictures in batches of 15: the last, partial batch is kept; captions change from epoch to epoch."""
    data, _ = write(tmp_path / "own", "jsonl", draw(tmp_path / "own"))
    given = replace(recipe.read("text_image_contrastive"), data=str(data), val=0.25, batch_size=15, preprocess={"size": [32, 32]})
    prepared = sets.prepare(given, False)
    loader, _ = prepared.loaders(given)
    drawn = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        batches = [(captions, items.tolist()) for _, captions, items in loader]
        assert [len(items) for _, items in batches] == [15, 15, 15, 3]
        assert all(len(set(items)) == len(items) for _, items in batches)
        found = {item: caption for captions, items in batches for caption, item in zip(captions, items)}
        assert sorted(found) == list(range(48)) and all(found[i] in prepared.train.captions[i] for i in found)
        drawn.append(found)
    assert len({tuple(sorted(found.items())) for found in drawn}) == 3


@pytest.mark.parametrize("name", ["text_image_contrastive", "text_image_match"])
def test_shipped_recipes_build_on_flickr8k(name, shared, tmp_path):
    """The official splits are found; 30,000 captions, none of them computed here."""
    given = replace(recipe.read(name), data=str(shared / "flickr8k"), val="val")
    data = sets.prepare(given, False)
    assert (len(data.train), len(data.val)) == (6000, 1000) and sum(map(len, data.train.captions)) == 30000
    few = sets.Pairs(data.train.subset(range(8)), data.val.subset(range(2)), data.preprocess)
    task, _ = adapt.build(replace(given, arguments=small_tower(tmp_path / "tower")), few)
    task.training_step(next(iter(few.loaders(given)[0])), 0).backward()
