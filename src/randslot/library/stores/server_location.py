"""A library on a Qdrant server or cluster.

Two collections make a library. COLLECTION holds the pages. COLLECTION-files holds points without vectors: one for each
file (the manifest), one about the library (format and model), and one that says who holds the write lease.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from qdrant_client import models

from ...errors import UsageError
from ..address import FILES, Address
from ..binding import read_binding
from ..lease import WriteLease
from ..location import Location, lost_pages
from ..records import ServerManifest
from .connection import LISTED_POINTS, Connection, chunks, connect, equal
from .server import ServerStore
from .store import BYTES_PER_NUMBER, Store, mean_numbers

ABOUT_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "randslot:library"))
LEASE_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "randslot:turn"))  # the name that servers have stored


class ServerRecords:
    """Points without vectors, in the collection beside the pages. One shard, so that one request is one step."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.name = connection.address.collection + FILES
        # Copies may lag behind: most of them must agree on what is read, and one node orders what is written.
        self.reading = {"consistency": models.ReadConsistencyType.MAJORITY}
        self.writing = {"ordering": models.WriteOrdering.STRONG}

    def exist(self) -> bool:
        """Whether the collection is there."""
        return self.connection.exists(self.name)

    def make(self) -> None:
        """Make the collection."""
        address = self.connection.address
        keyword, number = models.PayloadSchemaType.KEYWORD, models.PayloadSchemaType.INTEGER
        fields = {
            "kind": keyword,
            "source": keyword,
            "hash": keyword,
            "state": keyword,
            "token": keyword,
            "num_pages": number,
        }
        self.connection.make(
            self.name,
            fields,
            vectors_config={},
            shard_number=1,
            replication_factor=address.replicas,
            write_consistency_factor=address.consistency,
        )

    def put(self, records: Mapping[str, Mapping[str, Any]], *, only_if: Mapping[str, str] | None = None) -> None:
        """Keep records by their ids. only_if: leave one alone that is there and has another value than this."""
        points = [models.PointStruct(id=id, vector={}, payload=dict(record)) for id, record in records.items()]
        for some in chunks(points, LISTED_POINTS):
            if only_if is None:
                self.connection.write("upsert", collection_name=self.name, points=some, **self.writing)
            else:
                more = {"update_filter": equal(**only_if), "wait": True, **self.writing}
                self.connection.ask("upsert", collection_name=self.name, points=some, **more)

    def get(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return records by their ids; those that are not there are left out."""
        found: dict[str, dict[str, Any]] = {}
        for some in chunks(list(ids), LISTED_POINTS):
            records = self.connection.ask(
                "retrieve", collection_name=self.name, ids=some, with_payload=True, **self.reading
            )
            for record in records:
                found[str(record.id)] = record.payload
        return found

    def find(self, **values: str | tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Return the records with these values, or one of several."""
        records = self.connection.scroll(self.name, equal(**values), **self.reading)
        return {str(record.id): record.payload for record in records}

    def forget(self, id: str) -> None:
        """Remove a record."""
        self.connection.write("delete", collection_name=self.name, points_selector=[id], **self.writing)

    def tally(self, key: str, **values: str) -> dict[int, int]:
        """Return how many of the records with these values have each number of a key."""
        hits = self.connection.ask(
            "facet",
            collection_name=self.name,
            key=key,
            facet_filter=equal(**values),
            limit=self.connection.count(self.name) + 1,
            exact=True,
            **self.reading,
        ).hits
        return {int(hit.value): int(hit.count) for hit in hits}


class ServerLocation:
    """A library on a server."""

    def __init__(self, address: Address, *, create: bool, connection: Connection | None = None) -> None:
        """Connect to a server.

        Errors: RandSlotError in one line if it is out of reach, or the collection is there and not a library.
        """
        self.name, self.folder = str(address), address.folder
        self.connection = connection or connect(address)
        self.records = ServerRecords(self.connection)
        self.manifest = ServerManifest(self.records)
        self.lease = WriteLease(self.records, LEASE_ID, self.name)
        self.connection.check_write = self.lease.check
        if self.read() is None:
            self._check_new(create)

    def _check_new(self, create: bool) -> None:
        collection = self.connection.address.collection
        if not create:
            self.abandon()
            raise UsageError(f"no library at {self.name}: randslot index makes one")
        if self.connection.exists(collection) and self.connection.count(collection):
            self.abandon()
            raise UsageError(f"{self.name} is not a library and not empty: name another collection")

    def read(self) -> dict[str, Any] | None:
        if not self.records.exist():
            return None
        return self.records.get([ABOUT_ID]).get(ABOUT_ID)

    def write(self, about: dict[str, Any]) -> None:
        """Write about the library last: one that is half made is not a library yet, and can be made again."""
        if not self.records.exist():
            self.records.make()
        if self.read() is None:
            ServerStore(self.connection, about["model"] and int(about["model"]["dimension"]))
        with nullcontext() if self.lease.token else self.hold_lease():
            self.records.put({ABOUT_ID: about})

    def open(self, dim: int | None, *, repair: bool) -> None:
        if not (repair or self.connection.exists(self.connection.address.collection)):
            raise lost_pages(self.name)
        self.store: Store = ServerStore(self.connection, dim)

    def hold_lease(self) -> AbstractContextManager[None]:
        return self.lease.hold()

    def announce(self, socket: str | None) -> None:
        """Nothing to do: a server lets everybody read."""

    def is_same(self, other: Location) -> bool:
        now = self.records.get([LEASE_ID]).get(LEASE_ID, {})
        return isinstance(other, ServerLocation) and now.get("token") == other.lease.token

    def size(self) -> int:
        """Return the bytes of the vectors: a server does not say what it takes on disk."""
        about = self.read() or {}
        if about.get("model") is None:
            return 0
        model = read_binding(about.get("model"), self.name)
        num = model.num_vectors("page")
        numbers = num * model.dimension if num else mean_numbers(self.store)
        return BYTES_PER_NUMBER * numbers * self.connection.count(self.connection.address.collection)

    def close(self) -> None:
        self.connection.close()

    def abandon(self) -> None:
        self.connection.close()
