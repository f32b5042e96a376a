"""Runs a function in several forked processes that see what torchrun would give them."""

import multiprocessing
import os
import socket
import traceback


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _child(function, rank: int, world: int, port: int, results) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), GROUP_RANK="0",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test")
    try:
        results.put((rank, function(rank), None))
    except BaseException:  # whatever it is, the test shows it
        results.put((rank, None, traceback.format_exc()))


def together(function, world: int = 2, timeout: float = 300) -> list:
    """function(rank) of every rank, in order. Fails with the traceback of a rank that fails."""
    context, port = multiprocessing.get_context("fork"), free_port()
    results = context.Queue()
    children = [context.Process(target=_child, args=(function, rank, world, port, results)) for rank in range(world)]
    for child in children:
        child.start()
    try:
        found = {}
        for _ in children:
            rank, value, error = results.get(timeout=timeout)
            assert error is None, f"rank {rank}: {error}"
            found[rank] = value
        return [found[rank] for rank in range(world)]
    finally:
        for child in children:
            child.join(5)
            child.kill()
