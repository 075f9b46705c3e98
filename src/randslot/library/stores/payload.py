"""A page as the payload of a point, and back: the same in a folder and on a server."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...words.terms import Terms
from .store import StoredPage, StoredText
from .tuning import TERMS_NAME, VECTOR_NAME

PLACE = ["file", "number"]  # what a hit is known by
PART = "part"  # how much was read of a page that was cut


def make_payload(page: StoredPage) -> dict[str, Any]:
    """Return all that is stored of a page beside its vectors and terms."""
    return {"file": page.file, "number": page.number, **_make_content_payload(page), **make_text_payload(page)}


def make_changes(page: StoredPage) -> dict[str, Any]:
    """Return what changes in the payload of a page that is there: what is given of it."""
    payload = make_text_payload(page)
    if page.vectors is not None:
        payload |= _make_content_payload(page)
    return payload


def _make_content_payload(page: StoredPage) -> dict[str, Any]:
    """Return what was read of a page; few pages are cut, and the others say nothing of it."""
    return {"image": page.image, "read": PART} if page.cut else {"image": page.image}


def make_text_payload(page: StoredPage) -> dict[str, Any]:
    """Return the text of a page as a payload."""
    if page.text is None:
        return {}
    boxes = base64.b64encode(page.text.boxes).decode()
    return {"origin": page.text.origin, "text": page.text.text, "boxes": boxes, "words": page.text.words}


def read_page(payload: Mapping[str, Any], vectors: Mapping[str, Any]) -> StoredPage:
    """Return the page of a point, as much as was read of it."""
    own = np.array(vectors[VECTOR_NAME], np.float32) if VECTOR_NAME in vectors else None
    text = None
    if "origin" in payload:
        sparse = vectors.get(TERMS_NAME)
        terms = Terms(tuple(sparse.indices), tuple(sparse.values)) if sparse else Terms()
        boxes = base64.b64decode(payload["boxes"])
        text = StoredText(payload["origin"], payload["text"], boxes, payload["words"], terms)
    cut = payload.get("read") == PART
    return StoredPage(str(payload["file"]), int(payload["number"]), str(payload["image"]), own, text, cut)
