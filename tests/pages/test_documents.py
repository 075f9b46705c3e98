"""Documents that are no PDFs: each kind has its text, headings and pages, and hostile ones are refused in one line."""

from __future__ import annotations

import os
import shutil
import sysconfig
import zipfile
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import pytest
from PIL import ExifTags, Image
from reportlab.pdfgen.canvas import Canvas

from randslot.errors import RandSlotError
from randslot.library.facets import get_value
from randslot.library.manifest import File
from randslot.pages import num_pages, open_page, read_file_text
from randslot.pages.convert import find_office, trim_cache
from randslot.pages.properties import read_properties

TEXT = "Seven ships sail to Gda\u0144sk"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_docx(file: Path) -> None:
    import docx

    document = docx.Document()
    document.core_properties.title = "Fleet report"
    document.add_heading("Fleet", 1)
    document.add_paragraph(TEXT)
    document.add_table(1, 2).cell(0, 1).text = "cell"
    document.save(str(file))


def write_pptx(file: Path) -> None:
    import pptx

    slides = pptx.Presentation()
    for title in ("Fleet", "Costs"):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = TEXT
    slides.save(str(file))


def write_xlsx(file: Path) -> None:
    import openpyxl

    workbook = openpyxl.Workbook()
    workbook.active.title = "Fleet"
    workbook.active.append([TEXT, 4711])
    workbook.create_sheet("Costs").append(["Harbour", "=1+1"])
    workbook.save(file)


OPEN_DOCUMENT = """<?xml version="1.0"?><office:document-content
 xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"
 xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0">
<office:body>{}</office:body></office:document-content>"""


def write_zip(file: Path, parts: dict[str, str]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def write_odt(file: Path) -> None:
    body = f"<text:h>Fleet</text:h><text:p>Seven<text:s/>{TEXT[6:]}</text:p>"
    write_zip(file, {"content.xml": OPEN_DOCUMENT.format(body)})


def write_ods(file: Path) -> None:
    cell = f"<table:table-cell><text:p>{TEXT}</text:p></table:table-cell>"
    body = f'<table:table table:name="Fleet"><table:table-row>{cell}</table:table-row></table:table>'
    write_zip(file, {"content.xml": OPEN_DOCUMENT.format(body)})


def write_odp(file: Path) -> None:
    body = "".join(f'<draw:page draw:name="{name}"><text:p>{TEXT}</text:p></draw:page>' for name in ("Fleet", "Costs"))
    write_zip(file, {"content.xml": OPEN_DOCUMENT.format(body)})


def write_epub(file: Path) -> None:
    container = '<c xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfile full-path="x/book.opf"/></c>'
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><manifest><item id="a" href="one.html"/><item id="b" '
        'href="two.html"/></manifest><spine><itemref idref="a"/><itemref idref="b"/></spine></package>'
    )
    parts = {"META-INF/container.xml": container, "x/book.opf": package}
    write_zip(file, parts | {"x/one.html": f"<h1>Fleet</h1><p>{TEXT}</p>", "x/two.html": "<h1>Costs</h1>"})


def write_mail(file: Path) -> None:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Fleet", "a@example.com", "b@example.com"
    message["Date"] = "Sat, 31 Mar 2018 10:00:00 +0200"
    message.set_content(TEXT)
    message.add_attachment(b"x", maintype="application", subtype="pdf", filename="bill.pdf")
    file.write_bytes(bytes(message))


HTML = f"<title>Fleet report</title><style>hidden</style><h1>Fleet</h1><p>{TEXT}<br>&amp; back<script>hidden</script>"
RTF = r"{\rtf1\ansi\ansicpg1250 Fleet\par Seven ships sail to Gda\'f1sk\par}"
KINDS = {  # how to write a file of each kind, and its number of pages
    "a.docx": (write_docx, 1),
    "a.pptx": (write_pptx, 2),
    "a.xlsx": (write_xlsx, 2),
    "a.odt": (write_odt, 1),
    "a.ods": (write_ods, 1),
    "a.odp": (write_odp, 2),
    "a.epub": (write_epub, 2),
    "a.eml": (write_mail, 1),
    "a.rtf": (lambda file: file.write_text(RTF), 1),
    "a.html": (lambda file: file.write_text(HTML, encoding="utf-8"), 1),
    "a.md": (lambda file: file.write_text(f"# Fleet\n\n{TEXT}\n", encoding="utf-8"), 1),
    "a.txt": (lambda file: file.write_text(f"Fleet\n\n{TEXT}\n", encoding="utf-16"), 1),
    "a.csv": (lambda file: file.write_text(f"Fleet;Number\n{TEXT};4711\n", encoding="utf-8"), 1),
}


def test_files_say_their_title_author_and_date(tmp_path):
    write_docx(tmp_path / "a.docx")
    write_mail(tmp_path / "a.eml")
    (tmp_path / "a.html").write_text('<title>A &amp; B</title><meta name="author" content="Ann">')
    (tmp_path / "a.txt").write_text("nothing")
    picture = Image.new("RGB", (9, 9))
    picture.getexif()[ExifTags.Base.DateTime] = "2019:05:01 10:00:00"
    picture.save(tmp_path / "a.jpg", exif=picture.getexif())
    canvas = Canvas(str(tmp_path / "a.pdf"))
    canvas.setTitle("Fleet")
    canvas.setAuthor("Bo")
    canvas.drawString(99, 99, "x")
    canvas.save()
    found = {file.name: read_properties(file) for file in tmp_path.iterdir() if file.is_file()}
    assert found["a.docx"] == {"title": "Fleet report", "author": "python-docx", "date": "2013-12-23"}
    assert found["a.eml"] == {"title": "Fleet", "author": "a@example.com", "date": "2018-03-31"}
    assert found["a.html"] == {"title": "A & B", "author": "Ann", "date": ""}
    assert found["a.txt"] == {"title": "", "author": "", "date": ""}
    assert found["a.jpg"]["date"] == "2019-05-01"
    assert (found["a.pdf"]["title"], found["a.pdf"]["author"], found["a.pdf"]["date"][:2]) == ("Fleet", "Bo", "20")


@pytest.mark.parametrize(
    ("path", "date", "year"),
    [
        ("/x/FY2018 report.pdf", "2019-02-01", "2018"),
        ("/x/2017/q3/report.pdf", "2019-02-01", "2017"),
        ("/x/20160331_bill.pdf", "", "2016"),
        ("/x/report 120189.pdf", "2019-02-01", "2019"),
        ("/x/report.pdf", "", "1970"),
    ],
)
def test_the_year_is_that_of_the_name_then_of_the_document(path, date, year):
    file = File(path, "", 1, 0, 1, properties={"date": date})
    assert get_value(file, "year") == year
    assert get_value(replace(file, metadata={"year": 2001}), "year") == "2001"


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_has_its_text_and_pages(name, tmp_path):
    write, num = KINDS[name]
    file = tmp_path / name
    write(file)
    assert num_pages(file) == num
    page = read_file_text(file, 1)
    assert TEXT in page.text
    assert "hidden" not in page.text
    assert "Fleet" in page.text
    assert [word.text for word in page.words] == page.text.split()
    if name not in ("a.txt", "a.rtf", "a.csv"):
        assert page.fields["heading"] == "Fleet"
    image = open_page(f"{file}#page=1", 500_000)
    for word in page.words:  # something is written where the word is said to be
        box = (word.left * image.width, word.top * image.height, word.right * image.width, word.bottom * image.height)
        assert image.crop(tuple(map(round, box))).convert("L").getextrema()[0] < 128, word


def test_every_script_is_found_though_no_font_has_it(tmp_path):
    file = tmp_path / "notes.md"
    lines = ["# \u6570\u636e\u5e93", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \U0001f600", "\u6570" * 300]
    file.write_text("\n".join(lines), encoding="utf-8")
    text = read_file_text(file, 1)
    assert text.text.splitlines()[:2] == [lines[0][2:], lines[1]]
    assert all(word.right < 1 for word in text.words)


def test_a_long_text_has_many_pages_and_sections(tmp_path):
    file = tmp_path / "long.md"
    parts = [f"## Part {i}\n\n" + f"word{i} and more. " * 400 for i in range(5)]
    file.write_text("# Book\n\n" + "\n\n".join(parts))
    num = num_pages(file)
    assert 5 <= num <= 15
    last = read_file_text(file, num)
    assert "word4" in last.text
    assert last.fields["section"].splitlines()[0] == "Book"
    assert last.fields["section"].splitlines()[-1] == "Part 4"


@pytest.mark.parametrize("num", range(47, 54))
def test_blank_lines_at_the_end_add_no_page_without_text(tmp_path, num):
    file = tmp_path / "log.txt"
    file.write_text("A line\n" * num + "\n \n\n")
    texts = [read_file_text(file, number).text for number in range(1, num_pages(file) + 1)]
    assert sum(text.count("A line") for text in texts) == num
    assert all(texts)


def test_a_changed_file_is_converted_again(tmp_path):
    file = tmp_path / "a.txt"
    for text in ("first version", "second version, longer"):
        file.write_text(text)
        assert read_file_text(file, 1).text == text


ENTITY = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize("name", ["a.docx", "a.pptx", "a.xlsx", "a.odt", "a.epub", "a.rtf", "a.doc", "a.msg"])
def test_a_file_that_is_something_else_is_refused_in_one_line(name, tmp_path):
    file = tmp_path / name
    file.write_bytes(b"PK\x03\x04 no zip")
    if name == "a.rtf":
        assert num_pages(file) == 1  # any text may be in it
        return
    with pytest.raises(RandSlotError, match=name.replace(".", r"\.")) as caught:
        num_pages(file)
    assert "\n" not in str(caught.value)


def test_bombs_and_entities_are_refused(tmp_path):
    bomb = tmp_path / "bomb.docx"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(6):
            archive.writestr(f"word/{i}.xml", bytes(100 * 2**20))
    with pytest.raises(RandSlotError, match="unpacks to more than 500 MB"):
        num_pages(bomb)
    file = tmp_path / "entity.odt"
    write_zip(file, {"content.xml": OPEN_DOCUMENT.format("<text:p>&e;</text:p>").replace("?>", f"?>{ENTITY}", 1)})
    with pytest.raises(RandSlotError, match="entities"):
        num_pages(file)


def test_heif_and_avif_are_images(tmp_path):
    from pillow_heif import register_heif_opener

    register_heif_opener()
    image = Image.new("RGB", (64, 48), "red")
    for name, kind in (("a.heic", "HEIF"), ("a.avif", "AVIF")):
        image.save(tmp_path / name, kind)
        assert open_page(tmp_path / name).size == (64, 48)


@pytest.mark.skipif(shutil.which("soffice") is None, reason="LibreOffice is not installed")
def test_libreoffice_lays_out_texts_and_slides(tmp_path, monkeypatch):
    monkeypatch.delenv("RANDSLOT_OFFICE")
    find_office.cache_clear()
    try:
        for name, num in (("a.docx", 1), ("a.pptx", 2)):
            KINDS[name][0](tmp_path / name)
            assert num_pages(tmp_path / name) == num
            assert TEXT in " ".join(read_file_text(tmp_path / name, num).text.split())
        broken = tmp_path / "broken.docx"
        broken.write_bytes(b"PK\x03\x04 no zip")
        with pytest.raises(RandSlotError, match=r"broken\.docx cannot be read by LibreOffice"):
            num_pages(broken)
    finally:
        find_office.cache_clear()


@pytest.mark.parametrize(
    ("name", "num", "text", "author", "date"),
    [
        ("serious_poem.odt", 1, "The boy stood on the burning deck", "", "2008-07-17"),
        ("pythagoras.ods", 3, "Sheet1\n3\n4\n5", "S\u00f8ren Roug", "2010-04-25"),
        ("emb_spreadsheet.odp", 1, "Embedded Spreadsheet", "Naor Rosenberg", "2010-06-03"),
        ("sld-notes.pptx", 1, "Notes", "python-pptx", "2012-11-17"),
        ("shp-embedded-xlsx.xlsx", 1, "Sheet1\n1\n2\n3", "Steve Canny", "2021-02-28"),
        ("par-known-paragraphs.docx", 1, "Heading Paragraph\nNormal paragraph", "Steve Canny", "2014-12-26"),
        ("harbour.docx", 1, "Seven ships carried 1,577 tonnes of grain from Gda\u0144sk", "Anna Nowak", "2026-11-18"),
        ("harbour.epub", 3, "The harbour of Gda\u0144sk", "Anna Nowak", "2019-05-04"),
        ("harbour.rtf", 1, "Seven ships carried 1,577 tonnes of grain from Gda\u0144sk", "", ""),
        ("test.msg", 1, "To: christoph@freiraum.xyz\nAttachment: 5AAoPFgV", "christoph@freiraum.xyz", "2018-03-23"),
    ],
)
def test_files_of_other_programs(name, num, text, author, date, monkeypatch):
    monkeypatch.setenv("RANDSLOT_OFFICE", "none")
    find_office.cache_clear()
    file = Path(__file__).parent / "data" / name
    assert num_pages(file) == num
    assert text in read_file_text(file, 1).text
    found = read_properties(file)
    assert (found["author"], found["date"]) == (author, date)


def test_mails_of_pythons_own_tests(tmp_path):
    mails = sorted((Path(sysconfig.get_path("stdlib")) / "test" / "test_email" / "data").glob("msg_*.txt"))
    if not mails:
        pytest.skip("this Python comes without its tests")
    for mail in mails:
        file = tmp_path / f"{mail.stem}.eml"
        file.write_bytes(mail.read_bytes())
        assert num_pages(file) >= 1
        assert read_properties(file)["date"][:2] in ("", "19", "20")


def test_the_cache_keeps_what_was_used_last(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.pdf").write_bytes(bytes(1000))
        (tmp_path / f"{number}.json").write_bytes(bytes(100))
        os.utime(tmp_path / f"{number}.pdf", (number, number))
    trim_cache(tmp_path, 4400)
    assert len(list(tmp_path.glob("*.pdf"))) == 4
    trim_cache(tmp_path, 4000)
    assert {file.name for file in tmp_path.iterdir() if file.is_file()} == {"2.pdf", "2.json", "3.pdf", "3.json"}
