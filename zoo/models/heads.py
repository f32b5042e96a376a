"""What models in stages share around their classifier: timm's names."""

from torch import nn

from zoo.core import Attention


class Staged(nn.Module):
    """A model with `stages`, `norm`, `num_features` and the prefix `stem_name` of what comes before the stages."""

    stem_name: str

    def reset_classifier(self, num_classes: int) -> None:
        """A new, untrained classifier for `num_classes` (0: none)."""
        self.num_classes = num_classes
        self.classifier = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.classifier.apply(init_linear).to(self.norm.weight)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> dict:
        """timm's description of the depth of every parameter, for layer-wise learning rates."""
        fine = [(r"^stages\.(\d+)\.merge", (0,)), (r"^stages\.(\d+)\.\w+\.(\d+)", None), (r"^norm", (99999,))]
        return {"stem": rf"^(?:{self.stem_name}|absolute)", "blocks": r"^stages\.(\d+)" if coarse else fine}

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are position tables or gates."""
        return tables(self)

    def _checkpoint(self) -> bool:
        return self.grad_checkpointing and self.training


def layers(name: str, indices: list[int] | None, count: int) -> list[int]:
    """Places of the layers asked for, negative ones from the end; None: all. ValueError where there is no such layer."""
    if any(not -count <= i < count for i in indices or ()):
        raise ValueError(f"{name}: indices={indices!r}; allowed: {-count} .. {count - 1}")
    return list(range(count)) if indices is None else [i % count for i in indices]


def tables(model: nn.Module) -> set[str]:
    """Names of the position tables and of the maps of gates, which weight decay would pull to nothing."""
    ends = ("position.table", "position.keys", "position.values", "absolute.table", "method.map")
    return {name for name, _ in model.named_parameters() if name.endswith(ends)}


def init_linear(module: nn.Module) -> None:
    """Swin's start of a linear layer: a truncated normal of deviation 0.02, no bias. Attention has its own say (gain)."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, Attention):
        module.start()  # apply() meets a module after its parts
