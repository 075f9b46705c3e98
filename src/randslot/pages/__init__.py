"""From what people have (PDFs, image files, images) to pages: an upright RGB image, and the text of PDFs."""

from .formats import DOCUMENT_SUFFIXES, HEAD, KINDS, is_file, page_file, short
from .images import limit_aspect
from .page import (
    Page,
    PageInput,
    crop_file_page,
    list_pages,
    num_pages,
    open_file_page,
    open_page,
    read_file_text,
    read_outline,
    read_page_text,
    render_file_page,
)
from .pdf import PIXELS, OpenPdf
from .text import NO_TEXT, Box, NoTextError, PageText, Word

__all__ = [
    "DOCUMENT_SUFFIXES",
    "HEAD",
    "KINDS",
    "NO_TEXT",
    "PIXELS",
    "Box",
    "NoTextError",
    "OpenPdf",
    "Page",
    "PageInput",
    "PageText",
    "Word",
    "crop_file_page",
    "is_file",
    "limit_aspect",
    "list_pages",
    "num_pages",
    "open_file_page",
    "open_page",
    "page_file",
    "read_file_text",
    "read_outline",
    "read_page_text",
    "render_file_page",
    "short",
]
