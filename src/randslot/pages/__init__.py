"""Open pages of PDFs, documents and image files as upright RGB images, and read their text."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .formats import DOCUMENT_SUFFIXES, HEAD, KINDS, PIXELS, is_file, page_file, short
    from .images import limit_aspect
    from .page import (
        Page,
        PageInput,
        crop_file_page,
        list_pages,
        num_pages,
        open_file_page,
        open_page,
        read_file_text,
        read_outline,
        read_page_text,
        render_file_page,
    )
    from .pdf import OpenPdf, list_passwords, use_passwords
    from .text import NO_TEXT, Box, NoTextError, PageText, Word

__all__ = [
    "DOCUMENT_SUFFIXES",
    "HEAD",
    "KINDS",
    "NO_TEXT",
    "PIXELS",
    "Box",
    "NoTextError",
    "OpenPdf",
    "Page",
    "PageInput",
    "PageText",
    "Word",
    "crop_file_page",
    "is_file",
    "limit_aspect",
    "list_pages",
    "list_passwords",
    "num_pages",
    "open_file_page",
    "open_page",
    "page_file",
    "read_file_text",
    "read_outline",
    "read_page_text",
    "render_file_page",
    "short",
    "use_passwords",
]


def __getattr__(name: str) -> Any:
    """Import names lazily: few commands open files."""
    if name in __all__:
        for module in ("formats", "text", "pdf", "images", "page"):
            found = import_module(f".{module}", __name__)
            if hasattr(found, name):
                return globals().setdefault(name, getattr(found, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
