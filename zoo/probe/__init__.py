"""`zoo eval --probe`: how much the vectors of a frozen model tell about labels or values that it was not trained on.

A linear model, or the nearest neighbours, learnt from the vectors of a training split. What they leave open, the strength of the
penalty or the number of neighbours, is chosen on a fifth of the training split; the test split is looked at once.
"""

from pathlib import Path


def probe(model, data: Path, kind: str, asked=None) -> dict:
    """{"model", "data", "probe", "split", "items", "trained on", "dim", "strength" or "k", score ...} of "linear" or "knn".

    Pictures and sounds need labels; graphs labels, or targets (ridge regression). asked: zoo.probe.data.Asked. UsageError for
    another kind or modality; ZooError where the data has no training split, or names of splits or columns are wrong.
    """
    from zoo.errors import UsageError
    from zoo.probe.data import Asked, gather
    from zoo.probe.learn import PROBES, accuracy, errors

    if kind not in PROBES:
        raise UsageError(f"--probe {kind}: expected {' or '.join(PROBES)}")
    found = gather(model, Path(data), asked or Asked())
    chosen = PROBES[kind].choose(found.train, found.held)
    answers = PROBES[kind].fit(found.train, chosen)(found.test.x)
    facts = {"model": model.card.name or model.card.model, "data": str(data), "probe": kind, "split": found.split,
             "items": len(found.test.x), "trained on": len(found.train.x), "dim": found.train.x.shape[1],
             PROBES[kind].setting: chosen}
    if found.classes:
        return facts | accuracy(answers, found.test.y, found.classes)
    return facts | errors(answers, found.test.y, found.names)
