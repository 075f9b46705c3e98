"""The page in a real browser: search, look, understand, add; by mouse and by keyboard, wide and narrow."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from randslot.serve.access import Access
from randslot.serve.service import Service
from support.pdf import write_lines, write_pages
from support.services import SCRIPT, TOKEN, listening, pdf, serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(os.environ.get("RANDSLOT_AXE", Path(sys.prefix) / "axe/node_modules/axe-core/axe.min.js"))
SECONDS = 60  # on a busy machine

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(service) -> Iterator[str]:
    with listening(service) as address:
        yield address


@pytest.fixture
def page(browser, address) -> Iterator:
    """A new page; everything it loads is from the service, and it has nothing to complain about."""
    with visiting(browser, address) as page:
        yield page


@contextmanager
def visiting(browser, address: str, path: str = "/", **options) -> Iterator:
    """Yield a page in a context of its own, and check at the end what it asked for and what it complained of."""
    context = browser.new_context(**options)
    context.set_default_timeout(SECONDS * 1000)
    page, asked, complaints = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
    page.goto(address + path)
    yield page
    context.close()
    assert [url for url in asked if not url.startswith(f"{address}/")] == []
    expected = re.compile(r"status of 4\d\d")  # the browser's own note on an answer that the page shows
    assert [text for text in complaints if not expected.search(text)] == []


def search(page, query: str, source: str = "") -> None:
    """Type a query, and the name of a document, and wait for the answer."""
    page.get_by_label("Search the pages").fill(query)
    with page.expect_response(is_whole_search):
        page.get_by_label("Search the pages").press("Enter")
    field = page.get_by_label("Document", exact=True)
    if source or field.input_value():
        field.fill(source)
        with page.expect_response(is_whole_search):
            field.press("Enter")


def is_whole_search(response) -> bool:
    """Whether an answer is to a search, and not to one of a word that is being typed."""
    return response.url.endswith("/api/search") and "prefix" not in (response.request.post_data or "")


def test_search_open_a_page_and_see_why(page, address, service, papers):
    from playwright.sync_api import expect

    expect(page.get_by_role("banner").first).to_contain_text("mylib")
    search(page, "tax in 2023")
    found = service.library.search("tax in 2023", 20)
    cards = page.locator("#hits > li")
    expect(cards).to_have_count(3)
    expect(page.locator("#message")).to_contain_text(f"{len(found)} pages in 3 documents")
    best = {hit.source: hit for hit in reversed(found)}  # of each document
    for card, hit in zip(cards.all(), sorted(best.values(), key=lambda hit: -hit.score), strict=True):
        expect(card).to_contain_text(hit.source.rpartition("/")[2])
        expect(card).to_contain_text(f"page {hit.page} of")
        expect(card.locator(".tag")).to_have_text("found by meaning")
    cards.nth(0).scroll_into_view_if_needed()
    expect(cards.nth(0).locator("img")).not_to_have_js_property("naturalWidth", 0)

    search(page, "tax in 2023", "alpha.pdf")
    expect(page.locator("#message")).not_to_contain_text("3 documents")
    expect(cards).to_have_count(3)
    cards.nth(0).click()
    viewer = page.get_by_role("dialog")
    first = service.library.search("tax in 2023", 1, filters={"source": "alpha.pdf"})[0]
    expect(viewer.locator("#why-text")).to_contain_text("Found by meaning: none of the words is on this page as text.")
    expect(viewer.locator("tbody tr")).to_have_count(0)  # numbers come when they are asked for
    viewer.get_by_text("Details for researchers").click()
    expect(viewer.get_by_role("heading", name=f"alpha.pdf, page {first.page} of 3")).to_be_visible()
    expect(viewer.locator("#large")).to_have_js_property("naturalHeight", 1640)  # 1200 x 1600 pixels in its shape
    expect(viewer.locator("tbody tr")).to_have_count(4)
    marked = viewer.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('td')].findIndex(cell => cell.matches('.winner')) + 1)"
    )
    assert marked == [match.page for match in first.matches]
    expect(viewer.locator("#sum")).to_contain_text(f"score {sum(match.similarity for match in first.matches):.2f}")
    file = page.request.get(address + viewer.get_by_role("link", name="Open the file").get_attribute("href"))
    assert file.body() == (papers / "alpha.pdf").read_bytes()


def test_the_keyboard_is_enough(page):
    from playwright.sync_api import expect

    page.keyboard.type("page")  # the search field has the focus
    page.keyboard.press("Enter")
    expect(page.locator("#hits .where").first).to_contain_text("page")
    page.get_by_label("Document", exact=True).fill("alpha.pdf")
    page.keyboard.press("Enter")
    expect(page.locator("#hits > li").filter(has_text="alpha.pdf")).to_have_count(3)
    expect(page.locator("#hits > li")).to_have_count(3)
    page.keyboard.press("Tab")
    for key in ("/", "ArrowDown", "j", "k"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement === document.querySelector('#hits li:first-child a')")
    page.keyboard.press("Enter")
    viewer = page.get_by_role("dialog")
    expect(viewer).to_be_visible()
    number = page.get_by_label("Page", exact=True)
    first = int(number.input_value())
    key, other = ("ArrowRight", first + 1) if first < 3 else ("ArrowLeft", first - 1)
    page.keyboard.press(key)
    expect(number).to_have_value(str(other))
    expect(viewer.get_by_role("heading", level=2)).to_have_accessible_name(f"alpha.pdf, page {other} of 3")
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(keys).to_contain_text("Next and previous hit")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    page.keyboard.press("Escape")
    expect(viewer).to_be_hidden()
    assert page.evaluate("document.activeElement.closest('#hits') !== null")
    page.go_back()
    page.go_back()
    expect(page.get_by_label("Document", exact=True)).to_have_value("")


def test_an_upload_is_found_and_a_broken_one_says_why(page, tmp_path):
    from playwright.sync_api import expect

    files = [
        {"name": "delta.pdf", "mimeType": "application/pdf", "buffer": pdf(tmp_path, 3, (240, 240))},
        {"name": "broken.pdf", "mimeType": "application/pdf", "buffer": pdf(tmp_path, 3)[:120]},
        {"name": "notes.xyz", "mimeType": "text/plain", "buffer": b"notes"},
    ]
    page.get_by_label("Choose files").set_input_files(files)
    rows = page.locator("#uploads li")
    expect(rows.filter(has_text="delta.pdf")).to_contain_text("Added, 3 pages")
    expect(rows.filter(has_text="broken.pdf")).to_contain_text("Not added: cannot open: it is corrupt, or not a PDF")
    expect(rows.filter(has_text="notes.xyz")).to_contain_text("Not added: unsupported file type")
    expect(page.get_by_role("heading", name="Uploads: 1 of 3 added, 2 failed")).to_be_visible()
    page.get_by_role("button", name="Retry broken.pdf").click()
    expect(rows.filter(has_text="broken.pdf")).to_contain_text("Not added: cannot open")
    search(page, "page", "delta.pdf")
    expect(page.locator("#hits > li")).to_have_count(3)


def test_an_upload_can_be_cancelled(page, slow):
    from playwright.sync_api import expect

    file = {"name": "slow.pdf", "mimeType": "application/pdf", "buffer": slow}
    page.get_by_label("Choose files").set_input_files([file])
    page.get_by_role("button", name="Cancel slow.pdf").click()
    row = page.locator("#uploads li").filter(has_text="slow.pdf")
    expect(row).to_contain_text("Cancelled")
    expect(row.get_by_role("button", name="Cancel slow.pdf")).to_be_hidden()


@pytest.mark.nightly
def test_what_is_typed_stays_when_an_upload_is_done(page, tmp_path):
    from playwright.sync_api import expect

    file = {"name": "typed.pdf", "mimeType": "application/pdf", "buffer": pdf(tmp_path, 1, (250, 250))}
    page.get_by_label("Choose files").set_input_files([file])
    page.get_by_label("Search the pages").fill("half a que")
    expect(page.locator("#uploads li").filter(has_text="typed.pdf")).to_contain_text("Added, 1 page")
    expect(page.get_by_label("Search the pages")).to_have_value("half a que")


@pytest.mark.nightly
def test_files_can_be_dropped(page, tmp_path):
    from playwright.sync_api import expect

    content = list(pdf(tmp_path, 1, (260, 100)))
    dropped = page.evaluate_handle(
        """bytes => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "dropped.pdf"));
            return data;
        }""",
        content,
    )
    expect(page.get_by_role("button", name="Add documents")).to_be_visible()  # by now it knows that it may add some
    page.locator("#hits").dispatch_event("drop", {"dataTransfer": dropped})  # anywhere
    expect(page.locator("#uploads li")).to_contain_text("Added, 1 page")


@pytest.mark.nightly
def test_markup_in_a_name_is_text(page):
    from playwright.sync_api import expect

    search(page, "<b>bold</b>", "onerror")
    expect(page.locator("#hits > li")).to_have_count(1)
    expect(page.locator("#hits .name .unseen")).to_have_text(SCRIPT)
    page.locator("#hits a").click()
    expect(page.get_by_role("dialog").get_by_role("heading", level=2)).to_contain_text(SCRIPT)
    assert page.locator("img[onerror], b").count() == 0


@pytest.mark.nightly
def test_everything_has_a_label(page):
    search(page, "tax")
    page.locator("#hits a").first.click()
    page.get_by_text("Details for researchers").click()
    page.locator("td.winner").first.wait_for()
    nameless = page.evaluate(
        """() => [
            ...[...document.querySelectorAll("input:not([hidden]), select")].filter(one => !one.labels.length),
            ...[...document.querySelectorAll("button, a")].filter(one => !one.textContent.trim() && !one.ariaLabel),
            ...[...document.querySelectorAll("img:not([alt])")],
            ...[...document.querySelectorAll("dialog:not([aria-labelledby])")],
        ].map(one => one.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_fits_in_either_scheme(browser, address, scheme):
    size = {"width": 360, "height": 740}
    with visiting(browser, address, viewport=size, color_scheme=scheme) as page:
        search(page, "tax")
        page.locator("#hits a").first.click()
        page.get_by_text("Details for researchers").click()
        page.locator("td.winner").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.evaluate("document.getElementById('viewer').scrollWidth") <= 360
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(245, 246, 248)", "dark": "rgb(22, 24, 29)"}[scheme]
        assert contrast(page, "#about") > 4.5
        assert contrast(page, "#why-text") > 4.5


def contrast(page, selector: str) -> float:
    """Return the contrast of a text with what it stands on, as WCAG counts it."""
    colours = page.locator(selector).evaluate(
        """one => {
            let below = one;
            while (getComputedStyle(below).backgroundColor === "rgba(0, 0, 0, 0)") below = below.parentElement;
            return [getComputedStyle(one).color, getComputedStyle(below).backgroundColor];
        }"""
    )
    lights = sorted(luminance(*map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(*rgb: int) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.nightly
def test_a_token_is_asked_for_and_an_empty_library_says_so(browser, model, tmp_path):
    from playwright.sync_api import expect

    with (
        serving(tmp_path / "empty", model, read_only=True) as service,
        listening(service, Access(TOKEN)) as address,
        visiting(browser, address) as page,
    ):
        asked = page.get_by_role("dialog")
        expect(asked).to_contain_text("needs a token")
        page.locator("#token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("wrong token")
        field, button = page.locator("#token").bounding_box(), page.get_by_role("button", name="Enter").bounding_box()
        assert button["y"] - (field["y"] + field["height"]) > 8  # the field has a ring of 3 px around it
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(asked).to_be_hidden()
        expect(page.get_by_role("status")).to_contain_text("The library is empty")
        expect(page.locator("#empty")).to_contain_text("randslot index FOLDER")
        expect(page.get_by_role("button", name="Add documents")).to_be_hidden()
        expect(page.locator("#adding")).to_be_hidden()
        page.reload()
        expect(page.get_by_role("status")).to_contain_text("The library is empty")
        page.get_by_role("button", name="Sign out").click()
        expect(asked).to_contain_text("needs a token")


@pytest.mark.nightly
def test_the_api_page_describes_every_endpoint(browser, address):
    with visiting(browser, address, "/docs") as page:
        page.locator("section").first.wait_for()
        paths = page.request.get(f"{address}/openapi.json").json()["paths"]
        assert page.get_by_text("-X DELETE").count() == sum("delete" in methods for methods in paths.values()) > 0
        for path in paths:
            assert page.get_by_role("heading", name=path).count() >= 1


@pytest.mark.nightly
def test_commands_on_the_api_page_are_whole_on_a_phone(browser, address):
    with visiting(browser, address, "/docs", viewport={"width": 360, "height": 740}) as page:
        page.locator("pre").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        cut = page.evaluate(
            "[...document.querySelectorAll('pre')].filter(one => one.scrollWidth > one.clientWidth).length"
        )
        assert cut == 0


# -- a library without a model, of pages with words


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    """39 pages on tides, one of them twice; a slide; and a long name."""
    folder = tmp_path_factory.mktemp("shelf")
    for name in ("logs", "slides"):
        (folder / name).mkdir()
    for i in range(39):
        write_lines(folder / "logs" / f"log-{i:02}.pdf", ["The tide", *(["tides turn again"] * (i % 7)), f"entry {i}"])
    for name in ("3M_2018_10K.pdf", "copy.pdf"):
        write_lines(folder / "logs" / name, ["Deferred taxes of 2018", "and a <b>tax</b>"])
    write_lines(folder / "slides" / LONG, ["A wide slide"], "/MediaBox [0 0 1066 600]")
    return folder


LONG = f"{'a very long title ' * 8}version 7.pdf"


@pytest.fixture(scope="module")
def wordy(shelf, tmp_path_factory) -> Iterator[tuple[str, Service]]:
    with serving(tmp_path_factory.mktemp("wordy") / "lib", None) as service:
        service.library.add(shelf / "logs", workers=1, metadata={"team": "sea"})
        service.library.add(shelf / "slides", workers=1)
        with listening(service) as address:
            yield address, service


@pytest.fixture
def reader(browser, wordy) -> Iterator:
    with visiting(browser, wordy[0]) as page:
        yield page


@pytest.mark.nightly
def test_words_are_marked_in_snippets_and_on_pages(reader):
    from playwright.sync_api import expect

    search(reader, "deferred tax")
    hit = reader.locator("#hits > li").first
    expect(hit.locator("mark")).to_have_text(["Deferred", "taxes", "tax"])
    expect(hit.locator(".snippet")).to_have_text("Deferred taxes of 2018 and a <b>tax</b>")
    expect(hit.locator(".view .box")).to_have_count(2)  # words side by side are one
    view, mark = hit.locator(".view").bounding_box(), hit.locator(".view .box").first.bounding_box()
    assert view["y"] <= mark["y"] <= mark["y"] + mark["height"] <= view["y"] + view["height"]
    hit.locator("a").first.click()
    viewer = reader.get_by_role("dialog")
    expect(viewer.locator("#marks .box")).to_have_count(2)
    expect(viewer.locator("#why-words li")).to_have_text(["deferred once", "tax twice"])
    expect(viewer.locator("#why-text")).to_have_text(
        "All of the words are on this page. Some are in a heading. It ranks 1st among the pages found."
    )
    viewer.get_by_text("Details for researchers").click()
    expect(viewer.locator("#why-score")).to_contain_text("Score by words (BM25): ")
    expect(viewer.locator("#readouts")).to_be_hidden()
    expect(viewer.locator("#large")).not_to_have_js_property("naturalWidth", 0)
    expect(viewer.locator("#sheet")).to_have_attribute("style", re.compile("width"))
    sheet, first = viewer.locator("#sheet").bounding_box(), viewer.locator("#marks .box").first.bounding_box()
    assert (first["x"] - sheet["x"]) / sheet["width"] == pytest.approx(50 / 400, abs=0.01)  # as the PDF says
    assert (first["y"] - sheet["y"]) / sheet["height"] == pytest.approx(1 - 560 / 600, abs=0.02)


@pytest.mark.nightly
def test_matches_results_and_zoom_by_keyboard(reader):
    from playwright.sync_api import expect

    search(reader, "tide")
    reader.locator("#hits a").first.click()
    viewer = reader.get_by_role("dialog")
    now, place = viewer.locator("#marks .box.now"), viewer.locator("#match-place")
    expect(place).to_have_text("1 of 7")  # the best one
    expect(now).to_have_count(1)
    expect(viewer.locator("#sheet")).to_have_attribute("style", re.compile("width"))
    width = viewer.locator("#sheet").bounding_box()["width"]
    reader.keyboard.press("+")
    reader.keyboard.press("+")
    expect(viewer.locator("#zoom-fit")).to_have_text("150%")
    assert viewer.locator("#sheet").bounding_box()["width"] == pytest.approx(1.5 * width, abs=2)
    reader.keyboard.press("0")
    expect(viewer.locator("#zoom-fit")).to_have_text("Width")
    assert viewer.locator("#sheet").bounding_box()["width"] == pytest.approx(width, abs=2)
    reader.keyboard.press("0")
    expect(viewer.locator("#zoom-fit")).to_have_text("Page")
    sheet, stage = viewer.locator("#sheet").bounding_box(), viewer.locator("#stage").bounding_box()
    assert sheet["height"] <= stage["height"]
    reader.keyboard.press("r")
    turned = viewer.locator("#sheet").bounding_box()
    assert turned["width"] / turned["height"] == pytest.approx(sheet["height"] / sheet["width"], rel=0.02)
    for _ in range(3):
        reader.keyboard.press("r")
    for _ in range(7):
        reader.keyboard.press("n")  # after the last one, the first of the next page
    expect(viewer.locator("#result-place")).to_have_text(re.compile("^Result 2 of"))
    expect(place).to_have_text("1 of 7")
    reader.keyboard.press("p")
    expect(viewer.locator("#result-place")).to_have_text(re.compile("^Result 1 of"))
    expect(place).to_have_text("7 of 7")
    reader.keyboard.press("j")
    expect(viewer.locator("#result-place")).to_have_text(re.compile("^Result 2 of"))


@pytest.mark.nightly
def test_more_hits_come_as_one_scrolls(reader):
    from playwright.sync_api import expect

    search(reader, "tide")
    expect(reader.locator("#message")).to_have_text("The best 20 pages in 20 documents")
    expect(reader.locator("#hits > li")).to_have_count(20)
    reader.get_by_role("button", name="Show more").scroll_into_view_if_needed()
    expect(reader.locator("#hits > li")).to_have_count(39)
    expect(reader.locator("#message")).to_have_text("39 pages in 39 documents")
    expect(reader.locator("#more")).to_be_hidden()


@pytest.mark.nightly
def test_copies_of_a_page_are_one_hit(reader):
    from playwright.sync_api import expect

    search(reader, "deferred tax")
    expect(reader.locator("#hits > li")).to_have_count(1)
    expect(reader.locator(".twins")).to_have_text("and 1 identical page in copy.pdf, page 1")
    reader.locator(".twins a").click()
    expect(reader.get_by_role("dialog").get_by_role("heading", level=2)).to_have_accessible_name(
        "copy.pdf, page 1 of 1"
    )
    expect(reader.locator("#why-text")).to_contain_text("It ranks 1st among the pages found.")
    expect(reader.locator("#result-place")).to_have_text("Result 1 of 1")


@pytest.mark.nightly
def test_a_match_stays_where_it_is_while_the_page_grows(reader):
    search(reader, "deferred tax")
    reader.locator("#hits li a").first.click()
    reader.locator("#marks .box").first.wait_for()
    mark = reader.locator("#marks .box.now")
    mark.wait_for()
    for _ in range(5):
        reader.keyboard.press("+")
    assert reader.locator("#zoom-fit").text_content() == "300%"
    x, y = middle(mark)
    stage = reader.locator("#stage").bounding_box()
    assert stage["x"] <= x <= stage["x"] + stage["width"]
    assert stage["y"] <= y <= stage["y"] + stage["height"]


@pytest.mark.nightly
def test_what_the_pointer_is_on_stays_under_it(reader):
    from playwright.sync_api import expect

    search(reader, "deferred tax")
    reader.locator("#hits li a").first.click()
    mark = reader.locator("#marks .box").first
    mark.wait_for()
    stage = reader.locator("#stage").bounding_box()
    at = (stage["x"] + 0.6 * stage["width"], stage["y"] + 0.6 * stage["height"])
    reader.mouse.move(*at)
    reader.keyboard.down("Control")
    for zoom in ("125%", "150%", "200%", "250%"):
        reader.mouse.wheel(0, -100)
        expect(reader.locator("#zoom-fit")).to_have_text(zoom)
    before = reader.locator("#sheet").bounding_box()  # wider than the stage now, so that it can be moved both ways
    reader.mouse.wheel(0, -100)
    expect(reader.locator("#zoom-fit")).to_have_text("300%")
    after = reader.locator("#sheet").bounding_box()
    for side, length, place in (("x", "width", at[0]), ("y", "height", at[1])):
        part = (place - before[side]) / before[length]
        assert abs(after[side] + part * after[length] - place) < 4


def middle(mark) -> tuple[float, float]:
    box = mark.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.nightly
def test_a_word_that_no_page_has_is_pointed_out(reader):
    from playwright.sync_api import expect

    search(reader, "tide xyzzy")
    expect(reader.locator("#unknown")).to_have_text('No page has "xyzzy".')
    search(reader, "tide")
    expect(reader.locator("#unknown")).to_be_hidden()
    search(reader, "xyzzy")
    expect(reader.locator("#empty")).to_contain_text('No page has "xyzzy". Check the spelling.')


@pytest.mark.nightly
def test_documents_of_one_name_are_told_apart_on_a_phone(browser, tmp_path):
    from playwright.sync_api import expect

    for folder in ("2023/final", "2024/final"):
        (tmp_path / "docs" / folder).mkdir(parents=True)
        write_lines(tmp_path / "docs" / folder / "report.pdf", [f"The report of {folder}"])
    narrow = {"width": 390, "height": 844}
    with serving(tmp_path / "lib", None) as service:
        service.library.add(tmp_path / "docs", workers=1)
        with listening(service) as address, visiting(browser, address, viewport=narrow) as page:
            expect(page.locator("#hits li .where")).to_contain_text(["in 2024/…", "in 2023/…"])
            search(page, "report")
            expect(page.locator("#hits li .where")).to_contain_text(["in 2023/…", "in 2024/…"])
            page.locator("#hits li a").first.click()
            expect(page.locator("#viewer-title")).to_contain_text("in 2023/…")
            page.goto(f"{address}/?view=documents")
            expect(page.locator("#documents tbody .place")).to_have_text([" in 2023/…", " in 2024/…"])


@pytest.mark.nightly
def test_a_part_of_a_name_completes_itself(reader):
    from playwright.sync_api import expect

    search(reader, "tax tide")
    field = reader.get_by_label("Document", exact=True)
    field.fill("3m")
    options = reader.locator("#names").get_by_role("option")
    expect(options).to_have_count(1)
    reader.keyboard.press("ArrowDown")
    expect(field).to_have_attribute("aria-activedescendant", "name-0")
    reader.keyboard.press("Enter")
    expect(field).to_have_value("3M_2018_10K.pdf")
    expect(reader.locator("#hits > li")).to_have_count(1)
    expect(options).to_have_count(0)
    reader.get_by_role("button", name="Clear filters").click()
    expect(reader.locator("#hits > li")).to_have_count(20)  # copies are one of them
    field.fill("10K")
    reader.keyboard.press("Enter")  # nothing was chosen: the part is enough
    expect(reader.locator("#hits > li")).to_have_count(1)


@pytest.mark.nightly
def test_a_document_is_chosen_alone_though_others_have_its_name(browser, tmp_path):
    from playwright.sync_api import expect

    for folder in ("2023", "2024"):
        (tmp_path / "docs" / folder).mkdir(parents=True)
        write_pages(tmp_path / "docs" / folder / "report.pdf", [[f"The summary of {folder}"], ["Another page"]])
    with serving(tmp_path / "lib", None) as service:
        service.library.add(tmp_path / "docs", workers=1)
        with listening(service) as address, visiting(browser, address) as page:
            search(page, "summary")
            expect(page.locator("#hits > li")).to_have_count(2)
            page.get_by_label("Document", exact=True).fill("report")
            page.locator("#names").get_by_role("option").filter(has_text="2024").click()
            expect(page.locator("#hits li .where")).to_contain_text(["in 2024"])
            page.get_by_role("button", name="Clear filters").click()
            expect(page.locator("#hits > li")).to_have_count(2)
            page.locator("#hits li a").first.click()
            page.get_by_role("button", name="Search in this document only").click()
            expect(page.locator("#hits li .where")).to_contain_text(["in 2023"])


@pytest.mark.nightly
def test_a_page_that_cannot_be_drawn_says_so(browser, tmp_path):
    from playwright.sync_api import expect

    (tmp_path / "docs").mkdir()
    write_lines(tmp_path / "docs" / "gone.pdf", ["The report"])
    with serving(tmp_path / "lib", None) as service:
        service.library.add(tmp_path / "docs", workers=1)
        (tmp_path / "docs" / "gone.pdf").unlink()
        with listening(service) as address, visiting(browser, address) as page:
            lost = page.locator("#hits li .sheet.lost")
            expect(lost).to_have_count(1)
            assert lost.bounding_box()["height"] > 50


@pytest.mark.nightly
def test_facets_count_and_limit(reader):
    from playwright.sync_api import expect

    search(reader, "wide tide")
    for title, value, count in (("Folder", "slides", 1), ("team", "sea", 20), ("Changed", "Past 7 days", 20)):
        group = reader.locator("#facets section").filter(has=reader.get_by_role("heading", name=title, exact=True))
        group.get_by_role("link", name=re.compile(value)).click()
        expect(reader.locator("#hits > li")).to_have_count(count)
        expect(group.locator("[aria-current]")).to_contain_text(value)
        reader.reload()  # the address says it all
        expect(group.locator("[aria-current]")).to_contain_text(value)
        expect(reader.locator("#hits > li")).to_have_count(count)
        reader.get_by_role("button", name="Clear filters").click()
        expect(group.locator("[aria-current]")).to_have_count(0)
        expect(reader.locator("#hits > li")).to_have_count(20)
    expect(reader.locator("#facets a").filter(has_text="slides")).to_contain_text("1")
    search(reader, "wide tide", "nothing is called so")
    expect(reader.locator("#empty")).to_contain_text("Nothing found with these filters")
    reader.get_by_role("button", name="Search all documents").click()
    expect(reader.locator("#hits > li")).to_have_count(20)


@pytest.mark.nightly
def test_nothing_found_says_what_to_do(reader):
    from playwright.sync_api import expect

    search(reader, '"xyzzy plugh" -boat')
    expect(reader.locator("#message")).to_have_text('No page found for ""xyzzy plugh" -boat".')
    expect(reader.locator("#empty li")).to_have_count(4)
    search(reader, "xyzzy")
    expect(reader.locator("#empty li")).to_have_text(
        ['No page has "xyzzy". Check the spelling.', "Try fewer or other words."]
    )


@pytest.mark.nightly
def test_a_slide_keeps_its_shape_and_a_long_name_its_end(browser, wordy):
    from playwright.sync_api import expect

    for width in (1440, 390):
        with visiting(browser, wordy[0], viewport={"width": width, "height": 844}) as page:
            search(page, "wide slide")
            name = page.locator(".found .name")
            expect(page.locator("#hits a").first).to_have_accessible_name(re.compile("version 7.pdf page 1 of 1"))
            box, tail = name.bounding_box(), name.locator("span").last.bounding_box()
            assert tail["x"] + tail["width"] <= box["x"] + box["width"] + 1
            part = page.locator("#hits img").first
            expect(part).not_to_have_js_property("naturalWidth", 0)
            size = part.bounding_box()
            assert size["width"] / size["height"] == pytest.approx(0.56 * 1066 / (0.28 * 600), rel=0.03)
            page.locator("#hits a").first.click()
            expect(page.locator("#large")).not_to_have_js_property("naturalWidth", 0)
            expect(page.locator("#sheet")).to_have_attribute("style", re.compile("width"))
            sheet, stage = page.locator("#sheet").bounding_box(), page.locator("#stage").bounding_box()
            assert sheet["width"] <= stage["width"]
            assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.nightly
def test_documents_are_sorted_found_and_removed(browser, wordy, shelf):
    from playwright.sync_api import expect

    address, service = wordy
    with visiting(browser, address, "/?view=documents") as page:
        rows = page.locator("#documents tbody tr")
        expect(rows).to_have_count(42)
        page.get_by_role("button", name="Folder").click()
        page.get_by_role("button", name="Folder").click()
        expect(rows.first).to_contain_text("slides")
        expect(page.get_by_role("columnheader", name="Folder")).to_have_attribute("aria-sort", "descending")
        page.get_by_label("Find documents").fill("log-3")
        expect(rows).to_have_count(9)
        expect(page.locator("#documents-message")).to_have_text('9 documents with "log-3"')

        page.get_by_role("button", name="Remove log-38.pdf").click()
        expect(rows.filter(has_text="log-38.pdf")).to_be_hidden()
        expect(page.locator("#undo")).to_contain_text("its file is kept")
        page.keyboard.press("Enter")  # the focus is on Undo
        expect(rows.filter(has_text="log-38.pdf")).to_be_visible()

        page.get_by_role("button", name="Remove log-37.pdf").click()
        page.reload()  # as if the browser was closed: nothing was removed
        expect(rows.filter(has_text="log-37.pdf")).to_be_visible()

        page.clock.install()
        page.get_by_role("button", name="Remove log-37.pdf").click()
        page.clock.fast_forward(9000)
        expect(page.locator("#undo li")).to_have_count(0)
        expect(rows).to_have_count(8)
    names = {Path(file.source).name for file in service.library.files()}
    assert "log-37.pdf" not in names
    assert "log-38.pdf" in names
    assert (shelf / "logs" / "log-37.pdf").is_file()


@pytest.mark.nightly
def test_uploads_are_seen_from_every_view(reader, shelf):
    from playwright.sync_api import expect

    content = (shelf / "logs" / "copy.pdf").read_bytes()
    files = [
        {"name": "again.pdf", "mimeType": "application/pdf", "buffer": content},
        {"name": "torn.pdf", "mimeType": "application/pdf", "buffer": content[:100]},
    ]
    reader.get_by_label("Choose files").set_input_files(files)
    rows = reader.get_by_role("region", name="Uploads").locator("li")
    expect(rows.filter(has_text="again.pdf")).to_contain_text("Already in the library as ")
    expect(rows.filter(has_text="torn.pdf")).to_contain_text("Not added")
    reader.get_by_role("link", name="Documents").click()
    expect(rows).to_have_count(2)
    reader.get_by_role("button", name="Hide the uploads").click()
    expect(rows.first).to_be_hidden()
    reader.get_by_text("1 upload could not be added").click()
    expect(reader.locator("#failures li")).to_have_text(re.compile("torn.pdf.*corrupt"))


@pytest.mark.nightly
def test_a_library_of_scans_without_text_says_so(browser, papers, tmp_path):
    from playwright.sync_api import expect

    with serving(tmp_path / "scans", None, read_only=True) as service:
        service.library.add(papers / SCRIPT, workers=1)
        with listening(service) as address, visiting(browser, address) as page:
            search(page, "tide")
            expect(page.locator("#empty")).to_contain_text("No page of this library has text")
            page.get_by_role("link", name="Documents").click()
            expect(page.locator("#documents tbody tr")).to_have_count(1)
            expect(page.get_by_role("button", name=re.compile("^Remove "))).to_have_count(0)


@pytest.mark.nightly
def test_notes_of_the_library_are_shown(browser, wordy, monkeypatch):
    from playwright.sync_api import expect

    address, service = wordy
    monkeypatch.setattr(service.library, "notes", lambda: ["the model reads <b>samples</b> only"])
    with visiting(browser, address) as page:
        expect(page.locator("#notes")).to_have_text("The model reads <b>samples</b> only.")


# -- as one types, and in a document


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Iterator[str]:
    """A book of twelve pages beside a note, with words that are on some of its pages."""
    folder = tmp_path_factory.mktemp("book")
    pages = [
        [f"Chapter {i}", "The harbour of the town", *(["A lighthouse stands there"] if i in (3, 9) else [])]
        for i in range(1, 13)
    ]
    write_pages(folder / "harbours.pdf", pages)
    write_lines(folder / "note.pdf", ["A lighthouse is for ships"])
    with serving(tmp_path_factory.mktemp("booked") / "lib", None) as service:
        service.library.add(folder, workers=1)
        with listening(service) as address:
            yield address


def test_hits_come_as_one_types(browser, book):
    from playwright.sync_api import expect

    with visiting(browser, book) as page:
        page.keyboard.type("lighth", delay=20)  # nobody presses Enter
        expect(page.locator("#message")).to_have_text("3 pages in 2 documents")
        expect(page.locator("#suggestions")).to_contain_text("lighthouse")
        expect(page.locator("#hits mark").first).to_have_text("lighthouse")
        group = page.locator("#hits > li").filter(has_text="harbours.pdf")
        group.get_by_role("button", name="1 more in this document").click()
        expect(group.locator(".row")).to_have_count(1)
        page.get_by_label("Search the pages").press("Enter")
        page.go_back()
        expect(page.get_by_label("Search the pages")).to_have_value("")
        expect(page.locator("#suggestions")).to_contain_text("lighth")  # recent searches
        shared = f"{book}/?q=lighthouse&by=magic&year=next"
        page.goto(shared)
        expect(page.locator("#hits > li")).to_have_count(2)
        expect(page.locator("#ignored")).to_have_text("Ignored in the URL: by=magic, year=next")
        page.goto(f"{book}/?q=lighthouse&open=00000000-0000-4000-8000-000000000000:2")
        expect(page.locator("#hits > li")).to_have_count(2)
        expect(page.locator("#ignored")).to_have_text("Cannot open the page: no such document")


@pytest.mark.nightly
def test_hits_keep_their_pictures_when_a_second_document_is_found(browser, tmp_path):
    from playwright.sync_api import expect

    (tmp_path / "docs").mkdir()
    write_pages(tmp_path / "docs" / "long.pdf", [["harbour", f"page {i}"] for i in range(24)])
    write_lines(tmp_path / "docs" / "note.pdf", ["The harbour", *["and many other words"] * 20])
    with serving(tmp_path / "lib", None) as service:
        service.library.add(tmp_path / "docs", workers=1)
        with listening(service) as address, visiting(browser, address, "/?q=harbour") as page:
            expect(page.locator("#hits > li")).to_have_count(20)
            page.locator(".view .sheet.there").first.wait_for()
            page.get_by_role("button", name="Show more").click()
            expect(page.locator("#hits > li")).to_have_count(2)
            expect(page.locator("#hits > li").first).to_contain_text("23 more in this document")
            expect(page.locator(".view .sheet.there img")).to_have_count(2)


def test_a_misspelled_word_is_corrected_and_can_be_searched_as_typed(browser, book):
    from playwright.sync_api import expect

    with visiting(browser, book, "/?q=lighthuose") as page:
        expect(page.locator("#unknown")).to_contain_text(
            "Showing results for lighthouse. Search instead for lighthuose"
        )
        page.get_by_role("link", name="lighthuose").click()
        expect(page.locator("#empty")).to_contain_text("Check the spelling.")


def test_a_search_that_failed_can_be_tried_again(browser, book):
    from playwright.sync_api import expect

    with visiting(browser, book) as page:
        answer = {"status": 404, "json": {"error": "the library is locked"}}
        page.route("**/api/search", lambda route: route.fulfill(**answer))
        search(page, "lighthouse")
        expect(page.locator("#message")).to_have_text("The library is locked.")
        page.unroute("**/api/search")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator("#hits > li")).to_have_count(2)
        expect(page.locator("#message")).to_have_text("3 pages in 2 documents")


def test_find_select_and_cite_in_a_document(browser, book):
    from playwright.sync_api import expect

    with visiting(browser, book, "/?q=town", permissions=["clipboard-read", "clipboard-write"]) as page:
        page.locator("#hits a").first.click()
        viewer = page.get_by_role("dialog")
        number = viewer.get_by_label("Page", exact=True)
        viewer.get_by_label("Find in this document").fill("lighthouse")
        expect(number).to_have_value("3")
        expect(viewer.locator("#pages .has")).to_have_count(2)
        expect(viewer.locator("#marks .box")).to_have_count(1)
        viewer.get_by_label("Find in this document").press("Enter")
        expect(number).to_have_value("9")
        number.fill("5")
        number.press("Enter")
        expect(viewer.locator("#pages [aria-current]")).to_have_text("5")
        expect(viewer.locator("#layer span").first).to_have_text("Chapter ")
        viewer.locator("#layer").evaluate("layer => getSelection().selectAllChildren(layer)")
        viewer.locator("#stage").press("c")
        expect(viewer.locator("#told")).to_have_text("Copied with its source: harbours.pdf, page 5")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == "\u201cChapter 5\nThe harbour of the town\u201d (harbours.pdf, page 5)"
        word = viewer.locator("#layer span").first.bounding_box()
        sheet = viewer.locator("#sheet").bounding_box()
        assert (word["x"] - sheet["x"]) / sheet["width"] == pytest.approx(50 / 400, abs=0.01)  # as the PDF says


def test_pages_like_a_page_are_offered(browser, book):
    from playwright.sync_api import expect

    with visiting(browser, book, "/?q=ships") as page:
        page.locator("#hits a").first.click()
        page.get_by_text("More like this page").click()
        expect(page.locator("#similar-hits li")).to_have_count(1)
        expect(page.locator("#similar-hits")).to_contain_text("harbours.pdf")


def test_the_open_page_is_printed_else_the_hits(browser, book):
    from playwright.sync_api import expect

    with visiting(browser, book, "/?q=ships") as page:
        hit = page.locator("#hits .open").first
        hit.wait_for()
        page.emulate_media(media="print")
        expect(hit).to_be_visible()
        expect(page.get_by_role("navigation")).to_be_hidden()
        page.emulate_media(media="screen")
        hit.click()
        expect(page.locator("#sheet")).not_to_have_class("loading")
        page.emulate_media(media="print")
        expect(page.locator("#large")).to_be_visible()
        for other in ("#viewer > header", "#marks", ".beside", "#hits"):
            expect(page.locator(other)).to_be_hidden()
        assert page.pdf().count(b"/Type /Page\n") == 1


# -- accessibility

VIEWS = {
    "start": ("/", "#hits.covers > li"),
    "documents": ("/?view=documents", "#documents tbody tr"),
    "api": ("/docs", "#endpoints section"),
    "hits": ("/?q=lighthouse", "#hits.found .others"),
    "corrected": ("/?q=lighthuose&year=next", "#unknown a"),
    "nothing": ("/?q=xyzzy", "#empty li"),
}


@pytest.mark.nightly
@pytest.mark.skipif(not AXE.is_file(), reason="no axe-core here: `make nightly` installs it by npm")
@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_serious_finding(browser, book, scheme, size, tmp_path):
    viewport = {"width": size[0], "height": size[1]}
    found = []

    def check(page, view: str) -> None:
        page.evaluate(AXE.read_text())
        violations = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        found.extend((view, one["id"]) for one in violations if one["impact"] in ("serious", "critical"))

    for view, (path, selector) in VIEWS.items():
        with visiting(browser, book, path, viewport=viewport, color_scheme=scheme) as page:
            page.locator(selector).first.wait_for(state="attached")
            check(page, view)
    with visiting(browser, book, "/?q=lighthouse", viewport=viewport, color_scheme=scheme) as page:
        if page.locator("#open-filters").is_visible():
            page.locator("#open-filters").click()
            check(page, "filters")
        page.locator("#hits .open").first.click()
        page.locator("#layer span").first.wait_for(state="attached")
        for summary in page.locator("#viewer details > summary").all():
            if summary.is_visible():
                summary.click()
        page.locator("#similar-hits li").first.wait_for(state="attached")
        check(page, "viewer")
        page.keyboard.press("?")
        check(page, "keys")
    with (
        serving(tmp_path / "empty", None) as service,
        listening(service) as address,
        visiting(browser, address, viewport=viewport, color_scheme=scheme) as page,
    ):
        page.locator("#empty code").wait_for()
        check(page, "empty")
        bad = {"name": "broken.pdf", "mimeType": "application/pdf", "buffer": b"%PDF"}
        page.locator("#files").set_input_files([bad])
        page.locator("#uploads .bad").wait_for()
        check(page, "uploads")
    assert found == []
