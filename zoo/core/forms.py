"""The attention family in words: the `attention` argument of a model, plain data that fits a recipe and a Card.

    attention: {pattern: axial, position: {form: shaw, limit: 8}, method: softmax, temperature: learned, gain: 0.7}

A key left out is the model's own way. pattern, position, method and temperature are the name of a form, or a mapping {form: name,
and arguments of the form}. A new form is a function in one of the tables below: its arguments are those one may write.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from math import isfinite

from torch import nn

from zoo.core.absolute import LearnedPosition, SinusoidalPosition
from zoo.core.attention import Attention
from zoo.core.axial import Axial
from zoo.core.band import Band
from zoo.core.bias import ClippedPosition, RelativePosition
from zoo.core.chunked import Chunked
from zoo.core.dilated import Dilated
from zoo.core.gated import Gated
from zoo.core.linear import LinearAttention
from zoo.core.patterns import SteadyWindows, Windows
from zoo.core.reach import CAUSAL, Reach
from zoo.core.scale import Temperature
from zoo.core.shaw import ShawPosition
from zoo.core.slide import Slide
from zoo.core.whole import Whole


@dataclass(frozen=True)
class Place:
    """Where an attention stands in a model, which is what a form may need to know.

    `axes` of the map of tokens; `window` tokens that the model lets a token see around it (None: all); `index` of the block
    in its stage; `far`: offsets told apart by a position whose pattern has no radius; `everybody`: the pattern of "all".
    """

    dim: int
    heads: int
    axes: int = 1
    window: int | None = None
    index: int = 0
    far: int = 128
    everybody: Whole | None = Whole()


def windows(place: Place, size: int | None = None):
    """Every other block's are shifted by half. Over time their cells do not depend on the length of the map."""
    if (size := size or place.window) is None:
        return place.everybody
    shift = size // 2 * (place.index % 2)
    return (SteadyWindows if place.axes == 1 else Windows)((size,) * place.axes, (shift,) * place.axes)


def sliding(place: Place, radius: int | None = None):
    if radius is None and place.window is None:
        return place.everybody
    radius = place.window // 2 if radius is None else radius
    return Band(radius) if place.axes == 1 else Slide(radius)


def dilated(place: Place, step: int = 2, radius: int | None = None):
    if radius is None and place.window is None:
        return place.everybody
    return Dilated(place.window // 2 if radius is None else radius, step)


def distance(place: Place, behind: int | list | None = None, ahead: int | list | None = None):
    """A list has one limit a head, or one for each of as many equal groups of heads."""
    def each(limit):
        if not isinstance(limit, list) or place.heads % len(limit):
            return tuple(limit) if isinstance(limit, list) else limit  # Attention names what does not fit
        return tuple(limit[i * len(limit) // place.heads] for i in range(place.heads))

    return Reach(each(behind), each(ahead))


def axial(place: Place):
    """Within rows, in the next block within columns."""
    return Axial((place.axes - 1 - place.index) % place.axes)


def table(place: Place, pattern, limit: int | None = None):
    if isinstance(pattern, Windows) and limit is None:
        return RelativePosition(pattern.size, place.heads)
    return ClippedPosition(_limits(place, pattern, limit), place.heads)


def shaw(place: Place, pattern, limit: int | None = None, values: bool = False):
    return ShawPosition(_limits(place, pattern, limit), place.heads, place.dim // place.heads, values)


def _limits(place: Place, pattern, limit: int | None) -> tuple[int, ...]:
    """`limit`, or the farthest offset within the pattern, on each axis that it looks along."""
    far = max(pattern.size) - 1 if isinstance(pattern, Windows) else getattr(pattern, "radius", place.far)
    return (far if limit is None else limit,) * (1 if isinstance(pattern, Axial) else place.axes)


def learned(dim: int, axes: int, size: int):
    return LearnedPosition((size,) * axes, dim)


def gated(place: Place, threshold: float = 0.5, start: float = 2.0, sparsity: float = 0.0):
    return Gated(place.heads, place.dim // place.heads, threshold, start, sparsity)


PATTERNS: dict[str, Callable] = {
    "all": lambda place: place.everybody,
    "windows": windows,
    "sliding": sliding,
    "dilated": dilated,
    "axial": axial,
    "causal": lambda place: CAUSAL,
    "distance": distance,
}
POSITIONS: dict[str, Callable] = {"none": lambda place, pattern: None, "table": table, "shaw": shaw}  # in the score
ABSOLUTE: dict[str, Callable] = {"sinusoidal": SinusoidalPosition, "learned": learned}  # added to the tokens before the blocks
METHODS: dict[str, Callable] = {
    "softmax": lambda place: None,
    "chunked": lambda place, size=256: Chunked(size),
    "linear": lambda place: LinearAttention(),
    "gated": gated,
}
TEMPERATURES: dict[str, Callable] = {"fixed": lambda place: None, "learned": lambda place: Temperature(place.heads)}
TABLES = {"pattern": PATTERNS, "position": POSITIONS | ABSOLUTE, "method": METHODS, "temperature": TEMPERATURES}
GIVEN = {"place", "pattern", "dim", "axes"}  # arguments that come from the model


def _whole(least: int) -> Callable:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(test: Callable) -> Callable:
    return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and test(value)


def _limit(value) -> bool:
    return isinstance(value, list) and bool(value) and all(v is None or _whole(0)(v) for v in value) or _whole(0)(value)


VALUES: dict[str, tuple[Callable, str]] = {  # what may be written for an argument of a form; None is its default
    "size": (_whole(1), "an integer >= 1"),
    "step": (_whole(1), "an integer >= 1"),
    "radius": (_whole(0), "an integer >= 0"),
    "limit": (_whole(0), "an integer >= 0"),
    "behind": (_limit, "an integer >= 0, null (any), or a list of them, one a head"),
    "ahead": (_limit, "an integer >= 0, null (any), or a list of them, one a head"),
    "values": (lambda value: isinstance(value, bool), "true, false"),
    "threshold": (_number(lambda x: 0 < x < 1), "a number between 0 and 1"),
    "start": (_number(lambda x: True), "a number"),
    "sparsity": (_number(lambda x: x >= 0), "a number >= 0"),
}


class Forms:
    """A model's `attention` argument over its `own` forms, checked: ValueError names model, key, value and what is allowed.

    own {key: form}; refused {key: {form: why}} of what makes no sense for the modality, form "" being all of them.
    """

    def __init__(self, model: str, given: dict | None, own: dict, refused: dict[str, dict[str, str]]):
        self.model, self.refused = model, refused
        keys = (*TABLES, "gain")
        if not isinstance(given, dict | None):
            self._refuse("", given, f"a mapping of {', '.join(keys)}")
        given = given or {}
        for key in given.keys() - set(keys):
            self._refuse(f"[{key!r}]", given[key], f"the keys {', '.join(keys)}")
        if (gain := given.get("gain")) is not None and not _number(lambda x: x > 0)(gain):
            self._refuse("['gain']", gain, "a number > 0")
        self.gain = gain
        self.chosen = {key: self._choose(key, given.get(key), own[key]) for key in own}
        for key in given.keys() & TABLES.keys() - own.keys():
            self._refuse(f"[{key!r}]", given[key], refused[key][""])
        self._fit()

    def attention(self, place: Place, **settings) -> Attention:
        """Attention of one block; `settings` go to Attention."""
        pattern = self._make("pattern", place)
        position = self._make("position", place, pattern) if self.chosen["position"][0] in POSITIONS else None
        return self._named(Attention, place.dim, place.heads, pattern=pattern, position=position,
                           **self.settings(place), **settings)

    def settings(self, place: Place) -> dict:
        """method, temperature and gain of Attention."""
        return {"method": self._make("method", place), "temperature": self._make("temperature", place), "gain": self.gain}

    def absolute(self, dim: int, axes: int) -> nn.Module | None:
        """What is added to the tokens (b *axes dim) before the first block; None: nothing."""
        name, arguments = self.chosen["position"]
        return self._named(ABSOLUTE[name], dim, axes, **arguments) if name in ABSOLUTE else None

    def _make(self, key: str, *model):
        name, arguments = self.chosen[key]
        return self._named(TABLES[key][name], *model, **arguments)

    def _named(self, make: Callable, *args, **settings):
        try:
            return make(*args, **settings)
        except ValueError as error:
            raise ValueError(f"{self.model}: attention: {error}") from error

    def _choose(self, key: str, value, own) -> tuple[str, dict]:
        """(form, its arguments)."""
        why = self.refused.get(key, {})
        name, arguments = _split(own if value is None else value)
        allowed = [form for form in TABLES[key] if form not in why]
        if name in why:
            self._refuse(f"[{key!r}]", name, f"{', '.join(allowed)}: {why[name]}")
        if name not in TABLES[key]:
            self._refuse(f"[{key!r}]", value, f"{', '.join(allowed)}, or a mapping with form: one of them and its arguments")
        if name == _split(own)[0]:
            arguments = _split(own)[1] | arguments
        known = {n: p for n, p in signature(TABLES[key][name]).parameters.items() if n not in GIVEN}
        for argument, given in arguments.items():
            where = f"[{key!r}], form {name!r}, {argument}"
            if argument not in known:
                self._refuse(where, given, ", ".join(known) or "no argument")
            test, says = VALUES[argument]
            if not (given is None and known[argument].default is None) and not test(given):
                self._refuse(where, given, says)
        for argument, parameter in known.items():
            if parameter.default is parameter.empty and argument not in arguments:
                self._refuse(f"[{key!r}], form {name!r}, {argument}", None, f"must be given, {VALUES[argument][1]}")
        return name, arguments

    def _fit(self) -> None:
        """What the methods have no place for."""
        (method, _), (position, arguments) = self.chosen["method"], self.chosen.get("position", ("none", {}))
        if method == "linear" and POSITIONS.get(position, POSITIONS["none"]) is not POSITIONS["none"]:
            free = ", ".join(p for p in ("none", *ABSOLUTE) if p not in self.refused.get("position", {}))
            self._refuse("['position']", position, f"{free} with method 'linear', which has no score to add a term to")
        if method == "chunked" and arguments.get("values"):
            self._refuse("['position'], form 'shaw', values", True, "false with method 'chunked', which keeps no weights")

    def _refuse(self, where: str, value, allowed: str):
        raise ValueError(f"{self.model}: attention{where}={value!r}; allowed: {allowed}")


def _split(value) -> tuple[str | None, dict]:
    """A name, or a mapping {form: name, ...}."""
    if isinstance(value, dict):
        return value.get("form"), {key: given for key, given in value.items() if key != "form"}
    return (value, {}) if isinstance(value, str) else (None, {})
