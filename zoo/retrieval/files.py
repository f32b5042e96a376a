"""Writing that survives a kill: whole files by rename, and one writer at a time by a lock file."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.errors import ZooError

WAIT = 60.0  # seconds for another writer's commit, which takes milliseconds


def write_atomic(path: Path, data) -> None:
    """Put `data` (bytes or a buffer) at `path`: temporary file, fsync, rename, fsync of the folder.

    After a kill or a full disk `path` holds either its old content or all of the new one.
    Permissions follow the umask. Raises ZooError naming the file where the system refuses.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ZooError(
            f"{path}: cannot be written ({error.strerror}); what was saved before is kept"
        ) from error


def make_folder(path: Path) -> None:
    """Create `path` so that it is still there after a power cut."""
    if not path.is_dir():
        path.mkdir(parents=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)  # the rename itself is only durable once the folder is
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, wait: float = 0.0, name: str | None = None) -> Iterator[None]:
    """Hold the lock file `path` against other processes and threads; the system frees it if a holder dies.

    wait: seconds to wait for another holder. name: what it guards, its folder by default. Raises ZooError with the
    holder's process number.
    """
    import fcntl

    with open(path, "a+") as file:
        until = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    message = f"{name or path.parent}: process {_written(file)} is writing; try again when it is done"
                    raise ZooError(message) from None
                time.sleep(0.02)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(path: Path) -> str | None:
    """The process number of the one that holds the lock file `path` now; None where nobody does."""
    import fcntl

    try:
        with open(path, "r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                return _written(file)
    except OSError:
        return None


def _written(file) -> str:
    file.seek(0)
    return file.read().strip() or "unknown"
