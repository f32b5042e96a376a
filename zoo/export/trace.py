"""A program -> torch.export's graph with axes of any length, and its comparison with the model on fresh inputs."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from zoo.errors import ZooError
from zoo.export.programs import Program

TOLERANCE = 1e-4  # of the largest number of an output, or of 1
TRIALS = ((2, 0), (1, 1), (3, 2))  # batch and seed of the inputs a program is tried on; of other sizes than the first, EXAMPLE
EXAMPLE = (2, 3)


def trace(program: Program) -> torch.export.ExportedProgram:
    """ZooError where torch cannot follow the model."""
    shapes = []
    for tensor_axes in program.axes.values():
        shapes.append({axis: _dim(name, *program.bounds.get(name, (1, None))) for axis, name in tensor_axes.items()})
    try:
        with any_length():
            return torch.export.export(program.module, program.example(*EXAMPLE), dynamic_shapes=(tuple(shapes),),
                                       prefer_deferred_runtime_asserts_over_guards=True)
    except Exception as error:  # torch raises whatever it trips over
        raise ZooError(f"torch.export cannot follow this model{_of(program)}: {first_line(error)}\n"
                       "take --to hf and zoo.load instead") from error


def _dim(name: str, least: int, most: int | None):
    return torch.export.Dim(name, min=least, max=most)


def largest_difference(program: Program, run: Callable) -> float:
    """Of `run(inputs) -> outputs` from the module itself, over inputs of sizes that were not traced.

    Relative to the largest number of an output where that is above 1. Not finite where the outputs are not.
    """
    worst = 0.0
    for batch, seed in TRIALS:
        inputs = program.example(batch, seed)
        with torch.no_grad():
            expected, found = program.module(*inputs), run(inputs)
        for ours, theirs in zip(expected, found, strict=True):
            if ours.shape != theirs.shape:
                return float("inf")
            difference = (ours - theirs).abs().max() / ours.abs().max().clamp(min=1)
            worst = max(worst, float(difference.nan_to_num(float("inf"))))
    return worst


def need_same(program: Program, difference: float, what: str) -> None:
    """ZooError where a written program answers otherwise than the model."""
    if not difference <= TOLERANCE:
        raise ZooError(f"the {what} program{_of(program)} differs from the model by {difference:.1e} (allowed: {TOLERANCE:.0e}); "
                       "nothing was written\ntake --to hf and zoo.load instead, and report this with the versions of zoo check")


@contextmanager
def beside(file: Path) -> Iterator[Path]:
    """A temporary name beside `file`, which becomes `file` at the end, or goes where anything fails. ZooError as well."""
    temporary = file.with_name(f".{os.getpid()}.{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, file)
    except OSError as error:
        raise ZooError(f"{file}: could not be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def any_length() -> Iterator[None]:
    """No gradients, and no branch on whether a length is 1; see zoo.core.patterns.SymbolicLayout."""
    with torch.no_grad(), quiet(), torch.fx.experimental._config.patch(backed_size_oblivious=True):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Without what exporters say about themselves."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def first_line(error: BaseException) -> str:
    """Of what it was at bottom: exporters wrap it in advice about themselves."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {next((line for line in str(error).splitlines() if line.strip()), 'no reason given')[:200]}"


def _of(program: Program) -> str:
    return f" ({program.name})" if program.name else ""
