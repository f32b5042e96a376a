"""The arrays of an .npz, once its headers have been believed: no pickle, and no array larger than its bytes."""

import lzma
import struct
import zipfile
import zlib
from math import prod
from pathlib import Path

import numpy as np

from zoo.errors import ZooError
from zoo.rawgraph import GIB, ROOM

DENSE, SWELLS = GIB, 100  # beyond so many bytes, data that deflate to less than a hundredth of them are a bomb
_BROKEN = (OSError, ValueError, EOFError, ArithmeticError, LookupError, NotImplementedError, RuntimeError, SyntaxError, TypeError,
           struct.error, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """name -> array. ZooError that names the file: damaged, not plain numbers or text, too large, or a decompression bomb."""
    try:
        with zipfile.ZipFile(file) as stored:
            _weigh(file, sum(info.file_size for info in stored.infolist()))
            arrays = {}
            for info in stored.infolist():
                name = info.filename.removesuffix(".npy")
                with stored.open(info) as stream:
                    _header(stream, name, info.file_size)
                with stored.open(info) as stream:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
            return arrays
    except ZooError:
        raise
    except _BROKEN as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ZooError(f"{file}: not a readable .npz of plain arrays: {why}") from error


def _weigh(file: Path, size: int) -> None:
    packed = max(file.stat().st_size, 1)
    if size > DENSE and size > SWELLS * packed:
        raise ZooError(f"{file}: refused, decompression bomb: {packed} bytes that say they are {size / GIB:.1f} GiB of arrays")
    if size > ROOM:
        raise ZooError(f"{file}: {size / GIB:.1f} GiB of arrays, more than {ROOM // GIB} GiB; use fewer features")


def _header(stream, name: str, size: int) -> None:
    """ValueError where shape and type say another number of bytes than there are: numpy asks for the memory before it reads."""
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(stream)
    if version[0] not in read:
        raise ValueError(f"array {name!r} has a header of version {version[0]}")
    shape, _, kind = read[version[0]](stream)
    if kind.hasobject or kind.names:
        raise ValueError(f"array {name!r} holds objects or records, not numbers or text")
    if prod(shape) * kind.itemsize != size - stream.tell():
        raise ValueError(f"array {name!r} says it is {'x'.join(map(str, shape))} {kind}, but holds {size - stream.tell()} bytes")
