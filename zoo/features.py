"""Vectors of a model for a batch of inputs: its own embedding, or the mean of the tokens after one of its layers."""

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.core import masked_mean
from zoo.errors import UsageError


def vectors(model: nn.Module, inputs: tuple, layer: int | None = None, side: str = "image") -> Tensor:
    """Unit vectors (b dim) for the inputs of `forward`; one a node (nodes dim) of a graph model at level "node".

    layer: a stage (of text and graph models a block) of forward_intermediates, counted from 0, or from the end if negative;
    None: what `embed` gives. side: of a text-image model, whose inputs they are, "image" (x) or "text" (ids, mask). UsageError
    where there is no such layer.
    """
    pairs = model.card.modality == "text_image"
    if layer is None:
        if pairs:
            return (model.encode_text if side == "text" else model.encode_image)(*inputs)[1]
        return model.forward_embed(*inputs)
    tower = getattr(model, side) if pairs else model
    try:
        _, (found,) = tower.forward_intermediates(*inputs, indices=[layer])
    except ValueError as error:
        raise UsageError(f"layer {layer}: {error}") from error
    return F.normalize(_pooled(tower, found, inputs), dim=-1)


def _pooled(tower: nn.Module, found, inputs: tuple) -> Tensor:
    """Mean over the real tokens of what a layer gave."""
    if isinstance(found, tuple):  # sounds: tokens and their mask
        return masked_mean(*found)
    if found.ndim == 4:  # pictures: a map
        return masked_mean(rearrange(found, "b c h w -> b h w c"))
    if found.ndim == 3:  # texts
        return masked_mean(found, inputs[1])
    from zoo.models.graph_parts import pool_mean

    batch = inputs[0]
    return pool_mean(found, batch) if tower.level == "graph" else found[: len(batch.graph)]
