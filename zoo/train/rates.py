"""Layer-wise rates of a model of two towers: each decays towards its own input, what lies above both learns at the full rate."""

from collections.abc import Callable
from functools import partial

from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from zoo.train.recipe import Recipe

TOWERS = ("image", "text")


def groups(recipe: Recipe, fallback: bool) -> Callable[[nn.Module], list[dict]]:
    """timm's param_group_fn for text-image models; `fallback`: what has no weight decay goes to the second optimiser of Muon."""
    return partial(_groups, recipe, fallback)


def _groups(recipe: Recipe, fallback: bool, model: nn.Module) -> list[dict]:
    above, without = nn.Module(), model.no_weight_decay()
    for name, child in model.named_children():
        if name not in TOWERS:
            above.add_module(name, child)
    for name, parameter in model.named_parameters(recurse=False):
        above.register_parameter(name, parameter)
    common = {"weight_decay": recipe.weight_decay, "fallback_no_weight_decay": fallback}
    found = param_groups_weight_decay(above, no_weight_decay_list=without, **common)
    for tower in (getattr(model, name) for name in TOWERS):
        if any(parameter.requires_grad for parameter in tower.parameters()):
            without, decay = tower.no_weight_decay(), recipe.layer_decay
            own = param_groups_layer_decay(tower, no_weight_decay_list=without, layer_decay=decay, **common)
            found += [{**group, "lr_scale": group["lr_scale"] * decay} for group in own]
    return found
