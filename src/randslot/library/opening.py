"""Open the file of a hit at its page: in a viewer that takes a page, in a browser, or as this system opens files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Callable

from .results import Hit
from .show import link_to, shorten

# Viewers that open a PDF at a page, and their arguments for it; a browser that opens files itself honours #page=.
VIEWERS: dict[str, Callable[[str, int], list[str]]] = {
    "evince": lambda file, page: [f"--page-index={page}", file],
    "papers": lambda file, page: [f"--page-label={page}", file],
    "atril": lambda file, page: [f"--page-index={page}", file],
    "xreader": lambda file, page: [f"--page-index={page}", file],
    "okular": lambda file, page: ["--page", str(page), file],
    "zathura": lambda file, page: [f"--page={page}", file],
    "qpdfview": lambda file, page: ["--unique", f"{file}#{page}"],
    "xpdf": lambda file, page: [file, str(page)],
    "mupdf": lambda file, page: [file, str(page)],
    "sumatrapdf": lambda file, page: ["-page", str(page), file],
}
BROWSERS = ("firefox", "chromium", "google-chrome", "chrome", "msedge", "microsoft-edge", "brave-browser", "vivaldi")


def open_hit(hit: Hit) -> bool:
    """Open the file of a hit at its page; return whether that was done."""
    if not os.path.isfile(hit.source):
        print(f"{shorten(hit.source)} is not where it was: index its folder again", file=sys.stderr)
        return False
    link = link_to(hit)
    is_pdf = "#" in link
    command = choose_command(hit.source, hit.page, link) if is_pdf else None
    if command is not None:
        quiet = subprocess.DEVNULL
        subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        return True
    if not webbrowser.open(link):
        print(f"nothing here can open it: {link}", file=sys.stderr)
        return False
    if is_pdf and hit.page > 1:
        print(f"go to page {hit.page}, if the viewer does not open it there", file=sys.stderr)
    return True


def choose_command(file: str, page: int, link: str) -> list[str] | None:
    """Return the command that opens a PDF at a page: in the usual viewer if it takes a page, or in another that does.

    None: there is none, there is no screen, or the user has named a browser, which `webbrowser` opens.
    """
    if not has_screen() or os.environ.get("BROWSER"):
        return None
    usual = ask_usual_viewer()
    names = sorted([*VIEWERS, *BROWSERS], key=lambda name: name not in usual)  # the usual one, then in this order
    for name in names:
        program = shutil.which(name)
        if program is not None:
            return [program, *(VIEWERS[name](file, page) if name in VIEWERS else [link])]
    return None


def has_screen() -> bool:
    """Whether a program can show a window here."""
    return sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def ask_usual_viewer() -> str:
    """Return what this system calls the program that opens PDFs, in lower case; nothing if it does not say."""
    asker = shutil.which("xdg-mime")
    if asker is None:
        return ""
    try:
        answer = subprocess.run(
            [asker, "query", "default", "application/pdf"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip().lower()
