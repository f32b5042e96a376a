"""The model of text-image training: from scratch, from a checkpoint, or with the image tower of one."""

from torch import Tensor, nn

import zoo
from zoo import checkpoint, pairs
from zoo.errors import UsageError, ZooError
from zoo.train import adapt, lora, states
from zoo.train.recipe import Recipe
from zoo.train.sets import Sets, image_card, start_card


def make(recipe: Recipe, data: Sets) -> tuple[nn.Module, list[str]]:
    """The model and the lines that say what was loaded. UsageError where keys of the recipe do not go together."""
    if recipe.start and recipe.image_start:
        raise UsageError(f"image_start: {recipe.image_start}; start: {recipe.start} brings an image tower too, give one of them")
    model = zoo.create_model(recipe.model, **arguments(recipe))
    if not model.tower:
        raise UsageError("arguments: tower is none; text_image_contrastive starts from a text tower, leave it as it is")
    pairs.set_preprocess(model, {**model.card.preprocess, "image": data.preprocess.to_dict()})
    if recipe.start:
        model.card.towers = start_card(recipe).towers  # it may have trained blocks of the text tower, and stored them
        return model, adapt.load_start(model, recipe.start, new=())
    lines = [f"model   {recipe.model}, from scratch; text tower {model.tower}"]
    return model, lines + (load_image(model, recipe.image_start) if recipe.image_start else [])


def arguments(recipe: Recipe) -> dict:
    """Constructor arguments: of the checkpoint, the recipe's on top. Those of an image tower to start from are a base that
    `arguments: {image: {...}}` changes key by key (a coarser patch, another drop_path), as far as the weights still fit.
    """
    known = start_card(recipe).arguments if recipe.start else {}
    given = dict(recipe.arguments)
    if recipe.image_start:
        base = image_card(recipe).arguments
        base = base.get("image", base)  # of a text-image checkpoint: its image tower
        given["image"] = {**base, "num_classes": 0, **given.get("image", {})}
    return {**known, **given}


def live(recipe: Recipe, model: nn.Module) -> int | None:
    """The lowest block of the text tower that learns (unfreeze_from, or LoRA in it); None: the tower is frozen whole.

    Weights from there on are set to learn, and stored: the card names only what lies below as the tower's own.
    """
    blocks = len(model.text.blocks)
    if not recipe.unfreeze_from < blocks:
        raise UsageError(f"unfreeze_from: {recipe.unfreeze_from}; the text tower has blocks 0 to {blocks - 1} (-1: none learns)")
    adapted = lora.text_blocks(recipe, blocks)
    unfrozen = [recipe.unfreeze_from] if recipe.unfreeze_from >= 0 else []
    if unfrozen:
        model.text.blocks[recipe.unfreeze_from :].requires_grad_(True)
    changed = unfrozen + (adapted if recipe.lora_merge else [])
    own(model, min(changed, default=None))
    return min(unfrozen + adapted, default=None)


def own(model: nn.Module, first: int | None) -> None:
    """Blocks of the text tower from `first` on are stored with the model; those that the card stores already still are."""
    tower, blocks = next(iter(model.card.towers.values())), len(model.text.blocks)
    below = blocks if first is None else first
    stored = [i for i in range(blocks) if f"text.blocks.{i}." not in model.card.towers and "text." not in model.card.towers]
    below = min([below, *stored])
    if below < blocks:
        parts = ["token.", "position.", "segment.", "norm.", *(f"blocks.{i}." for i in range(below))]
        model.card.towers = {f"text.{part}": tower for part in parts}


def sentences(model: nn.Module, kept: states.States, first: int | None) -> Tensor:
    """Unit sentence vectors (captions dim) of the whole tower as it is before training, in the order of kept.rows."""
    whole = kept if first is None else states.keep(model, list(kept.rows))[0]
    return states.sentences(whole, list(kept.rows))


def load_image(model: nn.Module, source: str) -> list[str]:
    """Fills model.image from an image checkpoint, or from the image tower of a text-image one. ZooError: what does not fit."""
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    prefix = "image." if card.modality == "text_image" else ""
    found = {name.removeprefix(prefix): tensor for name, tensor in checkpoint.tensors(file).items()
             if name.startswith(prefix) and not name.startswith("classifier.")}
    expected = model.image.state_dict()
    rows = [(f"image.{name}", _shape(expected.get(name)), _shape(found.get(name))) for name in sorted({*expected, *found})
            if _shape(expected.get(name)) != _shape(found.get(name))]
    if rows:
        raise ZooError(f"image_start: {file}: {len(rows)} tensors do not match; leave arguments.image as the checkpoint has it\n"
                       + checkpoint.table(rows))
    model.image.load_state_dict(found)
    model.card.parents = {card.name or str(source): checkpoint.sha256(file)}
    return [f"        image tower: {len(found)} of {len(expected)} tensors from {source} (its classifier is left out)"]


def _shape(tensor) -> str:
    return "-" if tensor is None else "x".join(map(str, tensor.shape)) or "scalar"
