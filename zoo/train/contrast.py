"""Text-image training: contrastive loss on two towers, match loss on the fusion; what of the text tower is frozen runs once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.data.stream_pairs import StreamedPairs
from zoo.errors import UsageError
from zoo.retrieval import metrics
from zoo.train import pair_model, ranks, rates, states
from zoo.train.loss import hard_negatives
from zoo.train.objective import Objective
from zoo.train.passing import Passing
from zoo.train.recipe import Recipe
from zoo.train.sets import Sets
from zoo.train.task import Task


class Kept(nn.Module):
    """Stands for a frozen text tower whose states are kept: nothing to average, store or train."""

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        pass

    def no_weight_decay(self) -> set[str]:
        return set()


class Contrast(Task):
    """Batches are (picture (b c h w), caption list, item index (b)); the score is text-to-image R@10 in [0, 1].

    `kept`: states of captions after the blocks of the text tower that do not learn, of all of them or (shards) computed as they
    come; model.text has the other blocks, from `live` on (None: none learns).
    """

    score_name = "R@10"

    def __init__(self, model: nn.Module, recipe: Recipe, data: Sets, kept: states.States | Passing, live: int | None = None):
        super().__init__(model, recipe)
        self._kept, self._val, self._live = kept, data.val, live
        self._seen: list[tuple[Tensor, Tensor]] = []  # numbers of items, their vectors
        if isinstance(kept, Passing):
            owned, sentences = data.train.owned, kept.width if recipe.soft_targets else None
        else:
            owned = [[kept.rows[text] for text in texts] for texts in data.train.captions]
            sentences = pair_model.sentences(model, kept, live) if recipe.soft_targets else None
        self.objective = Objective(recipe, owned, model.num_features, sentences)

    def texts(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Token states (b n dim), padded, and their mask (b n)."""
        x, mask = self._kept.batch(captions, self.device)
        if self._live is not None:
            for block in self.model.text.blocks[self._live :]:
                x = block(x, mask)
        return x, mask

    def training_step(self, batch, _) -> Tensor:
        x, captions, items = batch
        words, mask = self.texts(captions)
        tokens, image = self.model.encode_image(x)
        numbers = torch.tensor([self._kept.rows[caption] for caption in captions], device=self.device)
        real = len(x) if self.real is None else self.real
        said = [self._kept.sentences(words, mask)] if self.objective.share and isinstance(self._kept, Passing) else []
        text, image, numbers, items, *said = ranks.gather(self.model.project_text(words, mask), image, numbers, items, *said,
                                                          real=real)
        loss, logits = self.objective(self.model, text, image, numbers, items, *said)
        if self.recipe.match_weight:
            words, mask, tokens = ranks.gather(*ranks.padded(words, mask), tokens, real=real)
            true = self.objective.true_pairs(numbers, items)
            loss = loss + self.recipe.match_weight * self.match_loss(words, mask, tokens, logits, true)
        return loss

    def match_loss(self, words: Tensor, mask: Tensor, tokens: Tensor, logits: Tensor, positive: Tensor) -> Tensor:
        """Binary cross-entropy on true pairs, each text with a hard wrong picture, each picture with a hard wrong text."""
        every = torch.arange(len(tokens), device=self.device)
        text, wrong_image = map(ranks.same, hard_negatives(logits, positive))
        image, wrong_text = map(ranks.same, hard_negatives(logits.T, positive.T))
        texts, images = torch.cat([every, text, wrong_text]), torch.cat([every, wrong_image, image])
        mine = torch.arange(len(texts), device=self.device)[ranks.rank() :: ranks.world()]
        weight = len(mine) * ranks.world() / len(texts)  # of this rank's pairs in the mean over all pairs
        mine = mine if len(mine) else every[:1]
        texts, images, truth = texts[mine], images[mine], (mine < len(every)).float()
        side = self.model.image_side(tokens).pick(images)  # what no text has a part in: once a picture, not thrice
        scores = self.model.forward_match(words[texts], mask[texts], side).float()
        return weight * F.binary_cross_entropy_with_logits(scores, truth)

    def on_train_batch_start(self, batch, number) -> None:
        super().on_train_batch_start(batch, number)
        self.share = 1.0  # every rank's loss is of the whole batch already

    def layer_rates(self, fallback: bool):
        return rates.groups(self.recipe, fallback)

    def beside(self) -> list[nn.Parameter]:
        return [self.objective.bias] if self.objective.bias is not None else []

    def validation_step(self, batch, _) -> None:
        self._seen.append((batch[2].cpu(), self.model.encode_image(batch[0])[1].cpu()))

    def score(self) -> float:
        parts, self._seen = [part for seen in ranks.everyone(self._seen) for part in seen], []
        numbers, vectors = map(torch.cat, zip(*parts))
        image = vectors[numbers.argsort()]
        every = list(self._val.captions)
        captions = [text for texts in every for text in texts]
        owner = [i for i, texts in enumerate(every) for _ in texts]
        with torch.no_grad():
            text = torch.cat([self.model.project_text(*self.texts(captions[at : at + 512])).cpu()
                              for at in range(0, len(captions), 512)])
        found = metrics.recall(text @ image.T, owner, ks=(10,), captions=captions)
        return found["text_to_image"]["R@10"] / 100


def build(recipe: Recipe, data: Sets) -> tuple[Contrast, list[str]]:
    """The task, with the states of every caption after the frozen blocks, and the lines that say what was loaded."""
    model, lines = pair_model.make(recipe, data)
    live = pair_model.live(recipe, model)
    if isinstance(data.train, StreamedPairs):
        if recipe.soft_targets and live is not None:
            raise UsageError(f"soft_targets: {recipe.soft_targets:g}; the text tower learns, and captions of shards are not at "
                             "hand to be compared before it does: take soft_targets: 0")
        kept = Passing(model, live)
        line = f"texts   {data.train.caption_count} captions, each through the text tower when its turn comes"
    else:
        captions = {text for part in (data.train, data.val) for texts in part.captions for text in texts}
        kept, line = states.keep(model, captions, live)
    task = Contrast(model, recipe, data, kept, live)
    if live is None and "text." in model.card.towers:
        model.text = Kept()
    return task, [*lines, line]
