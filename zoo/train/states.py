"""Token states of a frozen text tower: computed once a caption, kept in half precision in memory and on disk."""

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from zoo import checkpoint, towers
from zoo.core import masked_mean
from zoo.errors import ZooError

BOUND = 4 * 2**30  # bytes of all files together


class States:
    """{caption: token states (n dim)}. flat (tokens of all captions, dim) float16, lengths (captions)."""

    def __init__(self, captions: Sequence[str], flat: Tensor, lengths: Tensor):
        ends = lengths.cumsum(0).tolist()
        self.rows = dict(zip(captions, range(len(captions))))
        self._flat, self._ends = flat, [0, *ends]

    def __deepcopy__(self, memo) -> "States":
        return self  # never written to: a moving average of a task need not hold them twice

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, caption: str) -> Tensor:
        row = self.rows[caption]
        return self._flat[self._ends[row] : self._ends[row + 1]]

    def batch(self, captions: list[str], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Token states (b n dim) float32, padded, and their mask (b n)."""
        rows = [self[caption] for caption in captions]
        lengths = torch.tensor([len(row) for row in rows])
        states = pad_sequence(rows, batch_first=True).to(device).float()
        return states, (torch.arange(states.shape[1]) < lengths[:, None]).to(device)


def keep(model: nn.Module, captions: Sequence[str], layers: int | None = None) -> tuple[States, str]:
    """States of `captions` (each once) after `layers` blocks of model.text (None: all), and the line that says where from.

    Read from the user's cache where they lie there whole; else computed, and stored there.
    """
    captions, tower = sorted(set(captions)), towers.find(model.tower).sha256
    about = [tower, weights(model.text, layers), model.preprocess_text.to_dict(), captions]
    key = hashlib.sha256(json.dumps(about).encode("utf-8")).hexdigest()
    file = checkpoint.home() / "states" / f"{key[:32]}.safetensors"
    known, why = _read(file, key, len(captions))
    if known is not None:
        return States(captions, *known), f"texts   {len(captions)} captions, kept states read from {file}"
    flat, lengths = compute(model, captions, layers)
    note = _store(file, key, flat, lengths)
    return States(captions, flat, lengths), f"texts   {len(captions)} captions through the text tower, once{why}; {note}"


def weights(text: nn.Module, layers: int | None) -> str:
    """Hash of what computes the states: a checkpoint to start from may hold trained blocks of its own."""
    digest = hashlib.sha256()
    used = tuple(f"blocks.{i}." for i in range(len(text.blocks))[:layers])
    for name, tensor in text.state_dict().items():
        if not name.startswith("blocks.") or name.startswith(used):
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


@torch.inference_mode()
def compute(model: nn.Module, captions: Sequence[str], layers: int | None = None, batch_size: int = 128) -> tuple[Tensor, Tensor]:
    """(flat (tokens dim) float16, lengths (captions)) of the text tower, cut off after `layers` blocks."""
    order = sorted(range(len(captions)), key=lambda i: len(captions[i]))  # batches of like length: little padding
    kept: list[Tensor] = [torch.empty(0)] * len(captions)
    for at in range(0, len(order), batch_size):
        part = order[at : at + batch_size]
        ids, mask = model.preprocess_text.batch([captions[i] for i in part])
        x = model.text.embed_tokens(ids, mask)
        for block in model.text.blocks[:layers]:
            x = block(x, mask)
        for i, row, real in zip(part, x.half(), mask):
            kept[i] = row[real].clone()
    return torch.cat(kept).clone(), torch.tensor([len(row) for row in kept])


def sentences(states: States, captions: Sequence[str], batch_size: int = 512) -> Tensor:
    """Unit sentence vectors (n dim) float16: the mean of the real tokens (Reimers and Gurevych 2019)."""
    parts = [nn.functional.normalize(masked_mean(*states.batch(captions[at : at + batch_size])), dim=-1).half()
             for at in range(0, len(captions), batch_size)]
    return torch.cat(parts)


def _read(file: Path, key: str, captions: int) -> tuple[tuple[Tensor, Tensor] | None, str]:
    """((flat, lengths), "") of a whole file of this key; or (None, why not)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        return None, ""
    try:
        about = checkpoint.read_header(file).get("__metadata__", {})
        found = load_file(file)
        flat, lengths = found["flat"], found["lengths"]
        whole = len(lengths) == captions and int(lengths.sum()) == len(flat) and about.get("sum") == _sum(flat)
    except (ZooError, SafetensorError, KeyError, OSError, AttributeError):
        whole, about = False, {}
    if not whole or about.get("key") != key:
        return None, f" ({file.name} in the cache is torn or another's: made anew)"
    os.utime(file)  # used just now: the last to go
    return (flat, lengths), ""


def _store(file: Path, key: str, flat: Tensor, lengths: Tensor) -> str:
    """Writes the file where the bound allows, dropping the longest unused ones; what was done, in words."""
    from safetensors.torch import save

    size = flat.nbytes + lengths.nbytes
    if size > BOUND:
        return f"{size / 2**20:.0f} MiB, more than {BOUND / 2**30:.0f} GiB: not stored"
    try:
        others = sorted(file.parent.glob("*.safetensors"), key=os.path.getmtime) if file.parent.is_dir() else []
        room = BOUND - size - sum(other.stat().st_size for other in others if other != file)
        dropped = 0
        while room < 0 and others:
            old = others.pop(0)
            room, dropped = room + old.stat().st_size, dropped + 1
            with suppress(FileNotFoundError):
                old.unlink()
        checkpoint.write(file, save({"flat": flat, "lengths": lengths}, metadata={"key": key, "sum": _sum(flat)}))
    except (OSError, ZooError) as error:
        return f"not stored ({str(error).splitlines()[0]})"
    return f"{size / 2**20:.0f} MiB stored in {file}" + (f", {dropped} older files dropped" if dropped else "")


def _sum(flat: Tensor) -> str:
    return f"{zlib.crc32(flat.contiguous().numpy().data):08x}"
