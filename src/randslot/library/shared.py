"""A library that several processes use: it is open in one of them, and the others ask that one."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import Condition

from ..errors import RandSlotError
from .address import is_address
from .library import Library
from .local_service import LocalService
from .models import Name
from .served_library import ServedLibrary, open_library

LET_GO_SECONDS = 20.0  # that whoever uses the library may still take


class SharedLibrary:
    """A library that stays open here, or is asked of the process that has it open; from any thread.

    Agents, applications, a service and commands can use one library so, and whoever has it open may stop: the next to
    ask opens it. A service that starts gets it from whoever has it open, and is asked from then on.
    """

    def __init__(self, library: Library | Name, model: str | None = None, query_model: str | None = None) -> None:
        """library: one that is open, which stays so, or where it is. model: where its model is, if it has moved.

        query_model: a student of that model, which searches ask in its place.
        """
        self.lock, self.closing = Condition(), ExitStack()
        self.num_users = 0  # just now
        self.own = library if isinstance(library, Library) else None
        self.place: Library | Name = library
        self.model, self.query_model = model, query_model
        if not isinstance(library, Library) and os.fspath(library) and not is_address(os.fspath(library)):
            self.place = os.path.abspath(os.path.expanduser(library))  # the process may go elsewhere meanwhile

    def close(self) -> None:
        """Let go of the library, if it was opened here; done at the end of the process for whoever forgets it."""
        atexit.unregister(self.close)
        with self.lock:
            if not isinstance(self.place, Library):
                self.own = None
            self.closing.close()

    @contextmanager
    def use(self) -> Iterator[Library | ServedLibrary]:
        """Give the library for a few calls.

        Errors: as `Library`; one that is not there is not made.
        """
        with self.lock:
            opened = self._open() if self.own is None else self.own
            self.num_users += 1
        try:
            with nullcontext(opened) if isinstance(opened, Library) else opened as library:
                yield library
        finally:
            self._end_use()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """A block in which a request of another process uses the library that is open here."""
        with self.lock:
            if self.own is None:
                raise RandSlotError(f"a service has taken library {self.place} over: ask again")
            self.num_users += 1
        try:
            yield
        finally:
            self._end_use()

    def _end_use(self) -> None:
        with self.lock:
            self.num_users -= 1
            self.lock.notify_all()

    def _let_go(self) -> bool:
        """Close the library when nobody uses it any more; return False if that takes too long."""
        with self.lock:
            if not self.lock.wait_for(lambda: not self.num_users, LET_GO_SECONDS):
                return False
            self.own = None
            self.closing.close()
            return True

    def _open(self) -> Library | ServedLibrary:
        assert not isinstance(self.place, Library), "it would be our own"
        opened = open_library(self.place, self.model, query_model=self.query_model, create=False)
        if isinstance(opened, Library):
            self.own = self.closing.enter_context(opened)
            self.closing.enter_context(LocalService(opened, using=self._answering, let_go=self._let_go))
            atexit.register(self.close)  # it leaves no socket behind
        return opened
