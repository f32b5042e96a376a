"""`manifest.json` of an index: which model made the vectors, and the refusal of every other one."""

import hashlib
import json
import os
import shlex
from datetime import datetime, timezone
from pathlib import Path

from zoo.errors import ZooError
from zoo.retrieval.files import write_atomic

MANIFEST = "manifest.json"
FORMAT = 1


def identity(model) -> dict:
    """What must agree between an index and a model: name, sha256 of the weights, preprocessing."""
    card = model.card
    return {
        "model": card.name or card.model,
        "sha256": card.sha256 or _weights_hash(model),
        "preprocess": _plain(card.preprocess),
    }


def reference(model) -> str:
    """What to give `zoo.load`, from any folder, to get a model that was given loaded, by name or by file."""
    if isinstance(model, (str, os.PathLike)):
        return os.path.abspath(model) if os.path.exists(model) else str(model)
    return model.card.name or model.card.model


def _weights_hash(model) -> str:
    """A model that was never saved is known by its values."""
    digest = hashlib.sha256()
    for name, tensor in getattr(model, "state_dict", dict)().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(dtype=_byte()).numpy())
    return digest.hexdigest()


def _byte():
    import torch

    return torch.uint8


def _plain(value):
    return json.loads(json.dumps(value))


def refuse_other(path: Path, manifest: dict, other: dict, load: str) -> None:
    """Raise ZooError with the command that rebuilds, unless `other` (see `identity`) made the index.

    load: how to load that other model (see `reference`).
    """
    mine = {name: manifest[name] for name in other}
    if mine == other:
        return
    source, model = shlex.quote(manifest["source"] or "SOURCE"), shlex.quote(load)
    note = " (same weights, other preprocessing)" if mine["sha256"] == other["sha256"] else ""
    raise ZooError(
        f"{path} was built with {_described(mine)}, not with {_described(other)}{note}; "
        "their vectors cannot be compared\n"
        f"rebuild it with: zoo index build {shlex.quote(str(path))} {source} --model {model} --rebuild"
    )


def _described(model: dict) -> str:
    return f"{model['model']} (sha256 {model['sha256'][:12] or 'none'})"


def create_manifest(path: Path, model: dict, load: str, dim: int, source: str | None, folder: str) -> None:
    """The first manifest. model: see `identity`; load: see `reference`; folder: that of the rows."""
    store = {"kind": "numpy", "folder": folder}
    manifest = {"format": FORMAT, **model, "load": load, "metric": "cosine", "dim": dim, "source": source}
    write_manifest(path, manifest | {"store": store, "unreadable": [], "created": _now()})


def read_manifest(path: Path) -> dict:
    """Raises ZooError where `path` holds no index, a damaged one, or one of a newer format."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
        version = manifest["format"]
    except (FileNotFoundError, NotADirectoryError):
        command = f"zoo index build {shlex.quote(str(path))} FOLDER_OR_TABLE"
        raise ZooError(f"{path}: no index here; make one with: {command}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ZooError(f"{file}: damaged ({error}); remove the folder and build the index again") from error
    if version != FORMAT:
        raise ZooError(f"{file}: format {version}; this zoo reads format {FORMAT}")
    return manifest


def write_manifest(path: Path, manifest: dict) -> None:
    manifest["updated"] = _now()
    write_atomic(path / MANIFEST, json.dumps(manifest, indent=1).encode())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
