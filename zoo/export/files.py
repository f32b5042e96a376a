"""`zoo export`: a loaded model -> files on disk, each tried against the model before it gets its name."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from zoo import checkpoint
from zoo.card import Card
from zoo.errors import UsageError, ZooError
from zoo.export import folder, onnx
from zoo.export.programs import Program, programs
from zoo.export.trace import TRIALS, beside, first_line, largest_difference, need_same, quiet, trace

SUFFIX = {"torch": ".pt2", "onnx": ".onnx"}
_ANSWER = {"label": "softmax(logits): probabilities of `labels`", "tags": "sigmoid(logits): probability of each of `labels`",
           "values": "logits * std + mean: `targets` in their units", "links": "sigmoid(logits)"}


@dataclass(frozen=True)
class Written:
    """difference: the largest from the model, on inputs of other sizes than were traced, and `facts` as JSON; None of others."""

    file: Path
    difference: float | None = None
    facts: str | None = None

    @property
    def bytes(self) -> int:
        return self.file.stat().st_size


def export(model, to: str, out: Path, int8: bool = False) -> list[Written]:
    """Writes `model` (zoo.load) in the form `to`, "torch", "onnx" or "hf"; beside each program FILE.json says how to use it.

    out: a file; of a text-image model, and of "hf", a folder. int8 ("onnx"): also NAME.int8.onnx. UsageError for a wrong
    combination; ZooError where a program cannot be made or answers otherwise than the model: then it is not written.
    """
    if to not in (*SUFFIX, "hf"):
        raise UsageError(f"--to {to}: expected torch, onnx or hf")
    if int8 and to != "onnx":
        raise UsageError(f"--int8 goes with --to onnx, not with --to {to}")
    if to == "hf":
        return [Written(file) for file in folder.write(model, out)]
    places = _places(model, to, out)
    if to == "onnx":
        onnx.need()
    model = model.cpu().eval()
    written = []
    with ExitStack() as stack:  # files get their names at its end: all of them, or none
        for program in programs(model):
            text = json.dumps(facts(model.card, program), ensure_ascii=False, indent=2)
            found = _torch if to == "torch" else partial(_onnx, int8=int8)
            written += found(program, places[program.name], text, lambda file: stack.enter_context(beside(file)))
    for part in written:
        checkpoint.write(part.file.with_name(f"{part.file.name}.json"), f"{part.facts}\n".encode())
    return written


def _places(model, to: str, out: Path) -> dict[str, Path]:
    """Program name -> file. UsageError where `out` is not called as the form wants it."""
    suffix = SUFFIX[to]
    if model.card.modality == "text_image":
        if out.suffix == suffix or out.is_file():
            raise UsageError(f"--out {out}: a text-image model is three programs; give a folder")
        return {name: out / f"{name}{suffix}" for name in ("text", "image", "match")}
    if out.suffix != suffix or out.is_dir():
        raise UsageError(f"--out {out}: expected a file name that ends in {suffix}")
    return {"": out}


def _torch(program: Program, file: Path, text: str, place: Callable[[Path], Path]) -> list[Written]:
    """place(file) -> the name to write to for now."""
    temporary = place(file)
    with quiet():
        torch.export.save(trace(program), temporary, extra_files={"zoo.json": text})
    difference = _compared(program, lambda: _loaded(temporary))
    need_same(program, difference, "torch.export")
    return [Written(file, difference, text)]


def _loaded(file: Path) -> Callable:
    with quiet():
        again = torch.export.load(file).module()
    return lambda inputs: again(*inputs)


def _onnx(program: Program, file: Path, text: str, place: Callable[[Path], Path], int8: bool) -> list[Written]:
    whole = place(file)
    onnx.write(program, trace(program), whole, {"zoo": text})
    difference = _compared(program, lambda: onnx.runner(whole))
    need_same(program, difference, "ONNX")
    if not int8:
        return [Written(file, difference, text)]
    small = file.with_name(f"{file.stem}.int8{file.suffix}")
    temporary = place(small)
    onnx.shrink(whole, temporary)
    return [Written(file, difference, text), Written(small, _compared(program, lambda: onnx.runner(temporary)), text)]


def _compared(program: Program, load: Callable) -> float:
    """load() -> what runs the written program."""
    try:
        return largest_difference(program, load())
    except Exception as error:  # a runtime that cannot run what was written
        raise ZooError(f"the program that was written does not run: {first_line(error)}; nothing was kept") from error


def facts(card: Card, program: Program) -> dict:
    """What a user of a program needs to know: names, axes, what the numbers mean, preprocessing, where it comes from."""
    inputs = [{"name": name, "dtype": str(tensor.dtype).removeprefix("torch."),
               "axes": [axes.get(i, size) for i, size in enumerate(tensor.shape)]}
              for (name, axes), tensor in zip(program.axes.items(), program.example(*TRIALS[0]), strict=True)]
    told = {"model": card.name or card.model, "modality": card.modality, "inputs": inputs, "outputs": list(program.outputs),
            "bounds": {name: [least, most] for name, (least, most) in program.bounds.items()}}
    if card.labels or card.targets:
        told |= {"answer": _ANSWER[card.head], "labels": card.labels, "targets": card.targets}
    return {**told, "preprocess": card.preprocess, "data": card.data, "licence": card.licence, "sha256": card.sha256,
            "zoo": card.zoo}
