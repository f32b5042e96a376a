"""What every registered model must do, whatever its modality."""

from types import SimpleNamespace

import pytest
import torch

import zoo
from zoo import registry
from zoo.errors import ZooError
from zoo.models.graph_batch import Collate
from zoo.models.graphormer import FirstPaths

NAMES = registry.names()
CLASSIFIERS = [name for name in NAMES if registry.find(name).modality in ("image", "audio", "graph", "text")]


def inputs(name: str, batch: int):
    """Tensors for `forward` of a model, other ones for each item."""
    generator = torch.Generator().manual_seed(batch)
    modality = registry.find(name).modality
    if modality == "graph":
        return (collate(name)([ring(batch, 5 + 4 * i) for i in range(batch)]),)
    if modality == "audio":
        wave = torch.randn(batch, 9600, generator=generator) * 0.3
        return wave, 9600 - 2500 * torch.arange(batch)
    x = torch.randn(batch, 3, 40, 33, generator=generator)
    if modality == "image":
        return (x,)
    ids = torch.randint(1000, 20000, (batch, 7), generator=generator)
    mask = torch.ones(batch, 7, dtype=torch.bool)
    mask[0, 5:] = False
    return (ids, mask) if modality == "text" else (ids, mask, x)


def collate(name: str) -> Collate:
    return Collate() if registry.find(name).entry.endswith(":Graph") else FirstPaths(0, virtual=True, path="dense")


def ring(seed: int, n: int) -> SimpleNamespace:
    """An encoded graph of n nodes in a ring with a tail, for the columns that a registered model starts with."""
    generator = torch.Generator().manual_seed(100 * seed + n)
    step = torch.stack([torch.arange(n), (torch.arange(n) + 1) % (n - 1)])
    edges = torch.cat([step, step.flip(0)], 1)
    atoms, bonds = (torch.randint(1, 4, (size, 1), generator=generator) for size in (n, n))
    return SimpleNamespace(x_cat=atoms, x_float=torch.zeros(n, 0), edge_index=edges, edge_cat=bonds.repeat(2, 1),
                           edge_float=torch.zeros(2 * n, 0))


def part(name: str, tensors: tuple, i: int) -> tuple:
    """Item i of 3 alone."""
    if registry.find(name).modality == "graph":
        return (collate(name)([ring(3, 5 + 4 * i)]),)
    return tuple(t[i : i + 1] for t in tensors)


@pytest.fixture(scope="module", params=NAMES)
def model(request):
    torch.manual_seed(0)
    model = zoo.create_model(request.param, **({"num_classes": 5} if request.param in CLASSIFIERS else {}))
    for parameter in model.parameters():
        if parameter.ndim == 1 and parameter.requires_grad:
            torch.nn.init.normal_(parameter, 0.5, 0.2)  # biases away from 0 show what is left out
    return model.eval()


def outputs(model, *tensors) -> list[torch.Tensor]:
    out = model(*tensors)
    if isinstance(out, dict):
        states, tokens = model.forward_features(*tensors)
        return [out["logits"], model.forward_match(states, tensors[1], tokens)]
    return [out]


def test_every_parameter_gets_a_gradient(model):
    model.zero_grad()
    sum(out.square().sum() for out in outputs(model, *inputs(model.card.model, 2))).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
    model.zero_grad()


@torch.no_grad()
def test_alone_is_as_in_a_batch(model):
    tensors = inputs(model.card.model, 3)
    together = outputs(model, *tensors)
    for i in range(3):
        alone = outputs(model, *part(model.card.model, tensors, i))
        for one, all_ in zip(alone, together):
            pairs = all_.ndim == 2 and model.card.model not in CLASSIFIERS
            there = all_[i : i + 1, i : i + 1] if pairs else all_[i : i + 1]
            assert (one - there).abs().max() <= 1e-5 * max(1, there.abs().max())


@torch.no_grad()
def test_forward_changes_nothing(model):
    tensors = inputs(model.card.model, 2)
    first, before = outputs(model, *tensors), {k: v.clone() for k, v in model.state_dict().items()}
    if model.card.modality == "graph":
        outputs(model, model.collate([ring(7, 3)]))
    else:
        outputs(model, *(t[:1, :, :5, :9] if t.ndim == 4 else t[:1] for t in tensors))
    assert all(torch.equal(a, b) for a, b in zip(first, outputs(model, *tensors)))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@torch.no_grad()
def test_save_and_load_are_bit_equal(model, tmp_path):
    tensors = inputs(model.card.model, 2)
    again = zoo.load(zoo.save(model, tmp_path / "m.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, *tensors), outputs(again, *tensors)))


def test_checkpointing_gives_the_same_gradients(model):
    tensors, gradients = inputs(model.card.model, 2), []
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()  # its running statistics would move between the two
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        sum(out.square().sum() for out in outputs(model, *tensors)).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    model.set_grad_checkpointing(False)
    model.zero_grad()
    model.eval()
    assert all(torch.allclose(value, gradients[1][name], rtol=1e-5, atol=1e-7) for name, value in gradients[0].items())


def test_parameters_are_as_listed(model):
    spec = registry.find(model.card.model)
    head = sum(p.numel() for p in model.classifier.parameters()) if model.card.model in CLASSIFIERS else 0
    assert (model.card.parameters - head) / 1e6 == pytest.approx(spec.parameters, rel=0.06)


def test_every_parameter_has_a_depth_for_layer_wise_rates(model):
    """timm's own reading of group_matcher: the head learns fastest, what stands at the input slowest."""
    from timm.optim import param_groups_layer_decay

    if not hasattr(model, "group_matcher"):
        pytest.skip("a pair of towers has no single depth")
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    learns = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert set(scale) == {id(p) for p in learns.values()} and len(set(scale.values())) > 2
    assert scale[id(model.classifier.weight)] == 1.0 > min(scale.values())


def test_position_tables_are_not_decayed(model):
    names = {name for name, _ in model.named_parameters()}
    assert model.no_weight_decay() <= names
    assert any(name.endswith(("position.table", "position.weight", "position.mlp.0.weight")) for name in model.no_weight_decay())


@torch.no_grad()
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_head_reset(name):
    model, tensors = zoo.create_model(name, num_classes=3).eval(), inputs(name, 2)

    def features():
        found = model.forward_features(*tensors)  # audio gives the mask too
        if model.card.modality == "graph":
            return found, *tensors
        return found if isinstance(found, tuple) else (found,)

    before = features()
    assert model.forward_head(*before).shape == (2, 3)
    model.reset_classifier(7)
    assert model(*tensors).shape == (2, 7) and torch.equal(features()[0], before[0])
    model.reset_classifier(0)
    assert model(*tensors).shape == (2, model.num_features)


def test_wildcards_and_unknown_names():
    assert zoo.list_models("image_*")[:3] == ["image_pico", "image_nano", "image_micro"]
    with pytest.raises(ZooError, match="did you mean text_image_nano"):
        registry.find("text_image_nan")
