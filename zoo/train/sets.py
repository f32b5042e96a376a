"""From a recipe to the training and the validation set, and what is said about them."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from zoo import checkpoint, registry
from zoo.card import Card
from zoo.data.dataset import ImageDataset, PairDataset
from zoo.data.images import open_images, open_pairs, splits
from zoo.data.items import Items, balanced_weights, split, unreadable
from zoo.data.loader import ResumableLoader
from zoo.errors import UsageError, ZooError
from zoo.preprocess import ImagePreprocess
from zoo.train.recipe import Recipe


@dataclass
class Sets:
    """Training and validation items of one task."""

    train: Items
    val: Items
    preprocess: ImagePreprocess
    task: str
    bad: list[tuple[str, str]] = field(default_factory=list)

    def summary(self) -> str:
        kind = f"{len(self.train.classes)} classes" if self.train.classes else f"{sum(map(len, self.train.captions))} captions"
        text = f"data    {len(self.train)} training and {len(self.val)} validation pictures, {kind}"
        if self.train.labels is not None and len(set(self.train.labels)) > 1:
            counts = Counter(self.train.labels).values()
            if max(counts) > 1.5 * min(counts):
                text += f"; imbalance {max(counts) / min(counts):.1f}x -> consider --balance sampler"
        if self.bad:
            text += f"\n        {len(self.bad)} unreadable: " + ", ".join(f"{key} ({why})" for key, why in self.bad[:5])
            text += " ..." if len(self.bad) > 5 else ""
        return text

    def fingerprint(self) -> str:
        """Of what is trained and validated on: keys, labels and captions, in order."""
        parts = [[part.keys, part.labels, part.classes, part.captions] for part in (self.train, self.val)]
        return hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest()

    def loaders(self, recipe: Recipe) -> tuple[ResumableLoader, ResumableLoader]:
        weights = balanced_weights(self.train) if recipe.balance == "sampler" else None
        common = (self.preprocess, recipe.augment, recipe.seed)
        if self.task == "image_classification":
            train, val = ImageDataset(self.train, *common), ImageDataset(self.val, self.preprocess)
        else:
            train = PairDataset(self.train, *common, first=recipe.first_caption)
            val = PairDataset(self.val, self.preprocess)
        return (
            ResumableLoader(train, recipe.batch_size, recipe.seed, weights=weights, num_workers=recipe.workers),
            ResumableLoader(val, max(recipe.batch_size, 256), shuffle=False, num_workers=recipe.workers),
        )


def prepare(recipe: Recipe, skip_bad: bool, check: bool = False) -> Sets:
    """Opens, splits and (with `skip_bad` or `check`) reads every picture once. ZooError where nothing is left."""
    if not recipe.data:
        raise UsageError("data: no folder or table given; add --data PATH or `data:` to the recipe")

    def read(name: str | None) -> Items:
        if recipe.task == "image_classification":
            return open_images(recipe.data, split=name)
        try:
            return open_pairs(recipe.data, split=name, captions=tuple(recipe.captions) or None)
        except ZooError as error:
            raise ZooError(f"{error}\nthe recipe asks for captions {recipe.captions} and val {recipe.val!r}; of your own data: "
                           "--captions COLUMN,... --val 0.1") from error

    train = read("train" if splits(recipe.data) else None)
    if isinstance(recipe.val, str):
        val = read(recipe.val)
        val = val.relabel(train.classes) if val.labels is not None else val
    else:
        train, val = split(train, recipe.val, recipe.seed)
    bad: list[tuple[str, str]] = []
    if skip_bad or check:
        bad = unreadable(train) + unreadable(val)
        names = {key for key, _ in bad}
        train, val = (part.subset([i for i, key in enumerate(part.keys) if key not in names]) for part in (train, val))
    for name, part in (("training", train), ("validation", val)):
        if not len(part):
            raise ZooError(f"{recipe.data}: no readable pictures left for {name}; more data, or another --val")
    settings = start_card(recipe).preprocess if recipe.start else registry.find(recipe.model).preprocess
    settings = {**settings.get("image", settings), **recipe.preprocess}
    return Sets(train, val, ImagePreprocess.from_dict(settings), recipe.task, bad)


def start_card(recipe: Recipe) -> Card:
    """The card of the checkpoint a recipe starts from. UsageError where it is another model."""
    card = checkpoint.read_card(checkpoint.locate(recipe.start))
    if card.model != recipe.model:
        raise UsageError(f"start: {recipe.start} is a {card.model}, the recipe's model is {recipe.model}; "
                         f"set --model {card.model}")
    return card
