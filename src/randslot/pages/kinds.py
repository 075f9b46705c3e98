"""The kinds of files that can be read: one table, for every place that asks what a suffix means."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD = 1024  # bytes at the beginning of a file that show its kind


@dataclass(frozen=True)
class Kind:
    """One kind of file: its media type, how its content begins, and whether a file can have several pages.

    beginnings: regular expressions; the first `HEAD` bytes of such a file match one of them.
    """

    media_type: str
    beginnings: tuple[bytes, ...]
    several_pages: bool = False

    def matches(self, head: bytes) -> bool:
        """Whether the first `HEAD` bytes of a file are those of this kind."""
        return any(re.match(beginning, head) for beginning in self.beginnings)


PDF = Kind("application/pdf", (rb"(?s).{0,1019}%PDF-",), several_pages=True)
JPEG = Kind("image/jpeg", (rb"\xff\xd8\xff",))
TIFF = Kind("image/tiff", (rb"II[*+]\0", rb"MM\0[*+]"), several_pages=True)

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
}

DOCUMENT_SUFFIXES = tuple(KINDS)
IMAGE_SUFFIXES = tuple(suffix for suffix in KINDS if suffix != ".pdf")
TIFF_SUFFIXES = tuple(suffix for suffix, kind in KINDS.items() if kind is TIFF)
