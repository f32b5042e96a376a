"""What every registered model must do, whatever its modality."""

import pytest
import torch

import zoo
from zoo import registry
from zoo.errors import ZooError

NAMES = registry.names()
IMAGES = [name for name in NAMES if registry.find(name).modality == "image"]


def inputs(name: str, batch: int):
    """Tensors for `forward` of a model, other ones for each item."""
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 3, 40, 33, generator=generator)
    if registry.find(name).modality == "image":
        return (x,)
    ids = torch.randint(1000, 20000, (batch, 7), generator=generator)
    mask = torch.ones(batch, 7, dtype=torch.bool)
    mask[0, 5:] = False
    return ids, mask, x


@pytest.fixture(scope="module", params=NAMES)
def model(request):
    torch.manual_seed(0)
    model = zoo.create_model(request.param, **({"num_classes": 5} if request.param in IMAGES else {}))
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
        alone = outputs(model, *(t[i : i + 1] for t in tensors))
        for one, all_ in zip(alone, together):
            there = all_[i : i + 1] if all_.ndim == 1 or model.card.modality == "image" else all_[i : i + 1, i : i + 1]
            assert (one - there).abs().max() <= 1e-5 * max(1, there.abs().max())


@torch.no_grad()
def test_forward_changes_nothing(model):
    tensors = inputs(model.card.model, 2)
    first, before = outputs(model, *tensors), {k: v.clone() for k, v in model.state_dict().items()}
    outputs(model, *(t[:1] if t.ndim == 2 else t[:1, :, :5, :9] for t in tensors))
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
    head = sum(p.numel() for p in model.classifier.parameters()) if model.card.modality == "image" else 0
    assert (model.card.parameters - head) / 1e6 == pytest.approx(spec.parameters, rel=0.06)


def test_position_tables_are_not_decayed(model):
    names = {name for name, _ in model.named_parameters()}
    assert model.no_weight_decay() <= names
    assert any(name.endswith("position.table") for name in model.no_weight_decay())


@pytest.mark.parametrize("name", IMAGES)
def test_head_reset(name):
    model = zoo.create_model(name, num_classes=3).eval()
    x = torch.randn(1, 3, 32, 32)
    features = model.forward_features(x)
    assert model.forward_head(features).shape == (1, 3)
    model.reset_classifier(7)
    assert model(x).shape == (1, 7) and torch.equal(model.forward_features(x), features)
    model.reset_classifier(0)
    assert model(x).shape == (1, model.num_features)


def test_wildcards_and_unknown_names():
    assert zoo.list_models("image_*")[:3] == ["image_pico", "image_nano", "image_micro"]
    with pytest.raises(ZooError, match="did you mean text_image_nano"):
        registry.find("text_image_nan")
