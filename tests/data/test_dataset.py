"""A sample is a function of (seed, epoch, item): alone or in any batch, cached or not."""

import pytest
import torch

from zoo.data import dataset as module
from zoo.data.dataset import ImageDataset, PairDataset
from zoo.data.items import Items
from zoo.errors import ZooError
from zoo.preprocess import ImagePreprocess

PREPROCESS = ImagePreprocess(16)


def test_without_augmentation_it_is_the_preprocessing_of_inference(items):
    data = items()
    for level in (None, "none"):
        dataset = ImageDataset(data, PREPROCESS, level)
        image, label = dataset[4]
        assert torch.equal(image, PREPROCESS(data.sources[4])) and label == 1 and len(dataset) == 12


@pytest.mark.parametrize("level", ["none", "light", "medium", "strong"])
def test_alone_equals_in_any_batch(level, items):
    dataset = ImageDataset(items(), PREPROCESS, level, seed=3)
    dataset.set_epoch(2)
    alone = [dataset[i][0] for i in range(12)]
    together = dataset.__getitems__(list(range(12)))
    assert all(torch.equal(image, alone[i]) for i, (image, _) in enumerate(together))
    fresh = ImageDataset(items(), PREPROCESS, level, seed=3, cache=False)
    for i, (image, _) in zip((7, 3, 7), fresh.__getitems__([(7, 2, 0), (3, 2, 0), (7, 2, 0)]), strict=True):
        assert torch.equal(image, alone[i])


@pytest.mark.parametrize("level", ["light", "medium", "strong"])
def test_seed_epoch_and_repeat_change_the_sample(level, items):
    def batch(seed=0, epoch=0, repeat=0):
        return ImageDataset(items(), PREPROCESS, level, seed).images([(i, epoch, repeat) for i in range(12)])

    views = [batch(), batch(seed=1), batch(epoch=1), batch(repeat=1)]
    assert all(not torch.equal(a, b) for k, a in enumerate(views) for b in views[:k])
    assert torch.equal(views[0], batch())


def test_global_random_state_has_no_part_and_is_left_alone(items):
    dataset = ImageDataset(items(), PREPROCESS, "medium")
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = dataset.images([1, 2])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(dataset.images([1, 2]), first)


def test_pictures_are_decoded_once(monkeypatch, items):
    calls = []
    real = ImagePreprocess.image
    monkeypatch.setattr(ImagePreprocess, "image", lambda self, *a: calls.append(a) or real(self, *a))
    dataset = ImageDataset(items(), PREPROCESS, "light")
    dataset.images([1, 2, 1])
    assert len(calls) == 2
    dataset.prepare()
    dataset.images(list(range(12)))
    assert len(calls) == 12
    monkeypatch.setattr(module, "CACHE_BYTES", 100)
    large = ImageDataset(items(), PREPROCESS, "light")
    large.prepare()
    large.images([1, 1])
    assert len(calls) == 14


def test_a_broken_picture_is_named(items):
    data = items()
    data.sources[5] = data.sources[5][:60]
    with pytest.raises(ZooError, match="t:5: broken picture"):
        ImageDataset(data, PREPROCESS).prepare()


def test_labels_and_captions_are_required(items):
    data = items()
    data.captions[3] = []
    with pytest.raises(ZooError, match="1 of 12 items have no caption: t:3"):
        PairDataset(data, PREPROCESS)
    data.labels = data.captions = None
    with pytest.raises(ZooError, match="no labels"):
        ImageDataset(data, PREPROCESS)
    with pytest.raises(ZooError, match="12 of 12 items have no caption"):
        PairDataset(data, PREPROCESS)


def test_pairs_draw_every_caption_over_the_epochs(items):
    dataset = PairDataset(items(), PREPROCESS, "light", seed=1)
    seen = {i: set() for i in range(12)}
    for epoch in range(60):
        dataset.set_epoch(epoch)
        for image, caption, index in dataset.__getitems__(list(range(12))):
            assert image.shape == (3, 16, 16)
            seen[index].add(caption)
            assert dataset.caption((index, epoch, 0)) == caption
    assert {i: len(texts) for i, texts in seen.items()} == {i: 1 + i % 5 for i in range(12)}


def test_the_first_caption_comes_as_often_as_asked():
    many = Items([str(i) for i in range(2000)], [b""] * 2000, captions=[["name", "a", "b", "c"]] * 2000)
    drawn = {share: sum(PairDataset(many, PREPROCESS, first=share).caption(i) == "name" for i in range(2000)) / 2000
             for share in (0.0, 0.5, 1.0)}
    assert drawn[0.0] == pytest.approx(0.25, abs=0.03) and drawn[1.0] == 1
    assert drawn[0.5] == pytest.approx(0.5 + 0.5 * 0.25, abs=0.03)
