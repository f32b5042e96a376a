"""From logits to answers: labels, tags, values in units, events of frames, and the mean over windows."""

import pytest
import torch

import zoo
from zoo import answers
from zoo.errors import UsageError, ZooError

TINY = dict(dims=(16, 32), depths=(1, 1), windows=(8, None), head_dim=8, mels=32)


@pytest.fixture(scope="module")
def sounds():
    """An untrained sound model of three labels whose answers differ from clip to clip, and clips of unequal lengths."""
    torch.manual_seed(0)
    model = zoo.create_model("audio_pico", num_classes=3, **TINY).eval()
    torch.nn.init.normal_(model.classifier.weight, std=3.0)
    model.card.labels = ["a", "b", "c"]
    clips = [(torch.randn(int(length)).numpy() * 0.1, 16000) for length in (9000, 1, 400, 40000, 16000)]
    return model, clips


def test_every_clip_is_answered_as_alone(sounds):
    model, clips = sounds
    together = model.predict(clips, batch_size=4)
    assert [row["item"] for row in together] == [f"item {i}" for i in range(5)]
    for clip, row in zip(clips, together):
        alone = model.predict([clip])[0]
        assert alone["label"] == row["label"] and alone["probability"] == pytest.approx(row["probability"], abs=1e-5)
        assert sum(chance for _, chance in row["top"]) == pytest.approx(1, abs=1e-5)


def test_parts_never_exceed_the_room_and_lose_nothing():
    from zoo.inference import _parts

    lengths = [1, 2, 3, 10, 50]
    parts = list(_parts(list("abcde"), lengths, room=12))
    assert parts == [["a", "b", "c"], ["d"], ["e"]]


def test_windows_are_averaged(sounds):
    model, clips = sounds
    found = answers.collect(model, [clips[3]], window=1.0)
    pieces = [(torch.as_tensor(clips[3][0][start : start + 16000]).numpy(), 16000) for start in (0, 8000, 16000, 24000)]
    each = answers.collect(model, pieces)
    assert torch.allclose(found[0], each.mean(0), atol=1e-5)
    with pytest.raises(UsageError, match="for sounds"):
        image = zoo.create_model("image_pico", num_classes=2, dims=(16,), depths=(1,), head_dim=8, window=4)
        image.card.labels = ["x", "y"]
        image.predict(["a.jpg"], window=1.0)


def test_tags_and_values(sounds):
    model, clips = sounds
    model.card.head = "tags"
    row = model.predict(clips[:1])[0]
    with torch.no_grad():
        logits = model(*zoo.inference.inputs(model, [model.preprocess(clips[0])]))[0]
    chance = logits.sigmoid()
    assert row["tags"] == [n for n, p in sorted(zip("abc", chance.tolist()), key=lambda pair: -pair[1]) if p >= 0.5]
    model.card.head, model.card.targets = "values", [
        {"name": "x", "unit": "m", "mean": 1.0, "std": 2.0}, {"name": "y", "unit": "", "mean": 0.0, "std": 1.0},
        {"name": "z", "unit": "s", "mean": -3.0, "std": 0.5}]
    row = model.predict(clips[:1])[0]
    assert row["x"] == pytest.approx(float(logits[0]) * 2 + 1, abs=1e-5)
    assert row["z"] == pytest.approx(float(logits[2]) / 2 - 3, abs=1e-5)
    model.card.head, model.card.targets = "label", None


def test_events_are_runs_of_frames():
    class Model:
        card = type("Card", (), {"labels": ["dog", "rain"]})
        frame_seconds = 0.08

    frames = torch.tensor([[0.9, 0.1], [0.7, 0.5], [0.2, 0.6], [0.8, 0.4]])
    assert answers.events(frames, Model, 0.5, seconds=0.3) == [
        {"label": "dog", "start": 0.0, "end": 0.16, "probability": pytest.approx(0.9)},
        {"label": "rain", "start": 0.08, "end": 0.24, "probability": pytest.approx(0.6)},
        {"label": "dog", "start": 0.24, "end": 0.3, "probability": pytest.approx(0.8)},
    ]


def test_frames_of_a_clip_are_the_same_beside_a_longer_one(sounds):
    model, clips = sounds
    alone, beside = model.predict_frames([clips[0]], 0.4), model.predict_frames([clips[0], clips[3]], 0.4)
    assert alone[0]["events"] == beside[0]["events"] and beside[1]["events"]


def test_an_untrained_model_says_so():
    with pytest.raises(ZooError, match="audio_pico has no labels: train it first"):
        zoo.create_model("audio_pico", **TINY).predict([])
