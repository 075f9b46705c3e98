"""What is written about sketches in a library, and what its store does because of that."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from ..errors import RandSlotError
from .location import FORMAT, SKETCHED, Location
from .stores.sketches import Sketcher
from .stores.store import Sketches

LOOK_SECONDS = 1.0  # after which a search looks at what another process has written about the library


class LibrarySketches:
    """The sketches of a library that is open."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.noted: dict[str, Any] | None = None

    def take(self, about: dict[str, Any]) -> None:
        """Have pages sketched, and searches use that, as is written about the library; another process may write it."""
        noted = about.get("sketches")
        if noted == self.noted:
            return
        self.noted = noted
        content = self.location.read_sketcher() if noted else None
        self.location.store.sketches = None
        if noted and content:
            with suppress(RandSlotError):  # it is damaged, as `describe` tells
                self.location.store.sketches = Sketches(Sketcher.from_bytes(content), int(noted["candidates"]))

    def note(self, noted: dict[str, Any] | None) -> None:
        """Write about them; None if the library has none any more. Who searches by those of before has stopped then."""
        was_used = bool(self.noted and self.noted["candidates"])
        about = self.location.read() or {}
        self.location.write(about | {"sketches": noted, "format": SKETCHED if noted else FORMAT})
        self.noted = noted
        if was_used and self.location.shared:
            time.sleep(2 * LOOK_SECONDS)

    @property
    def begun(self) -> Sketcher | None:
        """What a run that was stopped has begun with."""
        sketches = self.location.store.sketches
        return sketches.sketcher if sketches and not sketches.candidates else None

    def describe(self) -> str:
        """Return which sketches searches use, in a line; nothing if there are none."""
        if not self.noted:
            return ""
        if self.location.store.sketches is None:
            return "lost: randslot library sketch makes them again"
        if not self.noted["candidates"]:
            return "not of all pages yet: randslot library sketch goes on"
        found = f"{100 * self.noted['recall']:.1f} % of the best pages were found so"
        return f"a search by vectors scores {self.noted['candidates']:,} pages in full, which they find; {found}"

    def find_problems(self) -> list[str]:
        """Return what is wrong with them, a line each."""
        store = self.location.store
        if store.sketches is None or not store.sketches.candidates:
            return []
        without = sum(1 for _ in store.find(None, vectors=True, sketch=False))
        if not without:
            return []
        pages = "1 page has" if without == 1 else f"{without:,} pages have"
        return [f"{pages} no sketch: randslot library sketch makes them all again"]
