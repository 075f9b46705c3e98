"""Read the metadata of files: title, author and date."""

from __future__ import annotations

import email.policy
import re
import zipfile
from datetime import datetime
from email.parser import BytesHeaderParser
from email.utils import parsedate_to_datetime
from html import unescape
from pathlib import Path

from PIL import ExifTags

from .documents import decode, find_package, parse_xml, read_outlook_properties
from .formats import KINDS, PDF
from .images import image_page
from .pdf import read_pdf_properties

ZIPPED = (".docx", ".pptx", ".xlsx", ".odt", ".odp", ".ods", ".epub")
XML_NAMES = {  # elements of Dublin Core and similar schemas, by priority
    "title": ("title",),
    "author": ("creator", "initial-creator"),
    "date": ("created", "creation-date", "date", "modified"),
}


def read_properties(file: Path) -> dict[str, str]:
    """Return the title, author and date (2018-03-31) of a file; "" if missing or unreadable."""
    suffix = file.suffix.lower()
    found: dict[str, str] = {}
    try:
        if KINDS[suffix] is PDF:
            found = read_pdf_properties(file)
        elif suffix in ZIPPED:
            found = read_zipped(file)
        elif suffix in (".html", ".htm"):
            found = read_web(decode(file.read_bytes()[:100_000]))
        elif suffix == ".eml":
            found = read_mail_head(file)
        elif suffix == ".msg":
            found = read_outlook_properties(file)
        elif not KINDS[suffix].is_converted:
            with image_page(file, str(file), 1) as image:
                exif = image.getexif()
                taken = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal) or exif.get(306)
                found = {"author": str(exif.get(ExifTags.Base.Artist, "")), "date": str(taken or "")}
    except Exception:  # best-effort: the file itself may be fine
        pass
    clean = {name: " ".join(found.get(name, "").replace("\0", "").split())[:200] for name in ("title", "author")}
    return clean | {"date": find_date(found.get("date", ""))}


def find_date(text: str) -> str:
    """Parse the day of a date: D:20180331120000Z, 2018-03-31T12:00, 2018:03:31, or as in mail; "" if it fails."""
    if day := re.match(r"(?:D:)?(\d{4})[-:]?(\d\d)[-:]?(\d\d)", text):
        year, month, date = map(int, day.groups())
    else:
        try:
            sent = parsedate_to_datetime(text)
        except ValueError:
            return ""
        year, month, date = sent.year, sent.month, sent.day
    try:
        return datetime(year, month, date).date().isoformat() if 1950 <= year < 2100 else ""
    except ValueError:
        return ""


def read_zipped(file: Path) -> dict[str, str]:
    """Read the metadata of Office files, OpenDocument and EPUB: XML in a zip file."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        part = next((name for name in ("docProps/core.xml", "meta.xml") if name in names), None)
        content = parse_xml(archive.read(part or find_package(archive)))
    texts: dict[str, str] = {}
    for element in content.iter():
        texts.setdefault(element.tag.rpartition("}")[2], (element.text or "").strip())
    return {name: next((texts[tag] for tag in tags if texts.get(tag)), "") for name, tags in XML_NAMES.items()}


def read_web(text: str) -> dict[str, str]:
    """Read the title of a web page, and author and date from its meta tags."""
    found = {}
    if title := re.search(r"(?is)<title[^>]*>(.*?)</title>", text):
        found["title"] = unescape(title[1])
    for tag in re.findall(r"(?is)<meta\s[^>]*>", text):
        name = re.search(r"""(?i)(?:name|property)=["']?(?:\w+[:.])?(author|creator|date|published_time)["'\s]""", tag)
        content = re.search(r"""(?is)content=["'](.*?)["']""", tag)
        if name and content:
            is_author = name[1].lower() in ("author", "creator")
            found.setdefault("author" if is_author else "date", unescape(content[1]))
    return found


def read_mail_head(file: Path) -> dict[str, str]:
    with file.open("rb") as content:
        head = BytesHeaderParser(policy=email.policy.default).parse(content)
    names = {"title": "subject", "author": "from", "date": "date"}
    return {name: str(head.get(key, "")) for name, key in names.items()}
