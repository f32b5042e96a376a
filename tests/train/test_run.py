"""Real short runs: learning, exact resume, clean stop, torn states, fine-tuning, unreadable pictures."""

import csv
import os
import signal
from dataclasses import replace

import pytest
import torch

import zoo
from zoo import checkpoint
from zoo.errors import UsageError, ZooError
from zoo.train import run


def weights(folder, name="last.ckpt"):
    """All tensors of a training state: averaged and current weights, optimiser."""
    state = torch.load(folder / name, weights_only=True)
    return {**{f"ema.{k}": v for k, v in state["state_dict"].items()}, **state.get("current_model_state", {})}


def stop_after(monkeypatch, batches):
    """Sends SIGTERM to this process once `batches` batches are done."""
    from zoo.train.resume import KeepState

    original, count = KeepState.on_train_batch_end, [0]

    def counted(self, trainer, *rest):
        count[0] += 1
        if count[0] == batches:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, trainer, *rest)

    monkeypatch.setattr(KeepState, "on_train_batch_end", counted)


def test_a_run_learns_logs_and_loads(recipe, tmp_path, capsys):
    result = run.train(recipe, tmp_path / "runs")
    model = zoo.load(result.folder)
    assert result.score > 0.9 and model.card.labels == ["blue", "green", "red"]
    assert model.card.scores == [{"metric": "accuracy", "value": pytest.approx(result.score, abs=1e-4), "split": "val",
                                  "seed": 3, "epoch": model.card.scores[0]["epoch"]}]
    rows = list(csv.DictReader((result.folder / "log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    err = capsys.readouterr().err
    assert err.startswith("device  cpu") and "72 training and 18 validation pictures, 3 classes" in err and "\r" not in err
    assert run.load_recipe(result.folder) == recipe
    assert run.train(replace(recipe, epochs=1), tmp_path / "runs").folder.name == "image_pico-2"


def resumes_exactly(recipe, tmp_path, monkeypatch, batches):
    """(the run in one go, the same stopped after `batches` and resumed), every tensor of whose last states is equal."""
    straight = run.train(recipe, tmp_path / "a")
    with monkeypatch.context() as patch:
        stop_after(patch, batches)
        part = run.train(recipe, tmp_path / "b")
    assert part.stopped == signal.SIGTERM
    resumed = run.train(run.load_recipe(part.folder), resume_from=part.folder)
    here, there = weights(straight.folder), weights(resumed.folder)
    assert here.keys() == there.keys() and len(here) > 40
    assert [name for name in here if not torch.equal(here[name], there[name])] == []
    assert resumed.score == straight.score
    return straight, resumed


@pytest.mark.parametrize("batches, workers", [(3, 0), (8, 0), (13, 0), (10, 2)])
def test_resume_is_bit_exact(recipe, tmp_path, monkeypatch, batches, workers):
    """5 batches an epoch: stopped inside epochs 1, 2 and 3, with EMA, augmentation and drop path on."""
    straight, resumed = resumes_exactly(replace(recipe, workers=workers), tmp_path, monkeypatch, batches)
    best = [zoo.load(folder) for folder in (straight.folder, resumed.folder)]
    assert best[0].card.scores == best[1].card.scores
    assert all(torch.equal(a, b) for a, b in zip(best[0].state_dict().values(), best[1].state_dict().values()))


def test_stop_says_what_was_kept(recipe, tmp_path, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    stop_after(monkeypatch, 2)
    result = run.train(recipe, tmp_path)
    err = capsys.readouterr().err
    assert "Stopping after this batch; press Ctrl-C again to stop now." in err
    assert f"saved   {result.folder / 'last.ckpt'}     continue: zoo train --resume {result.folder}" in err
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_torn_state_is_skipped_and_named(recipe, tmp_path, capsys):
    result = run.train(replace(recipe, epochs=1), tmp_path)
    torn = result.folder / "newer.ckpt"
    torn.write_bytes((result.folder / "last.ckpt").read_bytes()[:5000])
    os.utime(torn, (2e9, 2e9))
    assert run.newest(result.folder).name == "last.ckpt"
    assert "newer.ckpt: not complete" in capsys.readouterr().err
    (result.folder / "last.ckpt").unlink()
    with pytest.raises(ZooError, match="no complete training state"):
        run.newest(result.folder)
    with pytest.raises(UsageError, match="no recipe.yaml"):
        run.load_recipe(tmp_path)


def test_finetune_replaces_the_head_and_says_so(recipe, folder, tmp_path, capsys):
    first = run.train(replace(recipe, epochs=1), tmp_path / "runs").folder
    (folder / "red").rename(folder / "orange")
    import shutil

    shutil.rmtree(folder / "blue")
    capsys.readouterr()
    second = replace(recipe, start=str(first), epochs=1, freeze=["patch_embed", "stages.0"], layer_decay=0.8, optimizer="adamw",
                     lr=1e-6)
    result = run.train(second, tmp_path / "runs")
    err = capsys.readouterr().err
    assert "classifier.weight  new  3x32 -> 2x32 (labels differ)" in err and "tensors frozen" in err
    here, there = zoo.load(first), zoo.load(result.folder)
    assert torch.equal(here.stages[0].blocks[0].attn.qkv.weight, there.stages[0].blocks[0].attn.qkv.weight)
    assert there.card.labels == ["green", "orange"]
    assert there.card.parents == {str(first): checkpoint.sha256(first / "best.safetensors")}


def test_as_many_but_other_labels_get_a_new_head(recipe, folder, tmp_path, capsys):
    first = run.train(replace(recipe, epochs=1), tmp_path / "runs").folder
    (folder / "red").rename(folder / "orange")
    run.train(replace(recipe, start=str(first), epochs=1), tmp_path / "runs")
    assert "classifier.weight  new" in capsys.readouterr().err


def test_dry_run_finds_broken_pictures_and_trains_nothing(recipe, folder, tmp_path, capsys):
    (folder / "red" / "7.png").write_bytes(b"not a picture")
    run.dry_run(recipe, skip_bad=False)
    err = capsys.readouterr().err
    assert "1 unreadable: red/7.png" in err and err.rstrip().endswith("Nothing was trained.")
    assert "a run would stop at what is unreadable; --skip-bad leaves it out" in err
    with pytest.raises(ZooError, match="red/7.png"):
        run.train(recipe, tmp_path / "runs")
    assert run.train(replace(recipe, epochs=1), tmp_path / "runs", skip_bad=True).score >= 0


@pytest.mark.parametrize("change", [
    {"balance": "sampler"}, {"balance": "weights"}, {"accumulate": 3}, {"checkpoint_blocks": True},
    {"precision": "bf16"}, {"batch_size": 71}, {"patience": 1, "lr": 1e-9},
])  # fmt: skip
def test_every_switch_runs(recipe, tmp_path, change):
    result = run.train(replace(recipe, epochs=2, **change), tmp_path)
    assert 0 <= result.score <= 1


def test_no_data_and_one_class(recipe, tmp_path):
    with pytest.raises(UsageError, match="--data PATH"):
        run.train(replace(recipe, data=""), tmp_path)
    with pytest.raises(ZooError, match="nowhere: no such file or folder"):
        run.train(replace(recipe, data=str(tmp_path / "nowhere")), tmp_path)
    assert not list(tmp_path.glob("image_pico*")), "a failed start leaves no run folder"




def test_layer_decay_reaches_the_optimiser(recipe):
    from zoo.train import adapt, sets

    task, _ = adapt.build(replace(recipe, layer_decay=0.5, optimizer="adamw"), sets.prepare(recipe, False))
    optimizer = task.configure_optimizers()["optimizer"]
    names = {id(parameter): name for name, parameter in task.model.named_parameters()}
    rate = {names[id(p)]: group["initial_lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rate["classifier.weight"] == recipe.lr and rate["stages.1.blocks.1.norm1.weight"] == recipe.lr / 2
    assert rate["patch_embed.norm.weight"] < rate["stages.0.blocks.0.norm1.weight"] < rate["stages.1.blocks.0.norm1.weight"]


def test_resume_refuses_changed_data(recipe, folder, tmp_path, monkeypatch):
    stop_after(monkeypatch, 3)
    part = run.train(recipe, tmp_path / "runs")
    (folder / "red" / "0.png").rename(folder / "red" / "new.png")
    with pytest.raises(ZooError, match="the data has changed since .*\n.*--start"):
        run.train(recipe, resume_from=part.folder)


def test_a_loss_that_is_not_finite_stops_the_run(recipe, tmp_path):
    with pytest.raises(ZooError, match="the loss is (nan|inf) in epoch 1; lower --lr .it is 1e.30"):
        run.train(replace(recipe, lr=1e30, optimizer="sgd", clip=0.0), tmp_path)


@pytest.mark.parametrize("change, says", [
    ({"freeze": ["stages.9"]}, "no parameter begins with stages.9; there are patch_embed, stages, norm, classifier"),
    ({"freeze": ["patch_embed", "stages", "norm", "classifier"]}, "leaves nothing to train"),
    ({"optimizer": "adamv"}, "'adamv' is none of timm's; did you mean"),
])  # fmt: skip
def test_settings_that_cannot_be(recipe, tmp_path, change, says):
    with pytest.raises(UsageError, match=says):
        run.train(replace(recipe, **change), tmp_path)
    assert not list(tmp_path.glob("image_pico*"))


def test_one_class_is_refused(recipe, folder, tmp_path):
    import shutil

    for name in ("red", "blue"):
        shutil.rmtree(folder / name)
    with pytest.raises(ZooError, match="one class only .green."):
        run.train(recipe, tmp_path)


def test_a_second_signal_stops_at_once(recipe, tmp_path, monkeypatch):
    from zoo.train.resume import KeepState

    def twice(self, *_):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(KeepState, "on_train_batch_end", twice)
    assert run.train(recipe, tmp_path).stopped == signal.SIGTERM
