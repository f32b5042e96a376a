"""What a model can do with raw items (files, pictures, strings): preprocess, predict, embed; and how one is built or loaded."""

import os
from contextlib import contextmanager
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from zoo import budget, checkpoint, registry
from zoo.card import Card
from zoo.errors import ZooError
from zoo.preprocess import ImagePreprocess


def create(name: str, arguments: dict) -> nn.Module:
    """See zoo.create_model."""
    spec = registry.find(name)
    given = {key: list(value) if isinstance(value, tuple) else value for key, value in arguments.items()}
    model = registry.build(name, **arguments)
    card = Card(model=name, modality=spec.modality, arguments={**spec.arguments, **given}, preprocess=dict(spec.preprocess))
    if spec.modality == "audio":
        card.preprocess["rate"] = model.frontend.rate  # of the arguments: there is one truth
    return attach(model, card)


def load(source: str | os.PathLike) -> nn.Module:
    """See zoo.load."""
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    held = checkpoint.stored(file)
    try:
        with budget.within(2 * held + budget.SPARE, card.model, f"the file holds {held}"):
            model = registry.build(card.model, **card.arguments)
        _agree(card, registry.find(card.model), model)
        attach(model, card)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        why = f"{error}" if isinstance(error, ZooError) else f"{type(error).__name__}: {str(error)[:200]}"
        raise ZooError(f"{file}: the card does not give a model: {why}") from error
    checkpoint.load_weights(model, file)
    card.sha256 = checkpoint.sha256(file)
    checkpoint.verify(file, card.sha256)
    return model.eval()


def _agree(card: Card, spec: registry.Spec, model: nn.Module) -> None:
    """ZooError for a card whose modality or names do not fit its model: answers would be another's."""
    if card.modality != spec.modality:
        raise ZooError(f"modality is {card.modality!r}, but {card.model} is a {spec.modality} model")
    classes = getattr(model, "num_classes", 0)
    for key, names in (("labels", card.labels), ("targets", card.targets)):
        if names and classes and len(names) != classes:
            raise ZooError(f"{key} has {len(names)} names for {classes} logits")


def attach(model: nn.Module, card: Card) -> nn.Module:
    """Gives the model its card, preprocessing and the methods that take raw items."""
    model.card = card
    card.parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if card.modality == "text_image":
        from zoo import pairs

        pairs.attach(model, card)
        return model
    from zoo import answers

    set_preprocess(model, card.preprocess)
    model.predict = MethodType(answers.predict, model)
    model.embed = MethodType(embed, model)
    if card.modality == "audio":
        model.predict_frames = MethodType(answers.predict_frames, model)
    return model


def preprocessing(modality: str):
    """What builds the preprocessing of a modality from the plain values in a card. ZooError where they are of other kinds."""
    kind = _preprocess(modality)

    def made(settings: dict):
        try:
            return kind.from_dict(settings)
        except ZooError:
            raise
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:  # text for a number, a number for a list ...
            raise ZooError(f"preprocess: {str(error)[:200]} (in {str(settings)[:200]})") from error

    return made


def _preprocess(modality: str):
    if modality == "audio":
        from zoo.sound import SoundPreprocess

        return SoundPreprocess
    if modality == "graph":
        from zoo.schema import GraphPreprocess

        return GraphPreprocess
    if modality == "text":
        from zoo.tokens import TextPreprocess

        return TextPreprocess
    return ImagePreprocess


def set_preprocess(model: nn.Module, settings: dict) -> None:
    """Replaces the preprocessing, in the model and in its card. ZooError where a sound model hears another rate."""
    model.preprocess = preprocessing(model.card.modality)(settings)
    if model.card.modality == "audio" and model.preprocess.rate != model.frontend.rate:
        raise ZooError(f"preprocess: rate is {model.preprocess.rate}, but the model hears {model.frontend.rate}; "
                       f"set arguments: {{rate: {model.preprocess.rate}}} or leave preprocess.rate out")
    model.card.preprocess = model.preprocess.to_dict()


def inputs(model: nn.Module, prepared: list) -> tuple:
    """What `forward` takes, on the model's device, from what `preprocess` gave for each item of a batch."""
    device = next(model.parameters()).device
    if model.card.modality == "audio":
        lengths = torch.tensor([len(wave) for wave in prepared])
        return pad_sequence(prepared, batch_first=True).to(device), lengths.to(device)
    if model.card.modality == "text":
        return text_inputs(model, prepared)
    if model.card.modality == "graph":
        return (model.collate(prepared).to(device),)
    return (torch.stack(prepared).to(device),)


def text_inputs(model: nn.Module, prepared: list[Tensor]) -> tuple[Tensor, Tensor]:
    """ids (n) of each text -> ids (b n), padded at the end, and their mask (b n)."""
    real = [torch.ones(len(ids), dtype=torch.bool) for ids in prepared]
    device = next(model.parameters()).device
    return tuple(pad_sequence(part, batch_first=True).to(device) for part in (prepared, real))


def batches(model: nn.Module, items, batch_size: int, prepare=None):
    """(places, inputs of `forward`) of batches of raw items; `prepare` stands for model.preprocess.

    Sounds go by length, so that little of a batch is padding.
    """
    prepare = prepare or model.preprocess
    for start in range(0, len(items), batch_size):
        places = range(start, min(start + batch_size, len(items)))
        prepared = [prepare(items[i]) for i in places]
        if model.card.modality != "audio":
            yield list(places), inputs(model, prepared)
            continue
        order = sorted(range(len(prepared)), key=lambda i: len(prepared[i]))
        for part in _parts(order, [len(prepared[i]) for i in order]):
            yield [places[i] for i in part], inputs(model, [prepared[i] for i in part])


def _parts(order: list[int], lengths: list[int], room: int = 2**22):
    """Cuts `order` so that a padded batch holds at most `room` samples (4 minutes at 16 kHz), or one item."""
    start = 0
    for end, length in enumerate(lengths):
        if end > start and length * (end - start + 1) > room:
            yield order[start:end]
            start = end
    yield order[start:]


@contextmanager
def evaluating(model: nn.Module):
    """Eval mode and no gradients inside; the mode from before afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def several(items) -> list:
    """The items as a list. ZooError for a single string or path, whose letters would be taken for files."""
    if isinstance(items, (str, os.PathLike)):
        raise ZooError(f"expected a list of items, got one: {str(items)!r}; write [{str(items)!r}]")
    return list(items)


def embed(self: nn.Module, items, batch_size: int = 64) -> Tensor:
    """Unit vectors (n, dim), float32 on the CPU."""
    vectors = torch.zeros(len(items := several(items)), self.num_features)
    with evaluating(self):
        for places, x in batches(self, items, batch_size):
            vectors[places] = self.forward_embed(*x).float().cpu()
    return vectors
