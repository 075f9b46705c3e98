"""Writes small PDFs by hand: with outlines, which pypdfium2 reads but cannot make, and with text as a test wants it."""

from __future__ import annotations

import re
from pathlib import Path

HELVETICA = "/Type /Font /Subtype /Type1 /BaseFont /Helvetica"
GLYPH_NUMBERS = (  # a font that says only which glyphs to draw, and not what they mean
    "/Type /Font /Subtype /Type0 /BaseFont /Unknown /Encoding /Identity-H /DescendantFonts [<< /Type /Font "
    "/Subtype /CIDFontType2 /BaseFont /Unknown /CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) "
    "/Supplement 0 >> /DW 600 /FontDescriptor << /Type /FontDescriptor /FontName /Unknown /Flags 4 /Ascent 800 "
    "/Descent -200 /ItalicAngle 0 /StemV 80 /CapHeight 700 /FontBBox [0 -200 1000 800] >> >>]"
)


def write_pdf(file: Path, num_pages: int, outline: list[tuple[str, int]], size: tuple[int, int] = (200, 280)) -> None:
    """Write a PDF whose pages say their number, with (title, page from 0) outline entries."""
    first_page, first_item = 4, 4 + 2 * num_pages
    kids = " ".join(f"{first_page + 2 * i} 0 R" for i in range(num_pages))
    last_item = first_item + len(outline) - 1
    objects = {
        1: f"<< /Type /Catalog /Pages 2 0 R {'/Outlines 3 0 R' if outline else ''} >>",
        2: f"<< /Type /Pages /Count {num_pages} /Kids [{kids}] >>",
        3: f"<< /Type /Outlines /First {first_item} 0 R /Last {last_item} 0 R /Count {len(outline)} >>",
    }
    if not outline:
        objects[3] = "<< >>"
    for i in range(num_pages):
        objects[first_page + 2 * i] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {size[0]} {size[1]}] /Contents {first_page + 2 * i + 1} 0 R "
            f"/Resources << /Font << /F1 << {HELVETICA} >> >> >> >>"
        )
        objects[first_page + 2 * i + 1] = _stream(f"BT /F1 24 Tf 40 {size[1] - 60} Td (Page {i + 1}) Tj ET")
    for i, (title, page) in enumerate(outline):
        following = f"/Next {first_item + i + 1} 0 R" if i + 1 < len(outline) else ""
        before = f"/Prev {first_item + i - 1} 0 R" if i else ""
        target = f"/Dest [{first_page + 2 * page} 0 R /Fit]"
        objects[first_item + i] = f"<< /Title ({title}) /Parent 3 0 R {target} {following} {before} >>"
    _write_objects(file, objects)


def write_drawings(file: Path, drawings: list[str], font: str = f"{HELVETICA} /Encoding /WinAnsiEncoding") -> None:
    """Write a PDF with a page for each of some strings of drawing operators, with the font /F1."""
    kids = " ".join(f"{3 + 2 * i} 0 R" for i in range(len(drawings)))
    objects = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Count {len(drawings)} /Kids [{kids}] >>",
    }
    for i, drawing in enumerate(drawings):
        objects[3 + 2 * i] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 600] /Contents {4 + 2 * i} 0 R "
            f"/Resources << /Font << /F1 << {font} >> >> >> >>"
        )
        objects[4 + 2 * i] = _stream(drawing)
    _write_objects(file, objects)


def write_drawing(file: Path, drawing: str, boxes: str = "/MediaBox [0 0 400 600]", codes: str = "") -> None:
    """Write a PDF of one page from drawing operators, with the font /F1.

    boxes: /MediaBox, /CropBox and /Rotate of the page. codes: what characters of the font mean, as "<61> <FB01>" for
    an "a" that means a ligature.
    """
    num_codes = codes.count("<") // 2
    meaning = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def "
        f"1 begincodespacerange <00> <ff> endcodespacerange {num_codes} beginbfchar {codes} endbfchar endcmap end end"
    )
    font = HELVETICA + (" /ToUnicode 5 0 R" if codes else " /Encoding /WinAnsiEncoding")
    objects = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: "<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
        3: (f"<< /Type /Page /Parent 2 0 R {boxes} /Contents 4 0 R /Resources << /Font << /F1 << {font} >> >> >> >>"),
        4: _stream(drawing),
        5: _stream(meaning),
    }
    _write_objects(file, objects)


def write_lines(file: Path, lines: list[str], boxes: str = "/MediaBox [0 0 400 600]", codes: str = "") -> None:
    """Write a PDF of one page with lines of text, from the upper left; strings as PDF writes them."""
    drawing = "BT /F1 12 Tf 14 TL 50 550 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    write_drawing(file, drawing, boxes, codes)


def write_pages(file: Path, pages: list[list[str]]) -> None:
    """Write a PDF with a page for each list of lines; characters of Latin-1."""
    drawings = []
    for lines in pages:
        escaped = [re.sub(r"([()\\\\])", r"\\\1", line) for line in lines]
        drawings.append("BT /F1 12 Tf 14 TL 50 550 Td " + " ".join(f"({line}) Tj T*" for line in escaped) + " ET")
    write_drawings(file, drawings)


def write_unicode(file: Path, text: str) -> None:
    """Write a PDF of one page with one line of text, whatever its characters; it cannot be seen what they are."""
    letters = {character: 0x41 + i for i, character in enumerate(sorted(set(text.replace(" ", ""))))}
    codes = " ".join(f"<{code:02x}> <{ord(character):04x}>" for character, code in letters.items())
    line = " ".join("".join(f"\\{letters[character]:03o}" for character in word) for word in text.split())
    write_lines(file, [line], codes=f"<20> <0020> {codes}")


def _stream(content: str) -> str:
    return f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"


def _write_objects(file: Path, objects: dict[int, str]) -> None:
    content, offsets = b"%PDF-1.4\n", []
    for number in sorted(objects):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{objects[number]}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    trailer += f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(content)}\n%%EOF\n"
    file.write_bytes(content + trailer.encode())
