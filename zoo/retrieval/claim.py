"""Who writes to an index in object storage: one row of a small LanceDB table beside the manifest.

LanceDB's commits are compare-and-swap on every object storage, so the row has one owner at a time, whichever machine
it is on. The owner counts a beat up; who wants to write and sees no new beat for SILENT seconds of its own clock takes
over. No two clocks are compared. An owner that was held up for so long notices, and writes no more.
"""

import os
import socket
import threading
import time
import uuid
from pathlib import Path

from zoo.errors import ZooError

TABLE = "writer"
BEAT, SILENT = 5.0, 30.0  # seconds between two beats, and without one until an owner is held to be dead
SAFE = 0.8 * SILENT  # without a beat of its own for so long, an owner has lost its claim
_held: dict[str, "Claim"] = {}


def check(uri: str) -> None:
    """Raise ZooError where this process had a claim on what lies at `uri`, and lost it."""
    for claim in list(_held.values()):
        if uri == claim.uri or uri.startswith(f"{claim.uri}/"):
            claim.check()


def writer(uri: str) -> str | None:
    """Who has claimed the index at `uri` and gave a sign of life lately, as far as the clocks agree."""
    table = _table(uri, make=False)
    row = _row(table) if table is not None else None
    return row["who"] if row and row["token"] and time.time() - row["time"] < 2 * SILENT else None


class Claim:
    """To be used as a context. lock: a file that this machine's other processes lock first: an old claim of its is dead.

    Raises ZooError where another machine is writing.
    """

    def __init__(self, uri: str, lock: Path):
        status = lock.stat()
        boot = Path("/proc/sys/kernel/random/boot_id")
        self.uri, self.who = uri, f"{socket.gethostname()} process {os.getpid()}"
        self.home = f"{boot.read_text().strip() if boot.exists() else socket.gethostname()} {status.st_dev} {status.st_ino}"
        self.token, self.beat, self.lost = uuid.uuid4().hex, 0, False
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._beating, daemon=True)

    def __enter__(self) -> "Claim":
        self._table = _table(self.uri, make=True)
        self._wait_for_it()
        _held[self.token] = self
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._stop.set()
        self._thread.join()
        del _held[self.token]
        if not self.lost:
            self._swap((self.token, self.beat), ("", 0))

    def check(self) -> None:
        if self.lost or time.monotonic() - self._last > SAFE:
            self.lost = True
            raise ZooError(f"{self.uri}: this process was held up, and another may have begun to write; give the command again")

    def _wait_for_it(self) -> None:
        seen, since = None, time.monotonic()
        while True:
            row = _row(self._table)
            mark = row["token"], row["beat"]
            if row["token"] == self.token:  # swapped, but the answer was lost on its way
                self.beat, self._last = row["beat"], time.monotonic()
                return
            dead = not row["token"] or row["home"] == self.home or seen == mark and time.monotonic() - since > SILENT
            if dead:
                if self._swap(mark, (self.token, 0)):
                    return
                continue
            if seen not in (None, mark):
                raise ZooError(f"{self.uri}: {row['who']} is writing; try again when it is done")
            seen = mark
            time.sleep(BEAT / 10)

    def _beating(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                begun = time.monotonic()
                if self._swap((self.token, self.beat), (self.token, self.beat + 1)):
                    self.beat += 1
                    continue
                row = _row(self._table)
                if row["token"] != self.token:
                    self.lost = True
                    return
                self.beat, self._last = row["beat"], begun
            except ZooError:
                continue  # out of reach for now; `check` counts the seconds

    def _swap(self, old: tuple[str, int], new: tuple[str, int]) -> bool:
        """Make the row ours or another beat, if it is as it was."""
        begun, where = time.monotonic(), f"token = '{old[0]}' AND beat = {old[1]}"
        values = {"token": new[0], "beat": new[1], "who": self.who, "home": self.home, "time": time.time()}
        try:
            done = self._table.update(where=where, values=values).rows_updated == 1
        except (OSError, ValueError, RuntimeError) as error:
            raise ZooError(f"{self.uri}: the claim cannot be written ({str(error).splitlines()[0][:200]})") from error
        if done:
            self._last = begun
        return done


def _table(uri: str, make: bool):
    """The table of claims; None where there is none and none is to be made."""
    from zoo.retrieval.lance_table import connect

    base = connect(uri)
    free = {"token": "", "beat": 0, "who": "", "home": "", "time": 0.0}
    try:
        return base.open_table(TABLE)
    except ValueError as error:
        if "not found" not in str(error):
            raise ZooError(f"{uri}: {str(error).splitlines()[0][:200]}") from error
    if not make:
        return None
    try:
        return base.create_table(TABLE, [free])
    except (OSError, ValueError, RuntimeError) as error:  # another machine was faster
        try:
            return base.open_table(TABLE)
        except ValueError:
            raise ZooError(f"{uri}: cannot be written ({str(error).splitlines()[0][:200]})") from error


def _row(table) -> dict:
    return table.search().limit(1).to_list()[0]
