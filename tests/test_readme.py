"""The README's own commands, as far as they run here; its tables say what the code says."""

import re
import shlex
from pathlib import Path

import pytest

import zoo
from zoo.cli import main
from zoo.train import recipe

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(mark: str) -> list[str]:
    """Lines of the code block after the comment <!-- mark -->."""
    found = re.search(rf"<!-- {mark} -->\n```\w*\n(.*?)\n```", README, re.S)
    assert found, f"README.md has no block <!-- {mark} -->"
    return found[1].splitlines()


def commands(mark: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block(mark) if line.startswith("$ ")]


def test_exactly_two_set_up_commands():
    assert len(block("demo")) == len(block("test")) == 1
    assert block("demo")[0].endswith("zoo demo") and block("test")[0].endswith("-m pytest")


def supplies(folder: Path) -> None:
    """What the README supposes to lie in the user's folder: pictures, sounds, molecules, a network."""
    import numpy as np
    import soundfile
    from PIL import Image

    for name, colour, pitch in (("red", (230, 20, 20), "low"), ("blue", (20, 20, 230), "high")):
        (folder / "photos" / name).mkdir(parents=True)
        (folder / "sounds" / pitch).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (48, 40), colour).save(folder / "photos" / name / f"{i}.jpg")
            wave = 0.3 * np.sin(np.arange(8000) * (0.1 if pitch == "low" else 0.7))
            soundfile.write(folder / "sounds" / pitch / f"{i}.wav", wave, 16000)
    rows = [f"{'C' * (i + 1)}O,{-0.5 * i}" for i in range(12)]
    (folder / "molecules.csv").write_text("\n".join(["smiles,solubility", *rows]))
    (folder / "network").mkdir()
    nodes = [f"{i},{i % 2},{'even' if i % 2 == 0 else 'odd'},{('train', 'val', 'test')[i % 3]}" for i in range(12)]
    (folder / "network" / "nodes.csv").write_text("\n".join(["id,weight,label,split", *nodes]))
    (folder / "network" / "edges.csv").write_text("\n".join(["source,target", *(f"{i},{(i + 2) % 12}" for i in range(12))]))


@pytest.mark.parametrize("command", commands("shell") + commands("shell 2"))
def test_shell_commands_run(command, capsys, monkeypatch, tmp_path):
    """In a folder with a few pictures, as the README supposes."""
    monkeypatch.chdir(tmp_path)
    supplies(tmp_path)
    words = shlex.split(command.split(" > ")[0], comments=True)
    assert words[0] == "zoo"
    needs = [["index", "build", "photos.index", "photos"]] if "photos.index" in words and "build" not in words else []
    extra = ["--epochs", "1", "--batch-size", "4"] if words[1] == "train" and "--dry-run" not in words else []
    for before in needs:
        assert main(before) == 0
    capsys.readouterr()
    code = main(words[1:] + extra)
    out, err = capsys.readouterr()
    assert code == 0, err


def test_python_example_runs(monkeypatch, tmp_path):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    supplies(tmp_path)
    Image.new("RGB", (50, 40), "red").save("cat.jpg")
    (tmp_path / "sounds" / "low" / "1.wav").rename("dog.wav")
    exec("\n".join(block("python")), {})


def test_recipe_keys_table_is_complete():
    for name, default, about in recipe.keys():
        assert f"| `{name}` | {default} | {about.replace('|', 'or')} |" in README


def test_every_checkpoint_is_in_the_results():
    from zoo import checkpoint

    for name in checkpoint.shipped():
        assert f"`{name}`" in README
    assert zoo.list_models()


def test_search_json_fields_are_documented():
    from zoo import show
    from zoo.retrieval.search import Hit

    row = show.hits([Hit("a", None, 0.1, None, 1, 1, {}, None)])[0]
    for field in row:
        assert f"| `{field}` |" in README
