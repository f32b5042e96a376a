"""A folder in the layout of the Hugging Face hub: config.json, model.safetensors, README.md; zoo.load reads it back."""

import json
from pathlib import Path

import yaml

from zoo import checkpoint
from zoo.card import Card
from zoo.errors import ZooError
from zoo.export import page

_PIPELINE = {"image": "image-classification", "audio": "audio-classification", "graph": "graph-ml",
             "text": "sentence-similarity", "text_image": "zero-shot-image-classification"}
_LICENCES = {"CC BY-SA 4.0": "cc-by-sa-4.0", "CC BY-SA 3.0": "cc-by-sa-3.0", "CC BY 4.0": "cc-by-4.0", "CC BY 3.0": "cc-by-3.0",
             "CC0": "cc0-1.0", "MIT": "mit", "Apache-2.0": "apache-2.0"}


def write(model, folder: Path) -> list[Path]:
    """The three files. ZooError where `folder` is a file."""
    if folder.is_file():
        raise ZooError(f"--out {folder}: a file; --to hf writes a folder")
    weights = checkpoint.save(model, folder / "model.safetensors")
    config = folder / "config.json"
    checkpoint.write(config, (json.dumps(settings(model.card), indent=2, ensure_ascii=False) + "\n").encode())
    readme = folder / "README.md"
    checkpoint.write(readme, f"---\n{front_matter(model.card)}---\n\n{page.markdown(model.card, folder.name)}".encode())
    return [weights, config, readme]


def settings(card: Card) -> dict:
    """config.json: the hub's own words, then the whole card. zoo.load reads the same card from the weights."""
    labels = dict(enumerate(card.labels or ()))
    back = {label: i for i, label in labels.items()}
    words = {"id2label": labels, "label2id": back, "num_labels": len(labels)} if labels else {}
    return {"model_type": "zoo", "architecture": card.model, "library_name": "zoo-attention", **words,
            "zoo": json.loads(card.to_json())}


def front_matter(card: Card) -> str:
    """The hub's YAML head of README.md."""
    licence = next((name for start, name in _LICENCES.items() if card.licence.startswith(start)), "other")
    head = {"license": licence, "library_name": "zoo-attention", "pipeline_tag": _PIPELINE[card.modality],
            "tags": [card.modality.replace("_", "-"), card.model]}
    if licence == "other":
        head |= {"license_name": "see-model-card"}
    if card.scores:
        results = [{"task": {"type": _PIPELINE[card.modality]}, "dataset": {"name": card.data or "-", "type": "other",
                   "split": entry["split"]}, "metrics": [{"type": entry["metric"], "value": entry["value"]}]}
                   for entry in card.scores]
        head["model-index"] = [{"name": page.title(card), "results": results}]
    return yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
