"""The metadata of a library on a Qdrant server: its description, its files, and the write lease.

COLLECTION-files holds points without vectors, called records here: one for the library (format and model), one per file
(the manifest), and parts of blobs. It has one shard, so each request is atomic.

The lease is an alias of that collection. Its name says which process holds it and when it expires. A process acquires
the lease by renaming the alias. A server refuses to rename an alias that does not exist, and a cluster orders all
renames by consensus. So if two processes compete, one is refused, regardless of lost nodes. See "Why there is
one writer" in docs/scale.md.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from itertools import count
from threading import Event, RLock, Thread
from typing import Any, NoReturn

from qdrant_client import models

from ...errors import BusyError, RandSlotError, UsageError
from ...model.reader import read_identity
from ..address import FILES, Address
from ..location import Location, has_ended, report_lost
from ..manifest import File, Manifest
from .points import BYTES_PER_NUMBER
from .qdrant import ServerStore
from .qdrant_connection import LISTED_POINTS, Connection, NotFoundError, connect, is_id
from .store import mean_numbers

ABOUT_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "randslot:library"))
LEASE_PREFIX = "randslot-lease"  # of an alias
RAW = "bytes:"  # before the hexadecimal bytes of a path that is not valid text


class ServerRecords:
    """The collection of records, by id."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.name = connection.address.collection + FILES
        self.lease_number: Callable[[], int] = lambda: 0
        self.num_puts = count(1)

    def create(self) -> None:
        """Create the collection."""
        keyword, integer = models.PayloadSchemaType.KEYWORD, models.PayloadSchemaType.INTEGER
        indexes: dict[str, Any] = dict.fromkeys(("kind", "source", "hash", "state", "token"), keyword)
        self.connection.create(
            self.name,
            indexes | {"num_pages": integer, "stamp": integer},
            vectors_config={},
            shard_number=1,
            replication_factor=self.connection.address.replicas,
        )

    def put(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Store records by id.

        A record's stamp (a fencing token) is the number of the lease and a counter; it never replaces a record with a
        later stamp. So a late write, from a frozen node or a process that lost its lease, has no effect.
        """
        stamp = self.lease_number() * 2**32 + next(self.num_puts)
        earlier = models.FieldCondition(key="stamp", range=models.Range(lt=stamp))
        missing = models.IsEmptyCondition(is_empty=models.PayloadField(key="stamp"))
        points = []
        for id, record in records.items():
            points.append(models.PointStruct(id=id, vector={}, payload={**record, "stamp": stamp}))
        for start in range(0, len(points), LISTED_POINTS):
            self.connection.write(
                "upsert",
                collection_name=self.name,
                points=points[start : start + LISTED_POINTS],
                update_filter=models.Filter(should=[missing, earlier]),
            )

    def get(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return records by id; missing ones are left out."""
        found: dict[str, dict[str, Any]] = {}
        ids = list(ids)
        for start in range(0, len(ids), LISTED_POINTS):
            some = ids[start : start + LISTED_POINTS]
            for record in self.connection.ask("retrieve", collection_name=self.name, ids=some, with_payload=True):
                found[str(record.id)] = record.payload
        return found

    def find(self, **values: str | tuple[str, ...] | None) -> dict[str, dict[str, Any]]:
        """Return the records with these values, or one of several; None: any."""
        records = self.connection.scroll(self.name, _match(values))
        return {str(record.id): record.payload for record in records}


def _match(values: Mapping[str, str | tuple[str, ...] | None]) -> models.Filter:
    must: list[Any] = []
    for key, value in values.items():
        if value is not None:
            wanted = [value] if isinstance(value, str) else list(value)
            must.append(models.FieldCondition(key=key, match=models.MatchAny(any=wanted)))
    return models.Filter(must=must)


class ServerManifest(Manifest):
    """The files of a library, as records."""

    def __init__(self, records: ServerRecords) -> None:
        self.records, self.connection = records, records.connection

    def find(self, *, source: str | None = None, hash: str | None = None, state: str | None = None) -> list[File]:
        path = None if source is None else _write_source(source)
        found = self.records.find(kind="file", source=path, hash=hash, state=state)
        files = [_read_file(id, record) for id, record in found.items()]
        return sorted(files, key=lambda file: os.fsencode(file.source))

    def get(self, ids: Iterable[str]) -> dict[str, File]:
        found = self.records.get({id for id in ids if is_id(id)})
        return {id: _read_file(id, record) for id, record in found.items() if record.get("kind") == "file"}

    def hidden(self) -> frozenset[str]:
        return frozenset(self.records.find(kind="file", state=("pending", "gone")))

    def put(self, *files: File) -> None:
        """Store files in one request, which is atomic."""
        records = {}
        for file in files:
            record = {**vars(file), "kind": "file", "source": _write_source(file.source)}
            for name in ("metadata", "properties"):
                record[name] = json.dumps(dict(record[name]))
            records[record.pop("id")] = record
        if records:
            self.records.put(records)

    def forget(self, file: File) -> None:
        self.connection.write("delete", collection_name=self.records.name, points_selector=[file.id])

    def totals(self) -> tuple[int, int]:
        visible = _match({"kind": "file", "state": "done"})
        limit = self.connection.count(self.records.name) + 1
        tally = self.connection.facet(self.records.name, "num_pages", visible, limit)
        return sum(tally.values()), sum(int(num) * count for num, count in tally.items())

    def check(self) -> None:
        """Do nothing: a server checks its own files."""

    def close(self) -> None:
        """Do nothing: the location closes the connection."""


def _write_source(source: str) -> str:
    """Encode a path as valid Unicode."""
    raw = os.fsencode(source)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return RAW + raw.hex()


def _read_file(id: str, record: Mapping[str, Any]) -> File:
    values = {field.name: record[field.name] for field in fields(File) if field.name in record}
    source = record["source"]
    raw = bytes.fromhex(source.removeprefix(RAW)) if source.startswith(RAW) else source.encode()
    metadata, properties = json.loads(record["metadata"]), json.loads(record.get("properties", "{}"))
    return File(**values | {"id": id, "source": os.fsdecode(raw), "metadata": metadata, "properties": properties})


# -- the write lease


class LeaseAliases:
    """Aliases of the collection of records; changes are ordered and durable."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.collection = connection.address.collection + FILES

    def list(self) -> list[str]:
        found = self.connection.ask("get_collection_aliases", collection_name=self.collection).aliases
        return [alias.alias_name for alias in found]

    def add(self, name: str) -> None:
        created = models.CreateAlias(collection_name=self.collection, alias_name=name)
        self.connection.update_aliases([models.CreateAliasOperation(create_alias=created)])

    def rename(self, old: str, new: str, drop: Sequence[str] = ()) -> bool:
        """Rename an alias, and delete others; return False if the old one does not exist."""
        renamed = models.RenameAlias(old_alias_name=old, new_alias_name=new)
        try:
            changes = [models.RenameAliasOperation(rename_alias=renamed), *map(_delete_alias, drop)]
            self.connection.update_aliases(changes)
        except NotFoundError:
            return False
        return True

    def drop(self, name: str) -> None:
        self.connection.update_aliases([_delete_alias(name)])


def _delete_alias(name: str) -> models.DeleteAliasOperation:
    return models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=name))


@dataclass(frozen=True)
class LeaseName:
    """A lease, as encoded in its name. number: a counter of acquisitions. until: when it expires.

    token: identifies one acquisition, as in "PID.MACHINE.RANDOM.HOST".
    """

    number: int
    until: float
    token: str

    def __str__(self) -> str:
        return f"{LEASE_PREFIX}.{self.number}.{round(1000 * self.until)}.{self.token}"


def parse_lease_name(name: str) -> LeaseName | None:
    """Parse the name of a lease; None if it is another alias."""
    prefix, *parts = name.split(".", 3)
    if prefix != LEASE_PREFIX or len(parts) != 3:
        return None
    return LeaseName(int(parts[0]), int(parts[1]) / 1000, parts[2])


class WriteLease:
    """The write lease. The process that holds it renews it in the background.

    The lease of a killed process expires after a minute, or at once for a process on the same machine. A process that
    stalled renews it before its next write, or fails if another process holds it. The clocks of the machines should
    agree within a few seconds.
    """

    def __init__(self, names: LeaseAliases, library: str, seconds: float = 60.0) -> None:
        """library: its name in messages. seconds: lifetime of the lease."""
        self.names, self.library, self.seconds = names, library, seconds
        self.now, self.monotonic = time.time, time.monotonic  # shared by machines; never set back
        self.held: LeaseName | None = None
        self.ended: set[str] = set()  # tokens that this process released, even if the server was unreachable
        self.safe_until = 0.0  # by the monotonic clock: writes need no renewal until then
        self.machine = _identify_machine()
        self._lock = RLock()

    @property
    def number(self) -> int:
        """The number of the held lease; 0 if this process does not hold it."""
        return self.held.number if self.held else 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lease in a block; BusyError if another process holds it."""
        try:
            self._acquire()
        except BaseException:
            self._release()  # it may have been interrupted
            raise
        over = Event()

        def keep_renewing() -> None:
            while not over.wait(self.seconds / 6):
                with suppress(RandSlotError):  # a short outage: retry until the lease expires
                    self.renew()

        thread = Thread(target=keep_renewing, name="write lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._release()

    def check(self) -> None:
        """Renew the lease if it is about to expire; raise if this process does not hold it."""
        if self.held is None:
            self._fail_lost()
        if self.monotonic() >= self.safe_until:
            self.renew()

    def renew(self) -> None:
        """Renew the lease, if it is held. Afterwards the current node has applied all earlier changes."""
        with self._lock:
            if self.held is not None and not self._rename(self.held, replace(self.held, until=self._expiry())):
                self.held = None
                self._fail_lost()

    def _fail_lost(self) -> NoReturn:
        raise RandSlotError(f"lost the write lease of {self.library} (timeout): run the command again")

    def _expiry(self) -> float:
        return round(self.now() + self.seconds, 3)

    def _rename(self, old: LeaseName, new: LeaseName, drop: Sequence[str] = ()) -> bool:
        """Rename the alias; return whether this process holds the lease now."""
        start = self.monotonic()
        for attempt in range(66 if self.held else 6):
            if self.names.rename(str(old), str(new), drop):
                break
            # This process may have renamed it already: an answer can get lost. And the node may lag behind the others,
            # for a minute if one of them is frozen. So the lease is lost only if another process holds it.
            time.sleep(min(0.2 * attempt, 1.0))
            seen = self._list()
            if new in seen:
                break
            if any(held.number >= new.number and held.token != new.token for held in seen):
                return False
            old = next((held for held in seen if held.token == new.token), old)
        else:
            return False
        # A write may begin until then: it has half the lease to finish, and clocks may differ by a tenth.
        self.held, self.safe_until = new, start + 0.4 * self.seconds
        return True

    def _acquire(self) -> None:
        seen = self._list()
        self._check_free(seen)
        if not seen:
            seen = [LeaseName(0, 0.0, uuid.uuid4().hex)]
            self.names.add(str(seen[0]))
        last = max(seen, key=lambda held: held.number)
        others = [str(held) for held in seen if held != last]
        host = re.sub(r"[^\w.-]", "_", socket.gethostname()[:100], flags=re.ASCII)
        token = f"{os.getpid()}.{self.machine}.{uuid.uuid4().hex}.{host}"
        if not self._rename(last, LeaseName(last.number + 1, self._expiry(), token), others):
            self._fail_busy(self._list())
        # Two processes that saw no lease may each have added one: the second one sees the first, and backs off.
        rivals = [held for held in self._list() if held != self.held]
        if rivals:
            mine, self.held = self.held, None
            self.names.drop(str(mine))
            self._fail_busy(rivals)

    def _list(self) -> list[LeaseName]:
        read = [parse_lease_name(name) for name in self.names.list()]
        return [held for held in read if held is not None]

    def _check_free(self, seen: list[LeaseName]) -> None:
        """Raise BusyError if another process holds the lease, unless it is known to be dead."""
        for held in seen:
            pid, machine, *_ = (*held.token.split("."), "")
            is_dead = machine == self.machine and int(pid) != os.getpid() and has_ended(int(pid))
            if held.until > self.now() and held.token not in self.ended and not is_dead:
                self._fail_busy([held])

    def _fail_busy(self, held: Sequence[LeaseName]) -> NoReturn:
        process = "another process"
        for one in held:
            pid, *more = one.token.split(".", 3)
            if len(more) == 3:
                process = f"process {pid} on {more[2]}"
        raise BusyError(
            f"{process} is writing to library {self.library}: wait until it ends, or a minute if it was killed"
        )

    def _release(self) -> None:
        with self._lock:
            if self.held is None:
                return
            self.ended.add(self.held.token)
            try:
                with suppress(RandSlotError):  # it expires anyway
                    self.names.rename(str(self.held), str(replace(self.held, until=0.0)))
            finally:
                self.held = None


def _identify_machine() -> str:
    """Return a hash that is equal for processes that see each other's ids: same host, boot and PID namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return blake2b(" ".join(parts).encode(), digest_size=8).hexdigest()


# -- the library


class ServerLocation(Location):
    """A library on a server: many processes can search it, one at a time can write."""

    shared = True

    def __init__(self, address: Address, *, create: bool) -> None:
        """Connect to a server; refuse a non-empty collection that is not a library."""
        self.name, self.folder, self.collection = str(address), address.folder, address.collection
        self.connection = connect(address)
        self.records = ServerRecords(self.connection)
        self.manifest = ServerManifest(self.records)
        self.lease = WriteLease(LeaseAliases(self.connection), self.name)
        self.records.lease_number = lambda: self.lease.number
        self.connection.check_write = self.lease.check
        self.connection.catch_up = self.lease.renew
        if self.read() is not None:
            return
        if not create:
            self.close()
            raise UsageError(f"no library at {self.name}: randslot index creates one")
        if self.connection.exists(self.collection) and self.connection.count(self.collection):
            self.close()
            raise UsageError(f"{self.name} is not a library and not empty: choose another collection")

    def read(self) -> dict[str, Any] | None:
        if not self.connection.exists(self.records.name):
            return None
        return self.records.get([ABOUT_ID]).get(ABOUT_ID)

    def write(self, description: dict[str, Any]) -> None:
        """Write the description last: until then there is no library, and creation can be retried."""
        if not self.connection.exists(self.records.name):
            self.records.create()
        if self.read() is None:
            ServerStore(self.connection, description["model"] and int(description["model"]["dimension"]))
        with nullcontext() if self.lease.held else self.hold_lease():
            self.records.put({ABOUT_ID: description})

    def open(self, dim: int | None, *, repair: bool) -> None:
        if not (repair or self.connection.exists(self.collection)):
            raise report_lost(f"the pages of library {self.name} are", self.name)
        self.store = ServerStore(self.connection, dim)

    def read_blob(self, kind: str, file: str) -> bytes | None:
        parts = self.records.find(kind=kind).values()
        newest = max(parts, key=lambda part: int(part["stamp"]), default=None)
        if newest is None:
            return None
        kept = [part for part in parts if part["token"] == newest["token"]]
        kept.sort(key=lambda part: int(part["number"]))
        if len(kept) < int(newest["parts"]):  # the writer was killed
            return None
        return b"".join(base64.b64decode(part["content"]) for part in kept)

    def write_blob(self, kind: str, file: str, content: bytes) -> None:
        parts = [content[start : start + 2**19] for start in range(0, len(content), 2**19)]
        token = uuid.uuid4().hex
        for number, part in enumerate(parts):
            id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"randslot:{kind}:{number}"))
            record = {"kind": kind, "token": token, "number": number, "parts": len(parts)}
            self.records.put({id: {**record, "content": base64.b64encode(part).decode()}})

    def hold_lease(self) -> AbstractContextManager[None]:
        return self.lease.hold()

    def is_same(self, other: Location) -> bool:
        return isinstance(other, ServerLocation) and str(other.lease.held) in self.lease.names.list()

    def check(self) -> None:
        """Count both collections, which asks every shard: with nodes down, some shards may answer and others not."""
        for collection in (self.records.name, self.collection):
            self.connection.count(collection, exact=False)

    def size(self) -> int:
        """Return the bytes of the vectors: a server does not report its disk usage."""
        description = self.read() or {}
        if description.get("model") is None:
            return 0
        model = read_identity(description["model"])
        num = model.num_vectors("page")
        numbers = num * model.dimension if num else mean_numbers(self.store)
        return BYTES_PER_NUMBER * numbers * self.connection.count(self.collection)

    def close(self) -> None:
        self.connection.close()
