"""Foreign files: tensors and nothing else, from the disk alone; names of the hub."""

import hashlib
import pickle
import socket

import pytest
import torch
from safetensors.torch import save_file

from zoo.convert import files, hub
from zoo.errors import ZooError

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.half)}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_args, **_more):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("wrap", [
    lambda state: state, lambda state: {"model": state, "epoch": 3, "optimizer": {"lr": 1.0}},
    lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
    lambda state: {"model": {"state_dict": state}},
], ids=["flat", "model", "data parallel", "twice"])
def test_weights_are_found_in_their_wrappers(wrap, tmp_path):
    torch.save(wrap(STATE), tmp_path / "w.pth")
    tensors, dropped = files.read(tmp_path / "w.pth")
    assert tensors.keys() == STATE.keys() and all(torch.equal(tensors[key], STATE[key]) for key in STATE)
    assert set(dropped) == {key for key in wrap(STATE) if key in ("epoch", "optimizer")}


def test_safetensors_and_folders(tmp_path):
    save_file(STATE, tmp_path / "model.safetensors")
    assert files.read(files.locate(tmp_path))[0].keys() == STATE.keys()
    (tmp_path / "config.json").write_text('{"model_type": "swin"}')
    (tmp_path / "preprocessor_config.json").write_text('{"resample": 3}')
    assert files.config(tmp_path / "model.safetensors") == {"model_type": "swin", "preprocessor": {"resample": 3}}
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ZooError, match="config.json: no JSON"):
        files.config(tmp_path / "model.safetensors")


class Trap:
    """Pickled, it writes a file as soon as it is loaded."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return open, (self.file, "w")


def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path):
    sprung = tmp_path / "sprung"
    torch.save({"model": STATE, "trap": Trap(sprung)}, tmp_path / "trap.pth")
    (tmp_path / "old.bin").write_bytes(pickle.dumps({"trap": Trap(sprung)}))
    with pytest.raises(ZooError, match=r"trap.pth: holds io\.open, which is no tensor; not loaded.*\nwhere you trust it"):
        files.read(tmp_path / "trap.pth")
    with pytest.raises(ZooError, match="old.bin: "):
        files.read(tmp_path / "old.bin")
    assert not sprung.exists()


@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors", "noise.pt", "empty.bin"])
def test_damaged_files_are_named(name, tmp_path):
    torch.save(STATE, tmp_path / "cut.pth")
    save_file(STATE, tmp_path / "cut.safetensors")
    (tmp_path / "noise.pt").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "empty.bin").write_bytes(b"")
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content if name == "noise.pt" else content[: len(content) // 2])
    with pytest.raises(ZooError, match=f"{name}: damaged"):
        files.read(tmp_path / name)


def test_what_holds_no_state_dict_is_named(tmp_path):
    torch.save(torch.ones(2), tmp_path / "one.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(ZooError, match="one.pt: holds a Tensor, expected a state dict"):
        files.read(tmp_path / "one.pt")
    with pytest.raises(ZooError, match="none.pt: no tensors by name; keys: epoch"):
        files.read(tmp_path / "none.pt")
    with pytest.raises(ZooError, match="gone.pt: no such file"):
        files.locate(tmp_path / "gone.pt")
    with pytest.raises(ZooError, match="no model.safetensors or pytorch_model.bin in this folder"):
        files.locate(tmp_path)


def test_names_of_the_hub():
    assert hub.repository("hf:microsoft/swin-tiny") == "microsoft/swin-tiny"
    assert hub.repository("timm:swin_tiny.ms_in1k") == "timm/swin_tiny.ms_in1k"
    assert hub.is_name("hf:a/b") and not hub.is_name("folder/hf")
    for name in ("hf:swin", "timm:a/b/c", "hf:../x y"):
        with pytest.raises(ZooError, match="expected hf:OWNER/NAME or timm:NAME"):
            hub.repository(name)


@pytest.fixture
def library(monkeypatch, tmp_path):
    """A hub without network: {(file, must be cached): path}; what is not there is not found."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    known, asked = {}, []

    def download(where, file, local_files_only=False):
        asked.append((where, file))
        if (file, local_files_only) not in known:
            raise LocalEntryNotFoundError(file)
        return str(known[file, local_files_only])

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return known, asked


def test_offline_the_way_out_is_two_commands(library):
    with pytest.raises(ZooError) as error:
        hub.fetch("timm:swin_tiny.ms_in1k")
    first, second = str(error.value).splitlines()
    assert first.startswith("timm:swin_tiny.ms_in1k: not in the cache, and the hub cannot be reached; ")
    assert first.endswith("hf download timm/swin_tiny.ms_in1k --local-dir swin_tiny.ms_in1k")
    assert second.endswith("zoo convert auto swin_tiny.ms_in1k --out NAME.safetensors")


def test_what_is_in_the_cache_needs_no_network_and_must_have_its_hash(library, tmp_path):
    known, asked = library
    digest = hashlib.sha256(b"weights").hexdigest()
    for name in (digest, "0" * 64):
        (tmp_path / name).write_bytes(b"weights")
    known["model.safetensors", True] = tmp_path / digest
    assert hub.fetch("hf:a/b") == tmp_path / digest and asked == [("a/b", "model.safetensors")]
    known["model.safetensors", True] = tmp_path / ("0" * 64)
    with pytest.raises(ZooError, match=f"sha256 {digest}\nthe hub says 0000"):
        hub.fetch("hf:a/b")
