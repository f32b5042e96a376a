"""Short real runs on tones: learning, exact resume with masks and mixup, tags, folds, fine-tuning on other labels."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

import zoo
from tests.train.test_run import resumes_exactly
from zoo import evaluate
from zoo.commands.app import dumps
from zoo.errors import UsageError, ZooError
from zoo.train import run
from zoo.train.recipe import Recipe

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("torchaudio")

PITCHES = {"low": 300, "middle": 900, "high": 2500}
TINY = {"dims": [16, 32], "depths": [1, 1], "windows": [8, None], "head_dim": 8, "mels": 32, "rate": 8000, "win": 200, "hop": 80}


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    """72 tones of three pitches, 0.2 to 0.5 s, with a table: label, fold, tags."""
    folder = tmp_path_factory.mktemp("tones")
    random, rows = np.random.default_rng(0), []
    for i in range(72):
        label = list(PITCHES)[i % 3]
        time = np.arange(int(8000 * random.uniform(0.2, 0.5))) / 8000
        wave = 0.3 * np.sin(2 * np.pi * PITCHES[label] * random.uniform(0.9, 1.1) * time)
        wave += 0.02 * random.standard_normal(len(time))
        soundfile.write(folder / f"{i}.wav", wave, 8000)
        rows.append({"file": f"{i}.wav", "label": label, "fold": i % 4 + 1, "tags": label if i % 2 else f"{label};even"})
    with open(folder / "tones.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return folder / "tones.csv"


@pytest.fixture
def recipe(tones):
    return Recipe(task="audio_classification", model="audio_pico", arguments=TINY, data=str(tones), val=0.25, epochs=4,
                  batch_size=12, lr=5e-3, ema=0.9, augment="medium", precision="fp32", seed=3)


def test_a_run_learns_and_answers(recipe, tmp_path, tones, capsys):
    result = run.train(replace(recipe, epochs=12), tmp_path)
    assert "54 training and 18 validation sounds, 3 classes" in capsys.readouterr().err
    model = zoo.load(result.folder)
    assert result.score > 0.9 and model.card.labels == ["high", "low", "middle"] and model.preprocess.rate == 8000
    assert model.frontend.mean.std() > 0.05  # fitted: bands differ
    time = np.arange(4000) / 8000
    clip = (0.3 * np.sin(2 * np.pi * 2500 * time).astype(np.float32), 8000)
    assert model.predict([clip])[0]["label"] == "high"
    both = np.concatenate([0.3 * np.sin(2 * np.pi * 300 * time), 0.3 * np.sin(2 * np.pi * 2500 * time)]).astype(np.float32)
    events = model.predict_frames([(both, 8000)])[0]["events"]
    starts = {event["label"]: event["start"] for event in events}
    assert starts["low"] < 0.2 < starts["high"] <= 0.7
    found = evaluate.evaluate(model, tones)
    assert found["accuracy"] > 0.9 and found["items"] == 72 and set(found["per_class"]) == set(PITCHES)
    assert dumps(found)


@pytest.mark.parametrize("batches, workers", [(3, 0), (8, 0), pytest.param(12, 2, marks=pytest.mark.slow)])
def test_resume_is_bit_exact(recipe, tmp_path, monkeypatch, batches, workers):
    """5 batches an epoch, with EMA, augmentation of waves, SpecAugment, mixup and drop path."""
    recipe = replace(recipe, workers=workers, mixup=0.4, arguments={**TINY, "drop_path": 0.1}, epochs=3)
    resumes_exactly(recipe, tmp_path, monkeypatch, batches)


def test_folds_are_held_out(recipe, tmp_path, tones):
    recipe = replace(recipe, split_column="fold", hold_out=["2"], epochs=1)
    from zoo.train import sets

    data = sets.prepare(recipe, False)
    assert {row["fold"] for row in data.train.meta + data.val.meta} == {"1", "3", "4"}
    data = sets.prepare(replace(recipe, val="3"), False)
    assert {row["fold"] for row in data.train.meta} == {"1", "4"} and {row["fold"] for row in data.val.meta} == {"3"}
    model = zoo.load(run.train(recipe, tmp_path).folder)
    assert evaluate.evaluate(model, tones, evaluate.Options("2"))["items"] == 18
    with pytest.raises(UsageError, match="hold_out: 9 in no row of column 'fold'"):
        sets.prepare(replace(recipe, hold_out=["9"]), False)


def test_tags(recipe, tmp_path, tones):
    recipe = replace(recipe, task="audio_tagging", targets=["tags"], epochs=8, balance="weights", mixup=0.2)
    result = run.train(recipe, tmp_path)
    model = zoo.load(result.folder)
    assert model.card.head == "tags" and model.card.labels == ["even", "high", "low", "middle"]
    assert model.card.scores[0]["metric"] == "mAP" and result.score > 0.6
    row = model.predict([tones.parent / "0.wav"])[0]
    assert set(row) == {"item", "tags", "top"} and len(row["top"]) == 4
    assert evaluate.evaluate(model, tones)["mAP"] == pytest.approx(result.score, abs=0.25)


def test_fine_tuning_keeps_what_the_front_end_measured(recipe, tmp_path, tones):
    first = run.train(replace(recipe, epochs=1), tmp_path)
    kept = zoo.load(first.folder).frontend.mean
    (tmp_path / "other").mkdir()
    for i, name in enumerate(["a", "b"]):
        (tmp_path / "other" / name).mkdir()
        for j in range(4):
            soundfile.write(tmp_path / "other" / name / f"{j}.wav", np.random.default_rng(i).uniform(-0.1, 0.1, 3000), 16000)
    tuned = replace(recipe, start=str(first.folder), data=str(tmp_path / "other"), arguments={}, epochs=1)
    model = zoo.load(run.train(tuned, tmp_path).folder)
    assert model.card.labels == ["a", "b"] and torch.equal(model.frontend.mean, kept) and model.preprocess.rate == 8000


def test_a_rate_that_the_model_does_not_hear_is_refused(recipe, tmp_path):
    with pytest.raises(ZooError, match="rate is 16000, but the model hears 8000"):
        run.train(replace(recipe, preprocess={"rate": 16000}), tmp_path)


def test_an_unreadable_sound_is_named_or_left_out(recipe, tmp_path, tones, capsys):
    for name in ("a", "b"):
        (tmp_path / "clips" / name).mkdir(parents=True)
        for j in range(6):
            (tmp_path / "clips" / name / f"{j}.wav").write_bytes((tones.parent / f"{j}.wav").read_bytes())
    (tmp_path / "clips" / "a" / "9.wav").write_text("no sound")
    recipe = replace(recipe, data=str(tmp_path / "clips"), epochs=1)
    with pytest.raises(ZooError, match=r"a/9\.wav"):
        run.train(recipe, tmp_path)
    run.train(recipe, tmp_path, skip_bad=True)
    assert "1 unreadable: a/9.wav" in capsys.readouterr().err
