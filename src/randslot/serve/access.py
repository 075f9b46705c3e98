"""Access control: checks of every request, and security headers on every response.

- Without a token, only requests for the host names of this machine are accepted (DNS rebinding).
- With tokens, every route with data needs one, as a bearer token or session cookie; some tokens are read-only.
- Cross-origin writes are refused.
- Bodies have size and time limits; uploads have their own, and few large bodies are in memory at a time.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import time
import tomllib
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, date, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import RandSlotError, UsageError, first_line

LOG = logging.getLogger("randslot")
MAX_QUERY = 1_000  # characters
# In JSON, 3.0 is an integer; "3" is not.
Whole = Annotated[int, BeforeValidator(lambda one: int(one) if isinstance(one, float) and one.is_integer() else one)]
BODY_SECONDS, MIN_RATE = 10.0, 32 * 2**10  # timeout of a body; minimum bytes per second of a long one
FULL = "the server's disk is full: searches still work, uploads wait for free space"
BUSY = "the library is temporarily unavailable: try again later"
COOKIE, SESSION_SECONDS = "randslot", 7 * 86_400
LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def list_pages() -> dict[str, Path]:
    """Return the static files of the web page by path."""
    pages = {}
    for file in sorted((Path(__file__).parent / "page").iterdir()):
        pages["/" + {"index.html": "", "docs.html": "docs"}.get(file.name, file.name)] = file
    return pages


OPEN = frozenset({*list_pages(), "/openapi.json", "/api/health", "/api/live", "/api/session"})  # need no token


class Refused(RandSlotError):
    """A refused request: the HTTP status, and the reason in one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def describe_error(path: str, status: int, reason: str) -> dict[str, Any]:
    """Return the JSON of an error; for the embedding API, in OpenAI's format."""
    if path != "/pooling" and not path.startswith("/v1/"):
        return {"error": reason}
    return {"error": {"message": reason, "type": HTTPStatus(status).phrase, "code": status}}


class Token(BaseModel):
    """A token of a tokens file: its rights, and the last day on which it is valid (UTC)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str = Field(min_length=16, pattern=r"^[!-~]+$")
    rights: Literal["read", "write"] = "read"
    expires: date | None = None

    @property
    def is_valid(self) -> bool:
        return self.expires is None or datetime.now(UTC).date() <= self.expires

    def sign(self, text: str) -> str:
        return hmac.digest(self.token.encode(), f"randslot session {text}".encode(), "sha256").hex()


def read_tokens(file: str) -> dict[str, Token]:
    """Read a TOML file of tokens: a table per name, with `token` and optionally `rights` and `expires`."""
    try:
        tokens = TypeAdapter(dict[str, Token]).validate_python(tomllib.loads(Path(file).read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise UsageError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read tokens from {file}: {first_line(error)}") from error
    if not tokens:
        raise UsageError(f"{file} has no token")
    return tokens


class Access:
    """The access policy: tokens, allowed origins and host names."""

    def __init__(
        self,
        token: str | None = None,
        origins: Sequence[str] = (),
        hosts: Set[str] = LOCAL,
        tokens: Mapping[str, Token] | None = None,
    ) -> None:
        """token: a token with write access. tokens: others, by their names in the log."""
        self.tokens = dict(tokens or {})
        if token:
            self.tokens["token"] = Token.model_construct(token=token, rights="write", expires=None)
        self.origins, self.hosts = tuple(origins), hosts
        self.ended: set[str] = set()  # session cookies
        self.wrong: dict[tuple[str, int], list[float]] = {}  # times of failed logins, by address and limit

    def check(self, request: HTTPConnection) -> None:
        """Refuse a request with a wrong host name, from another origin, or without a token that permits it."""
        headers, method, path = request.headers, request.scope["method"], request.scope["path"]
        if not self.tokens:
            try:
                host = urlsplit(f"//{headers.get('host', '')}").hostname
            except ValueError:
                host = None
            if host not in self.hosts:
                raise Refused(400, "this service accepts requests for localhost only: serve with --token for others")
        if method not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is None:
                is_own = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
            else:
                is_own = origin in self.origins or origin.partition("://")[2] == headers.get("host")
            if not is_own:
                raise Refused(403, "cross-origin request refused")
        request.scope["can_write"] = True
        if not self.tokens or path in OPEN:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind:
            name = self.find_token(given.strip(), request) if kind.lower() == "bearer" else None
        else:
            name = self.find_session(request.cookies.get(COOKIE, ""))
        if name is None:
            raise Refused(401, "token required: send Authorization: Bearer TOKEN")
        can_write = request.scope["can_write"] = self.tokens[name].rights == "write"
        if method == "DELETE" or (method == "POST" and path == "/api/uploads"):
            LOG.info("%s: %s %s", name, method, path)
            if not can_write:
                raise Refused(403, f"the token {name} is read-only")

    def find_token(self, given: str, request: HTTPConnection) -> str | None:
        """Return the name of a token, compared in constant time; rate-limit wrong ones."""
        max_wrong = 10 if request.scope["path"] == "/api/session" else 300
        client = (request.client.host if request.client else "", max_wrong)
        recent = [at for at in self.wrong.get(client, ()) if at > time.monotonic() - 60]
        if len(recent) >= max_wrong:
            raise Refused(429, "too many wrong tokens: wait a minute")
        found = None
        for name, token in self.tokens.items():
            if hmac.compare_digest(given.encode(), token.token.encode()) and token.is_valid:
                found = name
        if found is None:
            if len(self.wrong) > 10_000:
                self.wrong.clear()
            self.wrong[client] = [*recent, time.monotonic()]
        return found

    def begin_session(self, name: str) -> str:
        """Return a session cookie: its expiry, signed with the token."""
        ends = int(time.time()) + SESSION_SECONDS
        return f"{ends}.{self.tokens[name].sign(str(ends))}"

    def find_session(self, cookie: str) -> str | None:
        """Return the name of the token of a session, if the session is valid."""
        ends, _, signature = cookie.partition(".")
        if not (ends.isdecimal() and len(ends) < 12 and int(ends) > time.time()) or cookie in self.ended:
            return None
        for name, token in self.tokens.items():
            if hmac.compare_digest(signature.encode(), token.sign(ends).encode()) and token.is_valid:
                return name
        return None


class Guard:
    """Middleware that checks access, limits bodies, and adds the security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access
        self.large = asyncio.Semaphore(8)  # large bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        receive = limit_rate(receive)
        has_begun = False

        async def respond(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self.access.check(HTTPConnection(scope))
            if path in ("/v1/embeddings", "/pooling"):  # a body may contain a page image
                async with self.large:
                    await self.app(scope, await _read_body(receive, 32 * 2**20), respond)
            elif path == "/api/uploads":
                await self.app(scope, receive, respond)
            else:
                await self.app(scope, await _read_body(receive, 64 * 2**10), respond)
        except Exception as error:
            if has_begun:
                raise
            status, reason, headers = 500, "internal server error; see the server log", None
            if isinstance(error, Refused):
                status, reason = error.status, str(error)
                headers = {"www-authenticate": "Bearer"} if status == 401 else None
            elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
                status, reason = 507, FULL
            else:
                LOG.exception("could not answer %s %s", scope["method"], path)
            await JSONResponse(describe_error(path, status, reason), status, headers)(scope, receive, respond)


def limit_rate(receive: Receive) -> Receive:
    """Wrap `receive` to refuse slow bodies; each received byte extends the deadline."""
    deadline, is_complete = time.monotonic() + BODY_SECONDS, False

    async def receive_in_time() -> Message:
        nonlocal deadline, is_complete
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                message = await receive()
        except TimeoutError as error:
            raise Refused(408, f"the request body is too slow: send at least {MIN_RATE >> 10} KB/s") from error
        deadline += len(message.get("body", b"")) / MIN_RATE
        is_complete = not message.get("more_body", False)
        return message

    return receive_in_time


async def _read_body(receive: Receive, max_bytes: int) -> Receive:
    """Read a body up to its limit, and return a function that replays it."""
    messages: list[Message] = []
    size, more = 0, True
    while more:
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
        more = messages[-1].get("more_body", False)
        if size > max_bytes:
            limit = f"{max_bytes >> 20} MB" if max_bytes >= 2**20 else f"{max_bytes >> 10} KB"
            raise Refused(413, f"the request is larger than {limit}")

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay
