"""The loader: order, last batch, and an exact restart in the middle of an epoch at any number of workers."""

import os

import pytest
import torch
from torch.utils.data import Dataset

from zoo.data.dataset import ImageDataset, PairDataset
from zoo.data.loader import EpochOrder, ResumableLoader
from zoo.errors import ZooError
from zoo.preprocess import ImagePreprocess

PREPROCESS = ImagePreprocess(16)


def indices(order: EpochOrder) -> list[int]:
    return [index for batch in order for index, _, _ in batch]


def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch_only():
    def epoch(seed, number):
        order = EpochOrder(23, 5, seed)
        order.set_epoch(number)
        assert [len(batch) for batch in order] == [5, 5, 5, 5, 3] and len(order) == 5
        assert {e for batch in order for _, e, _ in batch} == {number}
        return indices(order)

    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0)]
    assert all(sorted(order) == list(range(23)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    torch.manual_seed(5)
    assert epoch(0, 1) == orders[1]


def test_without_shuffling_and_with_skip():
    order = EpochOrder(7, 3, shuffle=False)
    assert indices(order) == list(range(7))
    order.skip = 1
    assert indices(order) == [3, 4, 5, 6] and len(order) == 3


def test_weights_balance_the_classes_and_count_repeats():
    order = EpochOrder(1000, 64, weights=[1 / 990] * 990 + [1 / 10] * 10)
    places = [place for batch in order for place in batch]
    rare = [place for place in places if place[0] >= 990]
    assert len(places) == 1000 and 420 < len(rare) < 580
    assert len(set(places)) == 1000  # a second draw of an item is another sample
    assert max(repeat for _, _, repeat in rare) > 20
    assert places == [place for batch in order for place in batch]


@pytest.mark.parametrize("make", [lambda: EpochOrder(0, 4), lambda: EpochOrder(4, 0),
                                  lambda: EpochOrder(4, 2, weights=[1.0])])
def test_wrong_sizes_are_refused(make):
    with pytest.raises(ZooError, match="loader: "):
        make()


def batches(loader, epochs, start=0):
    for epoch in range(start, epochs):
        loader.set_epoch(epoch)
        yield from loader


def same(a, b) -> bool:
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
               for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("make", [ImageDataset, PairDataset])
@pytest.mark.parametrize("weights", [None, [1.0 + i for i in range(12)]], ids=["permutation", "weights"])
def test_restart_is_exact_at_any_batch_and_number_of_workers(make, weights, items):
    def loader(workers=0):
        return ResumableLoader(make(items(), PREPROCESS, "medium", seed=4), 5, seed=4, weights=weights,
                               num_workers=workers)

    straight = list(batches(loader(), 2))
    assert len(straight) == 6 and straight[0][0].shape == (5, 3, 16, 16)
    assert all(same(a, b) for a, b in zip(straight, batches(loader(2), 2), strict=True))
    for done in range(1, 6):
        first = loader()
        run = batches(first, 2)
        for _ in range(done):
            next(run)
        state = first.state_dict()
        second = loader(workers=2 if done == 4 else 0)
        second.load_state_dict(state)
        assert second.state_dict()["done"] == done % 3
        rest = list(batches(second, 2, start=done // 3))
        assert len(rest) == 6 - done
        assert all(same(a, b) for a, b in zip(rest, straight[done:], strict=True))


def test_a_state_of_other_data_is_refused(items):
    def loader(n, size, seed):
        return ResumableLoader(ImageDataset(items(n), PREPROCESS), size, seed)

    state = loader(12, 5, 0).state_dict()
    for n, size, seed, said in ((11, 5, 0, "items was 12 and is now 11"), (12, 4, 0, "batch_size was 5"),
                                (12, 5, 1, "seed was 0")):
        with pytest.raises(ZooError, match=said):
            loader(n, size, seed).load_state_dict(state)


def test_starting_an_epoch_leaves_the_global_generator_alone(items):
    loader = ResumableLoader(ImageDataset(items(), PREPROCESS, "light"), 5)
    state = torch.get_rng_state()
    assert len(list(loader)) == 3
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_item_is_named_in_one_line(workers, items):
    data = items()
    data.sources[5] = data.sources[5][:60]
    with pytest.raises(ZooError) as error:
        list(ResumableLoader(ImageDataset(data, PREPROCESS, cache=False), 4, num_workers=workers))
    assert str(error.value).startswith("t:5: broken picture") and "\n" not in str(error.value)


class Dies(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        os._exit(1)


class Fails(Dies):
    def __getitem__(self, at):
        raise RuntimeError("a fault of the program")


def test_a_lost_worker_is_explained_and_a_fault_is_passed_on():
    with pytest.raises(ZooError, match=r"exited unexpectedly(.|\n)*num_workers is 1; try 0"):
        list(ResumableLoader(Dies(), 2, num_workers=1))
    with pytest.raises(RuntimeError, match="a fault of the program"):
        list(ResumableLoader(Fails(), 2, num_workers=1))


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_restarts_exactly(tmp_path, workers, items):
    import logging

    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Linear(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.sums = torch.nn.Linear(768, 3), []

        def training_step(self, batch, _):
            self.sums.append(batch[0].sum().item())
            return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    def fit(folder, resume=None):
        model = Linear()
        keep = ModelCheckpoint(tmp_path / folder, filename="{step}", save_top_k=-1, every_n_train_steps=1,
                               enable_version_counter=False)
        lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, callbacks=[keep],
                          enable_progress_bar=False, enable_model_summary=False).fit(
            model, ResumableLoader(ImageDataset(items(), PREPROCESS, "medium"), 5, num_workers=workers),
            ckpt_path=resume)
        return model

    whole = fit("whole")
    assert len(set(whole.sums)) == 9  # set_epoch arrives: no batch comes twice
    start, done = tmp_path / "whole/step=2.ckpt", 2
    for step in (4, 8):  # each restart goes on from the one before
        resumed = fit(f"from{done}", start)
        assert resumed.sums == whole.sums[done:]
        assert torch.equal(resumed.layer.weight, whole.layer.weight)
        start, done = tmp_path / f"from{done}/step={step}.ckpt", step
