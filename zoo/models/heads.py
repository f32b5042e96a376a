"""What models in stages share around their classifier: timm's names."""

from torch import nn


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
        return {"stem": rf"^{self.stem_name}", "blocks": r"^stages\.(\d+)" if coarse else fine}

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are position tables."""
        return {name for name, _ in self.named_parameters() if name.endswith("position.table")}

    def _checkpoint(self) -> bool:
        return self.grad_checkpointing and self.training


def init_linear(module: nn.Module) -> None:
    """Swin's start of a linear layer: a truncated normal of deviation 0.02, no bias."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
