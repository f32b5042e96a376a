"""Foreign weight files: what is in them, and never more than tensors."""

import json
import pickle
import re
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from zoo.errors import ZooError

NAMES = ("model.safetensors", "pytorch_model.bin")  # in a folder of the Hugging Face layout
_WRAPPERS = ("model", "state_dict", "model_state_dict", "module", "net")  # keys under which trainers store the weights


def locate(path: Path) -> Path:
    """The weights behind a file, or behind a folder of the Hugging Face layout. ZooError says what was looked for."""
    if path.is_dir():
        found = next((path / name for name in NAMES if (path / name).is_file()), None)
        if found is None:
            raise ZooError(f"{path}: no {' or '.join(NAMES)} in this folder; name the file itself")
        return found
    if not path.is_file():
        raise ZooError(f"{path}: no such file")
    return path


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors of the state dict in `path`, {what else lies there: why it is left}). ZooError names the file.

    .safetensors, or a pickle (.pt, .pth, .bin) of nothing but tensors and plain values: code in it is not run.
    """
    content = _safetensors(path) if path.suffix == ".safetensors" else _pickle(path)
    state, dropped = content, {}
    while inner := next((key for key in _WRAPPERS if isinstance(state.get(key), dict)), None):
        dropped |= {key: f"beside the weights in {inner!r}" for key in state if key != inner}
        state = state[inner]
    if state and all(str(key).startswith("module.") for key in state):  # of DataParallel
        state = {key.removeprefix("module."): value for key, value in state.items()}
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    dropped |= {str(key): "no tensor" for key in state if key not in tensors}
    if not tensors:
        raise ZooError(f"{path}: no tensors by name; keys: {', '.join(map(str, list(content)[:5])) or 'none'}")
    return tensors, dropped


def config(path: Path) -> dict:
    """config.json and preprocessor_config.json (under "preprocessor") beside the weights; {} where there are none."""
    found: dict = {}
    for name in ("config.json", "preprocessor_config.json"):
        file = path.with_name(name)
        if file.is_file():
            try:
                values = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ZooError(f"{file}: no JSON ({error})") from error
            found |= values if name == "config.json" else {"preprocessor": values}
    return found


def _safetensors(path: Path) -> dict:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ZooError(f"{path}: damaged or no safetensors file ({error})") from error


def _pickle(path: Path) -> dict:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of unusual pickle protocols
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        what = f"holds {name[1]}, which is no tensor" if name else "damaged, or no weights of PyTorch"
        raise ZooError(f"{path}: {what}; not loaded, for a pickle can run code\n"
                       "where you trust it: torch.save(model.state_dict(), FILE), and bring that file") from error
    except Exception as error:  # on broken bytes the unpickler raises whatever it trips over
        raise ZooError(f"{path}: damaged, or no weights of PyTorch ({(str(error).splitlines() or [''])[0]})") from error
    if not isinstance(content, dict):
        raise ZooError(f"{path}: holds a {type(content).__name__}, expected a state dict")
    return content
