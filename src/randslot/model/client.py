"""A JSON client for servers. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from time import sleep as pause
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ..errors import RandSlotError, first_line


class JsonClient:
    """A JSON client for one server, with one-line errors. hint: what to check if the server seems the wrong one.

    pauses: seconds to wait between retries while the server is unreachable.
    """

    def __init__(self, url: str, timeout: float, token: str | None, hint: str) -> None:
        self.url, self.timeout, self.hint = url.rstrip("/"), timeout, hint
        self.pauses: Sequence[float] = (0.5, 1.0, 2.0, 4.0)
        self.headers = {"Content-Type": "application/json"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Post a body, or get a path without one; retry while the server is unreachable."""
        request = Request(self.url + path, json.dumps(body).encode() if body else None, self.headers)
        for seconds in (*self.pauses, 0.0):
            try:
                with urlopen(request, timeout=self.timeout) as answer:
                    return json.load(answer)
            except HTTPError as error:
                with error:
                    text = error.read().decode(errors="replace")
                with suppress(ValueError, KeyError, AttributeError, TypeError):  # unless it is in OpenAI's error format
                    content = json.loads(text)
                    content = content.get("error", content)
                    text = str(content["message"] if isinstance(content, dict) else content)
                reason = " ".join(text.split())[:300] or error.reason
                hint = self.hint if error.code == 404 else ""
                raise RandSlotError(f"{request.full_url} returned {error.code}: {reason}{hint}") from error
            except ValueError as error:
                raise RandSlotError(
                    f"{request.full_url} did not return JSON: {first_line(error)}{self.hint}"
                ) from error
            except (OSError, HTTPException) as error:
                cause = getattr(error, "reason", error)
                if isinstance(cause, TimeoutError):
                    cause = f"no answer within {self.timeout:g} seconds"
                if not isinstance(cause, ConnectionError) or not seconds:
                    raise RandSlotError(f"cannot reach {request.full_url}: {cause}. Is the server running?") from error
                pause(seconds)
        raise AssertionError("the last attempt returns or raises")
