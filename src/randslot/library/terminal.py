"""Print results and progress of commands, and open hits in a viewer."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..model.reader import read_identity
from ..model.text_reader import MODULE
from ..model.text_reader import NAME as READER
from ..pages import DOCUMENT_SUFFIXES
from ..words.language import NO_STEMS
from ..words.snippets import Snippet
from .address import is_address
from .location import folder_size
from .results import Hit, Progress, Status, Summary
from .stores.points import BYTES_PER_NUMBER

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

STAGES = {
    "reading": "reading pages",
    "words": "reading text",
    "counting": "indexing words",
    "scans": "running OCR",
    "vectors": "encoding pages",
    "queries": "encoding queries",
    "sketches": "computing sketches",
    "export": "writing pages",
}


class ProgressReporter:
    """Shows progress: a bar in a terminal, a line every 10 s elsewhere. It counts pages and files even when quiet."""

    def __init__(self, bar: Bar, lines: bool = False) -> None:
        """lines: print lines on stderr."""
        self.bar, self.lines = bar, lines
        self.printed_at = time.monotonic()
        self.task = bar.add_task("scanning files", total=None, more="")
        self.pages = self.files = 0
        self.stage = ""

    def __call__(self, now: Progress) -> None:
        if not now.num_pages:
            self.bar.update(self.task, completed=now.files_done, total=now.num_files)
            return
        if not self.pages or now.stage != self.stage:
            self.stage = now.stage
            self.bar.reset(self.task, description=STAGES[now.stage], total=now.num_pages)
        self.pages = now.pages_done
        self.files += len(now.finished)
        speed = self.bar.tasks[self.task].speed
        more = [f"{speed:.1f} pages/s"] if speed else []
        if now.num_files:
            more.append(f"{now.files_done} of {now.num_files} files")
        self.bar.update(self.task, completed=now.pages_done, more=", ".join(more))
        if self.lines and time.monotonic() - self.printed_at >= 10:
            self.printed_at = time.monotonic()
            print(f"{STAGES[now.stage]}: {now.pages_done:,} of {now.num_pages:,}", file=sys.stderr, flush=True)


@contextmanager
def show_progress(quiet: bool) -> Iterator[ProgressReporter]:
    """Show progress on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[more]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        yield ProgressReporter(bar, lines=not (quiet or console.is_terminal))


def show_spinner(what: str, quiet: bool = False) -> AbstractContextManager[Any]:
    """Show a spinner on stderr, in a terminal."""
    if quiet or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console  # takes 30 ms

    return Console(stderr=True, highlight=False).status(what)


def print_summary(summary: Summary, status: Status, quiet: bool, strict: bool = False) -> None:
    """Print the summary of a run, and on stderr the files that failed or were skipped.

    strict: also list known failures.
    """
    if not quiet:
        counts = {name: len(getattr(summary, name)) for name in ("added", "changed", "moved", "removed")}
        counts |= {"unchanged": summary.unchanged, "failed": len(summary.failed)}
        what = ", ".join(f"{num} {name}" for name, num in counts.items() if num)
        is_only_encoded = summary.encoded and what == f"{summary.unchanged} unchanged"
        if not is_only_encoded:
            print(f"files: {what or 'none found; supported types: ' + ', '.join(DOCUMENT_SUFFIXES)}")
        if summary.pages:
            speed = summary.pages / max(summary.seconds, 1e-9)
            encoded = f", {summary.encoded} of them encoded" if status.model else ""
            time_taken = f"{summary.seconds:.1f} s ({speed:.1f} pages/s)"
            print(f"{plural(summary.pages, 'page')}{encoded}, in {time_taken}", flush=True)
        elif summary.encoded:
            reads = "; the model can read them" if status.reads else ""
            print(f"{plural(summary.encoded, 'page')} encoded, in {summary.seconds:.1f} s{reads}", flush=True)
        for name in summary.others[:10]:
            print(f"skipped (unsupported type): {shorten(name)}", file=sys.stderr)
        if len(summary.others) > 10:
            print(f"skipped (unsupported type): {len(summary.others) - 10} more", file=sys.stderr)
        for name in summary.links[:10]:
            print(f"skipped (link to a folder): {shorten(name)}; use --follow-links", file=sys.stderr)
        if summary.known_failures and not strict:
            print(
                f"{plural(len(summary.known_failures), 'file')} still cannot be read: --strict lists them",
                file=sys.stderr,
            )
    for name, reason in summary.failed.items():
        if strict or name not in summary.known_failures:
            print(f"could not index {shorten(name)}: {reason}", file=sys.stderr)


def print_end(summary: Summary, status: Status, quiet: bool) -> None:
    """Print the new status of the library, and tips."""
    from ..pages.ocr import show_advice

    if quiet:
        return
    if summary.by_ocr:
        print(f"{plural(summary.by_ocr, 'page')} read by OCR, in {summary.ocr_seconds:.1f} s")
    if summary.without_text and summary.pages:  # only when pages were added
        print(f"keyword search cannot find {plural(summary.without_text, 'page')} without text: {show_advice()}")
    if failed := status.origins.get("failed"):
        print(f"OCR failed on {plural(failed, 'page')}; the files may be damaged")
    for note in status.notes:
        print(f"note: {note}")
    print(f"the library has {plural(status.pages, 'page')}, {show_size(status)}")
    if status.model is None and 0 < summary.pages == status.pages:  # only in the first run
        install = "" if find_spec(MODULE) else 'pip install "randslot[reader]", then '
        tip = f"{install}index again with --model {READER}"
        print(f"tip: to search by meaning and across languages, {tip}")
        if status.language == "english" and find_spec("sentence_transformers"):  # measured in research/log.md
            model = "sentence-transformers/all-MiniLM-L6-v2 --page-vectors 4"
            print(f"tip: if all questions are in English, use --model {model}")


def print_hits(hits: Sequence[Hit], explain: bool) -> None:
    """Print ranked pages with highlighted words; explain: also scores and matching vectors."""
    if not hits:
        print("no pages found")
    for rank, hit in enumerate(hits, start=1):
        fields = f"  in {', '.join(hit.fields)}" if hit.fields else ""
        title = (shorten(hit.source), f"bold link {link_to(hit)}")
        where = f"  page {hit.page}" + (f"  library {hit.library}" if hit.library else "")
        print_styled((f"{rank:2}. ", "dim"), title, (where, ""), (fields, "dim"))
        if hit.snippet is not None and hit.snippet.text:
            print_styled(*mark_words(hit.snippet), indent=4)
        if hit.copies:
            names = ", ".join(f"{shorten(copy.source)} page {copy.page}" for copy in hit.copies[:3])
            more = f" and {plural(len(hit.copies) - 3, 'other place')}" if len(hit.copies) > 3 else ""
            print_styled((f"    identical: {names}{more}", "dim"))
        if hit.gone:
            print_styled(("    the file is no longer on disk: index its folder with --prune", "dim"))
        if explain:
            print_styled((f"    {_explain(hit)}", "dim"))
    if explain and any(hit.matches for hit in hits):
        print_styled(("matches: query vector > nearest page vector, similarity", "dim"))


def print_styled(*parts: tuple[str, str], indent: int = 0) -> None:
    """Print texts with their styles in one line; a terminal shows the styles and wraps indented text."""
    if not sys.stdout.isatty():
        print(" " * indent + "".join(text for text, _ in parts))
        return
    from rich.console import Console  # takes 30 ms
    from rich.padding import Padding
    from rich.text import Text

    console, line = Console(highlight=False), Text.assemble(*parts)
    if indent:
        console.print(Padding(line, (0, 2, 0, indent)))
    else:
        console.print(line, soft_wrap=True)


def list_rows(hits: Mapping[str, Sequence[Hit]]) -> Iterator[dict[str, Any]]:
    """Yield the hits of queries as rows for other programs."""
    for query, found in hits.items():
        for rank, hit in enumerate(found, start=1):
            text = " ".join(hit.snippet.text.split()) if hit.snippet else ""
            row = {"query": query, "rank": rank, "score": round(hit.score, 4), "source": hit.source}
            yield row | {"name": os.path.basename(hit.source), "page": hit.page, "text": text, "library": hit.library}


def print_csv(hits: Mapping[str, Sequence[Hit]]) -> None:
    """Print hits as CSV with a header."""
    writer = csv.writer(sys.stdout)
    writer.writerow(("query", "rank", "score", "source", "name", "page", "text", "library"))
    writer.writerows(row.values() for row in list_rows(hits))


def print_template(hits: Mapping[str, Sequence[Hit]], template: str) -> None:
    """Print each hit with a format template."""
    for row in list_rows(hits):
        try:
            print(template.format(**row))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            names = ", ".join(f"{{{name}}}" for name in row)
            raise UsageError(f"--format {template!r} is not valid ({error}): use {names}") from error


def print_paths(hits: Mapping[str, Sequence[Hit]]) -> None:
    """Print the unique paths of files, each followed by a null byte."""
    for source in dict.fromkeys(row["source"] for row in list_rows(hits)):
        sys.stdout.buffer.write(os.fsencode(source) + b"\0")


def mark_words(snippet: Snippet) -> list[tuple[str, str]]:
    """Return the parts of a snippet with their styles: words of the query are highlighted."""
    parts = []
    end = 0
    for start, stop in snippet.marks:
        parts.append((readable(snippet.text[end:start]), ""))
        parts.append((readable(snippet.text[start:stop]), "bold yellow"))
        end = stop
    return [*parts, (readable(snippet.text[end:]), "")]


def _explain(hit: Hit) -> str:
    scores = {"words": "BM25", "vectors": "MaxSim", "both": "normalised sum"}
    score = f"{scores[hit.by]} {hit.score:.4g}"
    best = sorted(hit.matches, key=lambda one: -one.similarity)[:8]
    matches = [f"{one.query}>{one.page} {one.similarity:.3f}" for one in sorted(best, key=lambda one: one.query)]
    if len(hit.matches) > 8:
        matches.append(f"and {len(hit.matches) - 8} less similar")
    return "  ".join([score, *matches])


def print_status(status: Status) -> None:
    """Print the status of a library."""
    rows = {
        "library": status.folder,
        "files": f"{status.files:,}",
        "pages": f"{status.pages:,}",
        "incomplete": f"{plural(status.pending, 'file')}: index again to resume" if status.pending else "",
        "missing files": f"{status.missing:,}: remove them with randslot index --prune" if status.missing else "",
        "words": show_words(status),
        "vectors": show_vectors(status),
        "sketches": status.sketches,
        "size": show_size(status),
        "format": str(status.format),
        "note": "; ".join(status.notes),
    }
    rows = {name: value for name, value in rows.items() if value}
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}} {readable(value)}")


def show_languages(status: Status) -> str:
    """Return the languages of the text, the main one first."""
    names = ["no stems (as in Chinese, Japanese, Thai)" if name == NO_STEMS else name for name in status.languages]
    return ", ".join(names) or status.language or "no language yet"


def show_words(status: Status) -> str:
    """Describe which pages have text, and what to do about the others."""
    if not status.pages:
        return ""
    parts = [f"of {status.with_text:,} pages, {show_languages(status)}"]
    if by_ocr := status.origins.get("ocr"):
        parts.append(f"{by_ocr:,} read by OCR")
    says = {
        "none": "without text: run randslot library words with OCR",
        "blank": "blank",
        "failed": "that OCR could not read",
        "": "not read yet: run randslot library words",
    }
    for origin, what in says.items():
        if num := status.origins.get(origin):
            parts.append(f"{plural(num, 'page')} {what}")
    return "; ".join(parts)


def show_vectors(status: Status) -> str:
    """Describe the vectors and the model that made them."""
    if status.model is None:
        return "none: add them with randslot index --model"
    model = read_identity(status.model)
    page, query = model.num_vectors("page"), model.num_vectors("query")
    mean = round(status.vector_bytes_per_page / BYTES_PER_NUMBER / model.dimension)
    num = page or (f"about {mean:,}" if mean else "several")
    parts = [
        f"of {model.name or 'a model in memory'}, weights {model.weights[:8]}",
        f"{num} per page, {query or 'several'} per query, {model.dimension} dimensions",
    ]
    # A text model has no vectors for pages without text; indexing again does not change that.
    possible = status.with_text if model.reads == "text" else status.pages
    if status.with_vectors < possible:
        parts.append(f"{plural(possible - status.with_vectors, 'page')} without: index again to resume")
    return "; ".join(parts)


def show_size(status: Status) -> str:
    """Describe the size of a library on disk, and of its vectors."""
    if is_address(status.folder):
        return f"{show_bytes(status.bytes)} of vectors, {show_bytes(status.vector_bytes_per_page)} per page"
    if not status.pages:
        return f"{show_bytes(status.bytes)} on disk"
    share = f", {show_bytes(status.vector_bytes_per_page)} of them vectors" if status.vector_bytes_per_page else ""
    return f"{show_bytes(status.bytes)} on disk, {show_bytes(status.bytes_per_page)} per page{share}"


def update_size(status: Status) -> Status:
    """Measure the size of a closed library again: the engine compacts it when it closes."""
    if is_address(status.folder):
        return status
    size = folder_size(Path(status.folder))
    return replace(status, bytes=size, bytes_per_page=size // max(status.pages, 1))


def show_bytes(num: int) -> str:
    """Format a size for people: 512 bytes, 1.5 KB, 48.8 MB."""
    size = float(num)
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def print_files(what: str, sources: Sequence[str]) -> None:
    """Print up to 50 files, one per line, and their number."""
    for source in sources[:50]:
        print(f"  {shorten(source)}")
    if len(sources) > 50:
        print(f"  and {len(sources) - 50:,} more")
    print(f"{plural(len(sources), 'file')} {what}")


def link_to(hit: Hit) -> str:
    """Return a file: URL of a hit, at its page."""
    fragment = f"#page={hit.page}" if hit.source.lower().endswith(".pdf") else ""
    return Path(hit.source).as_uri() + fragment


def plural(num: int, word: str) -> str:
    """Format a count: 1 page, 2 pages."""
    return f"{num:,} {word}" if num == 1 else f"{num:,} {word}s"


def shorten(source: str) -> str:
    """Return a printable path relative to the current or home folder: x.pdf, ~/papers/x.pdf."""
    for folder, short in ((os.getcwd(), ""), (os.path.expanduser("~"), "~/")):
        below = os.path.join(folder, "")
        if source.startswith(below):
            return readable(short + source.removeprefix(below))
    return readable(source)


def readable(name: str) -> str:
    """Return a printable name: control and invalid characters are replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)


def open_hit(hit: Hit) -> bool:
    """Open the file of a hit at its page; return whether it worked."""
    if not os.path.isfile(hit.source):
        print(f"{shorten(hit.source)} no longer exists: index its folder again", file=sys.stderr)
        return False
    link = link_to(hit)
    is_pdf = "#" in link
    command = choose_command(hit.source, hit.page, link) if is_pdf else None
    if command is not None:
        quiet = subprocess.DEVNULL
        subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    elif not webbrowser.open(link):
        print(f"no viewer found for {link}", file=sys.stderr)
        return False
    elif is_pdf and hit.page > 1:
        print(f"if the viewer opens another page, go to page {hit.page}", file=sys.stderr)
    return True


def choose_command(file: str, page: int, link: str) -> list[str] | None:
    """Return the command that opens a PDF at a page, preferably in the default viewer.

    None if there is no such viewer or no screen, or if $BROWSER is set, which `webbrowser` opens.
    """
    has_screen = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if not has_screen or os.environ.get("BROWSER"):
        return None
    commands = {
        "evince": [f"--page-index={page}", file],
        "papers": [f"--page-label={page}", file],
        "atril": [f"--page-index={page}", file],
        "okular": ["--page", str(page), file],
        "zathura": [f"--page={page}", file],
        "xpdf": [file, str(page)],
    }
    for browser in ("firefox", "chromium", "google-chrome", "microsoft-edge", "brave-browser"):
        commands[browser] = [link]
    ask = ["xdg-mime", "query", "default", "application/pdf"]
    default = ""  # the name of a .desktop file
    with suppress(OSError, subprocess.TimeoutExpired):  # xdg-mime may be missing
        default = subprocess.run(ask, capture_output=True, text=True, timeout=5, check=False).stdout.lower()
    for name in sorted(commands, key=lambda name: name not in default):  # the default viewer first
        if program := shutil.which(name):
            return [program, *commands[name]]
    return None
