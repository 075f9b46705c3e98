"""The command `watch`: keep a library in sync with folders."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from ..errors import UsageError
from .options import ADVANCED, FollowLinks, Password, PasswordFile, Place, flag, make_app, read_passwords

app = make_app()

Poll = Annotated[bool, flag("--poll", panel=ADVANCED, help="Poll files every second (for network drives).")]


@app.command()
def watch(
    folders: Annotated[list[str], typer.Argument(help="Folders to watch.")],
    library: Place,
    poll: Poll = False,
    follow_links: FollowLinks = False,
    password: Password = None,
    password_file: PasswordFile = None,
) -> None:
    """Index folders and keep the library in sync.

    Other commands work while it runs. Deleted files are removed from the library. Ctrl-C stops it.

    randslot watch ~/papers
    randslot watch ~/papers /mnt/share/reports -l mylib --poll
    """
    from ..library.sharing import SharedLibrary, open_library
    from ..library.watch import Watch

    places = check_folders(folders)
    read_passwords(password, password_file)
    with open_library(library):  # create it if missing
        pass
    shared = SharedLibrary(library)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"watching {', '.join(folders)} (Ctrl-C stops)", flush=True)
    try:
        Watch(shared, places, say, poll, follow_links).run()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        shared.close()


def check_folders(folders: list[str]) -> list[str]:
    """Return the absolute paths of folders to watch."""
    from ..library.sources import expand

    found = [path for folder in folders for path in expand(folder)]
    for path in found:
        if not os.path.isdir(path):
            raise UsageError(f"only folders can be watched, not {path}")
    return found


def say(line: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
