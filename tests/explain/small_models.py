"""Small untrained models of every modality, with cards, as zoo.load would give them."""

import torch

from zoo.card import Card
from zoo.inference import attach

TARGETS = [{"name": "logP", "unit": "", "mean": 2.0, "std": 1.0}]


def image(**arguments):
    from zoo.models.image import Image

    torch.manual_seed(0)
    sizes = {"num_classes": 2, "patch": 2, "window": 4, "dims": (16, 32), "depths": (2, 1), "head_dim": 8}
    card = Card("image_test", "image", labels=["cat", "dog"], preprocess={"size": [22, 18], "fit": "squash"})
    return attach(Image(**{**sizes, **arguments}), card).eval()


def audio(**arguments):
    from zoo.models.audio import Audio

    torch.manual_seed(0)
    sizes = {"num_classes": 2, "dims": (16, 16), "depths": (2, 1), "windows": (8, None), "head_dim": 8}
    card = Card("audio_test", "audio", labels=["yes", "no"], preprocess={"rate": 16000})
    return attach(Audio(**{**sizes, **arguments}), card).eval()


def graph(preprocess=None, **arguments):
    from zoo.models.graph import Graph
    from zoo.schema import GraphPreprocess

    torch.manual_seed(0)
    preprocess = preprocess or GraphPreprocess()
    sizes = {"num_classes": 1, "dim": 16, "depth": 2, "heads": 2, "pair_dim": 8, "walks": 4}
    model = Graph(**{**preprocess.arguments(), **sizes, **arguments})
    card = Card("graph_test", "graph", targets=TARGETS, head="values", preprocess=preprocess.to_dict())
    return attach(model, card).eval()


class Words:
    """Stands for the tokeniser of the text tower: token i + 1 is word i."""

    def __call__(self, text):
        return torch.arange(len(text.split()) + 2)

    def words(self, text):
        return [(word, [i + 1]) for i, word in enumerate(text.split())]


def text_image(**arguments):
    from zoo.models.text_image import TextImage
    from zoo.preprocess import ImagePreprocess

    torch.manual_seed(0)
    picture = {"patch": 2, "window": 4, "dims": (16, 32), "depths": (1, 1), "head_dim": 8}
    text = {"vocab_size": 20, "max_length": 16, "dim": 16, "depth": 1, "heads": 2, "hidden": 32}
    model = TextImage(picture, text, tower=None, embed_dim=8, fusion_dim=64, **arguments).eval()
    steps = {"size": [16, 24], "fit": "squash"}
    model.card = Card("text_image_test", "text_image", preprocess={"image": steps, "text": {}})
    model.preprocess_image, model.preprocess_text = ImagePreprocess(**steps), Words()
    return model


class Pieces(Words):
    """The same with names of the tokens: p0, p1 ..."""

    tokenizer = type("Tokenizer", (), {"id_to_token": staticmethod(lambda i: f"p{i}")})


def text(**arguments):
    from zoo.models.text import Text

    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "max_length": 16, "dim": 16, "depth": 2, "heads": 2, "hidden": 32}
    model = Text(**{**sizes, **arguments}).eval()
    model.card, model.preprocess = Card("text_test", "text"), Pieces()
    return model
