"""Where libraries are: the one of this user, or on a server, as in qdrant://host:6334/collection?shards=6&replicas=2.

Several nodes of a cluster are named with commas: qdrant://a:6334,b:6334,c:6334/collection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ..errors import UsageError
from ..files import data_folder

SCHEMES = {"qdrant": False, "qdrants": True}  # whether the connection is encrypted
PORT = 6334  # of gRPC
FORM = "qdrant://HOST:6334/COLLECTION (several nodes: HOST,HOST,HOST), or qdrants:// with TLS"
MOST = 10_000  # shards or copies
FILES = "-files"  # what the collection beside the pages is called


@dataclass(frozen=True)
class Address:
    """A collection on a server. Three settings are for a new one: how it is cut into shards and copied to nodes.

    consistency: how many copies must have a write before it counts. others: more nodes of the same cluster, with their
    ports, to ask when the first does not answer.
    """

    host: str
    collection: str
    port: int = PORT
    tls: bool = False
    shards: int | None = None
    replicas: int | None = None
    consistency: int | None = None
    others: tuple[tuple[str, int], ...] = ()

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """All nodes, with their ports."""
        return (self.host, self.port), *self.others

    def __str__(self) -> str:
        places = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes)
        return f"qdrant{'s' * self.tls}://{places}/{self.collection}"

    @property
    def folder(self) -> Path:
        """Where this machine keeps images and uploads of the library, which have no other file."""
        return data_folder() / f"{self.host}-{self.port}" / self.collection


SETTINGS = tuple(field.name for field in fields(Address) if field.name in ("shards", "replicas", "consistency"))


def default_library() -> Path:
    """Return the folder of the library that is meant when none is named."""
    return data_folder() / "library"


def is_address(place: str) -> bool:
    """Whether a library is named by the address of a server, and not by a folder."""
    return "://" in place or place.startswith(tuple(f"{scheme}:" for scheme in SCHEMES))


def read_address(text: str) -> Address:
    """Read an address."""
    try:
        parts = urlsplit(text)
        nodes = []
        for place in parts.netloc.split(","):
            node = urlsplit(f"//{place}")
            nodes.append((node.hostname or "", node.port or PORT))
    except ValueError as error:
        raise UsageError(f"{text!r} is not the address of a library: {error}: write {FORM}") from error
    if parts.scheme not in SCHEMES:
        raise UsageError(f"{text!r} is not the address of a library: write {FORM}")
    if "@" in parts.netloc:
        raise UsageError("a key must not be in an address: put it into the environment as QDRANT_API_KEY")
    collection = parts.path.strip("/")
    if not all(host for host, _ in nodes) or not re.fullmatch(r"[\w.-]+", collection, re.ASCII):
        raise UsageError(f"{text!r} does not name a server and a collection: write {FORM}")
    if parts.fragment:
        raise UsageError(f"nothing may follow the collection in {text!r} but ?{'=&'.join(SETTINGS)}=")
    if collection.endswith(FILES):
        raise UsageError(f"a collection that ends with {FILES} holds the list of files of another: name that one")
    if len(set(nodes)) < len(nodes):
        raise UsageError(f"{text!r} names a node twice")
    (host, port), *others = nodes
    settings = _settings(text, parts.query)
    return Address(host, collection, port, SCHEMES[parts.scheme], **settings, others=tuple(others))


def _settings(text: str, query: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in SETTINGS:
            raise UsageError(f"{name!r} in {text!r} is not one of {', '.join(SETTINGS)}")
        if not value.isdecimal() or not 1 <= int(value) <= MOST:
            raise UsageError(f"{name} in {text!r} must be a number from 1 to {MOST:,}, not {value!r}")
        settings[name] = int(value)
    if settings.get("consistency", 1) > settings.get("replicas", 1):
        raise UsageError(f"consistency in {text!r} cannot be more than replicas, which is 1 unless it is named")
    return settings
