"""The Card: what a checkpoint says about itself, as JSON in the header of its safetensors file."""

import json
from dataclasses import asdict, dataclass, field, fields

from zoo.errors import ZooError

FORMAT = 1


@dataclass
class Card:
    """Everything needed to rebuild, use and cite a model. Plain JSON values only."""

    model: str  # registry name
    modality: str
    name: str = ""  # e.g. image_nano.cifar10; empty for a fresh model
    arguments: dict = field(default_factory=dict)  # of the constructor
    preprocess: dict = field(default_factory=dict)
    labels: list[str] | None = None  # in the order of the logits
    targets: list[dict] | None = None  # regression: [{"name", "unit", "mean", "std"}]
    head: str = "label"  # what the logits answer: "label", "tags" (several at once), "values", "links"
    scores: list[dict] = field(default_factory=list)  # [{"metric", "value", "split", "seed", ...}]
    recipe: dict = field(default_factory=dict)
    data: str = ""
    licence: str = ""
    parents: dict = field(default_factory=dict)  # {name: sha256}
    towers: dict = field(default_factory=dict)  # frozen parts not stored: {prefix: {"name", "sha256", ...}}
    parameters: int = 0
    notes: str = ""
    zoo: str = ""  # version that wrote it
    format: int = FORMAT
    sha256: str = field(default="", compare=False)  # of the file it was read from; never written

    def to_json(self) -> str:
        values = asdict(self)
        del values["sha256"]
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, source: str) -> "Card":
        """ZooError names `source` where the card is no card of a known format."""
        try:
            values = json.loads(text)
            number = values["format"]
            if number > FORMAT:
                raise ZooError(f"{source}: card format {number}, this zoo reads up to {FORMAT}; pip install -U zoo")
            unknown = set(values) - {f.name for f in fields(cls)}
            if unknown:
                raise ZooError(f"{source}: unknown card keys {', '.join(sorted(unknown))[:200]}")
            for name, value in values.items():
                if not _fits(name, value):
                    raise ZooError(f"{source}: card key {name} is {str(value)[:80]!r}, no {cls.__annotations__[name]}")
            return cls(**values)
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
            raise ZooError(f"{source}: no valid zoo card ({type(error).__name__}: {str(error)[:200]})") from error


def _fits(name: str, value) -> bool:
    """Whether a value from a file is of the kind that the field holds; what is in `arguments` the model itself judges."""
    kind = {"model": str, "modality": str, "head": str, "parameters": int, "format": int}.get(name)
    if kind is None and value is None:
        return name in ("labels", "targets")
    inside = {"labels": str, "targets": dict, "scores": dict}.get(name)
    if inside:
        return isinstance(value, list) and all(isinstance(part, inside) for part in value)
    if name == "towers" and isinstance(value, dict):
        return all(isinstance(part, dict) for part in value.values())
    kind = kind or (dict if name in ("arguments", "preprocess", "recipe", "parents", "towers") else str)
    return isinstance(value, kind) and not isinstance(value, bool)
