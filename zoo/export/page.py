"""A Card as a page of Markdown: what `zoo card` prints and the README.md of an exported folder says."""

import yaml

from zoo import show
from zoo.card import Card

_USE = {
    "image": 'model.predict(["photo.jpg"])', "audio": 'model.predict(["sound.wav"])', "graph": 'model.predict(["CCO"])',
    "text": 'model.embed(["a sentence"])', "text_image": 'model.match(["a red flower"], ["photo.jpg"])  # logits of each pair',
}
_KIND = {
    "image": "pictures", "audio": "sounds", "graph": "graphs", "text": "texts", "text_image": "texts and pictures",
}
_DOES = {
    "label": "names the one of {labels} that fits best", "tags": "says which of {labels} are there, any number of them",
    "values": "estimates {targets}", "links": "scores whether two nodes are linked",
}


def markdown(card: Card, source: str) -> str:
    """The page; `source`: what zoo.load is given to get this model."""
    parts = [_head(card), _use(card, source), _answers(card), _scores(card), _data(card), _preprocess(card), _recipe(card),
             _limits(card)]
    return "\n\n".join(part for part in parts if part) + "\n"


def title(card: Card) -> str:
    return card.name or card.model


def _head(card: Card) -> str:
    from zoo import registry

    about = registry.find(card.model).about if card.model in registry.names() else ""
    towers = ", ".join(tower["name"] for tower in card.towers.values())
    facts = [f"`{card.model}`" + (f": {about}" if about else ""), f"{card.parameters:,} parameters",
             f"frozen beside them, not stored: {towers}" if towers else "", f"written by zoo {card.zoo}" if card.zoo else "",
             f"sha256 {card.sha256}" if card.sha256 else ""]
    return f"# {title(card)}\n\nA model of {_KIND[card.modality]} that {_does(card)}.\n\n{_list([f for f in facts if f])}"


def _does(card: Card) -> str:
    if card.modality == "text_image":
        return "puts both into one space, to find the one by the other, and scores how well a text fits a picture"
    named = card.targets if card.head == "values" else card.labels
    if card.modality == "text" or not named and card.head != "links":
        return "gives vectors"
    targets = ", ".join(target["name"] + (f" in {target['unit']}" if target["unit"] else "") for target in card.targets or ())
    return _DOES[card.head].format(labels=f"{len(card.labels or ())} labels", targets=targets)


def _use(card: Card, source: str) -> str:
    answers = (card.targets if card.head == "values" else card.labels) or card.modality in ("text", "text_image")
    use = _USE[card.modality] if answers else "model.card"
    if card.arguments.get("level") in ("node", "edge"):
        use = "model(model.collate([model.preprocess(graph)]))  # a torch_geometric Data; or: zoo predict"
    return f"## Use\n\n```python\nimport zoo  # pip install zoo-attention\n\nmodel = zoo.load({source!r})\n{use}\n```"


def _answers(card: Card) -> str:
    if card.head == "values" and card.targets:
        rows = [{"target": target["name"], "unit": target["unit"] or "-", "mean": f"{target['mean']:.4g}",
                 "deviation": f"{target['std']:.4g}"} for target in card.targets]
        return f"## Targets\n\n{table(rows)}\n\nMean and deviation are those of the training split."
    if not card.labels:
        return ""
    shown = ", ".join(f"`{label}`" for label in card.labels)
    return f"## Labels\n\n{len(card.labels)}, in the order of the logits: {shown}"


def _scores(card: Card) -> str:
    rows = [{"metric": entry["metric"], "value": show.value(entry), "split": entry.get("where") or entry["split"],
             "items": entry.get("items", "-"), "seed": entry.get("seed", "-")} for entry in card.scores]
    if not rows:
        return "## Scores\n\nNone are stored with these weights."
    return f"## Scores\n\n{table(rows)}" + (f"\n\nNotes: {card.notes}." if card.notes else "")


def _data(card: Card) -> str:
    lines = [f"trained on: {card.data}" if card.data else "", f"licence: {card.licence}" if card.licence else
             "licence: not stated"]
    lines += [f"made from {name}, sha256 {digest}" for name, digest in card.parents.items()]
    for prefix, tower in card.towers.items():
        package = f", package {tower['package']} {tower['version']}" if tower.get("package") else ""
        lines.append(f"frozen part `{prefix}`: {tower['name']}{package}, licence {tower.get('licence') or 'not stated'}, "
                     f"sha256 {tower['sha256'].get('model.safetensors', '-')}")
    return f"## Data and licence\n\n{_list([line for line in lines if line])}" + (
        "" if card.scores or not card.notes else f"\n\nNotes: {card.notes}.")


def _preprocess(card: Card) -> str:
    if not card.preprocess:
        return ""
    shown = {key: _short(value) for key, value in card.preprocess.items()}
    return f"## Preprocessing\n\nDone by `model.preprocess`:\n\n```yaml\n{_yaml(shown)}```"


def _short(value):
    """Long lists of categories by their number."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [{key: f"{len(v)} values" if isinstance(v, list) and len(v) > 9 else v for key, v in row.items()} for row in value]
    return value


def _recipe(card: Card) -> str:
    if not card.recipe:
        return ""
    from zoo.train.recipe import Recipe

    plain = vars(Recipe())
    told = {key: value for key, value in card.recipe.items() if key in ("task", "model", "seed") or value != plain.get(key)}
    said = "Trained with `zoo train`; keys that are not listed have their default values."
    return f"## Recipe\n\n{said}\n\n```yaml\n{_yaml(told)}```"


def _limits(card: Card) -> str:
    from zoo.export.limits import limits

    return f"## Limits\n\n{_list(limits(card))}"


def _yaml(values: dict) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def table(rows: list[dict]) -> str:
    """Rows of equal keys as a Markdown table."""
    def line(cells) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(rows[0]), line(["---"] * len(rows[0])), *(line(row.values()) for row in rows)])
