"""How much a visitor may ask for, and the answer to a request for more."""

from __future__ import annotations

from ..errors import RandSlotError

QUERY_CHARACTERS = 1_000
SOURCE_CHARACTERS = 300
TOKEN_CHARACTERS = 16  # at least
HITS = 100  # of one search
BODY_BYTES = 64 * 1024  # of a request that is not an upload
WAITING_SEARCHES = 1_000
BATCH = 32  # queries that are encoded together
UPLOAD_BYTES = 100 * 2**20
UPLOAD_PAGES = 2_000
WAITING_UPLOADS = 20  # that come in or wait to be read
NAME_BYTES = 200
RENDER_SECONDS = 20.0  # for a page that someone looks at


class Refused(RandSlotError):
    """A request that is not granted: the HTTP status, and the reason in one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
