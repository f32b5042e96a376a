"""Training on shards: what a recipe's keys say about data that is read as it comes."""

from zoo.data import stream
from zoo.data.loader import EpochOrder
from zoo.errors import UsageError
from zoo.train.recipe import Recipe


def split(recipe: Recipe, skip_bad: bool, check: bool) -> tuple[stream.Streamed, stream.Streamed, list[tuple[str, str]]] | None:
    """Training and validation items, and what is left out; None where the data is no folder of shards to be streamed.

    `check` reads every picture once, as `skip_bad` does. UsageError for keys that need all items at hand.
    """
    files = stream.shards_at(recipe.data, recipe.stream)
    if not files or recipe.task != "image_classification" and recipe.stream == "auto" and files[0].suffix != ".tar":
        return None
    if recipe.task != "image_classification":
        raise UsageError(f"task: {recipe.task}; only labelled pictures are streamed, and {recipe.data} has {len(files)} shards")
    if recipe.balance == "sampler":
        raise UsageError("balance: sampler; items of shards are read in turn and not drawn: take balance: weights")
    if recipe.hold_out or recipe.split_column != "split":
        raise UsageError("hold_out, split_column: shards are split by their names (train-0001.tar, val/0001.tar) or by --val 0.1")
    label = recipe.targets[0] if recipe.targets else "label"
    items, bad = stream.open_shards(files, label, skip_bad or check)
    if skip_bad or check:
        items, broken = items.readable()
        bad = bad + broken
    return *stream.parts(items, recipe.val, recipe.seed), bad


def order(items, recipe: Recipe) -> EpochOrder | None:
    """The order of the training items of shards; None: that of items at hand."""
    shards = isinstance(items, stream.Streamed)
    return items.order(recipe.batch_size, recipe.seed, buffer=recipe.buffer) if shards else None
