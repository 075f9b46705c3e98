"""Where libraries are: the one of this user, or on a server, as in qdrant://host:6334/collection?shards=6&replicas=2.

Several nodes of a cluster are named with commas: qdrant://a:6334,b:6334,c:6334/collection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ..errors import UsageError
from ..files import data_folder

SCHEMES = {"qdrant": False, "qdrants": True}  # whether the connection is encrypted
SETTINGS = ("shards", "replicas", "consistency")  # of a new collection
FILES = "-files"  # what the collection beside the pages is called


@dataclass(frozen=True)
class Address:
    """A collection on a server. Three settings are for a new one: how it is cut into shards and copied to nodes.

    consistency: how many copies must have a write before it counts. others: more nodes of the same cluster, with their
    ports, to ask when the first does not answer.
    """

    host: str
    collection: str
    port: int = 6334  # of gRPC
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


def default_library() -> Path:
    """Return the folder of the default library."""
    return data_folder() / "library"


def is_address(place: str) -> bool:
    """Whether a library is named by the address of a server, and not by a folder."""
    return "://" in place or place.startswith(tuple(f"{scheme}:" for scheme in SCHEMES))


def read_address(text: str) -> Address:
    """Read an address."""
    if "@" in text:
        raise UsageError("an address must not contain a key: set QDRANT_API_KEY")
    nodes = []
    try:
        parts = urlsplit(text)
        for place in parts.netloc.split(","):
            node = urlsplit(f"//{place}")
            nodes.append((node.hostname or "", node.port or Address.port))
    except ValueError as error:
        raise _refuse(text, f"is not the address of a library: {error}") from error
    collection = parts.path.strip("/")
    if parts.scheme not in SCHEMES or parts.fragment:
        raise _refuse(text, "is not the address of a library")
    if not all(host for host, _ in nodes) or not re.fullmatch(r"[\w.-]+", collection, re.ASCII):
        raise _refuse(text, "does not name a server and a collection")
    if collection.endswith(FILES):
        raise UsageError(f"a collection that ends with {FILES} holds the list of files of another: name that one")
    if len(set(nodes)) < len(nodes):
        raise _refuse(text, "names a node twice")
    settings: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in SETTINGS:
            raise UsageError(f"{name!r} in {text!r} is not one of {', '.join(SETTINGS)}")
        if not value.isdecimal() or not 1 <= int(value) <= 10_000:
            raise UsageError(f"{name} in {text!r} must be a number from 1 to 10,000, not {value!r}")
        settings[name] = int(value)
    if settings.get("consistency", 1) > settings.get("replicas", 1):
        raise UsageError(f"consistency in {text!r} cannot be more than replicas, which is 1 unless it is named")
    (host, port), *others = nodes
    return Address(host, collection, port, SCHEMES[parts.scheme], **settings, others=tuple(others))


def _refuse(text: str, reason: str) -> UsageError:
    form = "qdrant://HOST:6334/COLLECTION (several nodes: HOST,HOST,HOST), or qdrants:// with TLS"
    return UsageError(f"{text!r} {reason}: write {form}")
