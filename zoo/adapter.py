"""An adapter: a checkpoint that holds thin matrices (LoRA) and what else was trained, and names the checkpoint it goes on.

In the file `NAME.weight.lora_a` (rank in) and `NAME.weight.lora_b` (out rank) stand for NAME.weight of the base plus their
product; other tensors stand for themselves; what is missing is the base's.
"""

import json
from pathlib import Path

from zoo import checkpoint
from zoo.errors import ZooError

A, B = ".lora_a", ".lora_b"


def save(model, file: Path, base: str, plain: dict, thin: dict) -> Path:
    """Writes the adapter: `thin`, and of `plain` (names of the model -> tensors) what the base (empty: none) does not have so."""
    found = checkpoint.locate(base) if base else None
    known = checkpoint.tensors(found) if found else {}
    changed = {name: tensor for name, tensor in plain.items()
               if name not in known or known[name].shape != tensor.shape or not known[name].equal(tensor.cpu())}
    about = {"base": base, "sha256": checkpoint.sha256(found) if found else ""}
    return checkpoint.save(model, file, {**changed, **thin}, {"adapter": json.dumps(about)})


def whole(file: Path, about: str, found: dict, own: dict) -> dict:
    """All tensors of the model that the adapter `file` makes of its base. `own`: the model's, where the base has none (a tower).

    ZooError where the base is missing, or another file by now.
    """
    try:
        settings = json.loads(about)
        name, expected = settings["base"], settings["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ZooError(f"{file}: an adapter that does not say what it goes on ({error})") from error
    base = {}
    if name:
        place = _locate(file, name)
        digest = checkpoint.sha256(place)
        if digest != expected:
            raise ZooError(f"{file}: an adapter of {name} with sha256 {expected}\n"
                           f"{place} has {digest}: bring the file it was made on")
        base = checkpoint.tensors(place, own)
    return with_products({**own, **base, **found}, {**base, **found}.keys())


def with_products(tensors: dict, wanted) -> dict:
    """`wanted` of the tensors, W + B A where there are thin matrices of W; these are gone."""
    done = {name: tensors[name] for name in wanted if not name.endswith((A, B))}
    for name in tensors:
        if name.endswith(A):
            weight = name.removesuffix(A)
            done[weight] = tensors[weight] + tensors[weight + B] @ tensors[name]
    return done


def _locate(file: Path, name: str) -> Path:
    """The base: beside the adapter under its own name, or where it was."""
    beside = file.parent / f"{Path(name).name.removesuffix('.safetensors')}.safetensors"
    if beside.is_file() and beside != file:
        return beside
    try:
        return checkpoint.locate(name)
    except ZooError as error:
        raise ZooError(f"{file}: an adapter of {name}, which is not here: put it there as {beside}") from error
