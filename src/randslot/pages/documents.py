"""Read documents without pages (Office files, web pages, mail, notes) as lists of blocks.

It runs no macros, follows no links and loads no external entities.
"""

from __future__ import annotations

import csv
import email
import email.policy
import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from xml.etree import ElementTree

from ..errors import RandSlotError
from ..extras import needs_extra

MAX_UNPACKED = 500 * 2**20  # uncompressed bytes of a zip file


@dataclass(frozen=True)
class Block:
    """A heading (level 1 to 6), a paragraph, a table row, or a page break."""

    kind: Literal["heading", "text", "row", "page"]
    text: str = ""
    level: int = 1
    cells: tuple[str, ...] = ()


@dataclass
class Document:
    """The title and content of a document. is_wide: landscape pages."""

    title: str = ""
    blocks: list[Block] = field(default_factory=list)
    is_wide: bool = False


def read_document(file: Path) -> Document:
    """Read a document by its suffix. Errors: RandSlotError if it is damaged, empty or too large."""
    suffix = file.suffix.lower()
    try:
        return READERS[suffix](file)
    except (RandSlotError, FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as error:  # parsers can fail in any way on a damaged file
        raise RandSlotError(f"{file} is damaged or not a {suffix} file: {type(error).__name__}: {error}") from error


def check_unpacked(file: Path) -> None:
    """Reject zip bombs before any program opens the file."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if sum(part.file_size for part in archive.infolist()) > MAX_UNPACKED:
                raise RandSlotError(f"{file} unpacks to more than {MAX_UNPACKED >> 20} MB")


# -- text


def decode(content: bytes) -> str:
    """Decode text as UTF-8 or UTF-16, with Windows-1252 as fallback."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def read_text(file: Path) -> Document:
    return Document(blocks=list(split_paragraphs(decode(file.read_bytes()))))


def split_paragraphs(text: str) -> Iterator[Block]:
    """Yield a block per line; empty lines separate paragraphs, form feeds pages."""
    for i, page in enumerate(text.split("\f")):
        if i:
            yield Block("page")
        for line in page.splitlines():
            yield Block("text", line.rstrip())


def read_markdown(file: Path) -> Document:
    document = Document()
    in_code = False
    for block in split_paragraphs(decode(file.read_bytes())):
        in_code ^= block.text.startswith("```")
        heading = None if in_code else re.fullmatch(r"(#{1,6})\s+(.*?)\s*#*", block.text)
        if heading:
            document.title = document.title or heading[2]
            block = Block("heading", heading[2], len(heading[1]))
        elif not in_code and re.fullmatch(r"\s*\|.*\|\s*", block.text):
            cells = tuple(cell.strip() for cell in block.text.strip().strip("|").split("|"))
            if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                continue
            block = Block("row", cells=cells)
        document.blocks.append(block)
    return document


def read_csv(file: Path) -> Document:
    text = decode(file.read_bytes())
    try:
        dialect: type[csv.Dialect] | str = csv.Sniffer().sniff(text[:10_000], ",;\t|")
    except csv.Error:
        dialect = "excel"
    document = Document(is_wide=True)
    for row in csv.reader(io.StringIO(text), dialect):
        document.blocks.append(Block("row", cells=tuple(row)))
    return document


# -- web pages and books


class HtmlReader(HTMLParser):
    """Collects the visible text of a web page."""

    BREAKS = re.compile(
        "address|article|aside|blockquote|br|dd|div|dl|dt|figcaption|footer|form|header|hr|li|main|ol|p|pre|section|table|ul"
    )
    HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "nav"})

    def __init__(self) -> None:
        super().__init__()
        self.document = Document()
        self.hidden = 0
        self.text: list[str] = []
        self.row: list[str] | None = None
        self.level = 0
        self.in_title = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in self.HIDDEN:
            self.hidden += 1
        elif tag == "title":
            self.in_title = True
        elif re.fullmatch(r"h[1-6]", tag):
            self.end_block()
            self.level = int(tag[1])
        elif tag == "tr":
            self.end_block()
            self.row = []
        elif self.BREAKS.fullmatch(tag) and self.row is None:
            self.end_block()
        elif tag == "img" and (alt := dict(attributes).get("alt")):
            self.text.append(f" {alt} ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.HIDDEN:
            self.hidden = max(self.hidden - 1, 0)
        elif tag == "title":
            self.in_title = False
        elif tag in ("td", "th") and self.row is not None:
            self.row.append(self.take_text())
        elif tag == "tr" and self.row is not None:
            if any(self.row):
                self.document.blocks.append(Block("row", cells=tuple(self.row)))
            self.row = None
        elif re.fullmatch(r"h[1-6]", tag) or (self.BREAKS.fullmatch(tag) and self.row is None):
            self.end_block()

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.document.title += data
        elif not self.hidden:
            self.text.append(data)

    def take_text(self) -> str:
        text = " ".join("".join(self.text).split())
        self.text.clear()
        return text

    def end_block(self) -> None:
        """Add the text since the last block as a heading or a paragraph."""
        text = self.take_text()
        if text:
            self.document.blocks.append(Block("heading", text, self.level) if self.level else Block("text", text))
        self.level = 0


def read_html_text(text: str) -> Document:
    reader = HtmlReader()
    reader.feed(text)
    reader.close()
    reader.end_block()
    reader.document.title = " ".join(reader.document.title.split())
    return reader.document


def read_html(file: Path) -> Document:
    content = file.read_bytes()
    declared = re.search(rb"charset=[\"']?([\w-]+)", content[:2000])
    if declared:
        try:
            return read_html_text(content.decode(declared[1].decode(), "replace"))
        except LookupError:
            pass
    return read_html_text(decode(content))


def read_epub(file: Path) -> Document:
    """Read the chapters of a book in order, each on a new page."""
    document = Document()
    with zipfile.ZipFile(file) as archive:
        package_name = find_package(archive)
        package = parse_xml(archive.read(package_name))
        items: dict[str, str] = {}
        for element in package.iter():
            name = element.tag.rpartition("}")[2]
            if name == "title" and not document.title:
                document.title = (element.text or "").strip()
            elif name == "item":
                items[element.attrib["id"]] = element.attrib["href"]
            elif name == "itemref" and element.attrib["idref"] in items:
                part = str(PurePosixPath(package_name).parent / items[element.attrib["idref"]])
                chapter = read_html_text(decode(archive.read(part)))
                document.blocks += [Block("page"), *chapter.blocks]
    return document


def find_package(archive: zipfile.ZipFile) -> str:
    """Return the name of an EPUB's package document, which lists all parts."""
    container = parse_xml(archive.read("META-INF/container.xml"))
    return next(root.attrib["full-path"] for root in container.iter() if root.tag.endswith("}rootfile"))


def parse_xml(content: bytes) -> ElementTree.Element:
    """Parse XML; reject document types, which entity attacks need."""
    if b"<!DOCTYPE" in content[:2000] or b"<!ENTITY" in content:
        raise RandSlotError("its XML declares a document type or entities, which are unsafe")
    return ElementTree.fromstring(content)


# -- mail


def read_mail(file: Path) -> Document:
    message = email.message_from_bytes(file.read_bytes(), policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    subject = str(message.get("subject", "")).strip()
    document = Document(subject, [Block("heading", subject)] if subject else [])
    for name in ("from", "to", "cc", "date"):
        if value := message.get(name):
            document.blocks.append(Block("text", f"{name.capitalize()}: {value}"))
    body = message.get_body(("plain", "html"))
    if body is not None:
        text = body.get_content()
        is_html = body.get_content_type() == "text/html"
        document.blocks += [Block("text"), *(read_html_text(text).blocks if is_html else split_paragraphs(text))]
    for attachment in message.iter_attachments():
        document.blocks.append(Block("text", f"Attachment: {attachment.get_filename() or 'without a name'}"))
    return document


def read_outlook(file: Path) -> Document:
    about = read_outlook_properties(file)
    document = Document(about["title"], [Block("heading", about["title"])] if about["title"] else [])
    for label, name in (("From", "author"), ("To", "to"), ("Cc", "cc")):
        if about[name]:
            document.blocks.append(Block("text", f"{label}: {about[name]}"))
    document.blocks += [Block("text"), *split_paragraphs(about["body"])]
    for name in filter(None, about["attachments"].split("\n")):
        document.blocks.append(Block("text", f"Attachment: {name}"))
    return document


def read_outlook_properties(file: Path) -> dict[str, str]:
    """Read an Outlook message: a compound file with a stream per property; some end with NUL."""
    with needs_extra():
        import olefile

    numbers = {"title": "0037", "author": "0C1A", "to": "0E04", "cc": "0E03", "head": "007D", "body": "1000"}
    found = dict.fromkeys(numbers, "")
    with olefile.OleFileIO(file) as message:
        for name, number in numbers.items():
            for kind, encoding in (("001F", "utf-16-le"), ("001E", "cp1252")):
                if message.exists(f"__substg1.0_{number}{kind}"):
                    content = message.openstream(f"__substg1.0_{number}{kind}").read()
                    found[name] = content.decode(encoding, "replace").rstrip("\0")
                    break
        names = [path for path in message.listdir() if path[-1] == "__substg1.0_3707001F"]
        attachments = [message.openstream(path).read().decode("utf-16-le", "replace").rstrip("\0") for path in names]
    sent = re.search(r"(?im)^date:\s*(.+)$", found["head"])  # from the mail headers
    found |= {"title": found["title"].strip(), "date": sent[1] if sent else "", "attachments": "\n".join(attachments)}
    return found


# -- Office


def read_docx(file: Path) -> Document:
    with needs_extra():
        import docx
        from docx.table import Table

    content = docx.Document(str(file))
    document = Document(content.core_properties.title or "")
    for item in content.iter_inner_content():
        if isinstance(item, Table):
            for row in item.rows:
                document.blocks.append(Block("row", cells=tuple(cell.text for cell in row.cells)))
            continue
        style = item.style.name if item.style is not None else ""
        level = re.fullmatch(r"Heading (\d)", style or "")
        if style == "Title" or level:
            document.blocks.append(Block("heading", item.text, int(level[1]) if level else 1))
        else:
            document.blocks += split_paragraphs(item.text) if item.text else [Block("text")]
    return document


def read_pptx(file: Path) -> Document:
    with needs_extra():
        import pptx

    slides = pptx.Presentation(str(file))
    document = Document(slides.core_properties.title or "", is_wide=True)
    for slide in slides.slides:
        document.blocks.append(Block("page"))
        title = slide.shapes.title
        if title is not None and title.has_text_frame:
            document.blocks.append(Block("heading", title.text_frame.text))
        for shape in _list_shapes(slide.shapes):
            if shape.has_text_frame and (title is None or shape.shape_id != title.shape_id):
                document.blocks += split_paragraphs(shape.text_frame.text)
            if getattr(shape, "has_table", False):
                for row in shape.table.rows:
                    document.blocks.append(Block("row", cells=tuple(cell.text for cell in row.cells)))
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            document.blocks += [Block("text"), *split_paragraphs(slide.notes_slide.notes_text_frame.text)]
    return document


def _list_shapes(shapes: Any) -> Iterator[Any]:
    """Yield the shapes of a slide, including those in groups."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _list_shapes(shape.shapes)
        else:
            yield shape


def read_xlsx(file: Path) -> Document:
    with needs_extra():
        import openpyxl

    workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
    document = Document(workbook.properties.title or "", is_wide=True)
    for sheet in workbook.worksheets:
        document.blocks += [Block("page"), Block("heading", sheet.title)]
        for row in islice(sheet.iter_rows(values_only=True), 100_000):
            cells = tuple("" if cell is None else str(cell) for cell in row)
            if any(cells):
                document.blocks.append(Block("row", cells=cells))
    workbook.close()
    return document


def read_opendocument(file: Path) -> Document:
    """Read OpenDocument text, slides or sheets, which share their element names."""
    with zipfile.ZipFile(file) as archive:
        content = parse_xml(archive.read("content.xml"))
        about = parse_xml(archive.read("meta.xml")) if "meta.xml" in archive.namelist() else ElementTree.Element("none")
    titles = [element.text or "" for element in about.iter() if element.tag.endswith("}title")]
    document = Document(titles[0] if titles else "", is_wide=file.suffix.lower() in (".odp", ".ods"))

    def visit(element: ElementTree.Element) -> None:
        namespace, _, name = element.tag.rpartition("}")
        if name == "h":
            document.blocks.append(Block("heading", _get_text(element), 2))
        elif name == "p":
            document.blocks.append(Block("text", _get_text(element)))
        elif name == "table-row":
            cells = []
            for cell in element:
                if cell.tag.endswith("}table-cell"):
                    cells.append(" ".join(_get_text(part) for part in cell if part.tag.endswith("}p")))
            if any(cells):
                document.blocks.append(Block("row", cells=tuple(cells)))
        else:
            if (name == "page" and "drawing" in namespace) or (name == "table" and file.suffix.lower() == ".ods"):
                title = next((value for key, value in element.attrib.items() if key.endswith("}name")), "")
                document.blocks += [Block("page"), Block("heading", title)]
            for child in element:
                visit(child)

    visit(content)
    return document


def _get_text(element: ElementTree.Element) -> str:
    """Return the text of a paragraph; tabs, line breaks and repeated spaces are one space."""
    parts = [element.text or ""]
    for child in element:
        if child.tag.rpartition("}")[2] in ("s", "tab", "line-break"):
            parts.append(" ")
        parts += [_get_text(child), child.tail or ""]
    return "".join(parts)


def read_rtf(file: Path) -> Document:
    with needs_extra():
        from striprtf.striprtf import rtf_to_text

    return Document(blocks=list(split_paragraphs(rtf_to_text(decode(file.read_bytes()), errors="ignore"))))


READERS: dict[str, Callable[[Path], Document]] = {
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".xlsx": read_xlsx,
    ".odt": read_opendocument,
    ".odp": read_opendocument,
    ".ods": read_opendocument,
    ".rtf": read_rtf,
    ".html": read_html,
    ".htm": read_html,
    ".epub": read_epub,
    ".md": read_markdown,
    ".txt": read_text,
    ".rst": read_text,
    ".tex": read_text,
    ".log": read_text,
    ".csv": read_csv,
    ".eml": read_mail,
    ".msg": read_outlook,
}
