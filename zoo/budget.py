"""How large a model may get while it is built: counted at each part, before its numbers are written."""

import os
from contextlib import contextmanager

from zoo.errors import UsageError

PARTS = 10_000  # modules; a block has some 20
LONGEST = 10**7  # of an integer among the arguments: lists of as many entries are made of some
SPARE = 10**8  # numbers beside those that a file holds: frozen towers, tied tensors, tables that are not stored


def machine() -> int:
    """float32 numbers that the memory of this machine holds."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def check(arguments: dict, name: str) -> None:
    """UsageError for an integer beyond 10^7 among the arguments of the model `name`, at any depth."""
    def walk(value, where: str):
        if isinstance(value, dict):
            for key, part in value.items():
                walk(part, f"{where}.{key}" if where else str(key))
        elif isinstance(value, (list, tuple)):
            for part in value:
                walk(part, where)
        elif isinstance(value, int) and abs(value) > LONGEST:
            raise UsageError(f"{name}: {where} is {value:.4g}; no size or count of a model is above {LONGEST}")

    walk(arguments, "")


@contextmanager
def within(most: int, name: str, why: str):
    """Inside, modules with more than `most` numbers in all, or more than 10,000 parts, are refused with UsageError: `why`.

    A parameter is counted when it is given to its module, before it is filled: memory that was only asked for costs nothing.
    """
    from torch.nn.modules import module

    numbers = parts = 0

    def tensor(_module, key, value):
        nonlocal numbers
        numbers += 0 if value is None else value.numel()
        if numbers > most:
            raise UsageError(f"{name}: more than {most:.3g} parameters ({key}: {'x'.join(map(str, value.shape))}); {why}")

    def part(*_):
        nonlocal parts
        parts += 1
        if parts > PARTS:
            raise UsageError(f"{name}: more than {PARTS} layers and parts; make depth or the number of stages smaller")

    hooks = [module.register_module_parameter_registration_hook(tensor), module.register_module_buffer_registration_hook(tensor),
             module.register_module_module_registration_hook(part)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
