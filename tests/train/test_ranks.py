"""Two ranks train as one process does: same order, same gradients, every item scored once, one that writes, one clean stop."""

import csv
import os
import signal
from dataclasses import replace

import pytest
import torch

import zoo
from tests.train import tiny
from tests.train.together import together
from zoo.data.loader import EpochOrder
from zoo.data.share import Shared, part
from zoo.errors import UsageError
from zoo.train import ranks, run, sharded

PLAIN = {"optimizer": "sgd", "lr": 0.05, "clip": 1.0}  # Adam would turn a gradient's last digit into a step


def trained(recipe, folder):
    """(score, log rows, tensors of last.ckpt) of the only run in `folder`."""
    made = [path for path in folder.iterdir() if path.is_dir()]
    assert len(made) == 1
    state = torch.load(made[0] / "last.ckpt", weights_only=True)
    return list(csv.DictReader((made[0] / "log.csv").read_text().splitlines())), state["state_dict"]


def as_one(recipe, tmp_path, capfd):
    """Two ranks and one process give the same curve and weights; one folder is written, each line is said once."""
    alone = run.train(recipe, tmp_path / "one")
    capfd.readouterr()
    both = together(lambda rank: run.train(recipe, tmp_path / "two").score)
    err = capfd.readouterr().err
    assert err.count("device  ") == 1 and err.count("epoch 1/") == 1 and err.count("done    ") == 1
    (rows, here), (others, there) = (trained(recipe, tmp_path / name) for name in ("one", "two"))
    assert both[0] == both[1] == pytest.approx(alone.score, abs=1e-6)
    for row, other in zip(rows, others, strict=True):
        assert float(other["train_loss"]) == pytest.approx(float(row["train_loss"]), abs=2e-4)
        assert other["score"] == row["score"]
    far = {name: float((here[name].float() - there[name].float()).abs().max()) for name in here}
    assert here.keys() == there.keys() and max(far.values()) < 2e-5, sorted(far.items(), key=lambda pair: -pair[1])[:3]


@pytest.mark.parametrize("batch_size, more", [(7, {"balance": "weights", "accumulate": 2}), (23, {})])
def test_pictures_train_as_in_one_process(tmp_path, capfd, batch_size, more):
    """Batches of 7 are cut 3 and 4, and the last of 23 + 1 leaves a rank without an item; a batch norm is in the stem."""
    size = {**tiny.SIZES["image"], "drop_path": 0.0, "local": True, "stem": "conv", "patch": 4}
    recipe = tiny.recipe("image", tmp_path, arguments=size, batch_size=batch_size, label_smoothing=0.1, **PLAIN, **more)
    for extra in ("red/99.png", "red/98.png"):  # classes of unlike size
        os.link(tmp_path / "data" / "red" / "1.png", tmp_path / "data" / extra)
    as_one(recipe, tmp_path, capfd)


def test_pairs_train_as_in_one_process(tmp_path, capfd):
    """Contrast over the whole batch, a bank, match loss on hard wrong pairs of other ranks; the last batch of 23 + 1."""
    recipe = tiny.recipe("text_image", tmp_path, batch_size=23, bank=20, epochs=2, ema=0.9, **{**PLAIN, "lr": 0.02})
    as_one(recipe, tmp_path, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graph", "audio"])
def test_graphs_and_sounds_train_as_in_one_process(tmp_path, capfd, kind):
    size = {**tiny.SIZES[kind], "dropout" if kind == "graph" else "drop_path": 0.0}
    as_one(tiny.recipe(kind, tmp_path, arguments=size, augment="none", batch_size=7, **PLAIN), tmp_path, capfd)


@pytest.mark.parametrize("task", ["image", pytest.param("text_image", marks=pytest.mark.slow)])
def test_a_rank_without_a_validation_item_does_not_hang(tmp_path, task):
    """Two items of validation on three ranks, 24 and more of training: the score is that of one process."""
    recipe = tiny.recipe(task, tmp_path, epochs=1, **{**PLAIN, "val": 0.01 if task == "image" else 0.05})
    scores = together(lambda rank: run.train(recipe, tmp_path / "runs").score, world=3)
    assert len(set(scores)) == 1


def test_gathered_vectors_bring_their_gradient_home():
    """A contrastive loss of rows on two ranks (3 and 1): the mean of the ranks' gradients is that of one process."""
    torch.manual_seed(0)
    weight, x = torch.randn(5, 4), torch.randn(4, 5)

    def gradient(rank):
        w = weight.clone().requires_grad_()
        if rank is not None:
            ranks.start("image_classification")
        mine = x if rank is None else x[:3] if rank == 0 else x[3:]
        z = torch.nn.functional.normalize(mine @ w, dim=1)
        z, = ranks.gather(z, real=len(mine))
        loss = torch.nn.functional.cross_entropy(7 * z @ z.roll(1, 0).T, torch.arange(4))
        loss.backward()
        return ranks.mean(w.grad).tolist()

    both = together(gradient)
    assert both[0] == both[1]
    assert torch.allclose(torch.tensor(both[0]), torch.tensor(gradient(None)), atol=1e-6)


def test_a_stop_on_one_rank_stops_all_once_and_resumes_exactly(tmp_path, capfd):
    """Drop path and the moving average are on; rank 1 alone gets the signal, the state of both goes on."""
    from zoo.train.resume import KeepState

    recipe = tiny.recipe("image", tmp_path, ema=0.9, optimizer="adamw")
    original = KeepState.on_train_batch_end

    def stopping(rank):
        def counted(self, trainer, *rest):
            if rank == 1 and trainer.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            original(self, trainer, *rest)

        KeepState.on_train_batch_end = counted
        return run.train(recipe, tmp_path / "part").stopped

    assert together(stopping) == [signal.SIGTERM, signal.SIGTERM]
    folder = next((tmp_path / "part").iterdir())
    assert capfd.readouterr().err.count("saved   ") == 1 and not list(folder.glob(".*"))
    together(lambda rank: run.train(run.load_recipe(folder), resume_from=folder).score)
    together(lambda rank: run.train(recipe, tmp_path / "whole").score)
    here, there = (trained(recipe, tmp_path / name)[1] for name in ("part", "whole"))
    assert [name for name in here if not torch.equal(here[name], there[name])] == []


def test_parts_of_a_batch_are_the_batch():
    for count in range(9):
        batch = list(range(count))
        parts = [part(batch, rank, 3) for rank in range(3)]
        assert sum(parts, []) == batch and max(map(len, parts)) - min(map(len, parts)) <= 1
    train = [Shared(EpochOrder(9, 4, seed=1), rank, 2) for rank in range(2)]
    cut = [list(order) for order in train]
    assert [len(part) for part in cut[0]] == [2, 2, 1] and list(train[0].sizes) == [2, 2, 1] and list(train[1].sizes) == [2, 2, 0]
    real = [places[:size] for order, found in zip(train, cut) for places, size in zip(found, order.sizes)]
    assert sorted(index for places in real for index, _, _ in places) == list(range(9))
    val = [list(Shared(EpochOrder(9, 4, shuffle=False), rank, 2)) for rank in range(2)]
    assert sorted(index for found in val for places in found for index, _, _ in places) == list(range(9))


def test_sharded_weights_train_as_whole_ones(tmp_path, capfd):
    """strategy: fsdp on two ranks: the curve and weights of one process; the run goes on; best.safetensors is whole."""
    recipe = tiny.recipe("image", tmp_path, arguments={**tiny.SIZES["image"], "drop_path": 0.0}, strategy="fsdp", **PLAIN)
    as_one(recipe, tmp_path, capfd)
    here, there = (zoo.load(next((tmp_path / name).iterdir())).state_dict() for name in ("one", "two"))
    assert all(torch.allclose(here[name], there[name], atol=2e-5) for name in here) and here.keys() == there.keys()
    folder, seen, original = next((tmp_path / "two").iterdir()), [], sharded.save

    def noted(task, file):
        task.model.reshard()  # the outermost stays whole after a forward without backward
        seen.append(sum(p.to_local().numel() for p in task.model.parameters()))
        original(task, file)

    def goes_on(rank):
        sharded.save = noted
        run.train(replace(recipe, epochs=3), resume_from=folder)
        return seen[-1]

    held, whole = together(goes_on), sum(p.numel() for p in zoo.load(folder).parameters())
    assert sum(held) == whole and max(held) < 0.7 * whole, "each rank holds its part of the weights"
    assert len(trained(recipe, tmp_path / "two")[0]) == 3


@pytest.mark.parametrize("key", [{"ema": 0.9}, {"optimizer": "nmuon"}, {"lora": 2}])
def test_what_cannot_be_sharded_is_said(tmp_path, monkeypatch, key):
    monkeypatch.setattr(ranks, "world", lambda: 2)
    with pytest.raises(UsageError, match=f"strategy: fsdp does not go with {next(iter(key))}: "):
        sharded.on(tiny.recipe("image", tmp_path, strategy="fsdp", **key))


def test_one_big_graph_is_refused():
    def refused(rank):
        with pytest.raises(ValueError, match="node_classification learns from one graph as a whole; start it without torchrun"):
            ranks.start("node_classification")
        return True

    assert together(refused) == [True, True]


def test_a_single_process_is_left_alone():
    assert ranks.trainer_options(None) == {"devices": 1} and ranks.share(3) == 1.0 and ranks.everyone(5) == [5]
