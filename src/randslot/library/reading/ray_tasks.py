"""What a task of a cluster does: open some pages of a file. It imports nothing heavy: there is one on every core."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from ...errors import RandSlotError
from .content import read_content
from .text_json import write_text
from .workers import Renderers


@cache
def _renderers() -> Renderers:
    return Renderers(1)  # a process with limits, which a broken file may end without harm to Ray's


def open_pages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Open some pages of a file; the content of those whose hash is known is left out."""
    return [_open_page(row, int(number)) for number in row["numbers"]]


def _open_page(row: dict[str, Any], number: int) -> dict[str, Any]:
    page = {"file": row["file"], "number": number, "hash": "", "error": ""}
    page |= {"width": 0, "height": 0, "pixels": b"", "text": "", "layer": ""}
    try:
        content = read_content(_renderers(), row["reads"], row["size"], os.fsdecode(row["source"]), number)
    except RandSlotError as error:
        return page | {"error": str(error)}
    page |= {"hash": content.hash, "layer": write_text(content.text)}
    if content.hash in row["known"]:
        return page
    if isinstance(content.page, str):
        return page | {"text": content.page}
    if content.page is None:  # without text, for a model that reads text
        return page
    return page | {"width": content.page.width, "height": content.page.height, "pixels": content.page.tobytes()}
