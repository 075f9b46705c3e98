"""A server of models, asked in JSON as vLLM and OpenAI answer it; and what can be changed of a model that it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from http.client import HTTPException
from time import sleep as pause
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ..errors import RandSlotError, UsageError, first_line
from .reader import SIDES
from .reader import is_url as is_url  # where it was, for others
from .settings import Settings

PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds before asking again where no server answered
WRONG = "is it a vLLM server, started as SERVING.md says, or randslot serve?"


@dataclass(frozen=True)
class ListedModel:
    """A model as a server lists it: its name, where it was loaded from, and what a RandSlot service says of it."""

    name: str
    root: str
    about: Mapping[str, Any] | None = None


class Server:
    """An address that is asked in JSON; what goes wrong is said in one line."""

    def __init__(self, url: str, timeout: float, token: str | None) -> None:
        if not is_url(url):
            raise UsageError(f"{url!r} is not the address of a server, as in http://localhost:8000")
        self.url = url.rstrip("/").removesuffix("/v1").removesuffix("/pooling")
        self.timeout = timeout
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def find_model(self) -> ListedModel:
        """Return the first model that the server has."""
        answer = self.ask("/v1/models")
        try:
            model = answer["data"][0]
            return ListedModel(str(model["id"]), str(model.get("root") or model["id"]), model.get("randslot"))
        except IndexError as error:
            line = f"{self.url} has no model: a library of words alone has none, index it with --model"
            raise RandSlotError(line) from error
        except (KeyError, TypeError, AttributeError) as error:
            raise RandSlotError(f"{self.url} names no model at /v1/models: {WRONG}") from error

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Post a body, or get a path if there is none; ask again for some seconds while no server answers."""
        request = Request(self.url + path, json.dumps(body).encode() if body else None, self.headers)
        for seconds in PAUSES:
            try:
                return self._open(request)
            except ConnectionError:
                pause(seconds)
        try:
            return self._open(request)
        except ConnectionError as error:
            raise RandSlotError(f"cannot reach {self.url}: {error}; is the server running?") from error

    def _open(self, request: Request) -> dict[str, Any]:
        try:
            with urlopen(request, timeout=self.timeout) as answer:
                content = json.load(answer)
        except HTTPError as error:
            with error:
                reason = _reason(error.read())
            hint = f"; {WRONG}" if error.code == 404 else ""
            raise RandSlotError(f"{request.full_url} answers {error.code}: {reason or error.reason}{hint}") from error
        except ValueError as error:
            raise RandSlotError(f"{request.full_url} answers no JSON: {first_line(error)}; {WRONG}") from error
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ConnectionError):
                raise cause from error
            if isinstance(cause, TimeoutError):
                raise RandSlotError(f"no answer from {request.full_url} within {self.timeout:g} seconds") from error
            raise RandSlotError(f"cannot reach {request.full_url}: {cause}") from error
        if not isinstance(content, dict):
            raise RandSlotError(f"{request.full_url} answers no JSON object")
        return content


def _reason(body: bytes) -> str:
    """Return what a server says of an error, in one line: OpenAI's form, or the body as it is."""
    try:
        content = json.loads(body)
        content = content.get("error", content)
        text = str(content["message"] if isinstance(content, dict) else content)
    except (ValueError, KeyError, AttributeError):
        text = body.decode(errors="replace")
    return " ".join(text.split())[:300]


def change_budgets(now: Settings, most: Settings, changes: Mapping[str, Any], fixed_by: str) -> Settings:
    """Return settings with other budgets, at most those that a server gives: fewer vectors are the first ones of more.

    Errors: UsageError for any other change.
    """
    settings = now.change(**changes)
    fixed = asdict(replace(most, query_vectors=settings.query_vectors, page_vectors=settings.page_vectors))
    for name, value in asdict(settings).items():
        if value != fixed[name]:
            raise UsageError(f"{name} is fixed by the {fixed_by}; on a server only the budgets can be changed")
    for side in SIDES:
        if settings.vectors(side) > most.vectors(side):
            raise UsageError(
                f"{side}_vectors={settings.vectors(side)}: this model was exported with "
                f"{most.vectors(side)}; export it again with more"
            )
    return settings
