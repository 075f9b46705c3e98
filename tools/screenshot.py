"""Make the screenshots in the README: search the handbook and sample reports in Chromium.

make screenshot            # writes docs/images/serve.png, and the animation docs/images/search.webp
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import randslot
from research.samples.drawing import draw_report
from research.samples.reports import make_reports
from serve import serving

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
HANDBOOK = IMAGES.parents[1] / "src" / "randslot" / "handbook.pdf"
QUERY = "node is lost"
WIDTH, HEIGHT, COLOURS = 1180, 720, 256


class Film:
    """Frames of a page, each with its duration in milliseconds."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.times: list[int] = []

    def shoot(self, milliseconds: int) -> None:
        """Add a frame of the current page."""
        self.frames.append(Image.open(BytesIO(self.page.screenshot())).convert("RGB"))
        self.times.append(milliseconds)

    def type(self, text: str) -> None:
        """Type a text, with a frame for every other letter."""
        for i, letter in enumerate(text):
            self.page.keyboard.type(letter)
            self.page.wait_for_timeout(60)
            if i % 2:
                self.shoot(120)

    def save(self, file: Path) -> None:
        """Write an animated WebP."""
        first, *rest = self.frames
        first.save(file, save_all=True, append_images=rest, duration=self.times, loop=0, quality=60, method=6)
        print(f"{file}: {len(self.frames)} frames, {sum(self.times) / 1000:.0f} s, {file.stat().st_size // 1024} KB")


def settle(page: Any) -> None:
    """Wait until all visible images are loaded."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)


def play(page: Any) -> Film:
    """Search, open a hit, go to a match, find in the document, and copy with the source."""
    film = Film(page)
    page.locator("#hits.covers > li").first.wait_for()
    settle(page)
    film.shoot(900)
    film.type(QUERY)
    page.locator("#hits .others button").first.wait_for()
    page.locator(".view .sheet.there").first.wait_for()
    settle(page)
    film.shoot(2200)
    for key in ("ArrowDown", "j", "k"):
        page.keyboard.press(key)
        film.shoot(500)
    page.keyboard.press("Enter")
    page.locator("#marks .box.now").wait_for()
    settle(page)
    film.shoot(2000)
    page.keyboard.press("n")
    film.shoot(900)
    page.keyboard.press("/")
    film.type("backup")
    page.wait_for_timeout(600)
    settle(page)
    film.shoot(1800)
    page.locator("#layer").evaluate(
        "layer => getSelection().setBaseAndExtent(layer.children[8], 0, layer.children[30], 0)"
    )
    page.locator("#stage").focus()
    page.keyboard.press("c")
    page.locator("#told").wait_for()
    film.shoot(2200)
    return film


@contextmanager
def opened(folder: Path, chromium: str) -> Iterator[Any]:
    """Serve the handbook and some reports, and yield a browser page at the library's URL."""
    documents = folder / "documents"
    documents.mkdir()
    shutil.copy(HANDBOOK, documents)
    for report in make_reports(8, split="test", seed=2):
        (documents / f"{report.name}.pdf").write_bytes(draw_report(report))
    with randslot.Library(folder / "mylib") as library:
        library.add(documents)
    with serving(folder / "mylib") as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"http://{address}")
        yield page
        browser.close()


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed. Run apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder), chromium) as page:
        film = play(page)
        film.save(IMAGES / "search.webp")
        page.goto(page.url.partition("?")[0] + f"?q={QUERY.replace(' ', '+')}")
        page.locator(".view .sheet.there").first.wait_for()
        settle(page)
        page.evaluate("document.activeElement.blur()")
        both = Image.new("RGB", (WIDTH, 2 * HEIGHT + 8), "white")
        both.paste(Image.open(BytesIO(page.screenshot())), (0, 0))
        page.locator("#hits .open").first.click()
        page.locator("#marks .box.now").wait_for()
        settle(page)
        both.paste(Image.open(BytesIO(page.screenshot())), (0, HEIGHT + 8))
    both.quantize(COLOURS, dither=Image.Dither.NONE).save(IMAGES / "serve.png", optimize=True)


if __name__ == "__main__":
    main()
