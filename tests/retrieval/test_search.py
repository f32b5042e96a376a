"""Ranking, filters and the second look, on six pictures of one colour each."""

import numpy as np
import pytest
from PIL import Image

import zoo.retrieval
from zoo.data.items import Items
from zoo.errors import UsageError, ZooError
from zoo.retrieval import Hit, build
from zoo.retrieval.where import parse


@pytest.fixture
def index(tmp_path, photos, fake):
    build(tmp_path / "i", photos, fake)
    return zoo.retrieval.open(tmp_path / "i", fake)


def keys(hits):
    return [hit.key for hit in hits]


def test_text_in_any_script_finds_the_nearest(index, photos):
    for query in ("red", "rot", "красный"):
        hits = index.search(query, k=3)
        assert keys(hits) == ["red.jpg", "beach/10.png", "beach/2.png"]
    first = hits[0]
    meta = {"folder": "", "width": 8, "height": 6}
    assert first == Hit("red.jpg", str(photos / "red.jpg"), first.score, None, 1, 1, meta, None)
    assert first.score == pytest.approx(1, abs=1e-3)
    assert [(hit.rank_before, hit.rank_after) for hit in hits] == [(1, 1), (2, 2), (3, 3)]


def test_picture_queries_of_every_kind(index, photos):
    file = photos / "sky" / "blue.png"
    picture = Image.open(file)
    for query in (file, str(file), file.read_bytes(), picture, np.asarray(picture)):
        assert index.search(image=query, k=1)[0].key == "sky/blue.png"
    with pytest.raises(ZooError, match="nowhere.png"):
        index.search(image=photos / "nowhere.png")


def test_k_beyond_the_index_and_an_empty_index(tmp_path, index, fake):
    assert len(index.search("red", k=1000)) == 6
    assert len(index.search("", k=1000, rerank=1000)) == 6  # the empty text is a text
    build(tmp_path / "empty", Items([], []), fake)
    assert zoo.retrieval.open(tmp_path / "empty", fake).search("red", rerank=5, where="year > 3") == []


@pytest.mark.parametrize("arguments, message", [
    ({}, "give either a text or an image"),
    ({"query": "red", "image": b"x"}, "give either a text or an image"),
    ({"query": "red", "k": 0}, "k is 0; it must be a whole number >= 1"),
    ({"query": "red", "k": True}, "k is True"),
    ({"query": "red", "rerank": -1}, "rerank is -1; it must be a whole number >= 0"),
    ({"query": ["red"]}, r"the query is \['red'\]; a text is needed"),
])  # fmt: skip
def test_wrong_arguments_are_usage_errors(index, arguments, message):
    with pytest.raises(UsageError, match=message):
        index.search(**arguments)


def test_an_image_model_searches_by_picture_only(tmp_path, photos, make_model):
    class ImageModel:
        def __init__(self):
            self.card, self.embed = make_model().card, make_model().embed_image

    build(tmp_path / "i", photos, ImageModel())
    index = zoo.retrieval.open(tmp_path / "i", ImageModel())
    assert index.search(image=photos / "red.jpg", k=1)[0].key == "red.jpg"
    with pytest.raises(UsageError, match="fake.colours knows no text; search by image"):
        index.search("red")
    with pytest.raises(UsageError, match="no cross-attention to re-rank with"):
        index.search(image=photos / "red.jpg", rerank=5)


def test_reranking_a_text_query(index):
    plain = index.search("red", k=6)
    hits = index.search("red", k=6, rerank=3)  # the model's match prefers dark pictures
    assert keys(hits) == ["beach/2.png", "beach/10.png", "red.jpg", *keys(plain)[3:]]
    assert [hit.rank_before for hit in hits] == [3, 2, 1, 4, 5, 6]
    assert [hit.rank_after for hit in hits] == [1, 2, 3, 4, 5, 6]
    logits = (128 - np.array([30, 200 / 3, 85])) / 10
    np.testing.assert_allclose([hit.match for hit in hits[:3]], 1 / (1 + np.exp(-logits)), atol=1e-3)
    assert [hit.match for hit in hits[3:]] == [None] * 3
    assert keys(index.search("red", k=1, rerank=3)) == ["beach/2.png"]  # candidates beyond k count
    assert keys(index.search("red", k=5, rerank=2)) == ["beach/10.png", "red.jpg", *keys(plain)[2:5]]


def test_extreme_logits_stay_probabilities(index, fake):
    fake.match = lambda texts, images: np.linspace(-2000, 2000, len(images))[None]
    assert [hit.match for hit in index.search("red", k=2, rerank=2)] == [1, 0]


def test_a_picture_gone_since_keeps_its_place(index, photos):
    (photos / "beach" / "10.png").unlink()
    with pytest.warns(UserWarning, match="not re-ranked: .*beach/10.png"):
        hits = index.search("red", k=3, rerank=3)
    assert keys(hits) == ["beach/2.png", "beach/10.png", "red.jpg"] and hits[1].match is None


def test_reranking_a_picture_query_by_captions(tmp_path, photos, make_model):
    names = ["red.jpg", "beach/10.png", "beach/2.png", "green.png"]
    captions = [["short"], [], ["a long caption", "s"], ["mid one"]]
    fake = make_model()
    # the longest caption wins
    fake.match = lambda texts, images: np.array([[len(text)] * len(images) for text in texts], float)
    build(tmp_path / "i", Items(list(names), [photos / n for n in names], captions=captions), fake)
    index = zoo.retrieval.open(tmp_path / "i", fake)
    assert keys(index.search(image=photos / "red.jpg")) == names
    hits = index.search(image=photos / "red.jpg", rerank=3)
    assert keys(hits) == ["beach/2.png", "beach/10.png", "red.jpg", "green.png"]
    assert [hit.caption for hit in hits] == ["a long caption", None, "short", "mid one"]
    assert [hit.match is None for hit in hits] == [False, True, False, True]


def test_filtered_search_gives_all_matches(index):
    beach = ["beach/10.png", "beach/2.png", "beach/1.png"]
    assert keys(index.search("red", where="folder = 'beach'")) == beach
    assert keys(index.search("red", where={"folder": ["sky", ""], "width": 8})) == ["red.jpg", "green.png"]
    assert keys(index.search("red", k=1, rerank=3, where="folder = 'beach'")) == ["beach/2.png"]
    with pytest.raises(ZooError, match="no column 'yeer'; there are: .*folder.*height.*key"):
        index.search("red", where="yeer > 2000")


def test_lists_in_the_metadata_can_be_filtered_as_text(tmp_path, photos, fake):
    items = Items(["a", "b"], [photos / "red.jpg", photos / "green.png"], meta=[{"tags": ["x", "é"]}, {}])
    build(tmp_path / "i", items, fake)
    hits = zoo.retrieval.open(tmp_path / "i", fake).search("green", where="tags like '%é%'")
    assert keys(hits) == ["a"] and hits[0].meta["tags"] == ["x", "é"]


COLUMNS = {
    "folder": ["beach", "sky", "it's", None, "caf\u00e9"],
    "year": [2018, 2020, 2020.5, None, "2021"],
    "night": [True, False, None, True, False],
    "my column": [1, 2, 3, 4, 5],
    "имя": ["a%b", "ab", "a.b", "A_B", "axb\n"],
}


@pytest.mark.parametrize("text, rows", [
    ("folder = 'beach' and year > 2017", [0]),
    ("folder = 'beach' or year >= 2020", [0, 1, 2]),
    ("folder == 'it''s'", [2]),
    ("folder != 'beach'", [1, 2, 4]),
    ("folder <> 'beach' AND NOT year < 2020.2", [2]),
    ("not (folder = 'beach' or folder = 'sky')", [2, 4]),
    ("not year > 2019", [0]),  # a missing value, or one of another type, is neither
    ("folder = 'a' or folder = 'sky' and year = 1", []),  # and binds tighter
    ("folder in ('sky', 'beach')", [0, 1]),
    ("folder not in ('sky')", [0, 2, 4]),
    ("folder is null", [3]),
    ("year is not null", [0, 1, 2, 4]),
    ("year = '2021'", [4]),
    ("night = true", [0, 3]),
    ("night = 1", []),
    ('"my column" >= 4', [3, 4]),
    ("имя like 'a%b'", [0, 1, 2]),
    ("имя like 'a_b%'", [0, 2, 4]),
    ("имя not like 'a%'", [3]),
    ("folder = 'cafe\u0301'", [4]),  # composed or not, it is one word
    ("year > -1e3", [0, 1, 2]),
    ({"folder": "beach", "year": 2018}, [0]),
    ({"folder": None}, [3]),
    ({"my column": [1, 5, 9]}, [0, 4]),
])  # fmt: skip
def test_where(text, rows):
    assert np.flatnonzero(parse(text).mask(COLUMNS.__getitem__)).tolist() == rows


@pytest.mark.parametrize("text", [
    "folder", "folder =", "= 'a'", "folder = beach", "folder = 'a", "folder = 'a' year > 3", "(folder = 'a'",
    "a like 3", "folder in ()", "folder in 'a'", "folder = 'a')", "folder is 3", "not", "__import__('os')",
    "a = 1; drop", "a not = 1",
])  # fmt: skip
def test_a_wrong_filter_is_shown(text):
    with pytest.raises(UsageError, match="is not understood at .*like: folder = 'beach' and year > 2019"):
        parse(text)


def test_deep_nesting_is_an_error_not_a_crash():
    with pytest.raises(UsageError, match="nested too deeply"):
        parse("(" * 5000 + "a = 1" + ")" * 5000)


def test_no_filter():
    assert parse("") is None and parse(" ") is None and parse({}) is None
    with pytest.raises(UsageError, match="a dict or a text is needed, not list"):
        parse(["a"])


def test_match_and_scaled_cosine_decide_together(photos, tmp_path, make_model):
    """With a learned scale: order by logit + scale * cosine, computed here by hand."""
    import torch

    model = make_model()
    model.logit_scale = torch.tensor(np.log(50.0))
    build(tmp_path / "i", photos, model)
    hits = zoo.retrieval.open(tmp_path / "i", model).search("red", k=6, rerank=6)
    logits = model.match(["red"], [hit.path for hit in hits])[0]
    sums = [logit + 50 * hit.score for logit, hit in zip(logits, hits)]
    assert sums == sorted(sums, reverse=True)
    by_match = zoo.retrieval.open(tmp_path / "i", make_model()).search("red", k=6, rerank=6)
    assert [hit.key for hit in by_match] != [hit.key for hit in hits]
