"""compile: true. torch.compile of what a task calls, in place: names of weights, checkpoints and averages stay as they are."""

import os
import warnings
from shutil import which

import torch
from torch import nn

from zoo.errors import UsageError
from zoo.train.recipe import Recipe

LIMIT = 64  # variants of one piece of code: stages differ in width, training from validation; torch would give up at 8
HARMLESS = ("The .grad attribute of a Tensor",  # dynamo looks at what passes between compiled parts
            "Torchinductor does not support code generation for complex")  # the spectrum of sounds runs as it is


def start(model: nn.Module, recipe: Recipe) -> list[str]:
    """Compiles `model` at its first batch where the recipe says so; the line about it. UsageError where that cannot be."""
    if not recipe.compile:
        return []
    if recipe.teacher:
        raise UsageError("compile: attention maps are read from layers as they run, one by one; leave it out with a teacher")
    if not (which(os.environ.get("CXX", "g++")) or which("clang++")):
        raise UsageError("compile: torch.compile needs a C++ compiler (g++), and there is none; install one, or compile: false")
    torch._dynamo.config.recompile_limit = max(LIMIT, torch._dynamo.config.recompile_limit)
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message=message)
    for part in parts(model):
        part.compile()
    return ["compile the first steps of training and of validation take a minute or more"]


def parts(model: nn.Module) -> list[nn.Module]:
    """What is compiled as one: the model; of a text-image model, whose task calls its parts, the largest of these; of a sound
    model the stages: torch 2.14 compiles neither spectra nor convolutions over lengths that it does not know."""
    if model.card.modality == "audio":
        return list(model.stages)
    if model.card.modality != "text_image":
        return [model]
    return [*model.image.stages, *getattr(model.text, "blocks", []), model.fusion, model.text_proj, model.image_proj]
