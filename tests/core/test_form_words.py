"""The words of a model's `attention` argument: what they build, and what a wrong one is answered."""

import pytest

from zoo.core import (
    CAUSAL,
    Axial,
    Band,
    Chunked,
    ClippedPosition,
    Dilated,
    Forms,
    Gated,
    LinearAttention,
    Place,
    Reach,
    RelativePosition,
    ShawPosition,
    Slide,
    SteadyWindows,
    Whole,
    Windows,
)
from zoo.core.attention import attend
from zoo.models.audio import Audio
from zoo.models.graph import Graph
from zoo.models.image import Image
from zoo.models.text import Text

OWN = {"pattern": "windows", "position": "table", "method": "softmax", "temperature": "fixed"}
LINE, MAP = Place(16, 4, 1, 8, 1), Place(16, 4, 2, 8, 1, 16)


def build(place, **given):
    return Forms("Model", given, OWN, {}).attention(place)


@pytest.mark.parametrize("word, line, picture", [
    ("all", Whole(), Whole()),
    ("windows", SteadyWindows((8,), (4,)), Windows((8, 8), (4, 4))),
    ({"form": "windows", "size": 3}, SteadyWindows((3,), (1,)), Windows((3, 3), (1, 1))),
    ("sliding", Band(4), Slide(4)),
    ({"form": "sliding", "radius": 0}, Band(0), Slide(0)),
    ("dilated", Dilated(4, 2), Dilated(4, 2)),
    ({"form": "dilated", "step": 3, "radius": 1}, Dilated(1, 3), Dilated(1, 3)),
    ("causal", CAUSAL, CAUSAL),
    ({"form": "distance", "behind": 4, "ahead": None}, Reach(4, None), Reach(4, None)),
    ({"form": "distance", "behind": [4, None], "ahead": [0, 1, 2, 3]}, Reach((4, 4, None, None), (0, 1, 2, 3)), None),
    ("axial", Axial(0), Axial(0)),
], ids=str)
def test_patterns(word, line, picture):
    for place, expected in ((LINE, line), (MAP, picture)):
        pattern = build(place, pattern=word).pattern
        assert expected is None or pattern == expected and type(pattern) is type(expected)


def test_the_next_block_is_shifted_and_looks_along_the_other_axis():
    forms = [Forms("Model", {"pattern": word}, OWN, {}) for word in ("windows", "axial")]
    found = [[form.attention(Place(16, 4, 2, 8, i)).pattern for i in range(3)] for form in forms]
    assert found[0] == [Windows((8, 8)), Windows((8, 8), (4, 4)), Windows((8, 8))]
    assert found[1] == [Axial(1), Axial(0), Axial(1)]


def test_local_forms_of_a_stage_that_sees_all_need_a_number():
    place = Place(16, 4)
    assert all(build(place, pattern=word).pattern == Whole() for word in ("windows", "sliding", "dilated"))
    assert build(place, pattern={"form": "sliding", "radius": 3}).pattern == Band(3)


def test_positions_reach_as_far_as_the_pattern():
    def limits(place, pattern, position):
        return build(place, pattern=pattern, position=position).position.limit

    assert limits(LINE, "sliding", "table") == (4,) and limits(MAP, "sliding", "shaw") == (4, 4)
    assert limits(LINE, "windows", "shaw") == (7,) and limits(MAP, "windows", "shaw") == (7, 7)
    assert limits(MAP, "axial", "table") == (16,) and limits(MAP, "all", "table") == (16, 16)
    assert limits(LINE, "causal", "shaw") == (128,)
    assert limits(MAP, "all", {"form": "table", "limit": 2}) == (2, 2)
    position = build(MAP).position
    assert type(position) is RelativePosition and position.window == (8, 8)
    assert type(build(LINE, pattern="all").position) is ClippedPosition and build(LINE, position="none").position is None
    shaw = build(LINE, position={"form": "shaw", "values": True}).position
    assert isinstance(shaw, ShawPosition) and shaw.values.shape == (4, 15, 4)


def test_methods_temperature_gain():
    plain = build(LINE)
    assert plain.method is attend and plain.temperature is None and plain.gain is None
    assert build(LINE, method="chunked").method == Chunked(256)
    assert build(LINE, method="linear", position="none").method == LinearAttention()
    gate = build(LINE, method={"form": "gated", "threshold": 0.4, "start": 0, "sparsity": 0.1}).method
    assert isinstance(gate, Gated) and (gate.threshold, gate.sparsity, gate.shift.tolist()) == (0.4, 0.1, [0.0] * 4)
    assert build(LINE, temperature="learned").temperature.log.shape == (4,) and build(LINE, gain=0.5).gain == 0.5


def test_absolute_positions_stand_at_the_input():
    forms = Forms("Model", {"position": {"form": "learned", "size": 9}}, OWN, {})
    assert forms.absolute(16, 2).table.shape == (9, 9, 16) and forms.attention(MAP).position is None
    assert Forms("Model", {"position": "sinusoidal"}, OWN, {}).absolute(16, 2).axes == 2
    assert Forms("Model", None, OWN, {}).absolute(16, 2) is None


WRONG = [
    ("axial", "attention='axial'; allowed: a mapping of pattern, position, method, temperature, gain"),
    ({"patern": "all"}, "attention['patern']='all'; allowed: the keys pattern, position"),
    ({"pattern": "axail"}, "attention['pattern']='axail'; allowed: all, windows, sliding, dilated, axial, causal, distance, or"),
    ({"pattern": 3}, "attention['pattern']=3; allowed: all, windows"),
    ({"pattern": {"radius": 3}}, "attention['pattern']={'radius': 3}; allowed: all"),
    ({"pattern": {"form": "sliding", "radios": 3}}, "attention['pattern'], form 'sliding', radios=3; allowed: radius"),
    ({"pattern": {"form": "all", "size": 3}}, "attention['pattern'], form 'all', size=3; allowed: no argument"),
    ({"pattern": {"form": "sliding", "radius": -1}}, "form 'sliding', radius=-1; allowed: an integer >= 0"),
    ({"pattern": {"form": "dilated", "step": None}}, "form 'dilated', step=None; allowed: an integer >= 1"),
    ({"pattern": {"form": "windows", "size": True}}, "form 'windows', size=True; allowed: an integer >= 1"),
    ({"pattern": {"form": "distance", "behind": [1, -2]}}, "behind=[1, -2]; allowed: an integer >= 0, null (any), or a list"),
    ({"pattern": {"form": "distance", "behind": [1, 2, 3]}}, "attention: Attention: heads=4, but Reach(behind=(1, 2, 3)"),
    ({"position": "learned"}, "form 'learned', size=None; allowed: must be given, an integer >= 1"),
    ({"position": {"form": "shaw", "values": 1}}, "form 'shaw', values=1; allowed: true, false"),
    ({"method": {"form": "gated", "threshold": 1}}, "form 'gated', threshold=1; allowed: a number between 0 and 1"),
    ({"method": {"form": "gated", "start": float("nan")}}, "form 'gated', start=nan; allowed: a number"),
    ({"method": {"form": "chunked", "size": 2.5}}, "form 'chunked', size=2.5; allowed: an integer >= 1"),
    ({"temperature": True}, "attention['temperature']=True; allowed: fixed, learned"),
    ({"gain": 0}, "attention['gain']=0; allowed: a number > 0"),
    ({"method": "linear"}, "attention['position']='table'; allowed: none, sinusoidal, learned with method 'linear'"),
    ({"method": "chunked", "position": {"form": "shaw", "values": True}}, "values=True; allowed: false with method 'chunked'"),
    ({"pattern": ["all"]}, "attention['pattern']=['all']; allowed: all"),
]


@pytest.mark.parametrize("given, says", WRONG, ids=str)
def test_wrong_ones_are_named(given, says):
    with pytest.raises(ValueError) as error:
        forms = Forms("Model", given, OWN, {})
        forms.attention(LINE)
        forms.absolute(16, 1)
    assert says in str(error.value) and str(error.value).startswith("Model: ") and "\n" not in str(error.value)


REFUSED = [  # model, what is written, key, value, what the answer goes on with
    (Image, {"pattern": "causal"}, "['pattern']='causal'; allowed: all, windows, sliding, axial: a picture has no order"),
    (Image, {"pattern": {"form": "dilated"}}, "['pattern']='dilated'; allowed: all, windows, sliding, axial: gaps"),
    (Image, {"position": "sinusoidal"}, ": SinusoidalPosition: dim must be a multiple of 2 * axes, got dim=6"),
    (Audio, {"pattern": "axial"}, "['pattern']='axial'; allowed: all, windows, sliding, dilated, causal, distance: rows"),
    (Text, {"pattern": "windows"}, "['pattern']='windows'; allowed: all, sliding, dilated, causal, distance: their cells"),
    (Graph, {"pattern": "causal"}, "['pattern']='causal'; allowed: nothing: nodes have no order; who sees whom is"),
    (Graph, {"position": "shaw"}, "['position']='shaw'; allowed: nothing: nodes have no order; a node's place"),
    (Graph, {"method": "chunked"}, "['method']='chunked'; allowed: softmax, linear, gated: the term of all pairs"),
]
SMALL = {Image: {"dims": (6,), "depths": (1,), "head_dim": 2}, Graph: {"depth": 1}, Text: {"vocab_size": 9, "depth": 1},
         Audio: {}}


@pytest.mark.parametrize("model, given, says", REFUSED, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_makes_no_sense_for_a_modality_is_refused_with_the_reason(model, given, says):
    with pytest.raises(ValueError) as error:
        model(**SMALL[model], attention=given)
    assert str(error.value).startswith(f"{model.__name__}: attention{says}")


def test_linear_attention_in_a_graph_has_no_bias():
    with pytest.raises(ValueError, match="Graph: bias='walks'; allowed: 'none' with method 'linear', which has no score"):
        Graph(depth=1, attention={"method": "linear"})
