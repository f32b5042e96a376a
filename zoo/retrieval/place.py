"""Where an index lies: a folder of this machine, or object storage (credentials from the environment)."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from zoo.checkpoint import home
from zoo.errors import ZooError
from zoo.retrieval import claim
from zoo.retrieval.files import holder, locked, make_folder, write_atomic


def place(uri: str | os.PathLike) -> "Folder | Bucket":
    """A folder's path, or the address of one in object storage: s3://bucket/photos.index, gs://..."""
    scheme, mark, rest = os.fspath(uri).partition("://")
    if not mark:
        return Folder(uri)
    return Folder(rest) if scheme == "file" else Bucket(os.fspath(uri))


class Folder:
    """An index on this machine."""

    remote = False

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def read(self, name: str) -> bytes:
        """FileNotFoundError or NotADirectoryError where there is none."""
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """All of it or nothing, also under a kill."""
        write_atomic(self.path / name, data)

    def move(self, name: str, other: str) -> None:
        os.replace(self.path / name, self.path / other)

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def stamp(self, name: str) -> tuple:
        """Another value once the file has changed."""
        status = (self.path / name).stat()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def names(self) -> list[str] | None:
        """What lies there; None where there is nothing yet. ZooError where it is no folder."""
        if not self.path.exists():
            return None
        if not self.path.is_dir():
            raise ZooError(f"{self.path}: exists and is no index; give the path of an index, or of a new folder")
        return os.listdir(self.path)

    def prepare(self) -> None:
        make_folder(self.path)

    def drop(self, folder: str) -> None:
        shutil.rmtree(self.path / folder)

    def inside(self, folder: str) -> str:
        return str(self.path / folder)

    def locked(self) -> AbstractContextManager:
        return locked(self.path / "lock")

    def writer(self) -> str | None:
        """The process that writes now."""
        mine = holder(self.path / "lock")
        return f"process {mine}" if mine else None

    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


class Bucket:
    """An index in object storage. One process of one machine writes at a time, see `claim`."""

    remote = True

    def __init__(self, uri: str):
        import pyarrow as pa
        from pyarrow.fs import FileSystem

        self.path = uri.rstrip("/")
        try:
            self.files, self.base = FileSystem.from_uri(self.path)
        except (pa.ArrowInvalid, OSError) as error:
            raise ZooError(f"{uri}: cannot be opened as object storage ({str(error).splitlines()[0][:200]})") from None
        self.lock = home() / "locks" / hashlib.sha256(self.path.encode()).hexdigest()[:16]

    def read(self, name: str) -> bytes:
        with self._reached(), self.files.open_input_file(self._at(name)) as file:
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        claim.check(self.path)
        with self._reached(), self.files.open_output_stream(self._at(name)) as file:  # one object, visible once closed
            file.write(data)

    def move(self, name: str, other: str) -> None:
        self.write(other, self.read(name))
        with self._reached():
            self.files.delete_file(self._at(name))

    def has(self, name: str) -> bool:
        return self._info(name).is_file

    def stamp(self, name: str) -> tuple:
        return (hashlib.sha256(self.read(name)).hexdigest(),)  # times of objects are whole seconds

    def names(self) -> list[str] | None:
        found = [info.base_name for info in self._list(recursive=False)]
        return [name for name in found if name != f"{claim.TABLE}.lance"] or None

    def prepare(self) -> None:
        make_folder(self.lock.parent)

    def drop(self, folder: str) -> None:
        with self._reached():
            self.files.delete_dir(self._at(folder))

    def inside(self, folder: str) -> str:
        return f"{self.path}/{folder}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        with locked(self.lock, name=self.path), claim.Claim(self.path, self.lock):
            yield

    def writer(self) -> str | None:
        mine = holder(self.lock)
        return f"process {mine}" if mine else claim.writer(self.path)

    def bytes(self) -> int:
        return sum(info.size or 0 for info in self._list(recursive=True))

    def _at(self, name: str) -> str:
        return f"{self.base}/{name}"

    def _info(self, name: str):
        with self._reached():
            return self.files.get_file_info(self._at(name))

    def _list(self, recursive: bool) -> list:
        from pyarrow.fs import FileSelector

        with self._reached():
            return self.files.get_file_info(FileSelector(self.base, allow_not_found=True, recursive=recursive))

    def _reached(self) -> "_Reached":
        return _Reached(self.path)


class _Reached:
    """Says which address could not be reached, and why; a file that is not there stays what it is."""

    def __init__(self, uri: str):
        self.uri = uri

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise ZooError(f"{self.uri}: {str(error).splitlines()[0][:200]}") from error
