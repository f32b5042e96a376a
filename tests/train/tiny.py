"""The smallest run of each kind of data that everything can be tried on: a few files, a model of a few thousand parameters."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SIZES = {
    "image": {"dims": [8, 16], "depths": [1, 2], "head_dim": 8, "window": 4, "drop_path": 0.1},
    "audio": {"dims": [8, 16], "depths": [1, 1], "windows": [8, None], "head_dim": 8, "mels": 16, "rate": 4000, "win": 100,
              "hop": 40, "drop_path": 0.1},
    "graph": {"dim": 8, "depth": 2, "heads": 2, "pair_dim": 4, "dropout": 0.1},
}
COMMON = dict(epochs=2, batch_size=8, lr=5e-3, precision="fp32", seed=3, val=0.25)
KINDS = ("image", "audio", "graph", "text_image")


def recipe(kind: str, folder: Path, **keys):
    """A recipe on data that is written into `folder`; three batches an epoch."""
    from zoo.train.recipe import Recipe

    given = {"image": _image, "audio": _audio, "graph": _graph, "text_image": _text_image}[kind](folder)
    return Recipe(**{**COMMON, **given, **keys})


def _image(folder: Path) -> dict:
    random = np.random.default_rng(0)
    for name, colour in {"red": (220, 40, 40), "green": (40, 200, 60)}.items():
        (folder / "data" / name).mkdir(parents=True)
        for i in range(16):
            noise = random.normal(0, 60, (16, 16, 3)) + colour
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / "data" / name / f"{i}.png")
    return dict(task="image_classification", model="image_pico", arguments=dict(SIZES["image"]), data=str(folder / "data"),
                preprocess={"size": [16, 16]}, augment="medium")


def _audio(folder: Path) -> dict:
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("torchaudio")
    random = np.random.default_rng(0)
    for name, pitch in {"low": 300, "high": 1200}.items():
        (folder / "data" / name).mkdir(parents=True)
        for i in range(16):
            time = np.arange(int(4000 * random.uniform(0.1, 0.2))) / 4000
            wave = 0.3 * np.sin(2 * np.pi * pitch * time) + 0.02 * random.standard_normal(len(time))
            soundfile.write(folder / "data" / name / f"{i}.wav", wave, 4000)
    return dict(task="audio_classification", model="audio_pico", arguments=dict(SIZES["audio"]), data=str(folder / "data"),
                augment="medium")


def _graph(folder: Path) -> dict:
    pytest.importorskip("torch_geometric")
    pytest.importorskip("rdkit")
    rows = [{"smiles": "C" * (1 + i // 2) + ("O" if i % 2 else ""), "label": "acid" if i % 2 else "none"} for i in range(32)]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "chains.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return dict(task="graph_classification", model="graph_pico", arguments=dict(SIZES["graph"]), data=str(folder / "chains.csv"))


def _text_image(folder: Path) -> dict:
    from tests.train.pair_data import recipe_of, small_tower

    made = recipe_of(folder / "pairs", arguments=small_tower(folder / "tower"), batch_size=16)
    return {key: getattr(made, key) for key in
            ("task", "model", "arguments", "data", "preprocess", "augment", "match_weight", "first_caption", "batch_size")}
