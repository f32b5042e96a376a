"""A small model learns a large one's answers and attention maps.

    loss = (1 - a) CE(student, label) + a T^2 KL(teacher / T, student / T) + b mean over layers KL(teacher's map, student's map)

a: teacher_share, T: temperature, b: map_weight of the recipe. The teacher is frozen, in eval mode, sees the very batch that the
student sees (crops, mixup, masks on the spectrogram) and is never stored. Sources: Hinton et al. 2015, sec. 2;
Wang et al. 2020 (MiniLM) and Jiao et al. 2020 (TinyBERT) for the maps; Beyer et al. 2022 (both see the same view).
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zoo
from zoo import checkpoint
from zoo.card import Card
from zoo.errors import UsageError, ZooError
from zoo.train.attention_maps import Look, attentions, difference, look, matched
from zoo.train.recipe import Recipe
from zoo.train.task import Classify


class Teacher:
    """A frozen model from a checkpoint. No nn.Module: nothing of it gets into the student's states, modes or averages.

    `model` draws its masks on the spectrogram as `student` does.
    """

    def __init__(self, model: nn.Module, student: nn.Module):
        self.model, self.card = model.eval().requires_grad_(False), model.card
        if getattr(student, "augment", None) is not None:
            # the outermost flag alone: masks are on, drop path is off and batch norms take their stored statistics
            model.augment, model.training = student.augment, True

    def __deepcopy__(self, _memo) -> "Teacher":
        """The moving average copies the whole task."""
        return self

    @torch.no_grad()
    def look(self, inputs: list[Tensor], layers: list[int]) -> tuple[Tensor, list[Look]]:
        """Logits and maps. What it draws is what the student draws next: the random state stays."""
        x = inputs[0]
        self.model.to(x.device)
        with torch.random.fork_rng([x.device] if x.is_cuda else []):
            return look(self.model, inputs, layers)


class Distill(Classify):
    """Classification with a teacher; the score is the accuracy on the labels. Batches are those of Classify."""

    def __init__(self, model: nn.Module, recipe: Recipe, class_weights: Tensor | None, teacher: Teacher):
        super().__init__(model, recipe, class_weights)
        self.teacher = teacher
        counts = len(attentions(model)), len(attentions(teacher.model))
        self.pairs = matched(*counts, recipe.map_layers) if recipe.map_weight else []

    def learn(self, inputs: list[Tensor], label: Tensor) -> Tensor:
        r = self.recipe
        mine, theirs = ([pair[side] for pair in self.pairs] for side in (0, 1))
        wanted, examples = self.teacher.look(inputs, theirs)
        logits, maps = look(self.model, inputs, mine)
        loss = (1 - r.teacher_share) * self.loss(logits.float(), label)
        loss = loss + r.teacher_share * answers(logits.float(), wanted.float(), r.temperature)
        return loss + r.map_weight * sum(map(difference, maps, examples)) / max(1, len(maps))

    def on_save_checkpoint(self, state: dict) -> None:
        state["teacher"] = self.teacher.card.sha256

    def on_load_checkpoint(self, state: dict) -> None:
        if state["teacher"] != self.teacher.card.sha256:
            raise ZooError(f"teacher: {self.recipe.teacher} is another file than when this run began (its sha256 differs), "
                           "so the run cannot go on exactly; bring the old one, or start anew")


def answers(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher / T, student / T) of logits (b classes), mean over the batch. Source: Hinton et al. 2015, sec. 2.1."""
    mine, theirs = (F.log_softmax(logits / temperature, dim=-1) for logits in (student, teacher))
    return temperature**2 * F.kl_div(mine, theirs, reduction="batchmean", log_target=True)


def build(model: nn.Module, recipe: Recipe, class_weights: Tensor | None) -> tuple[Distill, list[str]]:
    """The task of a recipe with a teacher, around `model`, and the lines that say who teaches what."""
    file = checkpoint.locate(recipe.teacher)
    card = checkpoint.read_card(file)
    if problem := misfit(card, model.card):
        raise UsageError(f"teacher: {recipe.teacher} {problem}")
    if recipe.checkpoint_blocks:
        raise UsageError("checkpoint_blocks: blocks that are run again give no attention maps; leave it out with a teacher")
    task = Distill(model, recipe, class_weights, Teacher(zoo.load(file), model))
    card = task.teacher.card
    model.card.parents = {**model.card.parents, card.name or Path(recipe.teacher).name: card.sha256}
    layers = f"maps of {len(task.pairs)} layer{'s' * (len(task.pairs) > 1)} and answers" if task.pairs else "answers"
    return task, [f"teacher {recipe.teacher}, {card.model} of {card.parameters / 1e6:.2f} M parameters: {layers}"]


def misfit(teacher: Card, student: Card) -> str:
    """Why `teacher` cannot teach `student`; empty where it can."""
    if teacher.modality != student.modality:
        return f"is of modality {teacher.modality}, the recipe's model {student.model} of {student.modality}"
    if teacher.head != student.head or teacher.labels is None:
        return "is no classifier of one label each"
    if teacher.labels != student.labels:
        here, there = set(student.labels), set(teacher.labels)
        sides = {"only in data": here - there, "only in the teacher": there - here}
        told = "  ".join(f"{side}: {_few(names)}" for side, names in sides.items() if names)
        return f"knows other labels.  {told or 'the same in another order'}"
    keys = sorted(teacher.preprocess.keys() | student.preprocess.keys())
    other = [key for key in keys if teacher.preprocess.get(key) != student.preprocess.get(key)]
    if other:
        told = ", ".join(f"{key} {teacher.preprocess.get(key)} (here {student.preprocess.get(key)})" for key in other)
        where = "--arguments '{rate: ...}'" if other == ["rate"] else "--preprocess"
        return f"wants another input: {told}; make them equal with {where}, or take another teacher"
    return ""


def _few(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (" ..." if len(names) > 5 else "")
