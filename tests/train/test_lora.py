"""LoRA on every modality: nothing changes at the start, only the products learn, merged and apart give the same answers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import zoo
from tests.train.pair_data import recipe_of, small_tower
from zoo import checkpoint
from zoo.errors import UsageError, ZooError
from zoo.rawgraph import data_type
from zoo.train import adapt, lora, run, sets
from zoo.train.recipe import Recipe

SMALL = {
    "image": ("image_pico", {"num_classes": 3, "dims": [16, 32], "depths": [1, 1], "head_dim": 8, "window": 4}),
    "audio": ("audio_pico", {"num_classes": 3, "dims": [16, 32], "depths": [1, 1], "windows": [8, None], "head_dim": 8}),
    "graph": ("graph_pico", {"num_classes": 2}),
}
TASK = {"image": "image_classification", "audio": "audio_classification", "graph": "graph_regression"}


def adapted(modality: str, **more) -> nn.Module:
    name, arguments = SMALL[modality]
    model = zoo.create_model(name, **arguments)
    lora.attach(model, Recipe(task=TASK[modality], model=name, start="a checkpoint", lora=2, **more))
    return model


def trained(model: nn.Module) -> nn.Module:
    """As after training: every product is something."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, lora.LowRank):
                module.b.normal_(std=0.1)
    return model


@pytest.mark.parametrize("modality", SMALL)
def test_only_products_and_the_classifier_learn(modality):
    model = adapted(modality)
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    heads = {name for name in learns if name.startswith("classifier")}
    assert learns - heads and all(name.endswith(("parametrizations.weight.0.a", "parametrizations.weight.0.b"))
                                  for name in learns - heads)
    layers = lora.linears(model)
    assert len(learns - heads) == 2 * len(layers) and all(hasattr(layer, "parametrizations") for _, layer in layers)


def inputs(model: nn.Module) -> tuple:
    """Two items of the model's own kind."""
    if model.card.modality == "image":
        return (torch.randn(2, 3, 32, 32),)
    if model.card.modality == "audio":
        return torch.randn(2, 8000), torch.tensor([8000, 6000])
    pytest.importorskip("torch_geometric")
    line = data_type()(x_cat=torch.tensor([[1], [2], [3]]), x_float=torch.zeros(3, 0), edge_float=torch.zeros(4, 0),
                       edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), edge_cat=torch.ones(4, 1, dtype=torch.long))
    return (model.collate([line, line]),)


@pytest.mark.parametrize("modality", SMALL)
def test_every_product_gets_a_gradient(modality):
    model = adapted(modality)
    model(*inputs(model)).float().square().sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.requires_grad and name.endswith(".b")}
    assert grads and [name for name, grad in grads.items() if grad is None or not grad.abs().max() > 0] == []
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("modality", SMALL)
def test_merged_weights_are_the_sum_and_load_as_an_ordinary_model(modality, tmp_path):
    model = trained(adapted(modality))
    name, layer = lora.linears(model)[0]
    part = layer.parametrizations.weight
    expected = part.original + part[0].b @ part[0].a
    file = lora.save(model, tmp_path / "merged.safetensors", Recipe(lora=2))
    loaded = zoo.load(file)
    assert torch.equal(loaded.get_parameter(f"{name}.weight"), expected)
    assert loaded.state_dict().keys() == zoo.create_model(SMALL[modality][0], **SMALL[modality][1]).state_dict().keys()


def test_the_start_is_the_checkpoint_and_a_step_changes_the_answer():
    torch.manual_seed(0)
    name, arguments = SMALL["image"]
    model, x = zoo.create_model(name, **arguments).eval(), torch.randn(2, 3, 32, 32)
    before = model(x)
    lora.attach(model, Recipe(task="image_classification", model=name, start="a checkpoint", lora=2))
    assert torch.equal(model(x), before)
    assert not torch.equal(trained(model)(x), before)


def test_prefixes_choose_where():
    model = adapted("image", lora_on=["stages.1"])
    names = {n for n, layer in lora.linears(model) if hasattr(layer, "parametrizations")}
    assert names and all(n.startswith("stages.1.") for n in names)
    assert model.stages[0].blocks[0].mlp.fc1.weight.requires_grad  # outside the prefixes all learns as ever
    assert not model.stages[1].merge.reduction.weight.requires_grad
    with pytest.raises(UsageError, match="lora_on: no attention or feed-forward layer below stage; there are some below stages"):
        adapted("image", lora_on=["stage"])
    with pytest.raises(UsageError, match="lora: the weights it leaves as they are come from a checkpoint; add start"):
        lora.attach(model, Recipe(task="image_classification", model="image_pico", lora=2))


@pytest.fixture
def start(recipe, tmp_path):
    """A short run on the drawn colours, and the recipe that goes on from it with LoRA."""
    first = run.train(replace(recipe, epochs=1), tmp_path / "runs")
    return replace(recipe, start=str(first.folder), arguments={}, epochs=2, lora=4)


def test_an_adapter_is_small_and_goes_on_its_checkpoint(start, tmp_path):
    apart = run.train(replace(start, lora_merge=False), tmp_path / "apart")
    merged = run.train(start, tmp_path / "merged")
    file = apart.folder / "best.safetensors"
    stored = set(checkpoint.read_header(file)) - {"__metadata__"}
    assert not any(name.endswith("qkv.weight") for name in stored) and any(name.endswith("lora_a") for name in stored)
    assert file.stat().st_size < 0.7 * (merged.folder / "best.safetensors").stat().st_size
    here, there = zoo.load(apart.folder), zoo.load(merged.folder)
    for name, tensor in there.state_dict().items():
        assert torch.allclose(here.state_dict()[name].float(), tensor.float(), atol=1e-6), name
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(here(x), there(x), atol=1e-5)


def test_an_adapter_survives_its_card_and_refuses_another_base(start, tmp_path):
    folder = run.train(replace(start, lora_merge=False, epochs=1), tmp_path / "apart").folder
    file, base = folder / "best.safetensors", checkpoint.locate(start.start)
    card = checkpoint.read_card(file)
    card.notes = "another note"
    checkpoint.replace_card(file, card)
    assert zoo.load(file).card.notes == "another note"
    moved = base.rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ZooError, match="an adapter of .*, which is not here: put it there as .*image_pico-1.safetensors"):
        zoo.load(file)
    moved = moved.rename(file.with_name("image_pico-1.safetensors"))
    assert zoo.load(file).card.notes == "another note"
    moved = moved.rename(tmp_path / "elsewhere.safetensors")
    model = zoo.load(moved)
    with torch.no_grad():
        model.norm.weight.add_(1)
    zoo.save(model, base)
    with pytest.raises(ZooError, match="an adapter of .* with sha256 (.|\n)*bring the file it was made on"):
        zoo.load(file)


@pytest.mark.parametrize("merge", [True, False])
def test_text_tower_and_image_tower_of_a_text_image_model(tmp_path, merge):
    """LoRA on the text tower is stored in either form, and the loaded model answers as the trained one."""
    given = recipe_of(tmp_path / "pairs", arguments=small_tower(tmp_path / "tower"), lora=2, lora_on=["image", "text.blocks.1"],
                      lora_merge=merge, epochs=1)
    data = sets.prepare(given, False)
    task, lines = adapt.build(given, data)
    assert any(line.startswith("lora    rank 2 on ") for line in lines) and task._live == 1
    trained(task.model)
    file = lora.save(task.model, tmp_path / "out.safetensors", given)
    texts = ["a red picture", "something blue"]
    with torch.no_grad():
        here = task.model.eval().project_text(*task.texts(texts))
    loaded = zoo.load(file)
    assert torch.allclose(here, loaded.embed_text(texts), atol=3e-3)
    changed = [n for n, p in loaded.text.named_parameters() if not torch.equal(p, plain_text(given).get_parameter(n))]
    assert changed and all(n.startswith("blocks.1.") for n in changed)


def plain_text(given: Recipe) -> nn.Module:
    return zoo.create_model(given.model, **given.arguments).text
