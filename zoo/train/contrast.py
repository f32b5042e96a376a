"""Text-image training: contrastive loss on two towers, match loss on the fusion; a frozen text tower runs once a caption."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import zoo
from zoo import pairs
from zoo.errors import UsageError
from zoo.retrieval import metrics
from zoo.train import adapt
from zoo.train.loss import contrastive, hard_negatives
from zoo.train.recipe import Recipe
from zoo.train.sets import Sets, start_card
from zoo.train.task import Task


class Kept(nn.Module):
    """Stands for a frozen text tower whose states are kept: nothing to average, store or train."""

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        pass

    def no_weight_decay(self) -> set[str]:
        return set()


class Contrast(Task):
    """Batches are (picture (b c h w), caption list, item index (b)); the score is text-to-image R@10 in [0, 1]."""

    score_name = "R@10"

    def __init__(self, model: nn.Module, recipe: Recipe, data: Sets, states: dict[str, Tensor]):
        super().__init__(model, recipe)
        self._states, self._val = states, data.val
        self._owned = [frozenset(texts) for texts in data.train.captions]
        self._seen: list[Tensor] = []

    def texts(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Kept token states (b n dim), padded, and their mask (b n)."""
        rows = [self._states[caption] for caption in captions]
        lengths = torch.tensor([len(row) for row in rows])
        states = pad_sequence(rows, batch_first=True).float().to(self.device)
        return states, (torch.arange(states.shape[1]) < lengths[:, None]).to(self.device)

    def training_step(self, batch, _) -> Tensor:
        x, captions, index = batch
        states, mask = self.texts(captions)
        tokens, image = self.model.encode_image(x)
        logits = self.model.similarity(self.model.project_text(states, mask), image)
        owned = [self._owned[i] for i in index.tolist()]
        positive = torch.tensor([[caption in texts for texts in owned] for caption in captions], device=self.device)
        loss = contrastive(logits, positive)
        return loss + self.recipe.match_weight * self.match_loss(states, mask, tokens, logits, positive)

    def match_loss(self, states: Tensor, mask: Tensor, tokens: Tensor, logits: Tensor, positive: Tensor) -> Tensor:
        """Binary cross-entropy on true pairs, each text with a hard wrong picture, each picture with a hard wrong text."""
        if not self.recipe.match_weight:
            return logits.new_zeros(())
        every = torch.arange(len(tokens), device=self.device)
        text, wrong_image = hard_negatives(logits, positive)
        image, wrong_text = hard_negatives(logits.T, positive.T)
        texts, images = torch.cat([every, text, wrong_text]), torch.cat([every, wrong_image, image])
        scores = self.model.forward_match(states[texts], mask[texts], tokens[images]).float()
        truth = torch.zeros_like(scores)
        truth[: len(every)] = 1
        return F.binary_cross_entropy_with_logits(scores, truth)

    def validation_step(self, batch, _) -> None:
        self._seen.append(self.model.encode_image(batch[0])[1].cpu())

    def score(self) -> float:
        image, self._seen = torch.cat(self._seen), []
        captions = [text for texts in self._val.captions for text in texts]
        owner = [i for i, texts in enumerate(self._val.captions) for _ in texts]
        with torch.no_grad():
            text = torch.cat([self.model.project_text(*self.texts(captions[at : at + 512])).cpu()
                              for at in range(0, len(captions), 512)])
        found = metrics.recall(text @ image.T, owner, ks=(10,), captions=captions)
        return found["text_to_image"]["R@10"] / 100


def build(recipe: Recipe, data: Sets) -> tuple[Contrast, list[str]]:
    """The task, with the states of every caption computed by the frozen tower, and the lines that say what was loaded."""
    known = start_card(recipe).arguments if recipe.start else {}
    model = zoo.create_model(recipe.model, **{**known, **recipe.arguments})
    if not model.tower:
        raise UsageError("arguments: tower is none; text_image_contrastive trains on a frozen text tower, leave it as it is")
    pairs.set_preprocess(model, {**model.card.preprocess, "image": data.preprocess.to_dict()})
    lines = [f"model   {recipe.model}, from scratch; frozen text tower {model.tower}"]
    if recipe.start:
        lines = adapt.load_start(model, recipe.start, new=())
    captions = sorted({text for part in (data.train, data.val) for texts in part.captions for text in texts})
    states = keep_states(model, captions)
    model.text = Kept()
    lines.append(f"texts   {len(captions)} captions through the text tower, once")
    return Contrast(model, recipe, data, states), lines


@torch.inference_mode()
def keep_states(model: nn.Module, captions: list[str], batch_size: int = 128) -> dict[str, Tensor]:
    """{caption: token states (n dim), half precision} of the frozen text tower."""
    kept: dict[str, Tensor] = {}
    order = sorted(captions, key=len)  # batches of like length: little padding
    for at in range(0, len(order), batch_size):
        part = order[at : at + batch_size]
        ids, mask = model.preprocess_text.batch(part)
        states = model.text_states(ids, mask).half()
        kept.update({text: row[real].clone() for text, row, real in zip(part, states, mask)})
    return kept
