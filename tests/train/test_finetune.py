"""Fine-tuning pays: four new classes x 50 photographs, from image_nano.cifar10 against from scratch, on the same recipe."""

import re
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

import zoo
from zoo import checkpoint, evaluate
from zoo.train import recipe, run

CLASSES = {
    "snow": r"\b(snow|snowy|ski|skier|skiing|snowboard\w*)\b", "beach": r"\b(beach|ocean|surf\w*|waves?)\b",
    "soccer": r"\b(soccer|football)\b", "bicycle": r"\b(bikes?|bicycle|biker|bicyclist|cyclist|biking)\b",
}  # fmt: skip


@pytest.fixture
def photos(shared, tmp_path):
    """Flickr8k pictures of which at least 4 of 5 captions name one of the classes: 50 each to train on, 100 to test on."""
    rows = {name: [] for name in CLASSES}
    for split in ("train", "val", "test"):
        for row in pq.read_table(shared / "flickr8k" / f"flickr8k_{split}.parquet").to_pylist():
            named = [c for c, words in CLASSES.items() if sum(bool(re.search(words, t.lower())) for t in row["captions"]) >= 4]
            if len(named) == 1:
                rows[named[0]].append(row)
    for name, pictures in rows.items():
        for i, row in enumerate(sorted(pictures, key=lambda row: row["file"])[:150]):
            file = tmp_path / "photos" / ("train" if i < 50 else "test") / name / row["file"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(row["image"])
    return tmp_path / "photos"


@pytest.mark.slow
def test_fine_tuning_beats_from_scratch(photos, tmp_path):
    if "image_nano.cifar10" not in checkpoint.shipped():
        pytest.skip("checkpoints/image_nano.cifar10.safetensors is not here")
    arguments = checkpoint.read_card(checkpoint.locate("image_nano.cifar10")).arguments
    tuned = recipe.read("image_finetune", {"data": str(photos)})
    scratch = replace(tuned, start="", layer_decay=1.0, arguments={k: v for k, v in arguments.items() if k != "num_classes"})
    scores = {}
    for name, settings in {"fine-tuned": tuned, "from scratch": scratch}.items():
        model = zoo.load(run.train(settings, tmp_path / "runs").folder)
        scores[name] = evaluate.evaluate(model, photos, evaluate.Options("test"))["accuracy"]
    print(scores)
    assert scores["fine-tuned"] >= scores["from scratch"] + 0.1
