"""Forms of attention in a recipe: read, checked, trained a step, found again in the checkpoint."""

import pytest
import torch

import zoo
from zoo import cli
from zoo.core.gated import penalties
from zoo.train import adapt, recipe, run, sets
from zoo.train.recipe import Recipe

YAML = """
task: image_classification
model: image_pico
data: {folder}
arguments:
  dims: [16, 32]
  depths: [1, 2]
  head_dim: 8
  window: 4
  attention:
    pattern: axial
    position: {{form: shaw, limit: 4}}
    method: {{form: gated, start: 1.0, sparsity: {sparsity}}}
    temperature: learned
    gain: 0.7
epochs: 1
batch_size: 32
val: 0.2
precision: fp32
"""


def given(folder, tmp_path, sparsity=0.05) -> Recipe:
    file = tmp_path / "mine.yaml"
    file.write_text(YAML.format(folder=folder, sparsity=sparsity))
    return recipe.read(file)


def test_a_run(folder, tmp_path):
    mine = given(folder, tmp_path)
    assert not recipe.out_of_range(mine)
    run.dry_run(mine, skip_bad=False)
    result = run.train(mine, tmp_path / "runs")
    model = zoo.load(result.folder)
    attention = model.card.arguments["attention"]
    assert attention["method"] == {"form": "gated", "start": 1.0, "sparsity": 0.05} and attention["gain"] == 0.7
    assert model.stages[1].blocks[1].attn.method.shift.ne(1).any()  # the gates moved


def gradients(mine, accumulate=1) -> dict:
    mine.accumulate = accumulate
    data = sets.prepare(mine, False)
    torch.manual_seed(0)
    task, _ = adapt.build(mine, data)
    torch.manual_seed(0)
    task.train()
    batch = next(iter(data.loaders(mine)[0]))
    loss = task.training_step(batch, 0)
    task.backward(loss / accumulate)
    assert penalties(task.model) is None
    return {name: p.grad.clone() for name, p in task.model.named_parameters()}


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_cost_of_open_gates_is_in_the_gradient(folder, tmp_path, accumulate):
    """To first order: the difference of gradients between two sparsities is the gradient of their difference."""
    free, cheap, dear = (gradients(given(folder, tmp_path, s), accumulate) for s in (0.0, 0.05, 0.5))
    shift = "stages.0.blocks.0.attn.method.shift"
    torch.testing.assert_close(dear[shift] - free[shift], 10 * (cheap[shift] - free[shift]), rtol=1e-3, atol=1e-6)
    assert (dear[shift] > free[shift]).all()  # gates are pushed shut
    head = "classifier.weight"
    assert torch.equal(dear[head], free[head])


def test_a_wrong_form_is_named_before_training(folder, tmp_path):
    mine = given(folder, tmp_path)
    mine.arguments["attention"] = {"pattern": "causal"}
    with pytest.raises(ValueError, match=r"Image: attention\['pattern'\]='causal'; allowed: all, windows, sliding, axial"):
        run.train(mine, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_command_line_says_so_in_one_line(folder, tmp_path, capsys):
    given(folder, tmp_path)
    wrong = "{attention: {pattern: {form: sliding, radios: 2}}}"
    assert cli.main(["train", str(tmp_path / "mine.yaml"), "--arguments", wrong, "--dry-run"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "error: Image: attention['pattern'], form 'sliding', radios=2; allowed: radius"
