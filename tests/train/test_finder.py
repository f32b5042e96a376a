"""The sweep of the learning rate: what it suggests, that it trains nothing, what it draws."""

import math

import pytest
import torch
from PIL import Image

from tests.train import tiny
from zoo import cli
from zoo.errors import ZooError
from zoo.train import adapt, finder, sets


def test_the_steepest_fall_is_suggested():
    """A loss of 2 - tanh((log10(rate) + 3) * 2) falls steepest at 1e-3, whatever each step adds to it."""
    rates = [10 ** (-6 + 7 * i / 139) for i in range(140)]
    noise = 0.1 * torch.randn(140, generator=torch.Generator().manual_seed(0))
    losses = [2 - math.tanh(2 * (math.log10(rate) + 3)) + (10 * (rate > 1)) for rate in rates]
    found = finder.suggest(rates, losses)
    assert found.rate == pytest.approx(1e-3, rel=0.1) and found.rate < found.lowest <= 1
    assert finder.suggest(rates, (torch.tensor(losses) + noise).tolist()).rate == pytest.approx(1e-3, rel=0.6)


def test_the_mean_has_no_pull_towards_zero():
    assert finder.smoothed([3.0] * 5) == pytest.approx([3.0] * 5)
    assert finder.smoothed([1.0, 2.0])[1] == pytest.approx((0.09 * 1 + 0.1 * 2) / 0.19)


@pytest.mark.parametrize("losses", [[], [1.0], [1.0, 2.0, 3.0, 4.0, 9.0]])
def test_a_loss_that_never_falls_is_said(losses):
    with pytest.raises(ZooError, match="find-lr: the loss did not fall at any rate from 1e-06 to 10"):
        finder.suggest([1e-6 * 2**i for i in range(len(losses))], losses)


def test_a_loss_that_explodes_ends_the_sweep(tmp_path, monkeypatch):
    recipe = tiny.recipe("image", tmp_path / "tiny")
    data = sets.prepare(recipe, False)
    task, _ = adapt.build(recipe, data)
    told = iter([2.0] * 12 + [1.0, 30.0, 300.0, 3000.0])
    monkeypatch.setattr(finder, "_step", lambda *_: next(told))
    rates, losses = finder.sweep(recipe, data, task, 100)
    assert len(rates) == len(losses) == 15 and losses[-1] == 300
    told = iter([2.0, 1.0, float("nan")])
    assert finder.sweep(recipe, data, task, 100)[1] == [2.0, 1.0]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_sweep_sets_every_rate_and_sums_batches(kind, tmp_path):
    recipe = tiny.recipe(kind, tmp_path / "tiny", layer_decay=0.5, accumulate=2, optimizer="sgd")
    data = sets.prepare(recipe, False)
    task, _ = adapt.build(recipe, data)
    rates, losses = finder.sweep(recipe, data, task, 3)
    assert rates == pytest.approx([1e-6, math.sqrt(1e-6 * 10), 10]) or not math.isfinite(sum(losses))
    assert task.training and all(p.grad is None or p.grad.isfinite().all() for p in task.parameters())


def test_the_command(tmp_path, capsys, monkeypatch):
    """One number on stdout, a curve, and nothing else."""
    monkeypatch.chdir(tmp_path)
    recipe = tiny.recipe("image", tmp_path / "tiny")
    monkeypatch.setattr(finder.find, "__defaults__", (24,))
    keys = ["--model", "image_pico", "--arguments", str(recipe.arguments), "--data", recipe.data, "--val", "0.25",
            "--batch-size", "8", "--preprocess", "{size: [16, 16]}", "--precision", "fp32", "--find-lr"]
    assert cli.main(["train", "image_scratch", *keys]) == 0
    out, err = capsys.readouterr()
    rate = float(out)
    assert 1e-6 < rate < 10 and f"try     --lr {rate:.1e}" in err and err.rstrip().endswith("Nothing was trained.")
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["image_pico-lr.png"]
    with Image.open(tmp_path / "runs" / "image_pico-lr.png") as picture:
        assert picture.size[0] > 600
    assert cli.main(["train", "image_scratch", *keys, "--out", "mine.png"]) == 0 and (tmp_path / "mine.png").exists()
    assert cli.main(["train", "image_scratch", "--out", "mine.png"]) == 2
    assert "--out goes with --find-lr" in capsys.readouterr().err
    assert torch.is_grad_enabled()
