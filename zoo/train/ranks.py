"""Several processes that train one model (torchrun): who is who, what travels between them, sums that equal one process's.

Every rank computes its part of the global batch. A loss that is a mean over items weighs by the rank's share of them, so that the
mean of the ranks' gradients, which DDP takes, is the gradient of the whole batch. What a loss compares across items (contrast,
batch norm) is gathered with its gradient: backward adds up what every rank's loss says about this rank's values.
"""

import os
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.data.share import rank_of_world
from zoo.errors import UsageError
from zoo.train.recipe import Recipe

ALONE = ("node_classification", "link_prediction")  # one big graph: parts of it are no items that could be cut over ranks


def world() -> int:
    return rank_of_world()[1]


def rank() -> int:
    return rank_of_world()[0]


def first() -> bool:
    """Whether this process writes and prints."""
    return rank() == 0


def launched() -> int:
    """How many processes torchrun started; 1 without it."""
    under = dist.is_available() and dist.is_torchelastic_launched()
    return int(os.environ["WORLD_SIZE"]) if under else 1


def start(task: str) -> None:
    """Joins the others where torchrun started this process. UsageError for tasks that run in one process."""
    if launched() == 1 or dist.is_initialized():
        return
    if task in ALONE:
        raise UsageError(f"task: {task} learns from one graph as a whole; start it without torchrun")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=30))


def trainer_options(recipe: Recipe) -> dict:
    """Arguments of lightning's Trainer: one device alone, or DDP over the processes of torchrun."""
    from lightning.pytorch.strategies import DDPStrategy

    from zoo.train import sharded

    if world() == 1:
        return {"devices": 1}
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    unused = recipe.task == "text_image_contrastive" and not recipe.match_weight  # the fusion has no part in the loss
    ddp = DDPStrategy(find_unused_parameters=unused, broadcast_buffers=False)  # RankNorm keeps buffers equal
    strategy = sharded.strategy() if sharded.on(recipe) else ddp
    return {"devices": here, "num_nodes": world() // here, "strategy": strategy}


@contextmanager
def in_turn():
    """The first rank of the machine goes ahead and fills the caches that the others then find filled."""
    ahead = int(os.environ.get("LOCAL_RANK", 0)) == 0
    if world() > 1 and not ahead:
        dist.barrier()
    try:
        yield
    finally:
        if world() > 1 and ahead:
            dist.barrier()


def same(value):
    """The first rank's value, on every rank; of a tensor in place."""
    if world() == 1:
        return value
    if isinstance(value, Tensor):
        dist.broadcast(value, 0)
        return value
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]


def everyone(value) -> list:
    """The values of all ranks, in their order."""
    found = [value] * world()
    if world() > 1:
        dist.all_gather_object(found, value)
    return found


def total(value: float, largest: bool = False) -> float:
    """The sum over the ranks, or the largest."""
    if world() == 1:
        return value
    box = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(box, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
    return box.item()


def mean(values: Tensor) -> Tensor:
    """The mean over the ranks, element by element."""
    if world() > 1:
        values = values.clone()
        dist.all_reduce(values)
    return values / world()


def share(mass: float) -> float:
    """What a rank's mean over `mass` (items, or their weights) counts in the mean over ranks that DDP takes."""
    return mass * world() / (total(mass) or 1.0) if world() > 1 else 1.0


class _Sum(torch.autograd.Function):
    """Sum over the ranks; so is its gradient."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class _Gather(torch.autograd.Function):
    """Rows of all ranks, `counts` of each; backward adds up what the losses of all ranks say about this rank's rows."""

    @staticmethod
    def forward(ctx, x: Tensor, counts: list[int]) -> Tensor:
        ctx.counts, widest = counts, max(counts)
        mine = F.pad(x, [0, 0] * (x.ndim - 1) + [0, widest - len(x)]).contiguous()
        parts = [torch.empty_like(mine) for _ in counts]
        dist.all_gather(parts, mine)
        return torch.cat([part[:count] for part, count in zip(parts, counts)])

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        before = sum(ctx.counts[: rank()])
        return gradient[before : before + ctx.counts[rank()]], None


def gather(*tensors: Tensor, real: int) -> list[Tensor]:
    """The first `real` rows of each tensor, those of all ranks one after the other, with their gradient.

    The ranks' losses are meant as parts of one: their mean is what is learnt from.
    """
    if world() == 1:
        return list(tensors)
    counts = everyone(real)
    return [_Gather.apply(x[:real].byte() if x.dtype == torch.bool else x[:real], counts).to(x.dtype) for x in tensors]


def padded(words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """words (b n dim), mask (b n) with the largest n of all ranks."""
    more = int(total(words.shape[1], largest=True)) - words.shape[1]
    return F.pad(words, [0, 0, 0, more]), F.pad(mask, [0, more])


class RankNorm(nn.BatchNorm2d):
    """BatchNorm2d in training with mean and deviation over all ranks; `idle`: this rank has a stand-in that does not count.

    torch's SyncBatchNorm is for GPUs only.
    """

    idle = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        wide, weight = x.float(), 0.0 if self.idle else 1.0
        count = total(weight * x.numel() / x.shape[1])
        mean = _Sum.apply(wide.sum((0, 2, 3)) * weight) / count
        centred = wide - mean[:, None, None]
        var = _Sum.apply(centred.square().sum((0, 2, 3)) * weight) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * count / max(count - 1, 1), self.momentum)
            self.num_batches_tracked += 1
        scale = self.weight * (var + self.eps).rsqrt()
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def join_norms(model: nn.Module) -> None:
    """Batch norms of `model` count the items of all ranks; names and weights stay."""
    for module in model.modules() if world() > 1 else ():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = RankNorm


def rest(model: nn.Module, idle: bool) -> None:
    """Tells the batch norms whether this rank's items count."""
    for module in model.modules():
        if isinstance(module, RankNorm):
            module.idle = idle
