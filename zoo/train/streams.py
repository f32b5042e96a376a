"""Training on shards: what a recipe's keys say about data that is read as it comes."""

from pathlib import Path

from zoo.data import stream
from zoo.data.loader import EpochOrder
from zoo.data.stream_pairs import open_pair_shards
from zoo.errors import UsageError
from zoo.train.recipe import Recipe

PAIRS = "text_image_contrastive"


def split(recipe: Recipe, skip_bad: bool, check: bool) -> tuple[stream.Streamed, stream.Streamed, list[tuple[str, str]]] | None:
    """Training and validation items, and what is left out; None where the data is no folder of shards to be streamed.

    `check` reads every picture once, as `skip_bad` does. UsageError for keys that need all items at hand.
    """
    files = stream.shards_at(recipe.data, recipe.stream)
    able = ("image_classification", PAIRS)
    if not files or recipe.task not in able and recipe.stream == "auto" and files[0].suffix != ".tar":
        return None
    if recipe.task not in able:
        raise UsageError(f"task: {recipe.task}; only pictures with labels or captions are streamed, "
                         f"and {recipe.data} has {len(files)} shards")
    if recipe.balance == "sampler":
        raise UsageError("balance: sampler; items of shards are read in turn and not drawn: take balance: weights")
    if recipe.hold_out or recipe.split_column != "split":
        raise UsageError("hold_out, split_column: shards are split by their names (train-0001.tar, val/0001.tar) or by --val 0.1")
    items, bad = opened(recipe, files, skip_bad or check)
    if skip_bad or check:
        items, broken = items.readable()
        bad = bad + broken
    return *stream.parts(items, recipe.val, recipe.seed), bad


def opened(recipe: Recipe, files: list[Path], skip_bad: bool = False) -> tuple[stream.Streamed, list[tuple[str, str]]]:
    """The items of shards, as the task wants them, and what is left out."""
    if recipe.task != PAIRS:
        return stream.open_shards(files, recipe.targets[0] if recipe.targets else "label", skip_bad)
    return open_pair_shards(files, recipe.captions, skip_bad)


def shards(recipe: Recipe, split: str | None) -> stream.Streamed | None:
    """Pairs to be measured on: those of the shards of a split, None: of all; None where the data is no folder of shards."""
    files = stream.shards_at(recipe.data) if recipe.task == PAIRS else []
    if not files:
        return None
    items, _ = opened(recipe, files)
    return items if split is None else stream.of_split(items, split)


def order(items, recipe: Recipe) -> EpochOrder | None:
    """The order of the training items of shards; None: that of items at hand."""
    shards = isinstance(items, stream.Streamed)
    return items.order(recipe.batch_size, recipe.seed, buffer=recipe.buffer) if shards else None
