"""Writes small PDFs by hand, so that contract tests need nothing of the package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

FONT = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"


def write_pdf(
    file: Path, pages: Sequence[Sequence[str]], outline: Sequence[tuple[str, int]] = (), box: str = "0 0 400 600"
) -> Path:
    """Write a PDF with a page for each list of lines, in Latin-1, and (title, page from 1) outline entries."""
    first_item = 4 + 2 * len(pages)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = {
        1: "<< /Type /Catalog /Pages 2 0 R /Outlines 3 0 R >>",
        2: f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>",
        3: "<< >>",
    }
    if outline:
        last = first_item + len(outline) - 1
        objects[3] = f"<< /Type /Outlines /First {first_item} 0 R /Last {last} 0 R /Count {len(outline)} >>"
    for i, lines in enumerate(pages):
        objects[4 + 2 * i] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [{box}] /Contents {5 + 2 * i} 0 R "
            f"/Resources << /Font << /F1 {FONT} >> >> >>"
        )
        shown = " ".join("({}) Tj T*".format(re.sub(r"([()\\])", r"\\\1", line)) for line in lines)
        content = f"BT /F1 12 Tf 14 TL 50 550 Td {shown} ET"
        objects[5 + 2 * i] = f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"
    for i, (title, page) in enumerate(outline):
        following = f"/Next {first_item + i + 1} 0 R" if i + 1 < len(outline) else ""
        before = f"/Prev {first_item + i - 1} 0 R" if i else ""
        target = f"/Dest [{2 + 2 * page} 0 R /Fit]"
        objects[first_item + i] = f"<< /Title ({title}) /Parent 3 0 R {target} {following} {before} >>"
    write_objects(file, objects)
    return file


def write_objects(file: Path, objects: dict[int, str], trailer: str = "") -> None:
    """Write the objects of a PDF, numbered from 1, with their table and trailer."""
    content, offsets = b"%PDF-1.4\n", []
    for number in sorted(objects):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{objects[number]}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    end += f"trailer << /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{len(content)}\n%%EOF\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content + end.encode("latin-1"))
