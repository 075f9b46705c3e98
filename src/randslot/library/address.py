"""Library addresses: the default folder, or a server, as in qdrant://host:6334/collection?shards=6&replicas=2.

Commas separate the nodes of a cluster: qdrant://a:6334,b:6334,c:6334/collection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ..errors import UsageError
from ..files import data_folder

SETTINGS = ("shards", "replicas")  # of a new collection
FILES = "-files"  # suffix of the collection that lists the files


@dataclass(frozen=True)
class Address:
    """A collection on a server.

    shards, replicas: for a new collection. others: fallback nodes of the same cluster, with their ports.
    """

    host: str
    collection: str
    port: int = 6334  # of gRPC
    tls: bool = False
    shards: int | None = None
    replicas: int | None = None
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
        """The local folder for images and uploads of the library."""
        return data_folder() / f"{self.host}-{self.port}" / self.collection


def default_library() -> Path:
    """Return the folder of the default library."""
    return data_folder() / "library"


def is_address(place: str) -> bool:
    """Whether a place is a server address, not a folder."""
    return "://" in place or place.startswith(("qdrant:", "qdrants:"))


def read_address(text: str) -> Address:
    """Parse a server address."""
    if "@" in text:
        raise UsageError("an address must not contain a key: set QDRANT_API_KEY")
    found = re.fullmatch(r"(qdrants?)://([^/?#]+)/([\w.-]+)/?(?:\?([^#]*))?", text, re.ASCII)
    nodes = []
    try:
        for place in found[2].split(",") if found else ():
            node = urlsplit(f"//{place}")
            nodes.append((node.hostname or "", node.port or Address.port))
    except ValueError:
        found = None
    if not found or len(set(nodes)) < len(nodes) or not all(host for host, _ in nodes):
        form = "qdrant://HOST:6334/COLLECTION (several nodes: HOST,HOST,HOST), or qdrants:// with TLS"
        raise UsageError(f"{text!r} is not a library address: write {form}")
    if found[3].endswith(FILES):
        raise UsageError(f"{found[3]} lists the files of a library: open {found[3].removesuffix(FILES)} instead")
    settings: dict[str, Any] = {}
    for name, value in parse_qsl(found[4] or "", keep_blank_values=True):
        if name not in SETTINGS or not value.isdecimal() or not 1 <= int(value) <= 10_000:
            raise UsageError(f"{name}={value} in {text!r}: set {' and '.join(SETTINGS)} only, from 1 to 10,000")
        settings[name] = int(value)
    (host, port), *others = nodes
    return Address(host, found[3], port, found[1] == "qdrants", **settings, others=tuple(others))
