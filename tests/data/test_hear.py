"""A sample of a sound is a function of (seed, epoch, item); a batch is padded and says how long each clip is."""

import io

import numpy as np
import pytest
import torch

from zoo.data import hear as module
from zoo.data.hear import SoundAugment, SoundDataset, collate
from zoo.data.items import Items
from zoo.data.loader import ResumableLoader
from zoo.errors import UsageError, ZooError
from zoo.recording import FileRecording
from zoo.sound import SoundPreprocess

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("torchaudio.transforms", exc_type=(ImportError, OSError))

PREPROCESS = SoundPreprocess(16000)
LEVELS = ("light", "medium", "strong")


def clips(n: int = 8, rate: int = 8000) -> Items:
    """Noise of 1000, 1100, 1200 ... samples with labels of three classes."""
    sources = []
    for i in range(n):
        out = io.BytesIO()
        soundfile.write(out, 0.1 * np.random.default_rng(i).standard_normal(1000 + 100 * i), rate, format="WAV", subtype="FLOAT")
        sources.append(out.getvalue())
    return Items([f"t:{i}" for i in range(n)], sources, [i % 3 for i in range(n)], ["a", "b", "c"], kind="sound")


def waves(dataset: SoundDataset, epoch: int = 0, repeat: int = 0) -> list[torch.Tensor]:
    return [dataset.wave((i, epoch, repeat)) for i in range(len(dataset))]


def equal(first: list, second: list) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("seconds", [None, 0.1])
@pytest.mark.parametrize("level", [None, "none"])
def test_without_augmentation_it_is_the_preprocessing_of_inference(level, seconds):
    items, preprocess = clips(), SoundPreprocess(16000, seconds)
    dataset = SoundDataset(items, preprocess, level)
    assert equal(waves(dataset), [preprocess(source) for source in items.sources]) and len(dataset) == 8
    assert [dataset[i][1] for i in range(8)] == items.labels


@pytest.mark.parametrize("seconds", [None, 0.1])
@pytest.mark.parametrize("level", LEVELS)
def test_a_sample_depends_on_seed_epoch_and_item_only(level, seconds):
    def views(seed=0, epoch=0, repeat=0):
        return waves(SoundDataset(clips(), SoundPreprocess(16000, seconds), level, seed), epoch, repeat)

    torch.manual_seed(1)
    np.random.seed(1)
    state = torch.get_rng_state()
    found = [views(), views(seed=1), views(epoch=1), views(repeat=1)]
    assert not any(equal(a, b) for k, a in enumerate(found) for b in found[:k])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    np.random.seed(2)
    assert equal(views(), found[0])
    dataset = SoundDataset(clips(), SoundPreprocess(16000, seconds), level)
    dataset.set_epoch(1)
    assert torch.equal(dataset[5][0], found[2][5])  # alone, in another order
    whole = {1600} if seconds else {2000 + 200 * i for i in range(8)}
    speed = {"light": 0.0, "medium": 0.1, "strong": 0.2}[level]
    lengths = {len(wave) for wave in found[0]}
    if speed:
        assert min(whole) / (1 + speed) - 1 <= min(lengths) and max(lengths) <= max(whole) / (1 - speed) + 1
    else:
        assert lengths == whole


def test_augmentation_does_what_it_says():
    wave = torch.ones(1000)
    draws = [SoundAugment(6, 0.1)(wave, np.random.default_rng(i)) for i in range(300)]
    gains = torch.stack([20 * out.max().log10() for out in draws])
    assert -6 <= gains.min() < -5 and 5 < gains.max() <= 6
    zeros = [int((out == 0).sum()) for out in draws]
    assert max(zeros) <= 100 and max(zeros) > 90 and any(out[0] == 0 for out in draws) and any(out[-1] == 0 for out in draws)
    noise = [SoundAugment(0, 0, noise=(20, 40))(wave, np.random.default_rng(i)) - 1 for i in range(100)]
    below = [-20 * part.square().mean().sqrt().log10() for part in noise]
    assert 19 < min(below) < 22 and 38 < max(below) < 41
    tone = torch.sin(torch.arange(16000) * 2 * np.pi * 440 / 16000)
    for i in range(20):
        out = SoundAugment(0, 0, 0.2)(tone, np.random.default_rng(i))
        factor = 16000 / len(out)  # heard at the old rate, 440 Hz is 440 * factor Hz
        peak = torch.fft.rfft(out, 64000).abs().argmax() * 16000 / 64000
        assert 0.8 <= factor <= 1.2 and abs(float(peak) - 440 * factor) < 1
    for short in (torch.ones(1), torch.zeros(50)):
        out = SoundAugment(10, 0.2, 0.2, (20, 40))(short, np.random.default_rng(0))
        assert 0.8 * len(short) - 1 <= len(out) <= 1.3 * len(short) and out.isfinite().all()


@pytest.mark.parametrize("cache", [True, False])
def test_crops_come_from_everywhere_in_the_clip(monkeypatch, cache):
    monkeypatch.setitem(module._AUGMENTS, "light", SoundAugment(0, 0))
    ramp = torch.linspace(0, 1, 16000)
    dataset = SoundDataset(Items(["r"], [(ramp, 16000)], [0], ["a"], kind="sound"), SoundPreprocess(16000, 0.25), "light",
                           cache=cache)
    crops = [dataset.wave((0, epoch, 0)) for epoch in range(200)]
    firsts = [round(crop[0].item() * 15999) for crop in crops]
    assert min(firsts) < 300 and max(firsts) > 11700
    assert all(torch.equal(crop, ramp[first:first + 4000]) for crop, first in zip(crops, firsts))


def test_sounds_are_decoded_once_and_only_in_part_where_they_do_not_fit(monkeypatch):
    frames, real = [], FileRecording._blocks
    monkeypatch.setattr(FileRecording, "_blocks", lambda self, first, count: frames.append(count) or real(self, first, count))
    items, preprocess = clips(rate=16000), SoundPreprocess(16000, 0.01)
    small = SoundDataset(items, preprocess, "light")
    small.prepare()
    assert sorted(frames) == [1000 + 100 * i for i in range(8)]
    first = waves(small)
    assert len(frames) == 8
    monkeypatch.setattr(module, "CACHE_BYTES", 4 * sum(frames) - 1)
    frames.clear()
    large = SoundDataset(items, preprocess, "light")
    large.prepare()
    again = waves(large)
    assert frames == [160] * 8
    assert equal(first, again)
    frames.clear()
    assert equal(waves(SoundDataset(items, preprocess)), [preprocess(source) for source in items.sources])
    assert frames == [160] * 16  # not augmented: what is kept is short, so it fits


def test_collate_pads_and_counts():
    batch, lengths, labels = collate([(torch.ones(3), 2), (torch.ones(5), 0), (torch.ones(1), 1)])
    assert batch.tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]
    assert (lengths.tolist(), labels.tolist(), lengths.dtype, labels.dtype) == ([3, 5, 1], [2, 0, 1], torch.int64, torch.int64)
    assert collate([(torch.ones(3), torch.tensor([1.0, 0.0]))] * 2)[2].tolist() == [[1, 0]] * 2


def test_tags_are_vectors():
    items = clips(3)
    items.labels, items.tags = None, [[0, 2], [], [1]]
    dataset = SoundDataset(items, PREPROCESS, "light")
    assert torch.stack([dataset[i][1] for i in range(3)]).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_collates_and_restarts_exactly(workers):
    def loader():
        return ResumableLoader(SoundDataset(clips(), PREPROCESS, "strong", seed=3), 3, seed=3, num_workers=workers)

    straight, stopped = loader(), loader()
    straight.set_epoch(1)
    stopped.set_epoch(1)
    batches = list(straight)
    assert [tuple(part.shape for part in batch) for batch in batches][-1][1:] == ((2,), (2,))
    for batch, lengths, labels in batches:
        assert batch.shape == (len(labels), lengths.max()) and all((row[n:] == 0).all() for row, n in zip(batch, lengths))
    run = iter(stopped)
    next(run)
    state = stopped.state_dict()
    resumed = loader()
    resumed.set_epoch(1)
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert len(rest) == 2 and all(equal(a, b) for a, b in zip(rest, batches[1:], strict=True))


def test_what_is_wrong_is_named():
    items = clips()
    items.sources[5] = items.sources[5][:20]
    with pytest.raises(ZooError, match="t:5: not a sound"):
        SoundDataset(items, PREPROCESS).prepare()
    with pytest.raises(UsageError, match="augment: 'hard'; allowed: none, light, medium, strong"):
        SoundDataset(items, PREPROCESS, "hard")
    items.labels = None
    with pytest.raises(ZooError, match="neither labels nor tags"):
        SoundDataset(items, PREPROCESS)
