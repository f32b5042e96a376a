"""`hf:OWNER/NAME` and `timm:NAME`: weights from the Hugging Face hub, by its own client, cached and hash-checked."""

import hashlib
import re
from pathlib import Path

from zoo.convert.files import NAMES
from zoo.errors import ZooError

_BESIDE = ("config.json", "preprocessor_config.json", "tokenizer.json")  # taken along where they exist


def is_name(text: str) -> bool:
    return text.startswith(("hf:", "timm:"))


def repository(name: str) -> str:
    """hf:owner/name -> owner/name, timm:name -> timm/name. ZooError: neither."""
    kind, _, rest = name.partition(":")
    found = rest if kind == "hf" else f"timm/{rest}"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", found):
        raise ZooError(f"{name}: expected hf:OWNER/NAME or timm:NAME")
    return found


def fetch(name: str) -> Path:
    """The weights in the hub client's cache, with their config beside them. ZooError: not there, or no network.

    What is in the cache is not asked for again.
    """
    where = repository(name)
    file = _first(where, cached=True)
    if file is None:
        _knock(name, where)
        file = _first(where)
        for beside in _BESIDE:
            _get(where, beside)
    if file is None:
        raise ZooError(f"{name}: no {' or '.join(NAMES)} there")
    _check(file)
    return file


def _first(where: str, cached: bool = False) -> Path | None:
    return next((file for name in NAMES if (file := _get(where, name, cached))), None)


def _get(where: str, file: str, cached: bool = False) -> Path | None:
    """One file of a repository, None where it has none of that name. ZooError: the hub refuses."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    try:
        return Path(hf_hub_download(where, file, local_files_only=cached))
    except EntryNotFoundError:  # also: not in the cache
        return None
    except HfHubHTTPError as error:
        raise ZooError(f"{where}: refused by the hub ({(str(error).splitlines() or [''])[0]})") from error


def _knock(name: str, where: str) -> None:
    """ZooError where the hub does not answer: the client itself would try again for minutes."""
    from huggingface_hub import constants, get_session

    try:
        if constants.is_offline_mode():
            raise ConnectionError("HF_HUB_OFFLINE is set")
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # of the client's own network library, whichever it is
        raise ZooError(_offline(name, where)) from error


def _offline(name: str, where: str) -> str:
    folder = where.split("/")[1]
    return (f"{name}: not in the cache, and the hub cannot be reached; on a machine with network: "
            f"hf download {where} --local-dir {folder}\n"
            f"bring that folder and give it in place of {name}: zoo convert auto {folder} --out NAME.safetensors")


def _check(file: Path) -> None:
    """Large files lie in the cache under their sha256. ZooError where the content has another."""
    expected = file.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", expected):
        with open(file, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != expected:
            raise ZooError(f"{file}: sha256 {found}\nthe hub says {expected}: delete it and fetch it again")
