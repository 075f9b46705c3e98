"""Opens a reader of pages by its name. What most models need takes seconds to import: it is imported only for them."""

from __future__ import annotations

from typing import Any

from .reader import PageReader, is_url
from .use_reader import NAME, open_use


def open_reader(name: str, **options: Any) -> PageReader:
    """Open any model to search with; options as `open_model`.

    trust_remote_code: left for a server, which runs its own.

    Errors: as `open_model`.
    """
    if name == NAME:
        return open_use(**options)
    from .remote_model import open_model

    if is_url(name):
        options.pop("trust_remote_code", None)
    return open_model(name, **options)
