"""The model of a run: from scratch or from a checkpoint, with what is new, frozen or rescaled said plainly."""

from difflib import get_close_matches
from pathlib import Path

import torch

import zoo
from zoo import checkpoint, inference
from zoo.errors import UsageError, ZooError
from zoo.train.recipe import Recipe
from zoo.train.sets import Sets, start_card
from zoo.train.task import Classify, Task


def build(recipe: Recipe, data: Sets) -> tuple[Task, list[str]]:
    """The task of a recipe, ready to train, and the lines that say what was loaded."""
    from timm.optim import list_optimizers

    make = {"image_classification": _classifier, "text_image_contrastive": _contrast}[recipe.task]
    task, lines = make(recipe, data)
    card = task.model.card
    card.name, card.licence, card.data = recipe.name, recipe.licence, recipe.about
    card.recipe = {**recipe.to_dict(), "data": Path(recipe.data).name}  # where it lay on this machine is nobody's business
    task.model.set_grad_checkpointing(recipe.checkpoint_blocks)
    frozen = [name for name, _ in task.model.named_parameters() if name.startswith(tuple(recipe.freeze)) and recipe.freeze]
    for name in frozen:
        task.model.get_parameter(name).requires_grad_(False)
    if recipe.freeze and not frozen:
        known = ", ".join(dict.fromkeys(name.split(".")[0] for name, _ in task.model.named_parameters()))
        raise UsageError(f"freeze: no parameter begins with {', '.join(recipe.freeze)}; there are {known}")
    if not any(p.requires_grad for p in task.model.parameters()):
        raise UsageError(f"freeze: {', '.join(recipe.freeze)} leaves nothing to train")
    if recipe.optimizer not in list_optimizers():
        near = get_close_matches(recipe.optimizer, list_optimizers(), n=3)
        raise UsageError(f"optimizer: {recipe.optimizer!r} is none of timm's; did you mean {', '.join(near) or 'adamw'}?")
    learn = sum(p.numel() for p in task.model.parameters() if p.requires_grad)
    lines.append(f"learns  {learn / 1e6:.2f} M parameters" + (f", {len(frozen)} tensors frozen" if frozen else ""))
    return task, lines


def _classifier(recipe: Recipe, data: Sets) -> tuple[Task, list[str]]:
    labels = data.train.classes
    if len(labels) < 2:
        raise ZooError(f"{recipe.data}: one class only ({labels[0]}); a classifier needs two or more sub-folders or labels")
    known = start_card(recipe).arguments if recipe.start else {}
    model = zoo.create_model(recipe.model, **{**known, **recipe.arguments, "num_classes": len(labels)})
    model.card.labels = list(labels)
    inference.set_preprocess(model, data.preprocess.to_dict())
    lines = [f"model   {recipe.model}, from scratch"]
    if recipe.start:
        lines = load_start(model, recipe.start, new=("classifier",))
    weights = None
    if recipe.balance == "weights":
        counts = torch.bincount(torch.tensor(data.train.labels), minlength=len(labels)).clamp(min=1)
        weights = counts.sum() / (len(labels) * counts.float())
    return Classify(model, recipe, weights), lines


def _contrast(recipe: Recipe, data: Sets) -> tuple[Task, list[str]]:
    from zoo.train import contrast

    return contrast.build(recipe, data)


def load_start(model, source: str, new: tuple[str, ...]) -> list[str]:
    """Loads the weights of a checkpoint; a head for other labels stays new and is said so."""
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    if card.labels == model.card.labels:
        new = ()
    fresh = checkpoint.load_weights(model, file, new)
    if new and not fresh:  # as many classes, but other ones
        model.reset_classifier(len(model.card.labels))
        fresh = [("classifier.weight", "new", "of other labels")]
    total = len(model.state_dict())
    model.card.parents = {card.name or str(source): checkpoint.sha256(file)}
    lines = [f"model   {total - len(fresh)} of {total} tensors from {source}"]
    return lines + [f"        {key}  new  {there} -> {here} (labels differ)" for key, here, there in fresh]
