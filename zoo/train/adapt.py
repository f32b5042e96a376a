"""The model of a run: from scratch or from a checkpoint, with what is new, frozen or rescaled said plainly."""

from difflib import get_close_matches
from pathlib import Path

import torch

import zoo
from zoo import checkpoint, inference
from zoo.errors import UsageError, ZooError
from zoo.train import balance, lora, sound
from zoo.train.recipe import TASKS, Recipe
from zoo.train.sets import Sets, start_card
from zoo.train.task import Classify, Tag, Task


def build(recipe: Recipe, data: Sets) -> tuple[Task, list[str]]:
    """The task of a recipe, ready to train, and the lines that say what was loaded."""
    from timm.optim import list_optimizers

    task, lines = _maker(recipe.task)(recipe, data)
    card = task.model.card
    card.name, card.licence, card.data = recipe.name, recipe.licence, recipe.about
    places = {key: Path(getattr(recipe, key)).name for key in ("data", "teacher")}
    card.recipe = {**recipe.to_dict(), **places}  # where they lay on this machine is nobody's business
    task.model.set_grad_checkpointing(recipe.checkpoint_blocks)
    frozen = [name for name, _ in task.model.named_parameters() if name.startswith(tuple(recipe.freeze)) and recipe.freeze]
    for name in frozen:
        task.model.get_parameter(name).requires_grad_(False)
    if recipe.freeze and not frozen:
        known = ", ".join(dict.fromkeys(name.split(".")[0] for name, _ in task.model.named_parameters()))
        raise UsageError(f"freeze: no parameter begins with {', '.join(recipe.freeze)}; there are {known}")
    if not any(p.requires_grad for p in task.model.parameters()):
        raise UsageError(f"freeze: {', '.join(recipe.freeze)} leaves nothing to train")
    if recipe.lora:
        lines += lora.attach(task.model, recipe)
    if recipe.optimizer not in list_optimizers():
        near = get_close_matches(recipe.optimizer, list_optimizers(), n=3)
        raise UsageError(f"optimizer: {recipe.optimizer!r} is none of timm's; did you mean {', '.join(near) or 'adamw'}?")
    learn = sum(p.numel() for p in task.model.parameters() if p.requires_grad)
    lines.append(f"learns  {learn / 1e6:.2f} M parameters" + (f", {len(frozen)} tensors frozen" if frozen else ""))
    return task, lines


def _maker(task: str):
    """The function (recipe, data) -> (Task, lines) of a task."""
    if task == "text_image_contrastive":
        from zoo.train import contrast

        return contrast.build
    if TASKS[task] == "graph":
        from zoo.train import graphs

        return graphs.build
    return _classifier


def _classifier(recipe: Recipe, data: Sets) -> tuple[Task, list[str]]:
    labels = data.train.classes
    tags = recipe.task == "audio_tagging"
    if len(labels) < 2 and not tags:
        raise ZooError(f"{recipe.data}: one class only ({labels[0]}); a classifier needs two or more sub-folders or labels")
    known = start_card(recipe).arguments if recipe.start else {}
    model = zoo.create_model(recipe.model, **{**known, **recipe.arguments, "num_classes": len(labels)})
    model.card.labels, model.card.head = list(labels), "tags" if tags else "label"
    inference.set_preprocess(model, data.preprocess.to_dict())
    lines = [f"model   {recipe.model}, from scratch"]
    if recipe.start:
        lines = load_start(model, recipe.start, new=("classifier",))
    if model.card.modality == "audio":
        sound.prepare(model, recipe, data)
    if tags:
        present = torch.zeros(len(data.train), len(labels))
        for row, own in zip(present, data.train.tags):
            row[own] = 1
        weights = balance.tag_weights(recipe, present)
    else:
        weights = balance.class_weights(recipe, data.train.labels, len(labels))
    if recipe.teacher:
        from zoo.train import distill

        task, told = distill.build(model, recipe, weights)
        return task, lines + told
    return (Tag if tags else Classify)(model, recipe, weights), lines


def load_start(model, source: str, new: tuple[str, ...]) -> list[str]:
    """Loads the weights of a checkpoint; a head for other labels stays new and is said so."""
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    labelled = model.card.labels is not None  # else numbers: a head for as many is kept
    if labelled and card.labels == model.card.labels:
        new = ()
    fresh = checkpoint.load_weights(model, file, new)
    if labelled and new and not fresh:  # as many classes, but other ones
        model.reset_classifier(len(model.card.labels))
        fresh = [("classifier.weight", "new", "of other labels")]
    total = len(model.state_dict())
    model.card.parents = {card.name or str(source): checkpoint.sha256(file)}
    lines = [f"model   {total - len(fresh)} of {total} tensors from {source}"]
    return lines + [f"        {key}  new  {there} -> {here} (labels differ)" for key, here, there in fresh]
