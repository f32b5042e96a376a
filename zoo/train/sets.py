"""From a recipe to the training and the validation set, and what is said about them."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

from zoo import checkpoint, inference, registry
from zoo.card import Card
from zoo.data.dataset import ImageDataset, PairDataset
from zoo.data.hear import SoundDataset
from zoo.data.images import open_images, open_pairs, splits
from zoo.data.items import Items, balanced_weights, split, unreadable
from zoo.data.loader import ResumableLoader
from zoo.data.sounds import open_sounds, open_tags
from zoo.data.stream import Streamed
from zoo.errors import UsageError, ZooError
from zoo.train import streams
from zoo.train.fits import unfit
from zoo.train.recipe import TASKS, Recipe


@dataclass
class Sets:
    """Training and validation items of one task; subclasses know how items of their kind are opened and loaded."""

    train: Items
    val: Items
    preprocess: object
    bad: list[tuple[str, str]] = field(default_factory=list)
    noun = "items"

    unreadable = staticmethod(unreadable)

    @classmethod
    def open(cls, recipe: Recipe, name: str | None) -> Items:
        """The items of split `name` (None: all)."""
        raise NotImplementedError

    @classmethod
    def splits(cls, recipe: Recipe) -> list[str]:
        """The names of the splits that the data has; [] where it has none."""
        return splits(recipe.data, recipe.split_column)

    def datasets(self, recipe: Recipe) -> tuple:
        """(training, validation) data sets."""
        raise NotImplementedError

    @classmethod
    def steps(cls, recipe: Recipe, train: Items):
        """The preprocessing: of the checkpoint to start from, or of the model; the recipe's own values on top."""
        settings = start_card(recipe).preprocess if recipe.start else registry.find(recipe.model).preprocess
        settings = settings.get("image", settings)
        if recipe.image_start:  # pictures are normalised as the tower knows them
            known = image_card(recipe).preprocess
            known = known.get("image", known)
            settings = {**settings, "mean": known["mean"], "std": known["std"]}
        return inference.preprocessing(TASKS[recipe.task])({**settings, **recipe.preprocess})

    def summary(self) -> str:
        kind = f"{len(self.train.classes)} classes" if self.train.classes else f"{self.train.caption_count} captions"
        text = f"data    {len(self.train)} training and {len(self.val)} validation {self.noun}, {kind}"
        if self.train.labels is not None and len(set(self.train.labels)) > 1:
            counts = Counter(self.train.labels).values()
            if max(counts) > 1.5 * min(counts):
                text += f"; imbalance {max(counts) / min(counts):.1f}x -> consider --balance sampler"
        return text + self.bad_lines()

    def bad_lines(self) -> str:
        if not self.bad:
            return ""
        text = f"\n        {len(self.bad)} unreadable: " + ", ".join(f"{key} ({why})" for key, why in self.bad[:5])
        return text + (" ..." if len(self.bad) > 5 else "")

    def fingerprint(self) -> str:
        """Of what is trained and validated on: keys, labels and captions, in order."""
        if isinstance(self.train, Streamed):
            return self.train.fingerprint() + self.val.fingerprint()
        parts = [[part.keys, part.labels, part.classes, part.captions, part.tags] for part in (self.train, self.val)]
        return hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest()

    def loaders(self, recipe: Recipe) -> tuple[ResumableLoader, ResumableLoader]:
        weights = balanced_weights(self.train) if recipe.balance == "sampler" else None
        train, val = self.datasets(recipe)
        return (
            ResumableLoader(train, recipe.batch_size, recipe.seed, weights=weights, num_workers=recipe.workers,
                            order=streams.order(self.train, recipe)),
            ResumableLoader(val, max(recipe.batch_size, self.val_batch), shuffle=False, num_workers=recipe.workers),
        )

    val_batch = 256


class Pictures(Sets):
    """Pictures with one label each."""

    noun = "pictures"

    @classmethod
    def open(cls, recipe: Recipe, name: str | None) -> Items:
        return open_images(recipe.data, split=name, label=label_column(recipe), split_column=recipe.split_column)

    def datasets(self, recipe: Recipe) -> tuple:
        common = (self.preprocess, recipe.augment, recipe.seed)
        return ImageDataset(self.train, *common), ImageDataset(self.val, self.preprocess)


class Pairs(Sets):
    """Pictures with captions."""

    noun = "pictures"

    @classmethod
    def open(cls, recipe: Recipe, name: str | None) -> Items:
        try:
            return open_pairs(recipe.data, split=name, captions=tuple(recipe.captions) or None)
        except ZooError as error:
            asked = f"captions {', '.join(recipe.captions) or '(caption, captions or text)'} and val {recipe.val}"
            said = "say --captions COLUMN,... and --val 0.1 as your data has them"
            raise ZooError(f"{error}\nasked for: {asked}; {said}") from error

    def datasets(self, recipe: Recipe) -> tuple:
        train = PairDataset(self.train, self.preprocess, recipe.augment, recipe.seed, first=recipe.first_caption)
        return train, PairDataset(self.val, self.preprocess)


class Sounds(Sets):
    """Sounds with one label each."""

    noun, val_batch = "sounds", 64
    reader = staticmethod(open_sounds)

    @classmethod
    def open(cls, recipe: Recipe, name: str | None) -> Items:
        return cls.reader(recipe.data, split=name, label=label_column(recipe), split_column=recipe.split_column)

    @classmethod
    def steps(cls, recipe: Recipe, train: Items):
        rate = {"rate": recipe.arguments["rate"]} if "rate" in recipe.arguments else {}
        return super().steps(replace(recipe, preprocess={**rate, **recipe.preprocess}), train)

    def datasets(self, recipe: Recipe) -> tuple:
        common = (self.preprocess, recipe.augment, recipe.seed)
        return SoundDataset(self.train, *common), SoundDataset(self.val, self.preprocess)


class TaggedSounds(Sounds):
    """Sounds with any number of labels each."""

    reader = staticmethod(open_tags)


def kind(task: str) -> type[Sets]:
    """The Sets of a task."""
    known = {"image_classification": Pictures, "text_image_contrastive": Pairs, "audio_classification": Sounds,
             "audio_tagging": TaggedSounds}
    if task in known:
        return known[task]
    from zoo.train import graphs, nodes

    return nodes.Network if task in ("node_classification", "link_prediction") else graphs.Graphs


def prepare(recipe: Recipe, skip_bad: bool, check: bool = False) -> Sets:
    """Opens, splits and (with `skip_bad` or `check`) reads every item once. ZooError where nothing is left."""
    if not recipe.data:
        raise UsageError("data: no folder or table given; add --data PATH or `data:` to the recipe")
    if problems := unfit(recipe):
        raise UsageError("\n".join(f"{name}: {problem}" for name, problem in problems.items()))
    made = kind(recipe.task)
    if hasattr(made, "prepare"):
        return made.prepare(recipe)
    if streamed := streams.split(recipe, skip_bad, check):
        train, val, bad = streamed
        return made(train, val, made.steps(recipe, train), bad)
    train, val = _split(recipe, made)
    bad: list[tuple[str, str]] = []
    if skip_bad or check:
        bad = made.unreadable(train) + made.unreadable(val)
        names = {key for key, _ in bad}
        train, val = (part.subset([i for i, key in enumerate(part.keys) if key not in names]) for part in (train, val))
    for name, part in (("training", train), ("validation", val)):
        if not len(part):
            raise ZooError(f"{recipe.data}: no readable {made.noun} left for {name}; more data, or another --val")
    return made(train, val, made.steps(recipe, train), bad)


def _split(recipe: Recipe, made: type[Sets]) -> tuple[Items, Items]:
    """Training and validation items: by the split `train`; by every split but those held out; or all."""
    names = made.splits(recipe)
    unknown = [name for name in recipe.hold_out if name not in names]
    if unknown:
        raise UsageError(f"hold_out: {', '.join(unknown)} in no row of column {recipe.split_column!r} "
                         f"(has: {', '.join(names) or 'no splits'})")
    named = isinstance(recipe.val, str)
    if recipe.hold_out:
        rest = [name for name in names if name not in recipe.hold_out and not (named and name == recipe.val)]
        if not rest:
            raise UsageError(f"hold_out: nothing left to train on; splits are {', '.join(names)}")
        train = reduce(add, [made.open(recipe, name) for name in rest])
    else:
        train = made.open(recipe, "train" if names else None)
    if not named:
        return split(train, recipe.val, recipe.seed)
    val = made.open(recipe, recipe.val)
    return train, val.relabel(train.classes) if val.classes else val


def label_column(recipe: Recipe) -> str:
    """The column of the label."""
    if len(recipe.targets) > 1:
        raise UsageError(f"targets: {', '.join(recipe.targets)}; {recipe.task} takes one column")
    return recipe.targets[0] if recipe.targets else "label"


def start_card(recipe: Recipe) -> Card:
    """The card of the checkpoint a recipe starts from. UsageError where it is another model."""
    card = checkpoint.read_card(checkpoint.locate(recipe.start))
    if card.model != recipe.model:
        raise UsageError(f"start: {recipe.start} is a {card.model}, the recipe's model is {recipe.model}; "
                         f"set --model {card.model}")
    return card


def image_card(recipe: Recipe) -> Card:
    """The card of the checkpoint that the image tower starts from. UsageError where it has none."""
    card = checkpoint.read_card(checkpoint.locate(recipe.image_start))
    if card.modality not in ("image", "text_image"):
        raise UsageError(f"image_start: {recipe.image_start} is a {card.modality} model; a checkpoint of pictures is needed")
    return card
