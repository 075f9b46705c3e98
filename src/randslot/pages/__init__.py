"""From what people have (PDFs, image files, images) to pages: an upright RGB image, and the text of PDFs."""

from __future__ import annotations

from .formats import (
    DOCUMENT_SUFFIXES,
    FILE_PAGE,
    HEAD,
    IMAGE_SUFFIXES,
    KINDS,
    TIFF_SUFFIXES,
    Kind,
    is_file,
    page_file,
    short,
)
from .images import limit_aspect
from .page import (
    Page,
    PageInput,
    list_pages,
    num_pages,
    open_file_page,
    open_page,
    read_file_text,
    read_page_text,
    render_file_page,
)
from .pdf import PDF_SIDE, PDFIUM, PIXELS, OpenPdf, num_pdf_pages, render_pdf_page
from .text import NO_TEXT, PARTS, NoTextError, PageText, Word

__all__ = [
    "DOCUMENT_SUFFIXES",
    "FILE_PAGE",
    "HEAD",
    "IMAGE_SUFFIXES",
    "KINDS",
    "NO_TEXT",
    "PARTS",
    "PDFIUM",
    "PDF_SIDE",
    "PIXELS",
    "TIFF_SUFFIXES",
    "Kind",
    "NoTextError",
    "OpenPdf",
    "Page",
    "PageInput",
    "PageText",
    "Word",
    "is_file",
    "limit_aspect",
    "list_pages",
    "num_pages",
    "num_pdf_pages",
    "open_file_page",
    "open_page",
    "page_file",
    "read_file_text",
    "read_page_text",
    "render_file_page",
    "render_pdf_page",
    "short",
]
