"""Build the handbook: the pages of the site as one PDF with contents, bookmarks and page numbers.

    python -m research.handbook              # writes src/randslot/handbook.pdf

Markdown becomes HTML (markdown-it-py, which comes with rich), and Chromium prints it. A chapter is a page of docs/, in
the order of the site's navigation (zensical.toml), except the reference, which duplicates `--help` and docstrings, the
log, reports of studies, and the notebooks. The build is reproducible. handbook.json beside it has questions for the
demo; their pages are located by the words of the answers.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import json
import re
import shutil
import struct
import sys
import zlib
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pypdfium2
from docs_site import DOCS, make_slug, read_nav
from markdown_it import MarkdownIt
from markdown_it.token import Token
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import randslot
from randslot.pages import Page, num_pages

ROOT = Path(__file__).resolve().parent.parent
HANDBOOK = ROOT / "src" / "randslot" / "handbook.pdf"
QUESTIONS = HANDBOOK.with_suffix(".json")
STYLE = Path(__file__).with_suffix(".css")
DATE = "20261117000000"  # a fixed timestamp for reproducible builds
# Excluded: generated pages, and long evidence.
LEFT_OUT = ("reference.md",)
LINES = {98: "short", 108: "middle", 10**6: "long"}  # the size of code by the characters of its longest line
COLUMNS = {5: "narrow", 8: "middle", 11: "wide", 10**6: "widest"}  # the size of a table by its columns
WIDTH = 643  # of the text in CSS pixels: 170 mm
MAX_BYTES = 1_500_000
PIXELS, COLOURS = 900, 48  # of a picture: its width, and how many
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
NUMBER = re.compile(r"[-+]?[\d,. ]+(e-?\d+)?( ?± ?.*| ?x .*| ?to .*| ?of .*| ?%)?|-|whole")
HYPHENS = re.compile(r"[\w-]*\w-\w[\w-]{,30}")
BREAKS = re.compile(r"(?<=[/_.=,?&|])(?=\w)")
COMMENT = re.compile(r"(?:(?<=\s)|^)#(?!page=).*$")


@dataclass
class Heading:
    """A chapter (level 1) or section, and its anchor."""

    level: int
    text: str
    anchor: str


@dataclass
class Chapter:
    """A Markdown file: its headings, starting with the title, and the HTML after the title."""

    file: Path
    tokens: list[Token]
    headings: list[Heading] = field(default_factory=list)
    html: str = ""
    tight: bool = False  # set in a smaller size if that saves a page

    @property
    def name(self) -> str:
        return self.file.stem.lower()


def find_files() -> list[Path]:
    """Return the files of the chapters in the order of the site."""
    files = [DOCS / name for name in read_nav()]
    return [file for file in files if file.suffix == ".md" and file.parent == DOCS and file.name not in LEFT_OUT]


def read_chapter(file: Path, markdown: MarkdownIt) -> Chapter:
    """Parse a file; give its headings GitHub's anchors, prefixed with the name of the chapter."""
    chapter = Chapter(file, markdown.parse(file.read_text(encoding="utf-8")))
    for token, inline in itertools.pairwise(chapter.tokens):
        if token.type != "heading_open":
            continue
        text = "".join(child.content for child in inline.children or [])
        anchor = f"{chapter.name}-{make_slug(text)}" if chapter.headings else chapter.name
        chapter.headings.append(Heading(int(token.tag[1]), text, anchor))
        token.attrSet("id", anchor)
    if not chapter.headings or chapter.headings[0].level != 1:
        sys.exit(f"{file} has no title. Begin it with a line '# Title'.")
    return chapter


class Layout:
    """Turns the tokens of chapters into HTML: figures, tables, code and links."""

    def __init__(self, chapters: list[Chapter], markdown: MarkdownIt) -> None:
        self.markdown = markdown
        self.files = {chapter.file for chapter in chapters}
        self.anchors = {heading.anchor for chapter in chapters for heading in chapter.headings}
        self.num_figures = 0

    def lay_out(self, chapter: Chapter) -> str:
        """Return the HTML of a chapter without its title."""
        tokens: list[Token] = []
        rest = chapter.tokens[3:]
        while rest:
            if rest[0].type == "table_open":
                end = next(i for i, token in enumerate(rest) if token.type == "table_close") + 1
                _mark_table(rest[:end])
            else:
                end = 3 if rest[0].type == "paragraph_open" else 1
            tokens += self._block(rest[:end], chapter)
            rest = rest[end:]
        return str(self.markdown.renderer.render(tokens, self.markdown.options, {}))

    def _block(self, tokens: list[Token], chapter: Chapter) -> list[Token]:
        is_head = False
        for token in tokens:
            children = token.children or []
            if [child.type for child in children] == ["image"]:
                return [self._figure(children[0], chapter)]
            if [child.type for child in children] == ["link_open", "image", "link_close"]:
                return []  # an image that links to its own chapter
            token.children = self._inline(children, chapter, is_head)
            is_head = token.type == "th_open"
        if tokens[0].type == "fence":
            return [_html(_code(tokens[0].content))]
        if tokens[0].type == "paragraph_open" and tokens[1].content.startswith("`python benchmarks/"):
            tokens[0].attrSet("class", "made")
        return tokens

    def _inline(self, children: list[Token], chapter: Chapter, is_head: bool) -> list[Token]:
        """Rewrite links to point into the handbook, drop links to other files, and allow line breaks in long words.

        is_head: in a column head, which is too narrow for unbroken words.
        """
        kept, open_links = [], []
        for child in children:
            if child.type == "link_open":
                target = self._target(str(child.attrs["href"]), chapter)
                open_links.append(target)
                child.attrSet("href", target or "")
            if child.type == "code_inline":
                kept.append(_html(f"<code>{_breakable(child.content)}</code>"))
            elif child.type == "text" and not is_head:
                kept.append(_html(_whole(child.content)))
            elif child.type not in ("link_open", "link_close") or open_links[-1]:
                kept.append(child)
            if child.type == "link_close":
                open_links.pop()
        return kept

    def _target(self, href: str, chapter: Chapter) -> str | None:
        if "://" in href:
            return href
        path, _, section = href.partition("#")
        file = (chapter.file.parent / path).resolve() if path else chapter.file
        if file not in self.files:
            return None  # the reference, a notebook, a file of the repository
        anchor = f"{file.stem.lower()}-{section}" if section else file.stem.lower()
        if anchor in self.anchors:
            return f"#{anchor}"
        sys.exit(f"{chapter.file}: broken link {href}")

    def _figure(self, image: Token, chapter: Chapter) -> Token:
        self.num_figures += 1
        file = (chapter.file.parent / str(image.attrs["src"])).resolve()
        if not file.is_file():
            sys.exit(f"{chapter.file}: image {file} does not exist")
        content = _shrink(file) if file.suffix == ".png" else file.read_bytes()
        data = f"data:{KINDS[file.suffix]};base64,{base64.b64encode(content).decode()}"
        caption = f"<b>Figure {self.num_figures}.</b> {escape(image.content)}."
        return _html(f'<figure><img src="{data}" alt=""><figcaption>{caption}</figcaption></figure>\n')


def _shrink(file: Path) -> bytes:
    """Reduce the colours of an image for print: a PDF compresses pixels less than PNG."""
    picture = Image.open(file).convert("RGB")
    if picture.width > PIXELS:
        picture = picture.resize((PIXELS, picture.height * PIXELS // picture.width), Image.Resampling.LANCZOS)
    shrunk = io.BytesIO()
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # keep rare colours
    few.save(shrunk, "PNG")
    return shrunk.getvalue()


def _html(html: str) -> Token:
    return Token("html_block", "", 0, content=html)


def _whole(text: str) -> str:
    """Keep hyphenated words on one line: PDF readers drop a hyphen at the end of a line."""
    return HYPHENS.sub(r'<span class="whole">\g<0></span>', escape(text, quote=False))


def _breakable(code: str) -> str:
    """Allow long names and paths to be broken after a slash, an underscore and the like."""
    return "<wbr>".join(_whole(part) for part in (BREAKS.split(code) if len(code) >= 18 else [code]))


def _code(code: str) -> str:
    """Return a block of code line by line, so that wrapped lines are indented."""
    lines = []
    for line in code.rstrip("\n").split("\n"):
        comment = COMMENT.search(line)
        cut = comment.start() if comment else len(line)
        note = f"<i>{escape(line[cut:])}</i>" if comment else ""
        lines.append(f'<span class="line">{escape(line[:cut])}{note}\n</span>')
    longest = max(map(len, code.split("\n")))
    size = next(size for room, size in LINES.items() if longest <= room)
    keep = " keep" if len(lines) <= 30 else ""
    return f'<pre class="{size}{keep}">{"".join(lines)}</pre>\n'


def _mark_table(tokens: list[Token]) -> None:
    """Give a table a class by its width, and align the columns that hold numbers only."""
    rows: list[list[tuple[Token, Token]]] = []
    for token, inline in itertools.pairwise(tokens):
        if token.type == "tr_open":
            rows.append([])
        if token.type in ("th_open", "td_open"):
            rows[-1].append((token, inline))
    head, *body = rows
    for column, (title, _) in enumerate(head):
        if all(NUMBER.fullmatch(row[column][1].content) for row in body):
            for cell in [title, *(row[column][0] for row in body)]:
                cell.attrSet("class", "number")
    size = next(size for columns, size in COLUMNS.items() if len(head) <= columns)
    bare = "" if any(inline.content for _, inline in head) else " bare"
    keep = " keep" if len(rows) <= 9 else ""
    tokens[0].attrSet("class", size + bare + keep)


def make_html(chapters: list[Chapter], pages: dict[str, int]) -> str:
    """Return the complete document; pages: the known page numbers for the table of contents."""
    feet = "".join(
        f'@page {chapter.name} {{ @bottom-left {{ content: "{chapter.headings[0].text}" }} }}\n' for chapter in chapters
    )
    lines = []
    for number, chapter in enumerate(chapters, start=1):
        entries = "".join(_entry(heading, pages, number) for heading in chapter.headings if heading.level <= 2)
        lines.append(f'<div class="entries">{entries}</div>')
    bodies = "".join(
        f'<section class="{"tight" if chapter.tight else ""}" style="page: {chapter.name}">'
        f'<p class="count">{number}</p><h1 id="{chapter.name}">{escape(chapter.headings[0].text)}</h1>\n'
        f"{chapter.html}</section>\n"
        for number, chapter in enumerate(chapters, start=1)
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>RandSlot handbook</title>'
        f"<style>{STYLE.read_text(encoding='utf-8')}{feet}</style></head><body>{_title_page()}"
        f'<nav><p class="title">Contents</p><div class="columns">{"".join(lines)}</div></nav>{bodies}</body></html>'
    )


def _title_page() -> str:
    """Content and three slots that are appended to it, as in the figure of the overview."""
    content = "".join(f'<rect x="{i * 30}" width="24" height="24" rx="3" class="content"/>' for i in range(9))
    slots = "".join(f'<rect x="{270 + i * 30}" width="24" height="24" rx="3" class="slot"/>' for i in range(3))
    lines = "".join(f'<path d="M{252 + i * 30} -10v-34" class="readout"/>' for i in range(4))
    dots = "".join(f'<circle cx="{252 + i * 30}" cy="-52" r="8" class="readout"/>' for i in range(4))
    return (
        f'<header><svg viewBox="0 -62 360 90">{content}{slots}{lines}{dots}</svg>'
        f'<p class="name">RandSlot</p><p class="handbook">The handbook</p>'
        f'<p class="about">Search PDFs, slides and scans by asking questions, on your own machine.</p>'
        f'<p class="version">Version {randslot.__version__}</p></header>'
    )


def _entry(heading: Heading, pages: dict[str, int], number: int) -> str:
    title = f"{number}&ensp;{escape(heading.text)}" if heading.level == 1 else escape(heading.text)
    page = pages.get(heading.anchor, 0)
    return f'<a class="level{heading.level}" href="#{heading.anchor}"><span>{title}</span> <b>{page}</b></a>'


def print_pdf(html: str, browser: Browser) -> bytes:
    """Print a self-contained document, offline; fail if a table is too wide."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
    page.set_content(html, wait_until="load")
    page.evaluate("Promise.all([...document.images].map(image => image.decode()))")
    wide = page.evaluate(f"[...document.querySelectorAll('table')].filter(t => t.offsetWidth > {WIDTH})[0]?.innerText")
    if wide:
        sys.exit(f"a table is too wide for the page: {wide[:200]}")
    pdf = page.pdf(prefer_css_page_size=True, print_background=True, outline=True, tagged=True)
    page.close()
    return pdf


def count_pages(pdf: bytes, chapters: list[Chapter]) -> dict[str, int]:
    """Return the number of pages of each chapter."""
    pages = find_pages(pdf, chapters)
    starts = [*(pages[chapter.name] for chapter in chapters), len(pypdfium2.PdfDocument(pdf)) + 1]
    lengths = [after - start for start, after in itertools.pairwise(starts)]
    return {chapter.name: length for chapter, length in zip(chapters, lengths, strict=True)}


def find_pages(pdf: bytes, chapters: list[Chapter]) -> dict[str, int]:
    """Return the page number of every heading, from the bookmarks, which are in the order of the headings."""
    document = pypdfium2.PdfDocument(pdf)
    marks = [(mark.get_title(), mark.get_dest().get_index() + 1) for mark in document.get_toc()]
    headings = [heading for chapter in chapters for heading in chapter.headings]
    if [title for title, _ in marks] != [heading.text for heading in headings]:
        for (title, _), heading in zip(marks, headings, strict=False):
            if title != heading.text:
                sys.exit(f"bookmark {title!r} of the PDF does not match heading {heading.text!r}")
        sys.exit(f"the PDF has {len(marks)} bookmarks, and the files have {len(headings)} headings")
    return {heading.anchor: page for heading, (_, page) in zip(headings, marks, strict=True)}


def pack(pdf: bytes) -> bytes:
    """Compress the small objects of a PDF, which Chromium does not do: halves the size with tags.

    Bookmarks need tags, and tags are thousands of objects. They go into an object stream, the table of objects becomes
    a cross-reference stream (both PDF 1.5), and all other streams stay as they are.
    """
    table = int(pdf[pdf.rindex(b"startxref") :].split()[1])
    entries = re.findall(rb"(\d{10}) \d{5} ([nf])", pdf[table:])
    ends = dict(itertools.pairwise([*sorted(int(start) for start, kind in entries if kind == b"n"), table]))
    packed, small = bytearray(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n"), dict[int, bytes]()
    places = {0: (0, 0, 0)}  # of each object: its kind, then its offset, or the stream that holds it and its place
    for number, (start, kind) in enumerate(entries):
        if kind == b"f":
            continue
        whole = pdf[int(start) : ends[int(start)]]
        body = whole[whole.index(b"obj") + 3 : whole.rindex(b"endobj")].strip()
        if body.endswith(b"endstream"):
            places[number] = (1, len(packed), 0)
            packed += b"%d 0 obj\n%s\nendobj\n" % (number, body)
        else:
            small[number] = body
    holder = len(entries)
    starts = itertools.accumulate((len(body) + 1 for body in small.values()), initial=0)
    heads = b" ".join(b"%d %d" % pair for pair in zip(small, starts, strict=False)) + b"\n"
    places |= {number: (2, holder, place) for place, number in enumerate(small)} | {holder: (1, len(packed), 0)}
    keys = b"/Type /ObjStm /N %d /First %d" % (len(small), len(heads))
    packed += _stream(holder, keys, heads + b"\n".join(small.values()))
    places[holder + 1] = (1, len(packed), 0)
    rows = b"".join(struct.pack(">BIH", *places.get(number, (0, 0, 0))) for number in range(holder + 2))
    owners = b" ".join(re.findall(rb"/(?:Root|Info) \d+ 0 R", pdf[pdf.rindex(b"trailer") :]))
    table = len(packed)
    packed += _stream(holder + 1, b"/Type /XRef /Size %d /W [1 4 2] %s" % (holder + 2, owners), rows)
    return bytes(packed + b"startxref\n%d\n%%%%EOF\n" % table)


def _stream(number: int, keys: bytes, data: bytes) -> bytes:
    data = zlib.compress(data, 9)
    keys += b" /Filter /FlateDecode /Length %d" % len(data)
    return b"%d 0 obj\n<<%s>>\nstream\n%s\nendstream\nendobj\n" % (number, keys, data)


def make_handbook(chromium: str) -> bytes:
    """Print twice to choose the tight chapters, then once to find page numbers, then with them."""
    markdown = MarkdownIt("commonmark").enable("table")
    chapters = [read_chapter(file, markdown) for file in find_files()]
    layout = Layout(chapters, markdown)
    for chapter in chapters:
        chapter.html = layout.lay_out(chapter)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        loose = count_pages(print_pdf(make_html(chapters, {}), browser), chapters)
        for chapter in chapters:
            chapter.tight = True
        tight = count_pages(print_pdf(make_html(chapters, {}), browser), chapters)
        for chapter in chapters:
            chapter.tight = tight[chapter.name] < loose[chapter.name]
        pages = find_pages(print_pdf(make_html(chapters, {}), browser), chapters)
        pdf = print_pdf(make_html(chapters, pages), browser)
        browser.close()
    if find_pages(pdf, chapters) != pages:
        sys.exit("page numbers changed the pages: give the contents a fixed width")
    return pack(_hide_machine(pdf))


def _hide_machine(pdf: bytes) -> bytes:
    """Replace timestamps and the browser's name by strings of the same length, to keep the offset table valid."""
    pdf = re.sub(rb"\(D:\d{14}", b"(D:" + DATE.encode(), pdf)
    return re.sub(rb"/Creator \((\\.|[^\\)])*\)", lambda found: b"/Creator (RandSlot)".ljust(len(found[0])), pdf)


def find_answers(file: Path) -> str:
    """Return the questions as JSON, each with the first page after the contents that has the words of its answer."""
    texts = [" ".join(Page(file, number).text().text.split()) for number in range(1, num_pages(file) + 1)]
    questions = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    for question in questions:
        pages = [number for number, text in enumerate(texts, start=1) if question["answer"] in text]
        if not pages:
            sys.exit(f"{QUESTIONS}: no page has the answer {question['answer']!r}. Reword the answer.")
        question["page"] = pages[0]
    return json.dumps(questions, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed. Run apt-get install chromium")
    pdf = make_handbook(chromium)
    if len(pdf) > MAX_BYTES:
        sys.exit(f"the handbook has {len(pdf):,} bytes, more than {MAX_BYTES:,}. Shrink an image.")
    HANDBOOK.write_bytes(pdf)
    QUESTIONS.write_text(find_answers(HANDBOOK), encoding="utf-8")
    print(f"{HANDBOOK}: {len(pypdfium2.PdfDocument(pdf))} pages, {len(pdf) // 1024} KB")


if __name__ == "__main__":
    main()
