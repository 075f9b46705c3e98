"""What a task of a cluster does: open some pages of a file. It imports nothing heavy: there is one on every core."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from ...errors import RandSlotError
from .workers import Renderers, hash_image


@cache
def _renderers() -> Renderers:
    return Renderers(1)  # a process with limits, which a broken file may end without harm to Ray's


def render(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Open some pages of a file; the pixels of those that its old version has too are left out."""
    return [_render_page(row, int(number)) for number in row["numbers"]]


def _render_page(row: dict[str, Any], number: int) -> dict[str, Any]:
    page = {"job": row["job"], "number": number, "image": "", "error": "", "width": 0, "height": 0, "pixels": b""}
    try:
        image = _renderers().render(os.fsdecode(row["source"]), number, row["size"])
    except RandSlotError as error:
        return page | {"error": str(error)}
    page["image"] = hash_image(image)
    if page["image"] in row["known"]:
        return page
    return page | {"width": image.width, "height": image.height, "pixels": image.tobytes()}
