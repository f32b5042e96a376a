"""The commands as the README gives them: torchrun on this machine, two agents as two machines, a stop in the middle."""

import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from tests.train import tiny
from tests.train.together import free_port

pytestmark = pytest.mark.slow


def start(arguments, *options):
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "zoo", "train", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def file(tmp_path):
    made = tiny.recipe("image", tmp_path, epochs=2).to_dict()
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(made))
    return tmp_path / "recipe.yaml"


def test_torchrun_trains_and_one_rank_writes(file, tmp_path):
    out, err = start([file, "--runs", tmp_path / "runs"], "--nproc-per-node", "2").communicate(timeout=300)
    assert out.strip() == str(tmp_path / "runs" / "image_pico-1") and len(list((tmp_path / "runs").iterdir())) == 1
    assert err.count("done    ") == 1 and err.count("epoch 2/2") == 1


def test_two_agents_train_as_two_machines(file, tmp_path):
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    agents = [start([file, "--runs", tmp_path / "runs"], *options) for _ in range(2)]
    ends = [agent.communicate(timeout=300) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], ends
    assert "".join(err for _, err in ends).count("done    ") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["image_pico-1"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_saves_once_and_the_run_goes_on(file, tmp_path, signum):
    runs = tmp_path / "runs"
    agent = start([file, "--runs", runs, "--epochs", "400", "--workers", "1"], "--nproc-per-node", "2")
    log = runs / "image_pico-1" / "log.csv"
    until = time.monotonic() + 200
    while not log.exists() and time.monotonic() < until:
        time.sleep(0.2)
    agent.send_signal(signum)
    _, err = agent.communicate(timeout=100)
    assert err.count("saved   ") == 1 and agent.returncode == 1, err  # torchrun's own exit code at a signal is 1
    goes_on = start(["--resume", runs / "image_pico-1", "--dry-run"], "--nproc-per-node", "1")
    said = goes_on.communicate(timeout=200)
    assert goes_on.returncode == 0, said
