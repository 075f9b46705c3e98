"""The picture of the page in the README: the handbook, a real document, served and searched in Chromium.

make screenshot            # writes docs/images/serve.png
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
from serve import serving

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "serve.png"
WIDTH, HEIGHT, COLOURS = 1180, 720, 128
HANDBOOK = PICTURE.parents[2] / "src" / "randslot" / "handbook.pdf"


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
        page.get_by_text("Why this page").wait_for()
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
    parser.add_argument("--query", default="Is anything lost when the power is cut or the process is killed?")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "mylib"
        shutil.copy(HANDBOOK, folder)
        with randslot.Library(library) as opened:
            opened.add(Path(folder) / HANDBOOK.name)
        with serving(library) as (address, _):
            picture = take(address, options.query, chromium)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{options.query!r} in {PICTURE}, {PICTURE.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
