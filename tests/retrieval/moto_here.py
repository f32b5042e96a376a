"""Object storage on this machine, as moto plays it, with the environment that leads there."""

import os
import socket
import subprocess
import sys
import time
import uuid
from urllib.request import urlopen

import pytest


def running():
    """Yields the settings of the environment; skips with the reason where moto is missing."""
    for package in ("moto", "boto3", "lancedb"):
        pytest.importorskip(package, reason="object storage is played by moto: pip install 'moto[server]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            urlopen(url).close()
            break
        except OSError:
            time.sleep(0.1)
    yield {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
           "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url, "AWS_ENDPOINT": url, "AWS_ALLOW_HTTP": "true"}  # fmt: skip
    server.terminate()
    server.wait()


def new_bucket():
    import boto3

    name = f"photos-{uuid.uuid4().hex[:8]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}"


def apart(home):
    """The environment of a process that shares no lock file with this one, as on another machine."""
    path = os.pathsep.join(p for p in [os.path.dirname(__file__), *sys.path] if p)
    return os.environ | {"ZOO_HOME": str(home), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
