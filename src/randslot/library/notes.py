"""What everybody who searches a library should know of its vectors and words, in a line each."""

from __future__ import annotations

from ..model.reader import Identity
from .binding import EMBEDDED
from .manifest import Manifest
from .stores.store import Store
from .trust import Trust
from .words import LibraryWords


def note_model(binding: Identity | None, trust: Trust | None) -> list[str]:
    """Return whether the model of a library can read its pages, if there is doubt."""
    notes = []
    if binding is not None and binding.name == EMBEDDED:
        notes.append("the embedded model of this library reads sample pages only, and no real documents")
    if trust is not None and not trust.reads:
        notes.append("the vectors of this library rank its pages little better than chance: words find them better")
    return notes


def note_words(words: LibraryWords) -> list[str]:
    """Return whether words are counted by halves; visitors of a service see it, so it does not say where."""
    if not words.begun:
        return []
    return ["words are being counted in another language; if that was stopped, randslot library words goes on"]


def note_texts(binding: Identity | None, store: Store, manifest: Manifest) -> list[str]:
    """Return which pages a model that reads text has not read, or not to their end."""
    notes: list[str] = []
    if binding is None or binding.reads != "text":
        return notes
    hidden = manifest.hidden()
    if cut := store.count_cut(hidden):
        most = binding.settings.get("text_tokens")
        limit = f" ({most} tokens)" if most else ""
        pages = "1 page has" if cut == 1 else f"{cut:,} pages have"
        notes.append(f"{pages} more text than the model reads{limit}: the rest has no part in the vectors")
    contents = store.contents(hidden)
    if without := contents.pages - contents.origins.get("layer", 0) - contents.origins.get("ocr", 0):
        pages = "1 page has" if without == 1 else f"{without:,} pages have"
        notes.append(f"{pages} no text, and so no vectors: the model of this library reads text")
    return notes
