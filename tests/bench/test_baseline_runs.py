"""Baselines learn as `zoo train` has ours learn, from the same batches at the same rates; the test split is met at the end."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")
pytest.importorskip("rdkit")

from tests.train.test_graph_runs import SMALL, network, write  # noqa: E402, F401
from zoo import cli  # noqa: E402
from zoo.bench import baseline_runs  # noqa: E402
from zoo.bench.baseline_runs import Baseline  # noqa: E402
from zoo.bench.baselines import stack  # noqa: E402
from zoo.errors import UsageError, ZooError  # noqa: E402
from zoo.train import run, sets  # noqa: E402
from zoo.train.graphs import Regress  # noqa: E402
from zoo.train.recipe import Recipe  # noqa: E402

TINY = Baseline("gine", 16, 2)
CHAINS = [("C" * n + end, 100 + 3 * n - 20 * (end == "O"), {4: "test", 9: "test", 6: "val"}.get(n, "train"))
          for n in range(1, 13) for end in ("", "O", "N")]  # a length is in one split only


@pytest.fixture
def recipe(tmp_path):
    molecules = write(tmp_path / "chains.csv", [dict(zip(("smiles", "y", "split"), row)) for row in CHAINS])
    return Recipe(task="graph_regression", model="graph_pico", arguments=dict(SMALL), data=str(molecules), val="val", epochs=3,
                  batch_size=12, lr=5e-3, ema=0.9, precision="fp32", names=["mass"], units=["u"], seed=1)


def test_it_learns_from_the_batches_of_zoo_train_at_its_rates(recipe, tmp_path, monkeypatch):
    steps, original = [], Regress.training_step

    def recorded(self, batch, at):
        group = self.optimizers().param_groups[0]
        averages = [c for c in self.trainer.callbacks if type(c).__name__ == "WeightAveraging"]
        steps.append((batch[1].flatten().tolist(), group["lr"], type(self.optimizers().optimizer), self.scaler, len(averages)))
        return original(self, batch, at)

    monkeypatch.setattr(Regress, "training_step", recorded)
    run.train(recipe, tmp_path)
    ours = steps.copy()
    steps.clear()
    baseline_runs.run(recipe, TINY)
    assert len(ours) == 9 and steps == ours


def test_the_score_is_that_of_the_best_epoch_in_units_of_the_data(recipe, monkeypatch):
    """The first epoch is made to look best; then the weights that are scored at the end must be its averaged ones."""
    original, calls = Regress.score, []

    def worse_and_worse(self):
        calls.append(original(self))
        return calls[-1] + (1000 * (len(calls) - 1) if len(calls) <= recipe.epochs else 0)

    monkeypatch.setattr(Regress, "score", worse_and_worse)
    monkeypatch.setattr(baseline_runs, "test_loader", lambda recipe, data: data.loaders(recipe)[1])
    result = baseline_runs.run(recipe, TINY)
    assert result["epoch"] == 1 and result["test"] == pytest.approx(result["val"], rel=1e-5) and len(calls) == 4
    assert calls[2] != pytest.approx(calls[0], rel=1e-3)


def test_the_test_split_is_measured_in_units_of_the_data(recipe):
    data = sets.prepare(recipe, False)
    task, shape = baseline_runs.build(recipe, data, TINY)
    std, mean = task.scaler.std[0], task.scaler.mean[0]
    task.eval()
    rows = [(smiles, y) for smiles, y, split in CHAINS if split == "test"]
    errors = [task.model(stack([data.preprocess(smiles)])).item() * std + mean - y for smiles, y in rows]
    found = baseline_runs.score(task, baseline_runs.test_loader(recipe, data))
    assert shape == {"dim": 16, "layers": 2} and found == pytest.approx(np.mean(np.square(errors)) ** 0.5, rel=1e-4)


def test_the_same_seed_gives_the_same_weights_whatever_our_model(recipe):
    data = sets.prepare(recipe, False)

    def first(recipe):
        return baseline_runs.build(recipe, data, TINY)[0].model.head[0].weight

    assert torch.equal(first(recipe), first(replace(recipe, model="graph_nano", arguments={})))
    assert not torch.equal(first(recipe), first(replace(recipe, seed=2)))


def test_command_prints_one_line_or_json(recipe, tmp_path, capsys):
    words = ["bench", "baselines", "graph_regression", "--data", recipe.data, "--val", "val", "--lr", "5e-3", "--ema", "0.8",
             "--batch-size", "12", "--arguments", "{pool: sum}", "--units", "u", "--metric=mae", "--dim", "24", "--layers", "3"]
    assert cli.main([*words, "--epochs", "20", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metric"] == "MAE" and result["unit"] == "u" and result["test"] < 7  # the median of the training targets: 9.5
    assert (result["baseline"], result["dim"], result["layers"], result["seed"], result["epochs"]) == ("gine", 24, 3, 0, 20)
    assert cli.main([*words, "--conv", "gcn", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("gcn  dim 24, 3 layers  ") and out.count("\n") == 1 and out.count(" u  ") == 2


def test_nodes_are_labelled_by_a_gcn(network):  # noqa: F811
    recipe = Recipe(task="node_classification", model="graph_pico", arguments={**SMALL, "path": "edges"}, data=str(network),
                    val="val", epochs=40, lr=1e-2, precision="fp32")
    result = baseline_runs.run(recipe, Baseline("gcn"))
    assert result["metric"] == "accuracy" and result["unit"] == "" and result["test"] > 0.65
    assert result["parameters"] == (2 + 1) * 16 + (16 + 1) * 2
    with pytest.raises(UsageError, match="two-layer --conv gcn"):
        baseline_runs.run(recipe, Baseline("gine"))


@pytest.mark.parametrize("change, said", [
    ({"task": "link_prediction"}, "task link_prediction; there are baselines for graph_regression and node_classification"),
    ({"start": "graph_nano.zinc"}, "start, freeze and layer_decay are for fine-tuning"),
    ({"val": "test"}, "'test' would be seen before the end"),
    ({"hold_out": ["val"], "val": 0.1}, "'test' would be seen before the end"),
])
def test_what_it_refuses(recipe, change, said):
    with pytest.raises(UsageError, match=said):
        baseline_runs.run(replace(recipe, **change), TINY)


def test_without_a_test_split_nothing_is_trained(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "fit", lambda *_: pytest.fail("trained"))
    table = write(tmp_path / "new.csv", [{"smiles": "C" * (1 + i), "y": i, "split": ("train", "val")[i % 2]} for i in range(8)])
    with pytest.raises(ZooError, match="no split 'test' .has: train, val"):
        baseline_runs.run(replace(recipe, data=str(table)), TINY)


def test_wrong_sizes():
    for name, value, allowed in ("conv", "gat", "gine, gcn"), ("dim", 0, ">= 1"), ("layers", -1, ">= 1"):
        with pytest.raises(UsageError, match=f"--{name} {value}; allowed: {allowed}"):
            Baseline(**{name: value})
