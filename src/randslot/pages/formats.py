"""File formats, and page paths: "scan.png" is a one-page file, "report.pdf#page=3" a page of a document."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PIXELS = 1536 * 32 * 32  # of a page image: 1536 visual tokens of 32 x 32 pixels
HEAD = 1024  # bytes of a file that show its format


@dataclass(frozen=True)
class Kind:
    """A file format. signatures: regular expressions, one of which must match the first `HEAD` bytes.

    type: a group of formats, for filters. is_converted: whether its pages are those of a PDF converted from it.
    """

    media_type: str
    signatures: tuple[bytes, ...]
    type: str = "image"
    has_pages: bool = False
    is_converted: bool = False

    def matches(self, head: bytes) -> bool:
        """Whether the first `HEAD` bytes of a file have this format."""
        return any(re.match(signature, head) for signature in self.signatures)


PDF = Kind("application/pdf", (rb"(?s).{0,1019}%PDF-",), "pdf", has_pages=True)
JPEG = Kind("image/jpeg", (rb"\xff\xd8\xff",))
TIFF = Kind("image/tiff", (rb"II[*+]\0", rb"MM\0[*+]"), has_pages=True)


def converted(media_type: str, signature: bytes, type: str) -> Kind:
    """Return a format that is converted to PDF."""
    return Kind(media_type, (signature,), type, has_pages=True, is_converted=True)


ZIP, OLE, TEXT = rb"PK\x03\x04", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", rb"(?s)[^\0]*\Z|\xff\xfe|\xfe\xff"
OPEN_XML, OPEN_DOCUMENT = "application/vnd.openxmlformats-officedocument.", "application/vnd.oasis.opendocument."
HTML, PLAIN = converted("text/html", TEXT, "web"), converted("text/plain", TEXT, "text")
HEIF = Kind("image/heif", (rb"(?s).{4}ftyp(?:hei[cxm]|mif1)",))

KINDS: dict[str, Kind] = {  # by suffix, in lower case
    ".pdf": PDF,
    ".png": Kind("image/png", (rb"\x89PNG\r\n\x1a\n",)),
    ".jpg": JPEG,
    ".jpeg": JPEG,
    ".webp": Kind("image/webp", (rb"(?s)RIFF....WEBP",)),
    ".tif": TIFF,
    ".tiff": TIFF,
    ".bmp": Kind("image/bmp", (rb"BM",)),
    ".gif": Kind("image/gif", (rb"GIF8[79]a",)),
    ".avif": Kind("image/avif", (rb"(?s).{4}ftypavi[fs]",)),
    ".heic": HEIF,
    ".heif": HEIF,
    ".docx": converted(OPEN_XML + "wordprocessingml.document", ZIP, "document"),
    ".pptx": converted(OPEN_XML + "presentationml.presentation", ZIP, "slides"),
    ".xlsx": converted(OPEN_XML + "spreadsheetml.sheet", ZIP, "sheet"),
    ".odt": converted(OPEN_DOCUMENT + "text", ZIP, "document"),
    ".odp": converted(OPEN_DOCUMENT + "presentation", ZIP, "slides"),
    ".ods": converted(OPEN_DOCUMENT + "spreadsheet", ZIP, "sheet"),
    ".doc": converted("application/msword", OLE, "document"),
    ".ppt": converted("application/vnd.ms-powerpoint", OLE, "slides"),
    ".xls": converted("application/vnd.ms-excel", OLE, "sheet"),
    ".rtf": converted("application/rtf", rb"\{\\rtf", "document"),
    ".html": HTML,
    ".htm": HTML,
    ".epub": converted("application/epub+zip", ZIP, "book"),
    ".md": converted("text/markdown", TEXT, "text"),
    ".txt": PLAIN,
    ".rst": PLAIN,
    ".tex": PLAIN,
    ".log": PLAIN,
    ".csv": converted("text/csv", TEXT, "sheet"),
    ".eml": converted("message/rfc822", TEXT, "mail"),
    ".msg": converted("application/vnd.ms-outlook", OLE, "mail"),
}

DOCUMENT_SUFFIXES = tuple(KINDS)


def find_page(page: str) -> tuple[str, int] | None:
    """Split "report.pdf#page=3" into file and page number; None for other paths."""
    file, separator, number = page.rpartition("#page=")
    kind = KINDS.get(Path(file).suffix.lower())
    return (file, int(number)) if separator and kind and kind.has_pages and number.isdecimal() else None


def is_file(path: Path) -> bool:
    """Whether a file exists; False for invalid names."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def page_file(page: str) -> Path:
    """Return the file of a page path: the path itself, or the part before "#page=3"."""
    found = None if is_file(Path(page)) else find_page(page)
    return Path(found[0] if found else page)


def show_pages(num: int) -> str:
    """Format a number of pages."""
    return "1 page" if num == 1 else f"{num} pages"


def short(name: str) -> str:
    """Escape and shorten a name for an error message, unless it is printable and short."""
    return name if name.isprintable() and 0 < len(name) <= 300 else ascii(name[:80])
