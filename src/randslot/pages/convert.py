"""Convert documents without pages to PDF, and cache the PDFs.

LibreOffice, if installed, renders texts and slides with their original layout. Other documents, and all without
LibreOffice, are typeset here: headings, paragraphs and tables on plain pages. The text of plain pages is stored beside
the PDF, because no font has all characters.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from filelock import FileLock
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFError, TTFont
from reportlab.pdfgen.canvas import Canvas

from ..errors import RandSlotError
from ..files import write_whole
from .documents import Block, Document, check_unpacked, read_document
from .text import PageText, pack_boxes

VERSION = 3  # of the converter: a new version invalidates cached files
OFFICE_SUFFIXES = (".docx", ".odt", ".rtf", ".pptx", ".odp", ".doc", ".ppt")  # converted by LibreOffice if installed
OFFICE_ONLY = {".doc": ".docx", ".ppt": ".pptx", ".xls": ".xlsx"}  # and formats that need no LibreOffice
MAX_PAGES = 5000
MAX_CACHE = 2 * 2**30  # bytes of converted files


def convert_to_pdf(file: Path) -> Path:
    """Convert a document to PDF, or return the cached PDF. Errors: RandSlotError if it cannot be read."""
    stat = file.stat()
    key = f"{VERSION} {file.absolute()} {stat.st_size} {stat.st_mtime_ns}"
    folder = find_cache()
    pdf = folder / f"{blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}.pdf"
    if pdf.is_file():
        with suppress(OSError):  # a read-only cache
            os.utime(pdf)  # most recently used
        return pdf
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RandSlotError(f"cannot create the cache {folder}: {error.strerror}. Set XDG_CACHE_HOME.") from error
    if not os.access(folder, os.W_OK):
        raise RandSlotError(f"cannot write to the cache {folder}. Set XDG_CACHE_HOME to a writable folder.")
    if pdf.name.startswith("0"):  # in one of sixteen conversions
        trim_cache(folder)
    check_unpacked(file)
    suffix, office = file.suffix.lower(), find_office()
    if office is None and suffix in OFFICE_ONLY:
        raise RandSlotError(f"{file} needs LibreOffice: install it, or save the file as {OFFICE_ONLY[suffix]}")
    with tempfile.TemporaryDirectory(prefix="randslot-") as temporary:
        if office is not None and suffix in OFFICE_SUFFIXES:
            write_whole(pdf, run_office(office, file, "pdf", Path(temporary)).read_bytes())
            return pdf
        if suffix == ".xls":
            assert office is not None
            document = read_document(run_office(office, file, "xlsx", Path(temporary)))
        else:
            document = read_document(file)
    typesetter = Typesetter(document)
    for page in typesetter.run():
        if page > MAX_PAGES:
            raise RandSlotError(f"{file} has more than {MAX_PAGES} pages of text")
    write_whole(pdf.with_suffix(".json"), json.dumps(typesetter.texts).encode("utf-8", "surrogatepass"))
    write_whole(pdf, typesetter.canvas.getpdfdata())
    return pdf


def trim_cache(folder: Path, max_bytes: int = MAX_CACHE) -> None:
    """Delete the least recently used converted files above a size limit."""
    sizes: dict[Path, tuple[float, int]] = {}
    for pdf in folder.glob("*.pdf"):
        with suppress(OSError):  # another process may delete files too
            stat = pdf.stat()
            text = pdf.with_suffix(".json")
            sizes[pdf] = stat.st_mtime, stat.st_size + (text.stat().st_size if text.is_file() else 0)
    total = sum(size for _, size in sizes.values())
    if total <= max_bytes:
        return
    for pdf, (_, size) in sorted(sizes.items(), key=lambda item: item[1]):
        pdf.unlink(missing_ok=True)
        pdf.with_suffix(".json").unlink(missing_ok=True)
        total -= size
        if total <= 0.8 * max_bytes:
            return


def read_plain_text(pdf: Path, number: int) -> PageText | None:
    """Return the text of a plain page; None if LibreOffice converted the document."""
    pages = _load_texts(pdf.with_suffix(".json"))
    if pages is None:
        return None
    page = pages[number - 1]
    return PageText(page["text"], base64.b64decode(page["boxes"]), fields=page["fields"])


@lru_cache(2)
def _load_texts(file: Path) -> list[dict[str, Any]] | None:
    if not file.is_file():
        return None
    pages: list[dict[str, Any]] = json.loads(file.read_bytes())
    return pages


def find_cache() -> Path:
    """Return the cache folder of converted files; it is safe to delete at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "randslot" / "converted"


# -- LibreOffice


@cache
def find_office() -> str | None:
    """Return the path of LibreOffice; None if not installed, or disabled by RANDSLOT_OFFICE=none."""
    return None if os.environ.get("RANDSLOT_OFFICE") == "none" else shutil.which("soffice")


# No macros, no external links.
SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Common/Security/Scripting"><prop oor:name="MacroSecurityLevel"><value>3</value>
</prop><prop oor:name="DisableMacrosExecution"><value>true</value></prop>
<prop oor:name="BlockUntrustedRefererLinks"><value>true</value></prop></item>
</oor:items>
"""


def run_office(office: str, file: Path, to: str, folder: Path, seconds: float = 50.0) -> Path:
    """Convert a file with LibreOffice; only one process at a time can use its profile."""
    profile = find_cache() / "libreoffice"
    settings = profile / "user" / "registrymodifications.xcu"
    if not settings.is_file():
        settings.parent.mkdir(parents=True, exist_ok=True)
        write_whole(settings, SETTINGS.encode())
    command = [office, "--headless", "--norestore", "--nolockcheck", f"-env:UserInstallation={profile.as_uri()}"]
    command += ["--convert-to", to, "--outdir", str(folder), str(file.absolute())]
    with FileLock(profile / "lock"):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise RandSlotError(f"{file} timed out in LibreOffice after {seconds:g} s") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    output = folder / f"{file.stem}.{to}"
    if not output.is_file():
        raise RandSlotError(f"{file} cannot be read by LibreOffice: is it damaged?")
    return output


# -- plain pages


class Typesetter:
    """Typesets the blocks of a document on the pages of a PDF. Lengths are in points.

    texts: texts of finished pages, with boxes of words and fields.
    """

    margin = 56.0

    def __init__(self, document: Document) -> None:
        self.document = document
        self.width, self.height = (842.0, 595.0) if document.is_wide else (595.0, 842.0)
        self.line_width = self.width - 2 * self.margin
        self.canvas = Canvas("", pagesize=(self.width, self.height), pageCompression=1)
        self.canvas.setTitle(document.title)
        self.regular, self.bold = find_fonts()
        self.texts: list[dict[str, Any]] = []
        self.above: list[str] = []  # headings above the next block, by level
        self._start_page()

    def _start_page(self) -> None:
        self.y = self.height - self.margin
        self.lines: list[str] = []
        self.boxes: list[tuple[float, float, float, float]] = []
        self.headings: list[str] = []
        self.sections = list(self.above)

    def run(self) -> Iterator[int]:
        """Typeset all blocks; yield the number of finished pages after each."""
        rows: list[Sequence[str]] = []
        for block in self.document.blocks:
            if block.kind == "row":
                rows.append(block.cells)
                continue
            yield from self._set_table(rows)
            rows = []
            if block.kind == "page":
                self._end_page()
            elif block.kind == "heading":
                self._set_heading(block)
            else:
                self._set_lines(block.text, self.regular, 10.5)
            yield len(self.texts)
        yield from self._set_table(rows)
        self._end_page(last=True)

    def _end_page(self, last: bool = False) -> None:
        """Finish a page, unless it is empty; a document has at least one page."""
        if not self.lines and not (last and not self.texts):
            return
        fields = {"title": self.document.title, "heading": "\n".join(self.headings)}
        fields["section"] = "\n".join(dict.fromkeys([*self.sections, *self.headings]))
        fields = {name: value[:2000] for name, value in fields.items() if value}
        boxes = base64.b64encode(pack_boxes(self.boxes)).decode()
        self.texts.append({"text": "\n".join(self.lines), "boxes": boxes, "fields": fields})
        self.canvas.showPage()
        self._start_page()

    def _set_heading(self, block: Block) -> None:
        text = " ".join(block.text.split())
        if not text:
            return
        size = {1: 20.0, 2: 16.0}.get(block.level, 13.0)
        if self.y - 4 * size < self.margin:
            self._end_page()
        if self.lines:
            self.y -= 0.6 * size
        self.above[block.level - 1 :] = [text]
        self.headings.append(text)
        self._set_lines(text, self.bold, size)
        self.y -= 0.3 * size

    def _set_lines(self, text: str, font: str, size: float) -> None:
        for line in wrap(text, font, size, self.line_width) or [""]:
            if self.y - 1.35 * size < self.margin:
                self._end_page()
            if not line.strip() and not self.lines:
                continue  # start no page with blank lines: it may have no others
            self.y -= 1.35 * size
            if words := self._draw(line, font, size, self.margin):
                self.lines.append(" ".join(words))

    def _set_table(self, rows: Sequence[Sequence[str]]) -> Iterator[int]:
        """Typeset rows in columns proportional to their longest texts; yield the number of finished pages."""
        size = 9.0
        longest = [4] * max((len(row) for row in rows), default=0)
        for row in rows:
            for i, cell in enumerate(row):
                longest[i] = max(longest[i], min(len(cell), 40))
        for row in rows:
            widths = [self.line_width * length / sum(longest) for length in longest]
            cells = [
                wrap(cell, self.regular, size, max(width - 8, size)) for cell, width in zip(row, widths, strict=False)
            ]
            height = 1.35 * size * min(max(map(len, cells), default=0), 40) + 4
            if self.y - height < self.margin:
                self._end_page()
            words: list[str] = []
            top, x = self.y, self.margin
            for lines, width in zip(cells, widths, strict=False):
                for i, line in enumerate(lines[:40]):
                    self.y = top - 1.35 * size * (i + 1)
                    words += self._draw(line, self.regular, size, x)
                x += width
            if not words:  # nothing, or nothing that can be printed
                self.y = top
                continue
            self.y = top - height
            self.lines.append(" ".join(words))
            self.canvas.setLineWidth(0.3)
            self.canvas.setStrokeGray(0.7)
            self.canvas.line(self.margin, self.y, self.margin + self.line_width, self.y)
            yield len(self.texts)

    def _draw(self, line: str, font: str, size: float, x: float) -> list[str]:
        """Draw one line at the current height; return its words."""
        words = line.split()
        if not words:
            return []
        self.canvas.setFont(font, size)
        self.canvas.drawString(x, self.y, line)
        top, bottom = 1 - (self.y + size) / self.height, 1 - (self.y - 0.25 * size) / self.height
        end = 0
        for word in words:
            start = line.index(word, end)
            end = start + len(word)
            left = x + pdfmetrics.stringWidth(line[:start], font, size)
            right = left + pdfmetrics.stringWidth(word, font, size)
            self.boxes.append((left / self.width, top, right / self.width, bottom))
        return words


def wrap(text: str, font: str, size: float, width: float) -> list[str]:
    """Wrap a text into lines; split words that are wider than a line."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        shown = "".join(character for character in paragraph.expandtabs(4) if character.isprintable())
        line = shown[: len(shown) - len(shown.lstrip())][:40]  # keep the indentation of code
        for word in shown.split():
            for part in split_word(word, font, size, width):
                longer = f"{line} {part}" if line.strip() else line + part
                if line.strip() and pdfmetrics.stringWidth(longer, font, size) > width:
                    lines.append(line)
                    longer = part
                line = longer
        lines.append(line)
    return lines


def split_word(word: str, font: str, size: float, width: float) -> Iterable[str]:
    """Split a word into parts that fit into a line: Chinese has no spaces, and URLs are long."""
    num = max(int(width / size), 1)  # of the widest characters
    if len(word) <= num or pdfmetrics.stringWidth(word, font, size) <= width:
        return [word]
    return [word[start : start + num] for start in range(0, len(word), num)]


@cache
def find_fonts() -> tuple[str, str]:
    """Return the names of a regular and a bold font: of the system, which have more scripts, or of reportlab."""
    folders = ["/usr/share/fonts", "/usr/local/share/fonts", "/Library/Fonts", "/System/Library/Fonts/Supplemental"]
    pairs = [("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"), ("Arial Unicode.ttf", "Arial Bold.ttf")]
    pairs += [("NotoSans-Regular.ttf", "NotoSans-Bold.ttf"), ("Vera.ttf", "VeraBd.ttf")]
    for pair in pairs:
        try:
            for name in pair:
                found = next((path for folder in folders for path in Path(folder).rglob(name)), name)
                pdfmetrics.registerFont(TTFont(Path(name).stem, str(found)))
        except TTFError:  # not installed
            continue
        return Path(pair[0]).stem, Path(pair[1]).stem
    raise AssertionError("reportlab includes Vera")
