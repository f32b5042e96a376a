"""A real Milvus server for the tests, out of the PyPI package `milvus`; or the one that ZOO_TEST_MILVUS names."""

import os
import signal
import socket
import subprocess
import sys
import uuid

import pytest

SERVE = """
import sys
from milvus import MilvusServer
server = MilvusServer(wait_for_started=False)
server.set_base_dir(sys.argv[1])
server.listen_port = int(sys.argv[2])
server.start()
server.wait_started(timeout=120_000)
print("ready", flush=True)
sys.stdin.read()
server.stop()
"""


def running(tmp_path_factory):
    """Yields the address; skips with the reason where the client is missing or no server starts."""
    pytest.importorskip("pymilvus", reason="the extra `milvus` is not installed")
    if known := os.environ.get("ZOO_TEST_MILVUS"):
        yield known
        return
    pytest.importorskip("milvus", reason="no server to test with: pip install milvus, or set ZOO_TEST_MILVUS=http://host:19530")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("milvus")
    command = [sys.executable, "-c", SERVE, str(folder), str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)  # Ctrl-C is for the tests
    if process.stdout.readline() != "ready\n":
        process.kill()
        pytest.skip(f"the Milvus server does not start here: {process.communicate()[1][-300:]}")
    yield f"http://127.0.0.1:{port}"
    process.stdin.close()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
    process.stderr.close()


def collections(address):
    from zoo.retrieval.milvus_store import MilvusStore

    made = {}

    def uri(path):
        return made.setdefault(str(path), f"{address}#t_{uuid.uuid4().hex}")

    yield uri
    for name in made.values():
        MilvusStore(name, 4).drop()
