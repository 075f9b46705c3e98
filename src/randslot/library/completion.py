"""In which order stored pages get what they lack: words first, because they are cheap, then vectors or scans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..model.reader import PageReader, Reads
from ..words.languages import AUTO
from .fill import Fill
from .manifest import Manifest
from .reading.reader import FileReader
from .stores.store import Store

Ocr = Literal["missing", "all"]


@dataclass(frozen=True)
class BoundModel:
    """The model of a library before it is loaded: what it takes of a page."""

    reads: Reads
    load: Callable[[], PageReader]


def complete_pages(fill: Fill, reader: FileReader, model: BoundModel | None) -> int:
    """Read and encode what pages lack that are stored already; return how many were encoded."""
    read = fill.read_layers()
    encoded = 0
    if model is not None and model.reads == "text":
        encoded = fill.encode_texts(model.load, again=False)
    elif model is not None:
        encoded = fill.encode(reader)
    if read or encoded:
        fill.store.optimize()
    return encoded


def read_words(fill: Fill, model: BoundModel | None, *, language: str | None, ocr: Ocr | None) -> int:
    """Read the words of pages that have none yet, and all in another language if one is named.

    Return how many were read. Texts that OCR has found are encoded if the model reads text.
    """
    each = language == AUTO
    if each:
        language = fill.detect_language() or fill.words.language
    has_others = not each and len(fill.words.languages) > 1  # they came by a copy
    if language and (has_others or (language, each) != (fill.words.language, fill.words.each)):
        fill.words.begin(language, each)
    if fill.words.begun:
        if not fill.count_again():
            return 0
        fill.words.finish()
    num = fill.read_layers()
    if ocr is not None:
        num += fill.read_scans(all_pages=ocr == "all")
        if model is not None and model.reads == "text":
            fill.encode_texts(model.load, again=ocr == "all")
    fill.store.optimize()
    return num


def count_unread(store: Store, manifest: Manifest) -> int:
    """Return how many pages no search by words can find: those that OCR has not read, or nobody has looked at."""
    contents = store.contents(manifest.hidden())
    return contents.origins.get("none", 0) + contents.origins.get("", 0)
