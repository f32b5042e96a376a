"""The weights of attention, read while a model runs."""

from contextvars import ContextVar

import torch
from torch import Tensor, nn

_recorder: ContextVar["Recorder | None"] = ContextVar("zoo_recorder", default=None)


def recorder() -> "Recorder | None":
    """The recorder that is open in this thread; None inside a trace."""
    return None if torch.compiler.is_compiling() else _recorder.get()


class Recorder:
    """Keeps the attention weights of every Attention of `model` while the `with` block runs.

        with Recorder(model) as record:
            logits = model(x)
        record.maps["stages.0.blocks.0.attn"]   # (b h n m), or (b w h n n) for windows

    Only the thread that opened it is recorded. The written-out path runs, so the logits are the same to rounding.
    The weights are cut off from the graph, but with `gradient`: then a loss of them can be learnt from.
    `closed` holds, by the same names, the share of pairs that a Gated method closed.
    """

    def __init__(self, model: nn.Module, gradient: bool = False):
        self.gradient = gradient
        self.names = {id(module): name for name, module in model.named_modules() if getattr(module, "recorded", False)}
        self.model, self.maps, self.closed, self._hooks, self._current = model, {}, {}, [], None

    def __enter__(self) -> "Recorder":
        self._token = _recorder.set(self)
        for module in self.model.modules():
            if getattr(module, "recorded", False):
                self._hooks.append(module.register_forward_pre_hook(self._enter_module))
                self._hooks.append(module.register_forward_hook(self._leave_module, always_call=True))
        return self

    def __exit__(self, *_) -> None:
        _recorder.reset(self._token)
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: nn.Module, _args) -> None:
        if _recorder.get() is self:
            self._current = self.names[id(module)]

    def _leave_module(self, _module: nn.Module, _args, _output) -> None:
        if _recorder.get() is self:
            self._current = None

    def add(self, weights: Tensor, closed: float | None = None) -> None:
        """Called by `attend`; attention outside of `model` is not kept."""
        if self._current is not None:
            self.maps[self._current] = weights if self.gradient else weights.detach()
            if closed is not None:
                self.closed[self._current] = closed
