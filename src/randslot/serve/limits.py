"""How much a visitor may ask for, and the answer to a request for more."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RandSlotError

QUERY_CHARACTERS = 1_000
SOURCE_CHARACTERS = 300
TOKEN_CHARACTERS = 16  # at least
HITS = 100  # of one answer
DEEPEST = 400  # hits that may be passed over before them: each is read before it is passed over
CHOICES = 200  # folders, years, and values of metadata that are offered to filter by
BODY_BYTES = 64 * 1024  # of a request that is not an upload
WAITING_SEARCHES = 1_000
BATCH = 32  # queries that are encoded together
EMBED_INPUTS = 256  # texts of one request for vectors
EMBED_CHARACTERS = 20_000  # of a text that is a page
EMBED_PAGES = 4  # pages that are encoded together
EMBED_BODY_BYTES = 32 * 2**20  # of a request for vectors, which may hold the image of a page
EMBED_AT_ONCE = 8  # such requests in memory; more wait
EMBED_PIXELS = 50_000_000  # of an image that is taken as a page
WAITING_EMBEDDINGS = 2_000
NAME_BYTES = 255  # what file systems take
RENDER_SECONDS = 20.0  # for a page that someone looks at
HEALTH_SECONDS = 3.0  # for a library to answer, and for how long that is believed


@dataclass(frozen=True)
class UploadLimits:
    """How large an upload may be, how many may be in progress, and when one is retried.

    retry_seconds: before an upload is retried that could not be indexed because another process writes.
    """

    bytes: int = 100 * 2**20
    pages: int = 2_000
    waiting: int = 20
    retry_seconds: float = 5.0

    def check_size(self, size: int) -> None:
        """Refuse an upload of too many bytes."""
        if size > self.bytes:
            raise Refused(413, f"the file is larger than {self.bytes >> 20} MB")


class Refused(RandSlotError):
    """A request that is not granted: the HTTP status, and the reason in one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
