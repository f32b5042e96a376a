"""The shape of the code: imports go one way, attention is written once, nothing heavy is imported too early."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ZOO = Path(__file__).parents[1] / "zoo"
LEVELS = [
    {"errors", "crew"},  # crew: several processes at one job
    {"core"},
    {"models", "convert"},  # convert/*.py are rename rules: plain functions on state dicts
    {"registry", "budget", "card", "towers", "recording"},
    {"checkpoint", "adapter", "preprocess", "sound", "tokens", "columns", "rawgraph", "molecules", "schema", "scaler"},
    {"inference", "answers", "pairs", "foreign", "features"},  # pairs: the text-image part of inference; foreign: public weights
    {"data", "train", "retrieval", "explain", "evaluate", "predict", "graph_answers", "show", "export", "bench",
     "embed", "pieces", "probe", "recall"},
    {"commands"},  # one file a group of commands
    {"cli"},
    {"__main__"},
]
LEVEL = {name: i for i, level in enumerate(LEVELS) for name in level}
FILES = sorted(ZOO.rglob("*.py"))


def part(file: Path) -> str:
    return file.relative_to(ZOO).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """Parts of zoo that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("zoo.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "zoo":
            steps = node.module.split(".")
            found |= {steps[1]} if len(steps) > 1 else {alias.name for alias in node.names}
    return found & LEVEL.keys()


@pytest.mark.parametrize("file", [f for f in FILES if f != ZOO / "__init__.py"], ids=lambda f: str(f.relative_to(ZOO)))
def test_imports_go_one_way(file):
    mine = part(file)
    assert mine in LEVEL, f"{mine}: give it a level in tests/test_layout.py"
    upward = {name for name in imported(ast.parse(file.read_text())) if LEVEL[name] > LEVEL[mine]}
    assert not upward, f"{file.name} imports {upward}, which stand above it"


def test_attention_is_written_once():
    softmax = re.compile(r"(softmax\(\s*-1|scaled_dot_product)")
    outside = [str(f) for f in FILES if softmax.search(f.read_text()) and part(f) not in ("core", "answers")]
    assert not outside


def test_only_train_imports_lightning():
    users = {part(f) for f in FILES if re.search(r"^\s*(import|from) lightning", f.read_text(), re.M)}
    assert users == {"train"}


@pytest.mark.parametrize("code", ["import zoo", "import zoo.cli", "import zoo.registry, zoo.card, zoo.show"])
def test_light_imports_leave_torch_alone(code):
    heavy = "torch timm torchvision lightning gradio pyarrow".split()
    script = f"import sys; {code}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_are_short():
    long = {str(f.relative_to(ZOO)): n for f in FILES if (n := len(f.read_text().splitlines())) > 260}
    assert not long
