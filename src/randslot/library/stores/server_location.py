"""A library on a Qdrant server or cluster.

Two collections make a library. COLLECTION holds the pages. COLLECTION-files holds points without vectors: one for each
file (the manifest), one about the library (format and model), and one that says who holds the write lease. The lease
itself is an alias of that collection.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any

from qdrant_client import models

from ...errors import UsageError
from ..address import FILES, Address
from ..binding import read_binding
from ..lease import WriteLease
from ..location import Location, lost_pages
from ..records import ServerManifest
from .connection import LISTED_POINTS, Connection, NotFoundError, chunks, connect, equal
from .server import ServerStore
from .store import BYTES_PER_NUMBER, Store, mean_numbers

ABOUT_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "randslot:library"))
LEASE_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "randslot:turn"))  # the name that servers have stored
STAMP = "stamp"  # of a record: which write it comes from
PUTS = 2**32  # more than a process makes
PART_BYTES = 2**19  # of a sketcher, in one record


class ServerRecords:
    """Points without vectors, in the collection beside the pages. One shard, so that one request is one step."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.name = connection.address.collection + FILES
        self.lease_number: Callable[[], int] = lambda: 0
        self.num_puts = count(1)

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
            STAMP: number,
        }
        self.connection.make(
            self.name,
            fields,
            vectors_config={},
            shard_number=1,
            replication_factor=address.replicas,
            write_consistency_factor=address.consistency,
        )

    def put(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep records by their ids.

        A record is stamped with the number of the write lease and a count, and replaces none with a later stamp: what
        arrives late, from a node that was frozen or a process that lost its lease, changes nothing.
        """
        stamp = self.lease_number() * PUTS + next(self.num_puts)
        points = [models.PointStruct(id=id, vector={}, payload={**r, STAMP: stamp}) for id, r in records.items()]
        for some in chunks(points, LISTED_POINTS):
            self.connection.write(
                "upsert", collection_name=self.name, points=some, update_filter=_stamped_before(stamp)
            )

    def get(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return records by their ids; those that are not there are left out."""
        found: dict[str, dict[str, Any]] = {}
        for some in chunks(list(ids), LISTED_POINTS):
            records = self.connection.ask("retrieve", collection_name=self.name, ids=some, with_payload=True)
            for record in records:
                found[str(record.id)] = record.payload
        return found

    def find(self, **values: str | tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Return the records with these values, or one of several."""
        records = self.connection.scroll(self.name, equal(**values))
        return {str(record.id): record.payload for record in records}

    def forget(self, id: str) -> None:
        """Remove a record."""
        self.connection.write("delete", collection_name=self.name, points_selector=[id])

    def tally(self, key: str, **values: str) -> dict[int, int]:
        """Return how many of the records with these values have each number of a key."""
        hits = self.connection.ask(
            "facet",
            collection_name=self.name,
            key=key,
            facet_filter=equal(**values),
            limit=self.connection.count(self.name) + 1,
            exact=True,
        ).hits
        return {int(hit.value): int(hit.count) for hit in hits}


def _stamped_before(stamp: int) -> models.Filter:
    """Return the filter for records with an earlier stamp, or none."""
    earlier = models.FieldCondition(key=STAMP, range=models.Range(lt=stamp))
    return models.Filter(should=[models.IsEmptyCondition(is_empty=models.PayloadField(key=STAMP)), earlier])


class LeaseNames:
    """Names of the collection of records, its aliases: a cluster keeps them by consensus."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.collection = connection.address.collection + FILES

    def list(self) -> list[str]:
        found = self.connection.ask("get_collection_aliases", collection_name=self.collection).aliases
        return [alias.alias_name for alias in found]

    def add(self, name: str) -> None:
        made = models.CreateAlias(collection_name=self.collection, alias_name=name)
        self.connection.agree([models.CreateAliasOperation(create_alias=made)])

    def rename(self, old: str, new: str, drop: Sequence[str] = ()) -> bool:
        changed = models.RenameAlias(old_alias_name=old, new_alias_name=new)
        changes: list[Any] = [models.RenameAliasOperation(rename_alias=changed)]
        try:
            self.connection.agree([*changes, *map(_drop_alias, drop)])
        except NotFoundError:
            return False
        return True

    def drop(self, name: str) -> None:
        self.connection.agree([_drop_alias(name)])


def _drop_alias(name: str) -> models.DeleteAliasOperation:
    return models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=name))


def _part_id(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"randslot:sketcher:{number}"))


class ServerLocation:
    """A library on a server."""

    shared = True

    def __init__(self, address: Address, *, create: bool, connection: Connection | None = None) -> None:
        """Connect to a server.

        Errors: RandSlotError in one line if it is out of reach, or the collection is there and not a library.
        """
        self.name, self.folder = str(address), address.folder
        self.connection = connection or connect(address)
        self.records = ServerRecords(self.connection)
        self.manifest = ServerManifest(self.records)
        self.names = LeaseNames(self.connection)
        self.lease = WriteLease(self.names, self.records, LEASE_ID, self.name)
        self.records.lease_number = lambda: self.lease.number
        self.connection.check_write = self.lease.check
        self.connection.catch_up = self.lease.renew
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

    def read_sketcher(self) -> bytes | None:
        parts = self.records.find(kind="sketcher").values()
        newest = max(parts, key=lambda part: int(part[STAMP]), default=None)
        if newest is None:
            return None
        kept = [part for part in parts if part["token"] == newest["token"]]
        kept.sort(key=lambda part: int(part["number"]))
        if len(kept) < int(newest["parts"]):  # of a process that was stopped just here
            return None
        return b"".join(base64.b64decode(part["content"]) for part in kept)

    def keep_sketcher(self, content: bytes) -> None:
        parts = [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]
        token = uuid.uuid4().hex
        for number, part in enumerate(parts):
            record = {"kind": "sketcher", "token": token, "number": number, "parts": len(parts)}
            self.records.put({_part_id(number): {**record, "content": base64.b64encode(part).decode()}})

    def hold_lease(self) -> AbstractContextManager[None]:
        return self.lease.hold()

    def announce(self, socket: str | None) -> None:
        """Nothing to do: a server lets everybody read."""

    def is_same(self, other: Location) -> bool:
        return isinstance(other, ServerLocation) and str(other.lease.held) in self.names.list()

    def check(self) -> None:
        """Count in both collections, which asks every shard: if nodes are lost, some may answer and others not."""
        for collection in (self.records.name, self.connection.address.collection):
            self.connection.count(collection, exact=False)

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
