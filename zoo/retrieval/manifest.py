"""`manifest.json` of an index: which model made the vectors, and the refusal of every other one."""

import hashlib
import json
import os
import shlex
from datetime import datetime, timezone

from zoo.errors import ZooError
from zoo.retrieval.place import Bucket, Folder

MANIFEST, NEXT = "manifest.json", "manifest.next.json"  # NEXT: of an index that is being built anew beside the old one
FORMAT = 1


def identity(model) -> dict:
    """What must agree between an index and a model: name, sha256 of the weights, preprocessing."""
    card = model.card
    return {
        "model": card.name or card.model,
        "sha256": card.sha256 or _weights_hash(model),
        "preprocess": _plain(card.preprocess),
    }


def made_by(manifest: dict) -> dict:
    """The same of an index; see `identity`."""
    return {name: manifest[name] for name in ("model", "sha256", "preprocess")}


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


def refuse_other(path, manifest: dict, other: dict, load: str) -> None:
    """Raise ZooError with the command that rebuilds, unless `other` (see `identity`) made the index.

    load: how to load that other model (see `reference`).
    """
    mine = made_by(manifest)
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


def new_manifest(model: dict, load: str, dim: int, source: str | None, store: dict) -> dict:
    """The first manifest. model: see `identity`; load: see `reference`; store: its kind and the folder of its rows.

    added: [{"path", "prefix"}] of sources beside `source`. excluded: keys that the user has taken out. doing: what is
    under way, or was when its process ended; None once all is done. left: see `left_on_servers`.
    """
    return {
        "format": FORMAT, **model, "load": load, "metric": "cosine", "dim": dim, "source": source, "added": [],
        "excluded": [], "store": store, "unreadable": [], "doing": None, "created": _now(),
    }  # fmt: skip


def read_manifest(place: Folder | Bucket, name: str = MANIFEST) -> dict:
    """Raises ZooError where `place` holds no index, a damaged one, or one of a newer format."""
    file = f"{place.path}/{name}"
    try:
        manifest = json.loads(place.read(name))
        version = manifest["format"]
    except (FileNotFoundError, NotADirectoryError):
        path = str(place.path)
        names = (f"{path.rstrip('/')}.index", path) if os.path.isdir(path) and os.listdir(path) else (path, "FOLDER_OR_TABLE")
        command = f"zoo index build {' '.join(map(shlex.quote, names))}"
        raise ZooError(f"{place.path}: no index here; make one with: {command}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ZooError(f"{file}: damaged ({error}); remove the folder and build the index again") from error
    if version != FORMAT:
        raise ZooError(f"{file}: format {version}; this zoo reads format {FORMAT}")
    return {"added": [], "excluded": [], "doing": None} | manifest  # those of older versions have none


def left_on_servers(place: Folder | Bucket) -> list[dict]:
    """The stores on servers that the manifests at `place` name: to be dropped once no manifest works with them."""
    found = [read_manifest(place, name) for name in (MANIFEST, NEXT) if place.has(name)]
    stores = [store for manifest in found for store in (manifest["store"], *manifest.get("left", ()))]
    return [store for i, store in enumerate(stores) if "server" in store and store not in stores[:i]]


def write_manifest(place: Folder | Bucket, manifest: dict, name: str = MANIFEST) -> None:
    manifest["updated"] = _now()
    place.write(name, json.dumps(manifest, indent=1).encode())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
