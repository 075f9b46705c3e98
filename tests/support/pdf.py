"""Writes small PDFs with outlines, by hand: pypdfium2 reads outlines but makes none."""

from __future__ import annotations

from pathlib import Path


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
        text = f"BT /F1 24 Tf 40 {size[1] - 60} Td (Page {i + 1}) Tj ET"
        font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
        objects[first_page + 2 * i] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {size[0]} {size[1]}] /Contents {first_page + 2 * i + 1} 0 R "
            f"/Resources {font} >>"
        )
        objects[first_page + 2 * i + 1] = f"<< /Length {len(text)} >>\nstream\n{text}\nendstream"
    for i, (title, page) in enumerate(outline):
        following = f"/Next {first_item + i + 1} 0 R" if i + 1 < len(outline) else ""
        before = f"/Prev {first_item + i - 1} 0 R" if i else ""
        target = f"/Dest [{first_page + 2 * page} 0 R /Fit]"
        objects[first_item + i] = f"<< /Title ({title}) /Parent 3 0 R {target} {following} {before} >>"
    content, offsets = b"%PDF-1.4\n", []
    for number in sorted(objects):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{objects[number]}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    trailer += f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(content)}\n%%EOF\n"
    file.write_bytes(content + trailer.encode())
