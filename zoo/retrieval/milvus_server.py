"""Calls of a Milvus server: connected at first need, bounded in time, and told in one line where they fail."""

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from zoo.errors import UsageError, ZooError
from zoo.retrieval.milvus_filter import quoted

REACH, ANSWER = 5.0, 60.0  # seconds until a server is held to be out of reach, and until a call of it is given up
WRITTEN = "zoo.written"  # a property of a collection: the server's time of its last finished change


def pymilvus():
    """The package; ZooError with the pip command where it is missing."""
    try:
        import pymilvus
    except ImportError as error:
        raise ZooError(
            f"this index keeps its rows in Milvus, whose client is not installed: {error}\n"
            "pip install 'zoo-attention[milvus]'   (or: pip install pymilvus)"
        ) from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it prints the trace of every error that it also raises
    return pymilvus


def checked_address(address: str) -> str:
    """`http://host:19530`, with a database's name behind it if wanted. UsageError for another form."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"--store {address}: a Milvus server is written like http://host:19530")
    if parts.username or parts.password:
        raise UsageError("--store: no password in the address, the manifest would keep it; set MILVUS_TOKEN=user:password")
    return address.rstrip("/")


class Server:
    """One server. Threads may share it. The credentials are MILVUS_TOKEN of the environment."""

    def __init__(self, address: str):
        self.address, self._api = checked_address(address), pymilvus()
        self._guard, self._client = threading.Lock(), None

    def call(self, name: str, *arguments, **options):
        """`MilvusClient.name(...)`; ZooError where it cannot be reached or refuses."""
        with self._told():
            return getattr(self._connected(), name)(*arguments, timeout=ANSWER, **options)

    def paged(self, collection: str, expression: str, fields: list[str], written: int, page: int) -> Iterator[dict]:
        """All entities that an expression selects, `key` and these fields of each, as of `written` or later.

        In the order of the keys, from one page to the next; pymilvus has an iterator, which trusts this machine's clock.
        """
        after, in_order = "", {"reduce_stop_for_best": "True"}
        while True:
            wanted = f"key > {quoted(after)}" if after else 'key != ""'
            wanted = f"({expression}) and {wanted}" if expression else wanted
            options = {"output_fields": ["key", *fields], "limit": page, **in_order, **as_of(written)}
            found = self.call("query", collection, filter=wanted, **options)
            yield from found
            if not found:
                return
            after = max(entity["key"] for entity in found)

    def written(self, collection: str) -> tuple[int | None, dict] | None:
        """When it was last written to (None: it is being made), and its description. None where there is none."""
        from pymilvus.exceptions import MilvusException

        with self._told():
            client = self._connected()
            try:
                facts = client.describe_collection(collection, timeout=ANSWER)
            except MilvusException:
                if not client.has_collection(collection, timeout=ANSWER):
                    return None
                facts = client.describe_collection(collection, timeout=ANSWER)  # made just now
        when = facts.get("properties", {}).get(WRITTEN)
        return (int(when) if when else None), facts

    def commit(self, collection: str) -> None:
        """From here on every reader waits for what was written, and for no more than that."""
        with self._told():
            now = self._connected()._get_connection().alloc_timestamp(timeout=ANSWER)  # no public name for the server's clock
        before = self.written(collection)
        if before is not None and (before[0] or 0) < now:
            self.call("alter_collection_properties", collection, {WRITTEN: str(now)})

    def made(self, collection: str, fields: list[tuple[str, str, dict]], dynamic: bool) -> None:
        """Make a collection that is searched exactly; also one whose making was cut short, or is under way elsewhere."""
        kinds = self._api.DataType
        schema = self._api.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=dynamic)
        for name, kind, options in fields:
            schema.add_field(name, getattr(kinds, kind), **options)
        index = self._api.MilvusClient.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="COSINE")
        if not self.call("has_collection", collection):
            try:
                self.call("create_collection", collection, schema=schema, num_shards=1, consistency_level="Strong")
            except ZooError:
                if not self.call("has_collection", collection):
                    raise
        self.call("create_index", collection, index)
        self.call("load_collection", collection)

    def _connected(self):
        with self._guard:
            if self._client is None:
                parts = urlsplit(self.address)
                place = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
                try:
                    socket.create_connection(place, REACH).close()  # pymilvus tries for longer, and says less
                except OSError as error:
                    why = error.strerror or str(error)
                    hint = "start it, or check host and port"
                    raise ZooError(f"{self.address}: no Milvus server answers ({why}); {hint}") from None
                token = os.environ.get("MILVUS_TOKEN", "")
                self._client = self._api.MilvusClient(self.address, token=token, timeout=REACH)
            return self._client

    @contextmanager
    def _told(self) -> Iterator[None]:
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except (MilvusException, RpcError, UnicodeEncodeError) as error:
            said = getattr(error, "message", "") or (error.details() if isinstance(error, RpcError) else str(error))
            why = " ".join(str(said).split())[:200] or type(error).__name__
            raise ZooError(f"{self.address}: Milvus says: {why}") from error


def as_of(written: int) -> dict:
    """Options of a query that sees all that was written until then, without a wait for the server's next tick."""
    return {"consistency_level": "Customized", "guarantee_timestamp": written}
