"""Public weights as whole models of ours: `zoo convert`, and `create_model(..., weights="source:file")`."""

import json
from pathlib import Path

from torch import nn

from zoo import checkpoint, inference, pairs, registry, towers
from zoo.convert import hub, sources
from zoo.convert.rules import Report
from zoo.convert.sources import Converted, Wanted
from zoo.errors import UsageError, ZooError

_FREE = ("num_classes", "window", "in_chans",  # arguments that may differ from the file's: it is fitted to them,
         "node_categories", "edge_categories",  # a registered graph model has those of no data yet,
         "first")  # or a matter of taste


def convert(source: str, weights: str, wanted: Wanted = Wanted()) -> tuple[nn.Module, Report]:
    """A model with card and labels from a local file or folder, or from hf:OWNER/NAME, timm:NAME; what became of the file.

    UsageError: unknown source or option. ZooError: not such a file, no network, or no model of ours.
    """
    found = _read(source, weights, wanted)
    name = _registered(found)
    return _model(name, found, {}), found.report


def create(name: str, weights: str, arguments: dict) -> nn.Module:
    """See zoo.create_model: `weights` is "source:file", "auto:file", "hf:owner/name" or "timm:name".

    num_classes, window and in_chans default to the file's; a classifier of another size stays new. ZooError where
    `name` is of another shape than the file.
    """
    spec = registry.find(name)
    source, _, rest = weights.partition(":")
    if hub.is_name(weights):
        source, rest = "auto", weights
    if not rest:
        raise UsageError(f"weights={weights!r}; expected SOURCE:FILE with SOURCE one of auto, {', '.join(sources.SOURCES)}; "
                         "or hf:OWNER/NAME, timm:NAME")
    wanted = {key: arguments[key] for key in ("window", "in_chans") if key in arguments}
    found = _read(source, rest, Wanted(**wanted))
    if spec.entry != registry.find(_registered(found)).entry:
        raise ZooError(f"{found.file}: {found.report.layout}, which is no {name}; take {_registered(found)}")
    _check_shape(name, found, {**spec.arguments, **arguments})
    return _model(name, found, arguments)


def _read(source: str, weights: str, wanted: Wanted) -> Converted:
    file = hub.fetch(weights) if hub.is_name(weights) else Path(weights)
    found = sources.convert(source, file, wanted)
    if hub.is_name(weights):
        found.notes.append(f"from {weights}")
    modality = sources.find(found.source).modality
    if modality in ("text", "text_image"):
        text = _text(found)
        found.preprocess = text if modality == "text" else {"image": found.preprocess, "text": text}
    return found


def _model(name: str, found: Converted, arguments: dict) -> nn.Module:
    """Builds, fills strictly, and writes down where everything came from."""
    state, known = dict(found.state), found.arguments.get("num_classes", 0)
    classes = arguments.get("num_classes", known)
    fresh = classes != known
    if fresh:
        state = {key: value for key, value in state.items() if not key.startswith("classifier.")}
        found.report.changed.append(f"classifier: new, for {classes} classes")
    try:
        model = inference.create(name, {**found.arguments, **arguments})
    except ValueError as error:
        raise ZooError(f"{found.file}: gives no model of ours: {error}") from error
    _fill(model, state, fresh, found.file)
    if model.card.modality == "text_image":
        parts = {key: {**model.card.preprocess[key], **found.preprocess[key]} for key in ("image", "text")}
        pairs.set_preprocess(model, parts)
    elif found.preprocess:
        inference.set_preprocess(model, {**model.card.preprocess, **found.preprocess})
    card = model.card
    card.labels = None if fresh else found.labels
    card.licence = f"not stated in the file; see the source, {found.source}"
    card.parents = {found.file.name: checkpoint.sha256(found.file)}
    card.notes = "; ".join([f"converted from {found.report.layout}", *found.report.changed, *found.notes])
    return model


def _fill(model: nn.Module, state: dict, fresh: bool, file: Path) -> None:
    """Strict: nothing missing but a fresh classifier, nothing over, all of the same shape. ZooError: a table of the rest."""
    expected = model.state_dict()
    rows = []
    for key in sorted(expected.keys() | state.keys()):
        here, there = ("x".join(map(str, part[key].shape)) or "scalar" if key in part else "-" for part in (expected, state))
        if here != there and not (fresh and key.startswith("classifier.")):
            rows.append((key, here, there))
    if rows:
        raise ZooError(f"{file}: {len(rows)} tensors do not match\n{checkpoint.table(rows)}")
    model.load_state_dict(state, strict=False)


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def _differing(found: Converted, arguments: dict) -> list[str]:
    """Arguments whose value is another than the file's."""
    return [key for key, value in found.arguments.items()
            if key not in _FREE and key in arguments and _plain(arguments[key]) != _plain(value)]


def _check_shape(name: str, found: Converted, arguments: dict) -> None:
    if key := next(iter(_differing(found, arguments)), None):
        better = _registered(found)
        way = f"take {better}" if better != name else "zoo convert writes it as it is"
        raise ZooError(f"{found.file}: {key} is {_plain(found.arguments[key])}, but {_plain(arguments[key])} in {name}; {way}")


def _registered(found: Converted) -> str:
    """The registered model of the file's shape, or one of its kind, whose arguments are then replaced."""
    source = sources.find(found.source)
    images = registry.names("image_*") if source.modality == "image" else []
    alike = [name for name in images if registry.find(name).entry == registry.find(source.base).entry]
    return next((name for name in alike if not _differing(found, registry.find(name).arguments)), source.base)


def _text(found: Converted) -> dict:
    """The tokenizer is a known tower's where it is the same one, else it stays in the folder of the file."""
    file = found.file.with_name("tokenizer.json")
    if not file.is_file():
        raise ZooError(f"{found.file}: no tokenizer.json beside it; bring the model's own, its vocabulary is not in the weights")
    settings = found.file.with_name("sentence_bert_config.json")
    longest = json.loads(settings.read_text())["max_seq_length"] if settings.is_file() else found.arguments["max_length"]
    for name in towers.KNOWN:
        try:
            if _rules_of(towers.find(name).file("tokenizer.json")) == _rules_of(file):
                return {"tower": name, "max_length": longest}
        except ZooError:  # not installed
            continue
    folder = str(towers.find(str(file.parent.resolve())).folder)
    found.notes.append(f"its tokenizer stays in {folder}")
    return {"tower": folder, "max_length": longest}


def _rules_of(file: Path) -> dict:
    """A tokenizer.json without cutting and padding, which zoo.tokens does itself."""
    values = json.loads(file.read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if key not in ("truncation", "padding")}
