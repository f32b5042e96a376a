"""Recipes: every problem at once, with file, key and suggestion; the shipped ones are valid; flags go on top."""

import pytest

from zoo.errors import UsageError
from zoo.train import recipe

GOOD = "task: image_classification\nmodel: image_pico\n"


def write(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_shipped_recipes_are_valid_and_explained():
    known = recipe.shipped()
    assert {"image_scratch", "image_finetune", "text_image_contrastive"} <= known.keys()
    for name, file in known.items():
        recipe.read(name)
        lines = file.read_text().splitlines()
        assert lines[0].startswith("# ") and len(lines) <= 40
        assert any("zoo train" in line for line in lines)


def test_every_key_is_documented():
    assert all(about for _, _, about in recipe.keys())


def test_all_problems_are_reported_at_once(tmp_path):
    file = write(tmp_path, GOOD + "epoch: 3\nlr: fast\nbatch_size: 2.5\nseed: true\n")
    with pytest.raises(UsageError) as error:
        recipe.read(file, {"augmentt": "light"})
    text = str(error.value)
    assert text.count("mine.yaml") == 4
    for part in ("unknown key epoch; did you mean epochs?", "lr: expected a number, got 'fast'",
                 "batch_size: expected an integer, got 2.5", "seed: expected an integer, got True",
                 "command line: unknown key --augmentt; did you mean --augment?"):
        assert part in text


def test_values_out_of_range_are_reported_at_once(tmp_path):
    file = write(tmp_path, "task: image\nmodel: image_pico_\nval: 1.5\nlr: 0\nwarmup: 1\nbalance: x\n")
    with pytest.raises(UsageError) as error:
        recipe.read(file)
    text = str(error.value)
    for part in ("task: 'image'; must be one of image_classification", "did you mean image_pico", "val: 1.5; must be",
                 "lr: 0.0; must be > 0", "warmup: 1.0", "balance: 'x'; must be none, sampler or weights"):
        assert part in text


@pytest.mark.parametrize("text, says", [
    ("a: [1\n", "mine.yaml:2: not valid YAML"), ("- 1\n", "a recipe is a mapping of keys to values, got list"),
])
def test_what_is_no_recipe(tmp_path, text, says):
    with pytest.raises(UsageError, match=says):
        recipe.read(write(tmp_path, text))


def test_unknown_recipe_suggests():
    with pytest.raises(UsageError, match="image_scrach: no such recipe file or name; did you mean image_scratch"):
        recipe.read("image_scrach")


def test_flags_go_on_top_and_are_typed(tmp_path):
    flags = {"lr": "1e-3", "epochs": "7", "val": "test", "arguments": "{window: 4}", "captions": "label,tags", "data": ""}
    got = recipe.read(write(tmp_path, GOOD + "lr: 2e-3\n"), flags)
    assert (got.lr, got.epochs, got.val, got.arguments, got.captions, got.data) == (
        1e-3, 7, "test", {"window": 4}, ["label", "tags"], "")
    assert recipe.read(write(tmp_path, GOOD), {"val": "0.3"}).val == 0.3


def test_wrong_types_and_values_come_together_and_flags_are_named(tmp_path):
    with pytest.raises(UsageError) as error:
        recipe.read(write(tmp_path, GOOD + "augment: heavy\n"), {"epohcs": "3", "lr": "abc", "batch_size": "0", "val": "2"})
    lines = str(error.value).splitlines()
    assert len(lines) == 5
    for part in ("--epohcs; did you mean --epochs", "--lr: expected a number", "command line: --batch-size: 0; must be >= 1",
                 "command line: --val: 2.0; must be", "mine.yaml: augment: 'heavy'; must be"):
        assert part in str(error.value)


@pytest.mark.parametrize("given, says", [("{sizze: 48}", "unknown key 'sizze'; allowed: size"), ("{size: 0}", "size is ")])
def test_preprocessing_is_checked_with_the_recipe(tmp_path, given, says):
    with pytest.raises(UsageError, match=f"command line: --preprocess: .*{says}"):
        recipe.read(write(tmp_path, GOOD), {"preprocess": given})
