"""The page in a real browser: search, look, understand, add; by mouse and by keyboard, wide and narrow."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from randslot.serve.guard import Access
from support.services import SCRIPT, TOKEN, listening, pdf, serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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
    """A fresh page; whatever it loads is from the service, and it has nothing to complain about."""
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
    page.get_by_label("Search the pages").fill(query)
    page.get_by_label("Document", exact=True).fill(source)
    page.get_by_role("button", name="Search").click()


def test_search_open_a_page_and_see_why(page, address, service, papers):
    from playwright.sync_api import expect

    expect(page.get_by_role("banner").first).to_contain_text("mylib")
    search(page, "tax in 2023")
    found = service.library.search("tax in 2023", 20)
    cards = page.locator("#hits li")
    expect(cards).to_have_count(len(found))
    expect(page.get_by_role("status")).to_have_text(f'{len(found)} pages for "tax in 2023"')
    for card, hit in zip(cards.all(), found, strict=True):
        expect(card).to_contain_text(hit.source.rpartition("/")[2])
        expect(card).to_contain_text(f"page {hit.page} of")
        expect(card).to_contain_text(f"{hit.score:.2f}")
    cards.nth(0).scroll_into_view_if_needed()
    expect(cards.nth(0).locator("img")).not_to_have_js_property("naturalWidth", 0)

    search(page, "tax in 2023", "alpha.pdf")
    expect(cards).to_have_count(3)
    cards.nth(0).click()
    viewer = page.get_by_role("dialog")
    first = service.library.search("tax in 2023", 1, filters={"source": "alpha.pdf"})[0]
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
    expect(page.locator(".score").first).to_be_visible()
    page.get_by_label("Document", exact=True).fill("alpha.pdf")
    page.keyboard.press("Enter")
    expect(page.locator("#hits li")).to_have_count(3)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    viewer = page.get_by_role("dialog")
    expect(viewer).to_be_visible()
    title = viewer.get_by_role("heading", level=2)
    number = int(re.search(r"page (\d)", title.inner_text())[1])
    key, other = ("ArrowRight", number + 1) if number < 3 else ("ArrowLeft", number - 1)
    page.keyboard.press(key)
    expect(title).to_have_text(f"alpha.pdf, page {other} of 3")
    expect(viewer.locator("td.winner")).to_have_count(4)
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
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"notes"},
    ]
    page.get_by_label("Choose files").set_input_files(files)
    rows = page.locator("#uploads li")
    expect(rows.filter(has_text="delta.pdf")).to_contain_text("Added, 3 pages")
    expect(rows.filter(has_text="broken.pdf")).to_contain_text(
        "Could not be added: cannot open: it is corrupt, or not a PDF"
    )
    expect(rows.filter(has_text="notes.txt")).to_contain_text("Could not be added: only PDFs and images")
    search(page, "page", "delta.pdf")
    expect(page.locator("#hits li")).to_have_count(3)


def test_what_is_typed_stays_when_an_upload_is_done(page, tmp_path):
    from playwright.sync_api import expect

    file = {"name": "typed.pdf", "mimeType": "application/pdf", "buffer": pdf(tmp_path, 1, (250, 250))}
    page.get_by_label("Choose files").set_input_files([file])
    page.get_by_label("Search the pages").fill("half a que")
    expect(page.locator("#hits li").filter(has_text="typed.pdf")).to_have_count(1)
    expect(page.get_by_label("Search the pages")).to_have_value("half a que")


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
    page.locator("#drop").dispatch_event("drop", {"dataTransfer": dropped})
    expect(page.locator("#uploads li")).to_contain_text("Added, 1 page")


def test_markup_in_a_name_is_text(page):
    from playwright.sync_api import expect

    search(page, "<b>bold</b>", "*.png")
    expect(page.locator("#hits li")).to_have_count(1)
    expect(page.locator("#hits .name")).to_have_text(SCRIPT)
    expect(page.get_by_role("status")).to_have_text('1 page for "<b>bold</b>"')
    page.locator("#hits a").click()
    expect(page.get_by_role("dialog").get_by_role("heading", level=2)).to_contain_text(SCRIPT)
    assert page.locator("img[onerror], b").count() == 0


def test_everything_has_a_label(page):
    search(page, "tax")
    page.locator("#hits a").first.click()
    page.locator("td.winner").first.wait_for()
    nameless = page.evaluate(
        """() => [
            ...[...document.querySelectorAll("input:not([hidden])")].filter(one => !one.labels.length),
            ...[...document.querySelectorAll("button, a")].filter(one => !one.textContent.trim() && !one.ariaLabel),
            ...[...document.querySelectorAll("img:not([alt])")],
            ...[...document.querySelectorAll("dialog:not([aria-labelledby])")],
        ].map(one => one.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_fits_in_either_scheme(browser, address, scheme):
    size = {"width": 360, "height": 740}
    with visiting(browser, address, viewport=size, color_scheme=scheme) as page:
        search(page, "tax")
        page.locator("#hits a").first.click()
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
        expect(page.get_by_role("alert")).to_have_text("that is not the token")
        field, button = page.locator("#token").bounding_box(), page.get_by_role("button", name="Enter").bounding_box()
        assert button["y"] - (field["y"] + field["height"]) > 8  # the field has a ring of 3 px around it
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(asked).to_be_hidden()
        expect(page.get_by_role("status")).to_contain_text("The library is empty")
        expect(page.locator("#adding")).to_be_hidden()
        page.reload()
        expect(page.get_by_role("status")).to_contain_text("The library is empty")


def test_the_api_page_describes_every_endpoint(browser, address):
    with visiting(browser, address, "/docs") as page:
        page.locator("section").first.wait_for()
        for path in page.request.get(f"{address}/openapi.json").json()["paths"]:
            assert page.get_by_role("heading", name=path).count() >= 1


def test_commands_on_the_api_page_are_whole_on_a_phone(browser, address):
    with visiting(browser, address, "/docs", viewport={"width": 360, "height": 740}) as page:
        page.locator("pre").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        cut = page.evaluate(
            "[...document.querySelectorAll('pre')].filter(one => one.scrollWidth > one.clientWidth).length"
        )
        assert cut == 0
