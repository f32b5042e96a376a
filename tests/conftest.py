"""Shared by all tests: one thread, no network, the user's own cache left alone."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
ROOT = Path(__file__).parents[1]


@pytest.fixture
def shared() -> Path:
    """The folder of real data beside the repository; the test is skipped where it is missing."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data, which is not part of the repository")
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """An empty $ZOO_HOME."""
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "zoo_home"))
    return tmp_path / "zoo_home"
