"""What the page answers, without a page: filters, more results, both kinds of query, notes."""

import json

import pytest
from PIL import Image

import zoo.retrieval
from zoo.errors import UsageError
from zoo.retrieval import build
from zoo.retrieval.names import Names
from zoo.retrieval.replies import START, Replies, narrowed

ALL = (False, None, None, "")


@pytest.fixture
def replies(tmp_path, photos, fake):
    (photos / "captions.csv").write_text("file,caption,year\nred.jpg,red,2020\nbeach/1.png,yellow,2018\n")
    build(tmp_path / "i", photos, fake)
    index = zoo.retrieval.open(tmp_path / "i", fake)
    return Replies(index, Names(index, tmp_path / "names"), {}, lambda *_: [])


def keys(reply):
    return [key for key, _ in reply["state"]["found"]]


def test_folder_and_filter_narrow_both_the_gallery_and_the_answers(replies):
    assert replies.folders == ["", "beach", "sky"]
    assert keys(replies.answer(START, *ALL)) == replies.index.keys()
    beach = replies.answer(START, False, None, "beach", "")
    assert keys(beach) == ["beach/1.png", "beach/2.png", "beach/10.png"]
    assert "first 3 pictures where folder = &#x27;beach&#x27;" in beach["status"]
    assert keys(replies.ask("red", False, None, "beach", "")) == ["beach/10.png", "beach/2.png", "beach/1.png"]
    assert keys(replies.ask("red", False, None, "beach", "year < 2019")) == ["beach/1.png"]
    assert keys(replies.ask("red", False, None, "", "")) == ["red.jpg", "green.png"]
    nothing = replies.ask("red", False, None, "sky", "year > 0")
    assert keys(nothing) == [] and "No picture where" in nothing["status"] and nothing["further"] is False
    with pytest.raises(UsageError, match="is not understood"):
        replies.ask("red", False, None, None, "year >")


def test_a_folder_is_quoted():
    assert narrowed("it's", "a = 1 or b = 2") == "folder = 'it''s' and (a = 1 or b = 2)"
    assert (narrowed(None, " "), narrowed("", None), narrowed(None, "a = 1")) == (None, "folder = ''", "a = 1")


def test_more_of_the_same_question(replies, monkeypatch):
    monkeypatch.setattr("zoo.retrieval.replies.SHOWN", 2)
    first = replies.answer(START | {"query": "red", "shown": 2}, *ALL)
    assert keys(first) == ["red.jpg", "beach/10.png"] and first["further"] is True
    more = replies.more(first["state"], *ALL)
    assert keys(more)[:2] == keys(first) and len(keys(more)) == 4 and more["further"] is True
    assert replies.more(more["state"], *ALL)["further"] is False  # all six are there


def test_reranking_a_picture_and_what_gave_the_answer(replies, tmp_path):
    Image.new("RGB", (9, 9), (250, 0, 0)).save(tmp_path / "mine.png")
    reply = replies.ask_picture(str(tmp_path / "mine.png"), True, None, None, "")
    assert keys(reply)[0] == "red.jpg" and reply["query"] == "" and "your picture" in reply["status"]
    assert reply["state"]["names"] and "match" in reply["named"] and "re-ranked by cross-attention" in reply["status"]
    text = replies.ask("red", True, None, None, "")
    assert text["picture"] is None and "▲ 3 → 1" in text["results"] and "score" in text["results"]


def test_an_interrupted_index_says_so(replies):
    manifest = replies.index.path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"doing": "update"}))
    assert "its update was interrupted, pictures may be missing" in replies.ask("red", *ALL)["status"]


def test_thumbnails_are_of_the_index_only(replies, photos, tmp_path):
    data, kind = replies.thumbnail("red.jpg")
    assert kind == "png" and data.startswith(b"\x89PNG")
    (photos / "green.png").unlink()
    for wrong in ("green.png", "../secret.png", str(photos / "red.jpg"), ""):
        assert replies.thumbnail(wrong) is None
