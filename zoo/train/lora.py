"""LoRA: linear layers of attention and feed-forward stay as they are and learn a product of two thin matrices beside them.

    W' = W + B A,   A (rank in), B (out rank), B starts at 0

Source: Hu et al. 2022, eq. 3. Works on every model of the zoo: all of them are made of zoo.core's Attention and FeedForward.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from zoo import adapter, checkpoint
from zoo.core import Attention, FeedForward
from zoo.errors import UsageError
from zoo.train.recipe import TASKS, Recipe

HEADS = ("classifier",)  # new for new labels: they learn whole
MARK = ".parametrizations.weight."


class LowRank(nn.Module):
    """W (out in) -> W + B A. A parametrisation of the weight: whoever reads it, fused paths included, sees the sum."""

    def __init__(self, weight: Tensor, rank: int):
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, weight.shape[1]))
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def attach(model: nn.Module, recipe: Recipe) -> list[str]:
    """Freezes what lies under the prefixes of `lora_on` (but a classifier), gives its linear layers low-rank partners, and
    returns the line that says so. UsageError where there is none, or the weights are new and not worth freezing.
    """
    if not (recipe.start or recipe.image_start) and TASKS[recipe.task] != "text_image":
        raise UsageError("lora: the weights it leaves as they are come from a checkpoint; add start: (or set lora: 0)")
    under = prefixes(recipe)
    learning = [(name, p) for name, p in model.named_parameters() if _below(name, under)]
    found = [(name, layer) for name, layer in linears(model) if _below(name, under)]
    if not found:
        known = ", ".join(dict.fromkeys(name.split(".")[0] for name, _ in linears(model)))
        raise UsageError(f"lora_on: no attention or feed-forward layer below {', '.join(under)}; there are some below {known}")
    for name, parameter in learning:
        if not name.startswith(HEADS):
            parameter.requires_grad_(False)
    for _, layer in found:
        parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, recipe.lora))
    return [f"lora    rank {recipe.lora} on {len(found)} linear layers" + (f" below {', '.join(under)}" if any(under) else "")
            + ("" if recipe.lora_merge else "; kept apart from the weights it starts from")]


def prefixes(recipe: Recipe) -> list[str]:
    """lora_on; where it is empty: both towers of a text-image model, else everything."""
    return recipe.lora_on or (["image", "text"] if TASKS[recipe.task] == "text_image" else [""])


def linears(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    """(name, layer) of every linear layer that is a direct part of an Attention or a FeedForward; a shared one once."""
    found = [(f"{name}.{part}", layer) for name, module in model.named_modules() if isinstance(module, (Attention, FeedForward))
             for part, layer in module.named_children() if isinstance(layer, nn.Linear)]
    return list({id(layer): (name, layer) for name, layer in reversed(found)}.values())[::-1]


def text_blocks(recipe: Recipe, blocks: int) -> list[int]:
    """Blocks of the text tower that LoRA of this recipe changes."""
    under = prefixes(recipe) if recipe.lora else []
    return [i for i in range(blocks)
            if any(f"text.blocks.{i}.".startswith(p) or p.startswith(f"text.blocks.{i}.") for p in map(_closed, under))]


def save(model: nn.Module, file: Path, recipe: Recipe) -> Path:
    """A checkpoint: as it is without LoRA; with the products added to the weights; or (lora_merge: false) an adapter."""
    if not recipe.lora:
        return checkpoint.save(model, file)
    if recipe.lora_merge:
        return checkpoint.save(model, file, merged(model))
    return adapter.save(model, file, recipe.start, *apart(model))


@torch.no_grad()
def merged(model: nn.Module) -> dict[str, Tensor]:
    """state_dict by the names that the model has without LoRA, W + B A for W."""
    plain, thin = apart(model)
    return adapter.with_products({**plain, **thin}, plain)


def apart(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(what is stored, by the names without LoRA, W without its product; {NAME.weight.lora_a and .lora_b: thin matrix})."""
    plain, thin, towers = {}, {}, tuple(model.card.towers)
    once = {tensor.data_ptr(): name for name, tensor in reversed(model.state_dict().items())}  # tied ones under their first name
    for name, tensor in model.state_dict().items():
        if once[tensor.data_ptr()] != name and tensor.numel():
            continue
        if f"{MARK}0." in name:
            thin[name.replace(f"{MARK}0.", ".weight.lora_")] = tensor
        elif not name.startswith(towers):
            plain[name.replace(f"{MARK}original", ".weight")] = tensor
    return plain, thin


def _closed(prefix: str) -> str:
    return f"{prefix.rstrip('.')}." if prefix else ""


def _below(name: str, under: list[str]) -> bool:
    return any(f"{name}.".startswith(_closed(prefix)) for prefix in under)
