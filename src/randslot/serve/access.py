"""Access: checks that every request passes before it reaches the app, and headers on every answer.

- Without a token the service answers only to the names of this machine, whatever page led a browser here.
- With a token everything that has data in it needs the token, as a bearer or as the cookie that it was exchanged for.
- A page from elsewhere may not change anything; browsers say where a request comes from.
- A body has a limit, except for uploads, which have a limit of their own; few of those that may be large are read at
  a time.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

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


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "randslot"
LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
SCRIPTS = ("page", "dom", "api", "route", "search", "filters", "viewer", "why", "documents", "uploads", "docs")
PAGE = frozenset(  # they hold no data
    {"/", "/page.css", "/icon.svg", "/docs", "/openapi.json", *(f"/{name}.js" for name in SCRIPTS)}
)
OPEN = PAGE | {"/api/health", "/api/live", "/api/session"}
UPLOAD = "/api/uploads"
EMBEDDING = frozenset({"/v1/embeddings", "/pooling"})  # may hold an image
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who may come in: those with the token, if there is one, and pages of these origins."""

    token: str | None = None
    origins: tuple[str, ...] = ()
    hosts: frozenset[str] = LOCAL

    def is_token(self, given: str) -> bool:
        """Whether this is the token; how long the answer takes does not depend on how much of it is right."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def session(self) -> str:
        """Return what a browser keeps in place of the token."""
        return hmac.digest((self.token or "").encode(), b"randslot session", "sha256").hex()

    def check(self, method: str, path: str, headers: dict[str, str]) -> None:
        """Refuse a request that may not come in.

        Errors: Refused.
        """
        if self.token is None and _host(headers.get("host", "")) not in self.hosts:
            raise Refused(400, "this service answers to localhost only: serve with --token for other names")
        if method not in ("GET", "HEAD") and not self._is_own(headers):
            raise Refused(403, "a page from elsewhere may not do this")
        if self.token is not None and path not in OPEN and not self._is_known(headers):
            raise Refused(401, "this needs the token: send it as Authorization: Bearer TOKEN")

    def _is_own(self, headers: dict[str, str]) -> bool:
        origin = headers.get("origin")
        if origin is not None:
            return origin in self.origins or origin.partition("://")[2] == headers.get("host")
        return headers.get("sec-fetch-site", "none") in ("same-origin", "none")

    def _is_known(self, headers: dict[str, str]) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind:
            return kind.lower() == "bearer" and self.is_token(given.strip())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.session().encode())


def _host(given: str) -> str:
    """Return the host of a Host header, without its port."""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""


class Guard:
    """Stands before an app."""

    def __init__(self, app: App, access: Access) -> None:
        self.app = app
        self.access = access
        self.large = asyncio.Semaphore(EMBED_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        answer = _with_headers(send)
        try:
            self.access.check(scope["method"], scope["path"], headers)
            if scope["path"] in EMBEDDING:
                async with self.large:
                    await self.app(scope, await _read_body(receive, EMBED_BODY_BYTES), answer)
                return
            if scope["path"] != UPLOAD:
                receive = await _read_body(receive, BODY_BYTES)
        except Refused as refused:
            await _refuse(answer, refused, scope["path"])
            return
        await self.app(scope, receive, answer)


async def _read_body(receive: Receive, most: int) -> Receive:
    """Read a body, and return a way to receive it once more.

    Errors: Refused if it is too long, however long it said it would be.
    """
    messages: list[MutableMapping[str, Any]] = []
    size, more = 0, True
    while more:
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
        more = messages[-1].get("more_body", False)
        if size > most:
            raise Refused(413, f"the request is larger than {_show_size(most)}")

    async def again() -> MutableMapping[str, Any]:
        return messages.pop(0) if messages else await receive()

    return again


def _with_headers(send: Send) -> Send:
    async def answer(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *ours]}
        await send(message)

    return answer


def _show_size(num_bytes: int) -> str:
    return f"{num_bytes // 2**20} MB" if num_bytes >= 2**20 else f"{num_bytes // 2**10} KB"


ERROR_TYPES = {  # as OpenAI's clients name them
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}


def describe_error(path: str, status: int, reason: str) -> dict[str, Any]:
    """Return an error as JSON: one line; on the routes of an embedding server, as OpenAI's clients read it."""
    if path in EMBEDDING or path.startswith("/v1/"):
        return {"error": {"message": reason, "type": ERROR_TYPES.get(status, "APIStatusError"), "code": status}}
    return {"error": reason}


async def _refuse(send: Send, refused: Refused, path: str) -> None:
    body = json.dumps(describe_error(path, refused.status, str(refused))).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
