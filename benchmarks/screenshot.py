"""The picture of the page in the README: sample reports, served, searched in Chromium.

    python benchmarks/screenshot.py            # writes docs/images/serve.png

Asks the questions that the sample reports come with until one finds its page first, and shows that one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import randslot
from randslot.samples.drawing import draw_report
from randslot.samples.reports import ANSWERS, make_reports
from randslot.samples.sets import Asked, ask_all
from serve import serving

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "serve.png"
WIDTH, HEIGHT, COLOURS = 1180, 720, 128
PREFIX = "test-1-"  # of the reports' names, which a reader of the README has no use for


def choose(library: randslot.Library, asked: list[Asked]) -> str:
    """Return the first question whose best page answers it, or just the first."""
    for one in asked:
        best = library.search(one.question.text, 1)[0]
        if one.grades.get(f"{PREFIX}{Path(best.source).name}#page={best.page}") == ANSWERS:
            return one.question.text
    print("no question finds its page: the picture shows one that does not", file=sys.stderr)
    return asked[0].question.text


def take(address: str, query: str, chromium: str) -> Image.Image:
    """Return the page with the hits and, below, the first of them opened."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page: Any = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"http://{address}")
        page.get_by_label("Search the pages").fill(query)
        page.keyboard.press("Enter")
        page.locator(".found .snippet").first.wait_for()
        page.wait_for_load_state("networkidle")
        page.evaluate("document.activeElement.blur()")
        hits = page.screenshot()
        page.locator("#hits a").first.click()
        page.get_by_text("How its vectors compare").click()
        page.locator("td.winner").first.wait_for()
        page.locator("#large").evaluate("image => image.decode()")
        page.evaluate("document.activeElement.blur()")
        opened = page.screenshot()
        browser.close()
    both = Image.new("RGB", (WIDTH, 2 * HEIGHT + 8), "white")
    both.paste(Image.open(BytesIO(hits)), (0, 0))
    both.paste(Image.open(BytesIO(opened)), (0, HEIGHT + 8))
    return both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=16)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium here: apt-get install chromium")
    reports = list(make_reports(options.reports, split="test", seed=1))
    with tempfile.TemporaryDirectory() as folder:
        papers, library = Path(folder) / "reports", Path(folder) / "mylib"
        papers.mkdir()
        for report in reports:
            (papers / f"{report.name.removeprefix(PREFIX)}.pdf").write_bytes(draw_report(report))
        with randslot.Library(library, "embedded") as opened:
            opened.add(papers)
            query = choose(opened, ask_all(reports))
        with serving(library) as (address, _):
            picture = take(address, query, chromium)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{query!r} in {PICTURE}, {PICTURE.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
