"""How the command line prints: tables, facts, progress."""

import sys

from zoo import checkpoint, registry
from zoo.errors import ZooError


def models(pattern: str) -> list[dict]:
    """One row a registered model or checkpoint that matches."""
    from fnmatch import fnmatch

    rows = []
    for name in registry.names(pattern):
        rows.append({"model": name, "params": f"{registry.find(name).parameters:.1f} M", "trained on": "-", "score": "-",
                     "size": "-", "licence": "-"})
    for name, file in checkpoint.shipped().items():
        if fnmatch(name, pattern):
            card = checkpoint.read_card(file)
            rows.append({"model": name, "params": f"{card.parameters / 1e6:.1f} M", "trained on": card.data or "-",
                         "score": score(card.scores), "size": f"{file.stat().st_size / 1e6:.1f} MB",
                         "licence": card.licence.split(";")[0] or "-"})
    return rows


def score(scores: list[dict]) -> str:
    """The test score if there is one, else the validation score."""
    for split in ("test", "val"):
        for entry in scores:
            if entry["split"] == split:
                return f"{entry['metric']} {value(entry)} ({split})"
    return "-"


def value(entry: dict) -> str:
    """Errors in their unit; shares (some stored as a fraction, recall as percent) in percent."""
    number = entry["value"]
    if entry["metric"] in ("RMSE", "MAE"):
        return f"{number:.3f} {entry.get('unit', '')}".rstrip()
    if entry["metric"].startswith("median rank"):
        return f"{number:g}"
    return f"{100 * number if number <= 1 else number:.1f} %"


def info(source: str) -> dict:
    """Facts about a checkpoint (from its header) or, without weights, about a registered model."""
    if source in registry.names():
        spec = registry.find(source)
        return {"model": spec.name, "modality": spec.modality, "about": spec.about, "parameters": f"{spec.parameters} M",
                "arguments": spec.arguments, "preprocess": spec.preprocess}
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    facts = {key: value for key, value in vars(card).items() if value not in ("", None, [], {})}
    return {"file": str(file), "bytes": file.stat().st_size, "sha256": checkpoint.sha256(file), **facts}


def hits(found) -> list[dict]:
    """Search results as plain rows."""
    rows = []
    for hit in found:
        rows.append({"rank": hit.rank_after, "rank_before": hit.rank_before, "score": round(hit.score, 4),
                     "match": None if hit.match is None else round(hit.match, 4), "key": hit.key,
                     "path": None if hit.path is None else str(hit.path), "caption": hit.caption, "meta": hit.meta})
    return rows


def check() -> tuple[list[dict], bool]:
    """Rows (what, found, fine) and whether all are fine."""
    import importlib.metadata as metadata
    import json

    rows = [{"what": name, "found": _version(metadata, name), "fine": "yes"}
            for name in ("torch", "torchvision", "timm", "einops", "safetensors", "lightning", "torchmetrics", "pyarrow")]
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"cpu, {torch.get_num_threads()} threads"
    rows.append({"what": "device", "found": device, "fine": "yes"})
    for row in rows:
        row["fine"] = "no" if row["found"] == "missing" else "yes"
    for folder in checkpoint.folders():
        table = folder / "index.json"
        if table.is_file():
            for entry in json.loads(table.read_text(encoding="utf-8")):
                file = folder / entry["file"]
                if file.is_file() or folder.name == "checkpoints":  # the repository; some weights stay out of the wheel
                    same = file.is_file() and checkpoint.sha256(file) == entry["sha256"]
                    fine = "yes" if same else "no: sha256 differs" if file.is_file() else "no: missing"
                    rows.append({"what": entry["file"], "found": entry["licence"].split(";")[0], "fine": fine})
    return rows, all(row["fine"] == "yes" for row in rows)


def _version(metadata, name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def table(rows: list[dict]) -> str:
    """Aligned columns under capital heads."""
    if not rows:
        raise ZooError("nothing to show")
    heads = list(rows[0])
    cells = [[head.upper() for head in heads]] + [["-" if row[h] is None else str(row[h]) for h in heads] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells)


def lines(facts: dict, indent: int = 0) -> str:
    """key  value, one a line; nested values indented."""
    out = []
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            out += [" " * indent + str(key), lines(value, indent + 2)]
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            out += [" " * indent + str(key)] + [lines(entry, indent + 2) for entry in value]
        else:
            shown = f"{value:.4g}" if isinstance(value, float) else "-" if value is None else value
            out.append(" " * indent + f"{key:<14} {shown}")
    return "\n".join(out)


class Progress:
    """A bar on standard error where that is a terminal, else one line when work begins."""

    def __init__(self, what: str, width: int = 30):
        self.what, self.width, self.begun = what, width, False

    def __call__(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            bar = ("#" * (self.width * done // max(total, 1))).ljust(self.width)
            end = "\n" if done >= total else ""
            print(f"\r{self.what} [{bar}] {done}/{total}", end=end, file=sys.stderr, flush=True)
        elif not self.begun:
            print(f"{self.what}: {total}", file=sys.stderr, flush=True)
        self.begun = True
