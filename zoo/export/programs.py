"""A model as programs on plain tensors: what torch.export is given, with axes of any length, and what it is tried on."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import ZooError
from zoo.export.dense import LEAST, DenseGraph, collated


@dataclass(frozen=True)
class Program:
    """`module(*tensors)` -> tensors called `outputs`.

    axes: of each input, {axis: name of its length}, in order; an axis without a name keeps its length. bounds: {name: (least,
    most)}. example(batch, seed) -> inputs, of other sizes for every seed.
    """

    name: str
    module: nn.Module
    axes: dict[str, dict[int, str]]
    outputs: tuple[str, ...]
    example: Callable[[int, int], tuple[Tensor, ...]]
    bounds: dict[str, tuple[int, int | None]] = field(default_factory=dict)


class Answers(nn.Module):
    """(tensors of forward_features) -> logits and unit vectors, from one pass; without a classifier the vectors alone."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = self.model.forward_features(*tensors)
        if self.model.card.modality == "text":
            found = found, tensors[1]
        vector = self.model.forward_head(*(found if isinstance(found, tuple) else (found,)), pre_logits=True)
        unit = F.normalize(vector, dim=-1)
        return (self.model.classifier(vector), unit) if self.model.num_classes else (unit,)


class Encoder(nn.Module):
    """One tower of a text-image model: "text" (ids, mask) or "image" (x) -> its tokens, unit vectors."""

    def __init__(self, model: nn.Module, side: str):
        super().__init__()
        self.model, self.side = _only(model, side, f"{side}_proj"), side

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        if self.side == "image":
            return self.model.encode_image(*tensors)
        states, vector = self.model.encode_text(*tensors)
        return states.masked_fill(~tensors[1].unsqueeze(-1), 0), vector  # what padding gets is undefined in the model


class Match(nn.Module):
    """Token states of b texts, their mask, tokens of b pictures -> match logits (b); sigmoid gives the probability."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = _only(model, "fusion")

    def forward(self, *tensors: Tensor) -> tuple[Tensor]:
        return (self.model.forward_match(*tensors),)


def _only(model: nn.Module, *parts: str) -> nn.Module:
    """The same model with the same weights, without its other parts: a program would store them all."""
    lean = copy.copy(model)
    lean._modules = {name: part for name, part in model._modules.items() if name in parts}
    return lean


def programs(model: nn.Module) -> list[Program]:
    """The programs of a model in eval mode: one, of a text-image model text, image and match. ZooError where there is none."""
    build = {"image": _image, "audio": _audio, "text": _text, "graph": _graph, "text_image": _pairs}
    if model.card.modality not in build:
        raise ZooError(f"{model.card.name or model.card.model}: a {model.card.modality} model has no program")
    found = build[model.card.modality](model.eval())
    return found if isinstance(found, list) else [found]


def _outputs(model: nn.Module) -> tuple[str, ...]:
    return ("logits", "vector") if model.num_classes else ("vector",)


def _image(model: nn.Module) -> Program:
    return Program("", Answers(model), {"x": _PICTURE}, _outputs(model), _pictures(model), _picture_bounds(model))


_PICTURE = {0: "batch", 2: "height", 3: "width"}
_TOKENS = {0: "batch", 1: "tokens"}


def _picture_bounds(model: nn.Module) -> dict:
    """torch takes a map of one token a side for a special case: the last stage has two, where a convolution looks at it."""
    least = _least(model) + 1 if any(isinstance(part, nn.Conv2d) and part.kernel_size[0] == 3 for part in model.modules()) else 1
    return {"height": (least, None), "width": (least, None)}


def _least(model: nn.Module) -> int:
    """Pixels of one token of the last stage."""
    return model.patch * 2 ** (len(model.stages) - 1)


def _pictures(model: nn.Module) -> Callable:
    channels = next(part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d))

    def example(batch: int, seed: int) -> tuple[Tensor]:
        draw = torch.Generator().manual_seed(seed)
        side = 3 * _least(model)
        return (torch.randn(batch, channels, side + 9 + 7 * seed, side + 21 - 4 * seed, generator=draw),)

    return example


def _audio(model: nn.Module) -> Program:
    axes = {"wave": {0: "batch", 1: "samples"}, "lengths": {0: "batch"}}
    rate = model.frontend.rate
    if hasattr(model.frontend, "samples"):  # clips of one piece; longer ones are cut before
        least, most = 2, model.frontend.samples
    else:
        least, most = model.frontend.hop * 2 ** len(model.stages) + 1, None

    def example(batch: int, seed: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        lengths = (torch.rand(batch, generator=draw) * rate).long() + 1
        lengths[0] = max(least, int(rate * (0.7 + 0.4 * seed)))
        wave = torch.randn(batch, int(lengths.max()), generator=draw) * 0.2
        return wave.masked_fill(torch.arange(wave.shape[1]) >= lengths[:, None], 0), lengths

    return Program("", Answers(model), axes, _outputs(model), example, {"samples": (least, most)})


def _text(model: nn.Module) -> Program:
    axes = {"ids": _TOKENS, "mask": _TOKENS}
    return Program("", Answers(model), axes, _outputs(model), _texts(model), {"tokens": (2, model.max_length)})


def _texts(model: nn.Module) -> Callable:
    def example(batch: int, seed: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        most = min(7 + 5 * seed, model.max_length - seed % 2)
        ids = torch.randint(model.token.num_embeddings, (batch, most), generator=draw)
        ends = torch.randint(1, most + 1, (batch,), generator=draw)
        ends[0] = most
        return ids, torch.arange(most) < ends[:, None]

    return example


def _graph(model: nn.Module) -> Program:
    module = DenseGraph(model)

    def example(batch: int, seed: int) -> tuple[Tensor, ...]:
        return collated(module, [_random_graph(model, 5 + 3 * i + seed, 10 * seed + i) for i in range(batch)])

    return Program("", module, module.axes, ("logits", "vector"), example, {"nodes": (LEAST, None)})


def _random_graph(model: nn.Module, n: int, seed: int):
    """A path of n nodes with some more edges, both ways unless directed; columns as the model's, unknown values too."""
    from types import SimpleNamespace

    draw = torch.Generator().manual_seed(seed)
    some = torch.rand(n, n, generator=draw) < 1.5 / n
    a = (some | torch.diag(torch.ones(n - 1, dtype=torch.bool), 1)).fill_diagonal_(False)
    edge_index = (a if model.directed else a | a.T).nonzero().T
    columns = {}
    for kind, rows in (("x", n), ("edge", edge_index.shape[1])):
        columns[f"{kind}_cat"] = torch.randint(0, 3, (rows, model.schema[f"{kind}_cat"]), generator=draw)
        columns[f"{kind}_float"] = torch.rand(rows, model.schema[f"{kind}_float"], generator=draw)
    return SimpleNamespace(edge_index=edge_index, **columns)


def _pairs(model: nn.Module) -> list[Program]:
    texts, pictures = _texts(model.text), _pictures(model.image)

    def matched(batch: int, seed: int) -> tuple[Tensor, ...]:
        ids, mask = texts(batch, seed)
        with torch.no_grad():
            states = model.text_states(ids, mask)
            tokens, _ = model.encode_image(*pictures(batch, seed))
        return states, mask, tokens

    match_axes = {"text_tokens": _TOKENS, "mask": _TOKENS, "image_tokens": {0: "batch", 1: "patches"}}
    return [
        Program("text", Encoder(model, "text"), {"ids": _TOKENS, "mask": _TOKENS}, ("text_tokens", "vector"), texts,
                {"tokens": (2, model.text.max_length)}),
        Program("image", Encoder(model, "image"), {"x": _PICTURE}, ("image_tokens", "vector"), pictures,
                _picture_bounds(model.image)),
        Program("match", Match(model), match_axes, ("match",), matched, {"tokens": (2, None), "patches": (2, None)}),
    ]
