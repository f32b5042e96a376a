"""Text-image training: losses by hand, true pairs by image and by caption, a run that learns, exact resume."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from zoo import checkpoint
from zoo.train import run
from zoo.train.loss import contrastive, hard_negatives
from zoo.train.recipe import Recipe

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 230), "yellow": (230, 220, 40)}
IMAGE = {"dims": [16, 32], "depths": [1, 1], "head_dim": 8, "window": 4, "patch": 4, "stem": "conv", "local": True}


def test_contrastive_is_the_hand_computed_one():
    logits = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    rows = [-2 + np.log(np.exp(2) + 1), -3 + np.log(np.exp(1) + np.exp(3))]
    columns = [-2 + np.log(np.exp(2) + np.exp(1)), -3 + np.log(1 + np.exp(3))]
    expected = (np.mean(rows) + np.mean(columns)) / 2
    assert contrastive(logits, torch.eye(2, dtype=torch.bool)).item() == pytest.approx(expected, rel=1e-6)


def test_several_true_pairs_share_the_target():
    """Twin captions: every cell true, so the best is to be indifferent."""
    positive = torch.ones(3, 3, dtype=torch.bool)
    even = contrastive(torch.zeros(3, 3), positive)
    assert even.item() == pytest.approx(np.log(3))
    assert contrastive(5 * torch.eye(3), positive) > even


def test_hard_negatives_are_wrong_ones_drawn_by_likeness():
    torch.manual_seed(0)
    logits = torch.tensor([[0.0, 9.0, 9.0], [0.0, 0.0, 0.0], [8.0, 0.0, 0.0]])
    positive = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)
    rows, columns = hard_negatives(logits.half(), positive)
    assert rows.tolist() == [0, 2] and columns.tolist()[0] == 2  # row 1 has none and is left out
    drawn = torch.stack([hard_negatives(logits, positive)[1] for _ in range(200)])
    assert (drawn[:, 1] == 0).float().mean() > 0.95


def test_a_batch_of_one_has_no_negative():
    rows, columns = hard_negatives(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert len(rows) == len(columns) == 0


@pytest.fixture
def recipe(tmp_path):
    """16 plain pictures of each of four colours, with a caption and a synonym, as a table with files."""
    rng, rows = np.random.default_rng(0), []
    (tmp_path / "pairs").mkdir()
    for name, colour in COLOURS.items():
        for i in range(16):
            file = f"{name}-{i}.png"
            noise = rng.normal(0, 30, (32, 32, 3)) + colour
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(tmp_path / "pairs" / file)
            rows.append({"file": file, "captions": [f"a {name} picture", f"something {name}"]})
    (tmp_path / "pairs" / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Recipe(task="text_image_contrastive", model="text_image_pico", arguments={"image": IMAGE, "fusion_dim": 32},
                  data=str(tmp_path / "pairs" / "captions.jsonl"), val=0.25, preprocess={"size": [32, 32]},
                  augment="light", epochs=6, batch_size=15, lr=5e-3,
                  ema=0.9, precision="fp32", seed=1, match_weight=0.5, first_caption=0.3)


def test_a_run_learns_and_tells_right_from_wrong(recipe, tmp_path):
    result = run.train(replace(recipe, epochs=16), tmp_path / "runs")
    model = zoo.load(result.folder)
    pictures = [tmp_path / "pairs" / f"{name}-0.png" for name in COLOURS]
    texts = [f"a {name} picture" for name in COLOURS]
    similarity = model.embed_text(texts) @ model.embed_image(pictures).T
    assert similarity.argmax(1).tolist() == [0, 1, 2, 3]
    match = model.match(texts, pictures)
    assert match.shape == (4, 4) and match.diag().mean() > (match.sum() - match.diag().sum()) / 12
    stored = checkpoint.read_header(result.folder / "best.safetensors")
    assert not any(name.startswith("text.") for name in stored), "a frozen tower is not stored again"
    assert model.card.towers["text."]["sha256"]["model.safetensors"].startswith("53aa5117")


def test_resume_is_bit_exact(recipe, tmp_path, monkeypatch):
    from zoo.train.resume import KeepState

    recipe = replace(recipe, epochs=2)
    straight = run.train(recipe, tmp_path / "a")
    original, count = KeepState.on_train_batch_end, [0]

    def counted(self, trainer, *rest):
        count[0] += 1
        if count[0] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, trainer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(KeepState, "on_train_batch_end", counted)
        part = run.train(recipe, tmp_path / "b")
    run.train(run.load_recipe(part.folder), resume_from=part.folder)
    here, there = (torch.load(r.folder / "last.ckpt", weights_only=True)["current_model_state"] for r in (straight, part))
    assert [name for name in here if not torch.equal(here[name], there[name])] == []
