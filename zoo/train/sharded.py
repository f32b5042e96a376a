"""strategy: fsdp. Weights, gradients and optimiser states are cut over the ranks; a block is whole only while it runs.

Source: torch's fully_shard (Zhao et al. 2023), through lightning's ModelParallelStrategy; on GPUs (nccl) and on CPU (gloo).
"""

from copy import deepcopy
from pathlib import Path

import lightning.pytorch as pl
from torch import nn

from zoo.errors import UsageError
from zoo.train import lora, ranks
from zoo.train.recipe import Recipe


def on(recipe: Recipe) -> bool:
    """Whether a run is sharded. UsageError for keys that need whole weights."""
    if recipe.strategy != "fsdp" or ranks.world() == 1:
        return False
    reasons = {
        f"task: {recipe.task}": (recipe.task != "text_image_contrastive", "its step calls parts of the model, not the model"),
        f"teacher: {recipe.teacher}": (not recipe.teacher, "maps are read from layers as they run"),
        f"ema: {recipe.ema:g}": (not recipe.ema, "the moving average wants whole weights; take 0"),
        f"lora: {recipe.lora}": (not recipe.lora, "a few per cent of the weights learn, there is little to shard"),
        f"optimizer: {recipe.optimizer}": ("muon" not in recipe.optimizer, "it wants whole matrices; take adamw"),
        f"compile: {recipe.compile}": (not recipe.compile, "not tried together"),
    }
    for key, (fine, why) in reasons.items():
        if not fine:
            raise UsageError(f"strategy: fsdp does not go with {key}: {why}, or strategy: ddp")
    return True


def strategy():
    from lightning.pytorch.strategies import ModelParallelStrategy

    return ModelParallelStrategy(data_parallel_size=ranks.world(), tensor_parallel_size=1, save_distributed_checkpoint=False)


def shard(task: pl.LightningModule) -> None:
    """Every item of a module list (blocks), then what is left of the model. The first rank keeps a copy to be saved from."""
    from torch.distributed.fsdp import fully_shard

    task.whole = [deepcopy(task.model)] if ranks.first() else []  # in a list: no part of the task's own state
    mesh = task.device_mesh["data_parallel"]
    lists = [module for module in task.model.modules() if isinstance(module, nn.ModuleList)]
    for block in [block for blocks in reversed(lists) for block in blocks]:
        if next(block.parameters(), None) is not None:
            fully_shard(block, mesh=mesh)
    fully_shard(task.model, mesh=mesh)


def save(task: pl.LightningModule, file: Path) -> None:
    """The checkpoint of the model, by the first rank; of a sharded one its parts are gathered before."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model = task.model
    if task.whole is not None:
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        for model in task.whole:
            model.load_state_dict(state)
            model.card = task.model.card
    if ranks.first():
        lora.save(model, file, task.recipe)
