"""One safetensors file = a whole model: weights, and the Card in the header under the key `zoo`."""

import hashlib
import json
import os
import struct
from contextlib import suppress
from math import prod
from pathlib import Path

from zoo import registry
from zoo.card import Card
from zoo.errors import UsageError, ZooError

MAX_HEADER = 32 * 2**20  # bytes; ours are a few KB


def home() -> Path:
    """The user's folder for downloads and indexes: $ZOO_HOME, or ~/.cache/zoo."""
    return Path(os.environ.get("ZOO_HOME") or Path.home() / ".cache" / "zoo")


def folders() -> list[Path]:
    """Where names like `image_nano.cifar10` are looked up, in this order."""
    package = Path(__file__).parent
    repository = [package.parent / "checkpoints"] if (package.parent / "pyproject.toml").is_file() else []
    return [*repository, package / "_checkpoints", home() / "checkpoints"]


def shipped() -> dict[str, Path]:
    """All named checkpoints found: {name: file}."""
    found: dict[str, Path] = {}
    for folder in folders():
        for file in sorted(folder.glob("*.safetensors")):
            found.setdefault(file.stem, file)
    return found


def locate(source: str | os.PathLike) -> Path:
    """The file behind a name, a file or a run folder. UsageError says what was looked for."""
    path = Path(source)
    try:
        if path.is_file():
            return path
    except OSError as error:  # a name of thousands of letters
        raise UsageError(f"{str(source)[:80]}: no name of a file ({error.strerror})") from error
    if path.is_dir():
        for name in ("best.safetensors", "last.safetensors", "model.safetensors"):  # of a run; of zoo export --to hf
            if (path / name).is_file():
                return path / name
        found = "no best.safetensors in this folder, nor model.safetensors"
        raise ZooError(f"{path}: {found}; is it a run folder of zoo train, or one of zoo export?")
    known = shipped()
    if str(source) in known:
        return known[str(source)]
    from difflib import get_close_matches

    if str(source) in registry.names():
        raise UsageError(f"{source}: a model of the registry, without weights; train it, or take one of: {', '.join(known)}")
    near = get_close_matches(str(source), known, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"checkpoints at hand: {', '.join(known) or 'none'}"
    raise UsageError(f"{source}: no such checkpoint, file or run folder; {hint}")


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_header(file: Path) -> dict:
    """The JSON header of a safetensors file; the weights are not read. ZooError names the file."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            raise ZooError(f"{file}: no complete safetensors file (header of {length} bytes in a file of {size})")
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise ZooError(f"{file}: safetensors header is no JSON ({str(error)[:200]})") from error
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        raise ZooError(f"{file}: safetensors header is no JSON object, or its __metadata__ is none")
    return header


def stored(file: Path) -> int:
    """Numbers that a checkpoint holds, by its header alone; at most as many as its bytes."""
    shapes = [about.get("shape") for about in read_header(file).values() if isinstance(about, dict)]
    found = sum(prod(shape) for shape in shapes if isinstance(shape, list) and all(isinstance(n, int) for n in shape))
    return min(max(found, 0), file.stat().st_size)


def read_card(file: Path) -> Card:
    """The Card of a checkpoint, from its header alone."""
    text = read_header(file).get("__metadata__", {}).get("zoo")
    if not isinstance(text, str):
        raise ZooError(f"{file}: a safetensors file without a zoo card; see: zoo convert")
    return Card.from_json(text, str(file))


def save(model, file: str | os.PathLike, state: dict | None = None, about: dict[str, str] | None = None) -> Path:
    """Writes `model` (with its `card`) to `file`, in full or not at all; towers named in the card are left out.

    `state`: the tensors to write where they are others than model.state_dict(); `about`: more metadata (see zoo/adapter.py).
    """
    from safetensors.torch import save as to_bytes

    import zoo

    file, card = Path(file), model.card
    card.zoo = zoo.__version__
    if "num_classes" in card.arguments and card.arguments["num_classes"] != model.num_classes:  # after reset_classifier
        card.arguments, card.labels = {**card.arguments, "num_classes": model.num_classes}, None
    tensors, seen = {}, set()
    for name, tensor in (model.state_dict() if state is None else state).items():
        if state is None and name.startswith(tuple(card.towers)) or tensor.data_ptr() in seen and tensor.numel():
            continue  # frozen, or tied to one already stored
        seen.add(tensor.data_ptr())
        tensors[name] = tensor.detach().cpu().contiguous()
    write(file, to_bytes(tensors, metadata={"zoo": card.to_json(), **(about or {})}))
    return file


def write(file: Path, data: bytes) -> None:
    """Temporary file, fsync, rename: `file` is the old one or the whole new one. ZooError names it where that fails."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        with suppress(OSError):  # the folder may be what cannot be written
            temporary.unlink()
        kept = "; the file there before is kept" if file.exists() else ""
        raise ZooError(f"{file}: could not be written ({error.strerror or error}){kept}") from error


def replace_card(file: Path, card: Card) -> None:
    """The same weights under a changed card."""
    from safetensors.torch import load_file
    from safetensors.torch import save as to_bytes

    write(file, to_bytes(load_file(file), metadata={**read_header(file).get("__metadata__", {}), "zoo": card.to_json()}))


def verify(file: Path, digest: str) -> None:
    """ZooError where the index.json beside `file` lists it with another sha256 than `digest`."""
    table = file.with_name("index.json")
    if table.is_file():
        for row in json.loads(table.read_text(encoding="utf-8")):
            if row["file"] == file.name and row["sha256"] != digest:
                raise ZooError(f"{file}: sha256 {digest}\nindex.json beside it says {row['sha256']}: bring the file again")


def write_index(folder: Path) -> None:
    """index.json of a folder of checkpoints: file, bytes, sha256, licence of each."""
    rows = [{"file": file.name, "bytes": file.stat().st_size, "sha256": sha256(file), "licence": read_card(file).licence}
            for file in sorted(folder.glob("*.safetensors"))]
    write(folder / "index.json", (json.dumps(rows, indent=2, ensure_ascii=False) + "\n").encode())


def load_weights(model, file: Path, new: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """Fills `model` from `file`. Strict: tensors under a prefix in `new`, and only those, may be missing or of another shape.

    Returns rows (key, in the model, in the file) of what stays new. ZooError holds a table of what does not match.
    """
    expected = model.state_dict()
    found = tensors(file, expected)
    pointers = {}
    for key, tensor in expected.items():
        pointers.setdefault(tensor.data_ptr(), key)
    rows, fresh, towers = [], [], tuple(model.card.towers) if hasattr(model, "card") else ()
    for key in expected.keys() | found.keys():
        tied = key in expected and pointers[expected[key].data_ptr()] != key
        here, there = (_shape(tensors.get(key)) for tensors in (expected, found))
        if here == there or tied and there == "-" or towers and key.startswith(towers):
            continue
        (fresh if key.startswith(new) and new else rows).append((key, here, there))
    if rows:
        raise ZooError(f"{file}: {len(rows)} tensors do not match\n{table(sorted(rows))}")
    skip = {key for key, *_ in fresh}
    model.load_state_dict({k: v for k, v in found.items() if k not in skip}, strict=False)
    return sorted(fresh)


def tensors(file: Path, own: dict | None = None) -> dict:
    """{name: tensor} of a checkpoint; of an adapter with those of its base (or `own`, the model's). ZooError names the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ZooError(f"{file}: damaged or incomplete ({error})") from error
    about = read_header(file).get("__metadata__", {}).get("adapter")
    if about is None:
        return found
    from zoo import adapter

    return adapter.whole(file, about, found, own or {})


def table(rows: list[tuple[str, str, str]]) -> str:
    """First five rows (key, expected, found), aligned."""
    rows = [("key", "expected", "found"), *rows[:5], *([("...", "", "")] if len(rows) > 5 else [])]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _shape(tensor) -> str:
    return "-" if tensor is None else "x".join(map(str, tensor.shape)) or "scalar"
