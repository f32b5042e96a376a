"""One pass over one item with every attention weight kept, and each layer's weights mapped back to the input's tokens."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.core import Attention, Recorder
from zoo.errors import ZooError
from zoo.inference import evaluating, inputs


@dataclass(frozen=True)
class Map:
    """Attention of one layer over the n tokens of one item: n = prod(axes), in row-major order.

    axes: (rows, cols) of a picture, (frames,) of a sound, (tokens,) of a text, (nodes,) of a graph (a virtual node is the last).
    step: what a token spans of the input, in pixels of the model's input or in seconds; 1 for texts and graphs. recorded: the
    weights as the layer made them, head axis third from last; `dense` puts any heads of them over all pairs of tokens. pairs:
    of attention along the edges of a big graph, (2 P) int64, query and key of the P weights recorded[:, 0]. asking: axes and
    step of the tokens that look, where they are others than those looked at (rollout); weights are (h m n) then.
    """

    axes: tuple[int, ...]
    step: float
    recorded: Tensor
    dense: Callable[[Tensor], Tensor]
    pairs: Tensor | None = None
    asking: tuple[tuple[int, ...], float] | None = None

    @property
    def askers(self) -> tuple[tuple[int, ...], float]:
        """Axes and step of the tokens that look."""
        return self.asking or (self.axes, self.step)

    @property
    def heads(self) -> int:
        return self.recorded.shape[-3]

    @cached_property
    def weights(self) -> np.ndarray:
        """(h n n) float32: [h, i, j] is how much token i took from token j; each row sums to 1."""
        return self.dense(self.recorded).float().numpy()

    def weight(self, head: slice = slice(None)) -> np.ndarray:
        """(n n): the mean over those heads. Memory is that of one head."""
        return self.dense(self._mean(head))[0].float().numpy()

    def listed(self, head: slice = slice(None)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Query, key and weight of every pair that is not 0, mean over those heads. Memory grows with the pairs of big graphs."""
        if self.pairs is not None:
            return *self.pairs.numpy(), self._mean(head)[0, 0].float().numpy()
        weight = self.weight(head)
        query, key = np.nonzero(weight)
        return query, key, weight[query, key]

    def received(self, head: slice = slice(None), query: int | None = None) -> np.ndarray:
        """(*axes): what each token got from token `query` (None: the mean of all that look); sums to 1. Mean over heads."""
        weight = self.weight(head)
        return (weight.mean(0) if query is None else weight[query]).reshape(self.axes)

    def _mean(self, head: slice) -> Tensor:
        return self.recorded[..., head, :, :].mean(-3, keepdim=True)


class Maps(dict):
    """Layer -> Map in the order of the layers; `logits` of the same pass, `prepared`: what the model was given."""

    def __init__(self, maps: dict[str, Map], logits: Tensor, prepared):
        super().__init__(maps)
        self.logits, self.prepared = logits, prepared


def record(model: nn.Module, item) -> Maps:
    """See zoo.explain."""
    modality = getattr(getattr(model, "card", None), "modality", None)
    if modality == "text_image":
        raise ZooError("explain: a text-image model looks at pictures word by word; give a text too: explain(model, text, image)")
    if modality is None:
        raise ZooError(f"explain: {type(model).__name__} is not a model from zoo.load or zoo.create_model")
    prepared = model.preprocess(item)
    with evaluating(model), _recording(model) as (recorder, calls):
        logits = model(*inputs(model, [prepared]))
    place = {"image": _image, "audio": _audio, "graph": _graph, "text": _text}[modality]
    maps = {name: place(model, name, weights.cpu(), calls[name]) for name, weights in recorder.maps.items()}
    if not maps:
        raise ZooError(f"explain: {model.card.name or model.card.model} has no attention")
    return Maps(maps, logits.float().cpu(), prepared)


@contextmanager
def _recording(model: nn.Module) -> Iterator[tuple[Recorder, dict[str, tuple]]]:
    """A Recorder, and what each Attention was called with: name -> (module, arguments)."""
    calls, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            hooks.append(module.register_forward_pre_hook(lambda module, args, name=name: calls.update({name: (module, args)})))
    try:
        with Recorder(model) as recorder:
            yield recorder, calls
    finally:
        for hook in hooks:
            hook.remove()


def _image(model, name: str, weights: Tensor, call: tuple) -> Map:
    axes, layout = _layout(call)
    return Map(axes, model.patch * 2.0 ** _stage(name), weights, partial(_one, layout))


def _audio(model, name: str, weights: Tensor, call: tuple) -> Map:
    axes, layout = _layout(call)
    if len(axes) == 2:
        return _folded(model, weights, layout)
    step = model.frame_seconds / 2 ** (len(model.stages) - 1 - _stage(name))
    return Map(axes, step, weights, partial(_one, layout))


def _text(_model, _name: str, weights: Tensor, _call: tuple) -> Map:
    return Map(tuple(weights.shape[-1:]), 1.0, weights, lambda some: some[0])


def _graph(_model, _name: str, weights: Tensor, call: tuple) -> Map:
    """Squares (1 h n n) or pairs along edges (P h), see zoo.core.pairs."""
    x, pairs, *_ = call[1]
    n, listed = len(x), torch.stack([pairs.query, pairs.key]).cpu()
    if not pairs.squares:
        return Map((n,), 1.0, rearrange(weights, "p h -> h 1 p"), lambda some: _scattered(some[:, 0], listed, n), listed)
    spot = pairs.spot.cpu()
    return Map((n,), 1.0, weights, lambda some: some[0][:, spot][:, :, spot])


def _layout(call: tuple) -> tuple[tuple[int, ...], object]:
    module, (x, *_) = call
    axes = tuple(x.shape[1:-1])
    return axes, module.pattern.layout(axes)


def _one(layout, weights: Tensor) -> Tensor:
    return layout.dense(weights)[0]


def _stage(name: str) -> int:
    return int(re.search(r"stages\.(\d+)\.", name)[1])


def _scattered(weights: Tensor, pairs: Tensor, n: int) -> Tensor:
    """(h P) -> (h n n), 0 where nobody looks."""
    full = weights.new_zeros(len(weights), n, n)
    full[:, pairs[0], pairs[1]] = weights
    return full


def _folded(model, weights: Tensor, layout) -> Map:
    """HTS-AT: a map ((k bins) t) of each piece of sound -> frames in time; bins of the query averaged, of the key summed.

    Pieces (the batch of the recorded weights) do not see each other.
    """
    from zoo.models.htsat import FOLD

    def dense(some: Tensor) -> Tensor:
        full = rearrange(layout.dense(some), "p h (k f t) (l g s) -> p h (k t) f (l s) g", k=FOLD, t=cols, l=FOLD, s=cols)
        full = full.sum(-1).mean(-2)
        return torch.stack([torch.block_diag(*pieces) for pieces in full.unbind(1)])

    cols = layout.axes[1]
    return Map((len(weights) * FOLD * cols,), model.frontend.seconds / (FOLD * cols), weights, dense)
