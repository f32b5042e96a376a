"""The model card as Markdown: what the card holds is on the page, tables are tables, and it needs no torch."""

import subprocess
import sys

import pytest

from zoo import checkpoint
from zoo.card import Card
from zoo.cli import main
from zoo.export.page import markdown, table

SECTIONS = ["## Use", "## Scores", "## Data and licence", "## Preprocessing", "## Recipe", "## Limits"]


@pytest.mark.parametrize("name", sorted(checkpoint.shipped()))
def test_every_checkpoint_has_a_whole_page(name):
    card = checkpoint.read_card(checkpoint.shipped()[name])
    text = markdown(card, name)
    assert text.startswith(f"# {name}\n") and [s for s in SECTIONS if s not in text] == []
    assert card.licence in text and card.data in text and f"zoo.load('{name}')" in text and f"{card.parameters:,}" in text
    assert all(f"`{label}`" in text for label in card.labels or ()) and all(t["name"] in text for t in card.targets or ())
    for entry in card.scores:
        assert any(line.startswith(f"| {entry['metric']} | ") and f"| {entry['seed']} |" in line for line in text.splitlines())
    assert not any(len(line) > 1200 for line in text.splitlines())  # no list of 83 atoms


def test_the_page_of_a_card():
    card = Card("image_pico", "image", "image_pico.mine", {"num_classes": 2}, {"size": [32, 48], "fit": "crop"}, ["cat", "a|b"],
                scores=[{"metric": "accuracy", "value": 0.915, "split": "val", "seed": 3}], data="mine", parameters=1234,
                recipe={"task": "image_classification", "model": "image_pico", "epochs": 5, "lr": 0.001, "seed": 0},
                parents={"image_nano.cifar10": "ab12"})
    text = markdown(card, "runs/mine")
    assert "names the one of 2 labels that fits best" in text and "zoo.load('runs/mine')" in text
    assert "| accuracy | 91.5 % | val | - | 3 |" in text and "made from image_nano.cifar10, sha256 ab12" in text
    assert "licence: not stated" in text and "epochs: 5" in text and "lr:" not in text  # the default is not repeated
    assert "brought to 32 x 48 pixels" in text and "No score on a test split is stored" in text


def test_a_bar_in_a_cell_does_not_end_it():
    assert table([{"a": "x|y", "b": 1}]) == "| a | b |\n| --- | --- |\n| x\\|y | 1 |"


def test_the_command(tmp_path, capsys):
    assert main(["card", "graph_nano.esol"]) == 0
    printed = capsys.readouterr().out
    assert "estimates log solubility in log mol/l" in printed and "| RMSE | 0.537 log mol/l | test | 113 | 2 |" in printed
    assert main(["card", "graph_nano.esol", "--out", str(tmp_path / "c.md")]) == 0
    assert (tmp_path / "c.md").read_text() == printed
    assert main(["card", "image_nano"]) == 2 and "without weights" in capsys.readouterr().err
    assert main(["card", "graph_nano.esl"]) == 2 and "did you mean graph_nano.esol" in capsys.readouterr().err


def test_a_card_is_read_without_torch():
    script = "import sys; from zoo.cli import main; main(['card', 'graph_nano.esol']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
