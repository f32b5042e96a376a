"""The command line application, and how its commands answer."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

import zoo
from zoo import crew
from zoo.errors import UsageError, ZooError

TOGETHER = (["train"], ["embed"], ["index", "build"], ["index", "add"], ["index", "update"])  # what torchrun may start
app = cyclopts.App(name="zoo", help="The `zoo` command: models, recipes and search.", version=zoo.__version__)
Flag = Annotated[bool, Parameter(negative=())]


def one_process(tokens: list[str]) -> None:
    """UsageError where torchrun has started several processes of a command that is not made for that."""
    if crew.launched() > 1 and not any(tokens[: len(words)] == words for words in TOGETHER):
        able = ", ".join(" ".join(words) for words in TOGETHER)
        command = " ".join(tokens[: 2 if tokens[:1] == ["index"] else 1])
        raise UsageError(f"zoo {command}: runs in one process, start it without torchrun (with it: {able})".replace(" :", ":"))


def need_files(model: str, items: list, modalities: tuple[str, ...] = ("image", "audio", "text_image")) -> None:
    """ZooError where a model of pictures or sounds is given nothing that exists: said before the model is loaded."""
    from zoo import checkpoint

    card = checkpoint.read_card(checkpoint.locate(model))
    found = [Path(item).expanduser() for item in items]
    if card.modality in modalities and found and not any(path.exists() for path in found):
        more = f" (nor any of {len(found) - 1} more)" if len(found) > 1 else ""
        raise ZooError(f"{items[0]}: no such file or folder{more}")


def out(value, as_json: bool, text) -> None:
    print(dumps(value) if as_json else text())


def carried(run: Callable, kept: Callable[[], str]):
    """(what `run` gives, None); or (None, exit code) where Ctrl-C or SIGTERM ends it, which says what `kept` says, once.

    ZooError, with the same, where another process of the run has died.
    """
    with crew.stoppable() as caught:
        try:
            return run(), None
        except KeyboardInterrupt:
            if crew.first():
                print(f"\nstopped; {kept()}", file=sys.stderr, flush=True)
            return None, 128 + (caught or [signal.SIGINT])[0]
        except crew.Lost as error:
            raise ZooError(f"{error}; {kept()}") from error


def refuse_empty(command: str, items: tuple[str, ...]) -> None:
    """An empty name would stand for the folder one is in: mostly a shell variable that is not set."""
    if any(not item.strip() for item in items):
        raise UsageError(f"{command}: an empty name among the items; is a variable of the shell not set?")


def dumps(value) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    try:
        text.encode()
        return text
    except UnicodeEncodeError:  # a file name that is no UTF-8
        return json.dumps(value, indent=2, default=str)
