"""`zoo eval` of text-image models: every number against all pairs matched one by one; the weight that goes into the card."""

import numpy as np
import pytest
import torch

from zoo.models.text_image import TextImage
from zoo.pairs import Pairs, match
from zoo.recall import Rerank, measured, recall, unseen
from zoo.retrieval import metrics, rerank

IMAGE = dict(patch=4, window=3, dims=(32,), depths=(1,), head_dim=16)
TEXT = dict(vocab_size=50, max_length=20, dim=24, depth=2, heads=3, hidden=30)
CAPTIONS = [["a dog"], ["two cats on a mat", "cats", "a b c d e f"], [], ["a dog", "x y"], ["one more", "the sea at night now"]]
SETTINGS = [{}, {"self_attention": True, "readout": "token"},
            {"directions": ["text"], "self_attention": True, "readout": "first"}]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Letters:
    """Stands for TextPreprocess: a token a letter."""

    def batch(self, texts):
        rows = [[1 + ord(letter) % 49 for letter in text][:20] or [1] for text in texts]
        ids = torch.zeros(len(rows), max(map(len, rows), default=1), dtype=torch.long)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), True
        return ids, mask


class Photos:
    """Stands for Items: pictures are arrays."""

    def __init__(self, captions):
        self.captions = captions
        self.pictures = np.random.default_rng(0).normal(size=(len(captions), 3, 13, 17)).astype(np.float32)

    def __len__(self):
        return len(self.captions)

    def image(self, i):
        return self.pictures[i]


def build(fusion) -> TextImage:
    torch.manual_seed(0)
    model = TextImage(IMAGE, TEXT, embed_dim=16, fusion_dim=32, fusion_depth=2, fusion=fusion)
    for parameter in model.parameters():
        if parameter.ndim:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.preprocess_text, model.preprocess_image = Letters(), torch.from_numpy
    return model.eval()


@torch.no_grad()
def one_by_one(model, texts, pictures) -> torch.Tensor:
    """(texts pictures) match logits: each pair alone, nothing kept, nothing padded."""
    rows = []
    for text in texts:
        states = model.text_states(*model.preprocess_text.batch([text]))
        row = [model.forward_match(states, torch.ones(states.shape[:2], dtype=torch.bool), model.encode_image(
            torch.from_numpy(picture)[None])[0]) for picture in pictures]
        rows.append(torch.cat(row))
    return torch.stack(rows)


@pytest.mark.parametrize("fusion", SETTINGS)
def test_match_in_any_shape_is_each_pair_alone(fusion):
    model, photos = build(fusion), Photos(CAPTIONS)
    texts = ["a dog", "two cats on a mat", "", "x"]
    expected = one_by_one(model, texts, photos.pictures)
    for t, i, batch in ((4, 5, 64), (4, 5, 2), (1, 5, 3), (4, 1, 64), (4, 3, 2), (2, 2, 1)):
        found = match(model, texts[:t], list(photos.pictures[:i]), batch)
        assert torch.allclose(found, expected[:t, :i], atol=1e-5), (t, i, batch)
    assert match(model, [], list(photos.pictures)).shape == (0, 5) and match(model, texts, []).shape == (4, 0)


@pytest.mark.parametrize("fusion", SETTINGS)
def test_logits_and_cosines_are_those_of_each_pair_alone(fusion):
    model, photos = build(fusion), Photos(CAPTIONS)
    captions = [text for row in CAPTIONS for text in row]
    expected = one_by_one(model, captions, photos.pictures).numpy()
    similarity, logits, kinds = measured(model, photos, None, Rerank(count=2))
    asked = ~np.isnan(logits)
    assert np.allclose(logits[asked], expected[asked], atol=1e-5) and not asked.all()
    wanted = np.zeros_like(asked)
    first = [0, 1, 4, 6]  # the first captions
    for rows in (np.arange(len(captions)), np.array(first)):
        wanted[rows[rerank.candidates(similarity[rows].T, 2)], np.arange(5)[:, None]] = True
    np.put_along_axis(wanted, rerank.candidates(similarity, 2), True, 1)
    assert (asked == wanted).all()
    ids, mask = model.preprocess_text.batch(captions)
    with torch.no_grad():
        vectors = model.forward_embed(ids, mask, torch.from_numpy(photos.pictures))
        assert np.allclose(similarity, model.similarity(*vectors), atol=1e-4)
    assert kinds["first caption"][0].tolist() == first


def test_recall_with_twin_captions_ragged_counts_and_a_picture_without():
    model, photos = build({}), Photos(CAPTIONS)
    model.fusion.head[-1].weight.data *= 30  # the match score has a say
    captions, owner = [text for row in CAPTIONS for text in row], [0, 1, 1, 1, 3, 3, 4, 4]
    logits = one_by_one(model, captions, photos.pictures).numpy()
    similarity, _, _ = measured(model, photos, None, Rerank(0))
    right = metrics.positives(owner, 5, captions)
    assert right[0, 3] and right[4, 0]  # "a dog" is right for both
    found = recall(model, photos, again=Rerank(3))
    assert found["rerank"] == {"candidates": 3, "weight": 1.0}
    both = found["all captions"].pop("reranked")
    assert both == rerank.recall(similarity, logits, right, 3, 1.0) != found["all captions"]
    assert found["all captions"] == metrics.recall(similarity, owner, captions=captions)
    assert both["image_to_text"]["queries"] == 4 and both["text_to_image"]["queries"] == 8
    plain = recall(model, photos, again=Rerank(0))
    assert plain["all captions"] == found["all captions"] and "rerank" not in plain and "reranked" not in plain["first caption"]
    fitted = recall(model, photos, again=Rerank(3, fit=True))
    assert fitted["rerank"]["weight"] == rerank.fit(similarity, logits, right, 3)


def test_unseen_captions_are_no_part_of_known_ones():
    rows = [["name", "red car", "a boat"], [], ["x", "Boat!", "sea"]]
    assert unseen(rows, [["the red car here"], ["boats", "boat"]]) == [2, 5]


def test_pairs_without_sides_keep_vectors_only():
    model, photos = build({}), Photos(CAPTIONS)
    with torch.inference_mode():
        pairs = Pairs(model, ["a"], 5, photos.image, sides=False)
    assert pairs.text.shape == (1, 16) and pairs.image.shape == (5, 16) and not pairs._states and pairs._side is None


def test_the_command_prints_both_orders_fits_the_weight_and_writes_the_card(tmp_path, capsys):
    import json

    from PIL import Image

    import zoo
    from zoo import checkpoint
    from zoo.cli import main

    model = zoo.create_model("text_image_pico", image=IMAGE, fusion_dim=32, fusion={"self_attention": True, "readout": "token"})
    file = zoo.save(model, tmp_path / "model.safetensors")
    for name, text in {"a": "a red square\na square", "b": "a blue one", "c": "something green"}.items():
        pixels = np.random.default_rng(ord(name)).integers(0, 255, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_text(text)
    assert main(["eval", str(file), str(tmp_path), "--rerank", "2", "--fit-rerank", "--save-score", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rerank"]["candidates"] == 2 and found["rerank"]["weight"] in rerank.WEIGHTS
    ways = found["all captions"]
    keys = {"R@1", "R@5", "R@10", "median_rank", "queries"}
    assert all(set(part[way]) == keys for part in (ways, ways["reranked"]) for way in rerank.DIRECTIONS)
    assert ways["text_to_image"]["queries"] == 4 and ways["image_to_text"]["queries"] == 3
    card = checkpoint.read_card(file)
    assert card.arguments["fusion"] == {"self_attention": True, "readout": "token", "rerank_weight": found["rerank"]["weight"]}
    scores = {row["metric"]: row["value"] for row in card.scores}
    assert scores["R@1 image to text re-ranked"] == ways["reranked"]["image_to_text"]["R@1"]
    assert scores["median rank text to image"] == ways["text_to_image"]["median_rank"]
    assert rerank.rerank_weight(zoo.load(file)) == found["rerank"]["weight"]
    assert main(["eval", str(file), str(tmp_path), "--rerank", "0", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["all captions"] == {way: ways[way] for way in rerank.DIRECTIONS} and "rerank" not in plain
    assert main(["eval", str(file), str(tmp_path), "--rerank", "0", "--fit-rerank"]) == 2
    assert "--rerank 0; allowed: >= 1" in capsys.readouterr().err
