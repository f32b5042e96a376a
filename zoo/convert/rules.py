"""What every converter shares: a naming of weights, told apart by a few marks, and how its names become ours.

A converter is a list of rules (pattern, replacement). Every key of a file is renamed by the first rule that fits it or is
dropped for a stated reason; a key that is neither is an error, so nothing is left over.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zoo.errors import ZooError

PARTS = ("query", "key", "value")  # one matrix each in some sources, rows of one matrix `qkv` in ours
GEOMETRY = "geometry, recomputed"


@dataclass(frozen=True)
class Layout:
    """One naming of the weights of one kind of model.

    marks: patterns that all must fit some key, for the layout to be recognised; `never`: a pattern that must fit none.
    rules: (pattern of the start of a key, replacement); what follows the match must be one of `ends`.
    dropped: (pattern of a whole key, why). prefix: a pattern taken off the start of a key where it fits.
    old_ends: (pattern of the end of a key, replacement), names of earlier releases.
    """

    title: str
    marks: tuple[str, ...]
    rules: tuple[tuple[str, str | Callable], ...]
    dropped: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    never: str = "(?!)"
    ends: str = "weight|bias|table"
    old_ends: tuple[tuple[str, str], ...] = ()

    def short(self, key: str) -> str:
        """The key as the rules see it."""
        key = re.sub(f"^(?:{self.prefix})", "", key, count=1)
        for pattern, replacement in self.old_ends:
            key = re.sub(f"{pattern}$", replacement, key)
        return key

    def fits(self, keys: Iterable[str]) -> bool:
        keys = [self.short(key) for key in keys]
        found = all(any(re.fullmatch(mark, key) for key in keys) for mark in self.marks)
        return found and not any(re.fullmatch(self.never, key) for key in keys)


@dataclass
class Report:
    """What became of a file: `renamed` {their key: ours}, `dropped` {their key: why}, `changed`: lines on values."""

    layout: str
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def dropped_by_reason(self) -> dict[str, list[str]]:
        reasons: dict[str, list[str]] = {}
        for key, why in self.dropped.items():
            reasons.setdefault(why, []).append(key)
        return reasons


def rename(layout: Layout, keys: Iterable[str]) -> Report:
    """Their names -> ours, query, key and value still apart. ZooError counts the keys that are neither renamed nor dropped."""
    report, left = Report(layout.title), []
    for key in (keys := list(keys)):
        short = layout.short(key)
        rule = next((rule for rule in layout.rules if re.fullmatch(f"{rule[0]}({layout.ends})", short)), None)
        why = next((why for pattern, why in layout.dropped if re.fullmatch(pattern, short)), None)
        if rule:
            report.renamed[key] = re.sub(*rule, short, count=1)
        elif why:
            report.dropped[key] = why
        else:
            left.append(key)
    if left or not report.renamed:
        first = f", first: {', '.join(left[:3])}" if left else ""
        raise ZooError(f"not a {layout.title} state dict: {len(left)} of {len(keys)} keys unknown{first}")
    return report


def translate(layout: Layout, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], Report]:
    """A state dict under our names, query, key and value as one. ZooError: keys left over, doubled or missing."""
    report = rename(layout, state)
    found: dict[str, Tensor] = {}
    for theirs, ours in report.renamed.items():
        if ours in found:
            raise ZooError(f"not a {layout.title} state dict: {theirs} and another key both become {ours}")
        found[ours] = state[theirs]
    for key in [key for key in found if ".attn.query." in key]:
        parts = [key.replace("query", part) for part in PARTS]
        if missing := [part for part in parts if part not in found]:
            raise ZooError(f"incomplete {layout.title} state dict: nothing becomes {missing[0]}")
        found[key.replace("query", "qkv")] = torch.cat([found.pop(part) for part in parts])
    return found, report
