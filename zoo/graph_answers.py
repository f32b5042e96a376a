"""What a graph model answers about tables of SMILES, SMILES as they are typed, and the nodes of one big graph."""

from pathlib import Path

from zoo import answers
from zoo.data.graphs import GraphItems, open_graphs, unreadable
from zoo.data.networks import is_network
from zoo.errors import UsageError, ZooError
from zoo.inference import evaluating


def predict(model, items: list[str]) -> tuple[list[dict], list[tuple[str, str]]]:
    """(answers, unreadable (item, reason)). An item is a table with the model's column of SMILES, an .npz or a folder with
    nodes.csv and edges.csv, or else one SMILES."""
    good, bad = [], []
    for item in items:
        path = Path(item).expanduser()
        if model.level != "graph" or path.exists() and is_network(path):
            good += _nodes(model, path)
            continue
        try:
            found = opened(model, item)
        except ZooError as error:
            bad.append((item, str(error).removeprefix(f"{item}: ")))
            continue
        broken = dict(unreadable(found))
        bad += broken.items()
        fine = found.subset([i for i, key in enumerate(found.keys) if key not in broken])
        rows = answers.rows(model, answers.collect(model, fine.sources))
        good += [{"item": smiles, **row} for smiles, row in zip(fine.sources, rows)]
    return good, bad


def opened(model, item: str) -> GraphItems:
    """The graphs of one item. ZooError for a table that is not there."""
    path = Path(item).expanduser()
    if path.exists():
        return open_graphs(path, smiles=model.card.recipe.get("smiles") or "smiles", targets=())
    if path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".npz"):
        raise ZooError(f"{item}: no such file")
    return GraphItems([item], [item])


def _nodes(model, path: Path) -> list[dict]:
    """One row a node of one big graph."""
    if model.level != "node":
        raise UsageError(f"{model.card.name or model.card.model} answers about {'links' if model.level == 'edge' else 'graphs'}, "
                         "not about nodes; from Python: model(model.collate([graph]))")
    if not path.exists():
        raise ZooError(f"{path}: no such file or folder; expected an .npz, or a folder with nodes.csv and edges.csv")
    answers.need_answers(model)
    found = open_graphs(path)
    graph = found.encode(model.preprocess)[0]
    with evaluating(model):
        chances = answers.chances(model, model(model.collate([graph]).to(next(model.parameters()).device)))
    return [{"item": f"{found.keys[0]}:{i}", **row} for i, row in enumerate(answers.rows(model, chances))]
