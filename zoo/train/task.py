"""What is learnt: loss and validation score around a model of the zoo, as LightningModules."""

import math
from collections.abc import Callable

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor, nn

from zoo.core.gated import penalties
from zoo.train import ranks, sharded
from zoo.train.mix import mixup
from zoo.train.recipe import Recipe


class Task(pl.LightningModule):
    """Optimiser and schedule of a recipe around `model`. Subclasses give the loss and the score.

    `score_name` is the validation number that `best` goes by, `sign` -1 where lower is better. `total_steps` is set by the
    run: asking Lightning for it would set up the loader before its state is restored, and resume would repeat batches.
    """

    score_name, sign = "accuracy", 1
    total_steps = 1
    share, real = 1.0, None  # where several processes train: what this rank's mean counts, how many of its items do (None: all)
    whole = None  # of a sharded model: the copy it is saved from

    def __init__(self, model: nn.Module, recipe: Recipe):
        super().__init__()
        self.model, self.recipe = model, recipe

    def configure_model(self) -> None:
        if sharded.on(self.recipe) and self.whole is None:
            sharded.shard(self)

    def configure_optimizers(self):
        from timm.optim import create_optimizer_v2

        r = self.recipe
        options = {"fallback_no_weight_decay": True} if "muon" in r.optimizer else {}
        decay = r.layer_decay if r.layer_decay < 1 else None
        optimizer = create_optimizer_v2(
            self.model, opt=r.optimizer, lr=r.lr, weight_decay=r.weight_decay, layer_decay=decay,
            param_group_fn=self.layer_rates(bool(options)) if decay else None, **options,
        )
        if more := self.beside():
            optimizer.add_param_group({"params": more, "weight_decay": 0.0})
        for group in optimizer.param_groups:
            group["lr"] *= group.get("lr_scale", 1.0)  # timm leaves this to its own schedulers
        steps = schedule(optimizer, r.warmup, self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": steps, "interval": "step"}}

    def layer_rates(self, fallback: bool) -> Callable[[nn.Module], list[dict]] | None:
        """Groups of parameters with rates by depth; None: timm's, by the group_matcher of the model."""

    def beside(self) -> list[nn.Parameter]:
        """What learns beside the model, as a bias of the loss does; stored in the training state, not in the checkpoint."""
        return []

    def on_train_batch_start(self, batch, _) -> None:
        if ranks.world() > 1:
            self.real = self.trainer.train_dataloader.real
            self.share = ranks.share(self.mass(batch) if self.real else 0.0)
            ranks.rest(self.model, not self.real)

    def mass(self, batch) -> float:
        """What the loss of a batch is a mean over: its items, or the sum of their weights."""
        return len(batch[0])

    def backward(self, loss: Tensor, *args, **kwargs) -> None:
        """Adds what the gates of the model cost (zoo.core.Gated); `loss` is already a share of the batches that a step sums."""
        cost, loss = penalties(self.model), loss * self.share
        super().backward(loss if cost is None else loss + cost / self.recipe.accumulate, *args, **kwargs)

    def score(self) -> float:
        """The validation score over everything seen since the last `reset_score`."""
        raise AssertionError("a Task gives its score")

    def unit(self) -> str:
        """Of the score; empty where it has none."""
        return ""


class Classify(Task):
    """Cross-entropy over labels; the score is accuracy. Batches are (*inputs of the model, label (b))."""

    def __init__(self, model: nn.Module, recipe: Recipe, class_weights: Tensor | None = None):
        super().__init__(model, recipe)
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.metric = self.make_metric(len(model.card.labels))

    def make_metric(self, classes: int) -> torchmetrics.Metric:
        return torchmetrics.Accuracy("multiclass", num_classes=classes, average="micro")

    def training_step(self, batch, _) -> Tensor:
        *inputs, label = batch
        if self.recipe.mixup:
            inputs, label = mixup(inputs, self.targets(label), self.recipe.mixup)
        return self.learn(inputs, label)

    def learn(self, inputs: list[Tensor], label: Tensor) -> Tensor:
        """The loss of what the model is given, after mixup."""
        return self.loss(self.model(*inputs).float(), label)

    def mass(self, batch) -> float:
        weighted = self.class_weights is not None and not self.recipe.mixup  # torch: of blended labels the mean is over items
        return float(self.class_weights[batch[-1]].sum()) if weighted else super().mass(batch)

    def targets(self, label: Tensor) -> Tensor:
        """Labels (b) as rows of a distribution over the classes (b classes)."""
        return F.one_hot(label, self.model.num_classes).float()

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(logits, label, self.class_weights, label_smoothing=self.recipe.label_smoothing)

    def validation_step(self, batch, _) -> None:
        *inputs, label = batch
        self.metric.update(self.model(*inputs).float(), label)

    def score(self) -> float:
        value = float(self.metric.compute())
        self.metric.reset()
        return value


class Tag(Classify):
    """Several labels at once: binary cross-entropy; the score is mean average precision. Labels are (b classes) of 0 and 1."""

    score_name = "mAP"

    def make_metric(self, classes: int) -> torchmetrics.Metric:
        return torchmetrics.classification.MultilabelAveragePrecision(num_labels=classes)

    def mass(self, batch) -> float:
        return len(batch[0])

    def targets(self, label: Tensor) -> Tensor:
        return label

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        smooth = self.recipe.label_smoothing
        return F.binary_cross_entropy_with_logits(logits, label * (1 - smooth) + smooth / 2, pos_weight=self.class_weights)

    def validation_step(self, batch, _) -> None:
        *inputs, label = batch
        self.metric.update(self.model(*inputs).float().sigmoid(), label.long())


def schedule(optimizer, warmup: float, total: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Linear rise over `warmup` of the steps, then a cosine to 0."""
    rise = max(1, round(warmup * total))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
