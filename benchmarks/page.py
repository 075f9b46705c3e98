"""Measure the web page in a browser: latency from key to hits and from click to page, its size, and axe's findings.

    python benchmarks/page.py make                        # a library of 100,000 pages: minutes
    python benchmarks/page.py measure --axe data/page/axe.min.js    # from `npm pack axe-core`

`make` indexes documents by words, and stores copies of their pages under other names, each with an extra word, until
there are enough. Links lead to the same files, so that all pages render; word boxes are stored, as for scans. The
library is kept in --folder.

`measure` serves it. Times are medians over the queries, in a browser with a cold cache, after one warmup query; "load"
is the machine's one-minute load average.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
import uuid
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright
from record import keep, print_table

import randslot
from randslot.library.stores.points import page_id
from randslot.pages.text import pack_boxes
from serve import serving

QUERIES = ["restore a backup", "power failure", "network configuration", "confidence interval", "partition the disk"]
SIZES = {"wide": (1440, 900), "phone": (390, 844)}


def make_library(documents: Path, num_pages: int, folder: Path) -> None:
    """Index documents, and store copies of their pages under other names until there are enough."""
    shutil.rmtree(folder / "library", ignore_errors=True)
    with randslot.Library(folder / "library") as library:
        library.add(documents)
        originals = [(file, _read_pages(library, file)) for file in library.files()]
        for copy in range(1, -(-num_pages // len(library))):
            links = folder / f"copy-{copy}"
            shutil.rmtree(links, ignore_errors=True)
            with library.write():
                for file, stored in originals:
                    link = links / Path(file.source).relative_to(documents)
                    link.parent.mkdir(parents=True, exist_ok=True)
                    os.link(file.source, link)
                    new = replace(file, id=str(uuid.uuid4()), source=str(link))
                    library.store.add([_rename(page, new.id, copy) for page in stored])
                    library.manifest.put(new)
                library.store.flush()
            print(f"{len(library):,} pages", flush=True)
        library.store.optimize(wait=True)


def _read_pages(library: randslot.Library, file: Any) -> list[Any]:
    """Return the pages of a file, with the boxes of their words."""
    ids = [page_id(file.id, number) for number in range(1, file.num_pages + 1)]
    return [_add_boxes(page, library.read_text(page.id, boxes=True)) for page in library.store.read(ids).values()]


def _add_boxes(page: Any, text: Any) -> Any:
    return replace(page, text=replace(page.text, boxes=text.boxes)) if page.text and text.boxes else page


def _rename(page: Any, file: str, copy: int) -> Any:
    """Return a copy of a page in another file, with an extra word so that it is not a duplicate."""
    if not page.text:
        return replace(page, file=file)
    text, boxes = f"{page.text.text}\ncopy{copy}", page.text.boxes and page.text.boxes + pack_boxes([0, 0, 0, 0])
    return replace(page, file=file, text=replace(page.text, text=text, boxes=boxes))


def measure(page: Page, address: str, query: str) -> dict[str, float]:
    """Return the latency of each step of a search, in milliseconds."""
    took: dict[str, float] = {}

    def step(name: str, selector: str) -> None:
        page.locator(selector).first.wait_for()
        took[name] = 1000 * (time.perf_counter() - start)

    start = time.perf_counter()
    page.goto(f"http://{address}/?q={quote(query)}", wait_until="commit")
    step("shared address to first hits", "#hits.found > li")
    step("shared address to first picture", ".view .sheet.there")
    page.goto(f"http://{address}/")
    page.locator("#hits.covers > li").first.wait_for()
    page.wait_for_load_state("networkidle")
    page.keyboard.type(query, delay=60)
    start = time.perf_counter()
    page.wait_for_function("query => new URLSearchParams(location.search).get('q') === query", arg=query)
    step("last key to hits", "#hits.found > li")
    page.wait_for_load_state("networkidle")
    start = time.perf_counter()
    page.locator("#hits .open").first.click()
    page.locator("#sheet:not(.loading)").wait_for()
    step("click to a page with its marks", "#marks .box.now, #marks .box")
    return took


def weigh(browser: Browser, address: str, query: str) -> dict[str, Any]:
    """Return the kilobytes that a browser loads for the hits of a search."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page: Any = context.new_page()
    sizes: dict[str, int] = defaultdict(int)

    def count(answer: Any) -> None:
        kind = "page" if answer.request.resource_type in ("script", "stylesheet", "document") else "rest"
        sizes[kind] += len(answer.body())

    page.on("response", count)
    page.goto(f"http://{address}/?q={quote(query)}")
    page.wait_for_load_state("networkidle")
    whole = page.locator("#hits > li").evaluate_all(
        "all => all.filter(one => one.getBoundingClientRect().bottom <= innerHeight).length"
    )
    context.close()
    loaded = {"page KB": sizes["page"] / 1000, "answers and pictures KB": sizes["rest"] / 1000}
    return loaded | {"whole hits on 1440 x 900": whole}


def check_access(browser: Browser, address: str, query: str, axe: str) -> list[dict[str, Any]]:
    """Return the number of axe's findings in each view, and their rules."""
    rows = []
    for name, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True
            )
            page, found = context.new_page(), []
            for path in ("/", f"/?q={quote(query)}", "/?view=documents", "open"):
                if path == "open":
                    page.goto(f"http://{address}/?q={quote(query)}")
                    page.locator("#hits .open").first.click()
                    page.locator("#layer span").first.wait_for(state="attached")
                else:
                    page.goto(f"http://{address}{path}")
                page.wait_for_load_state("networkidle")
                page.evaluate(axe)
                answer = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
                found += [one["id"] for one in answer["violations"] if one["impact"] in ("serious", "critical")]
            rows.append({"axe, views": f"{name}, {scheme}", "serious findings": len(found), "rules": ", ".join(found)})
            context.close()
    return rows


def measure_all(browser: Browser, address: str, num: int) -> list[dict[str, Any]]:
    """Return rows of times and sizes."""
    took: dict[str, list[float]] = defaultdict(list)
    for query in (QUERIES[0], *QUERIES):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        for name, value in measure(context.new_page(), address, query).items():
            took[name].append(value)
        context.close()
    rows: list[dict[str, Any]] = []
    for name, values in took.items():
        times = {"median ms": statistics.median(values[1:]), "best ms": min(values[1:])}
        rows.append({"pages": num, "what": name} | times | {"load": os.getloadavg()[0]})
    return [*rows, weigh(browser, address, QUERIES[0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["make", "measure"])
    parser.add_argument("--documents", type=Path, default=Path("data/shelf/dev/pages"))
    parser.add_argument("--pages", type=int, default=100_000, help="at least")
    parser.add_argument("--folder", type=Path, default=Path("data/page"))
    parser.add_argument("--axe", type=Path, help="axe.min.js")
    options = parser.parse_args()
    if options.step == "make":
        options.folder.mkdir(parents=True, exist_ok=True)
        make_library(options.documents.resolve(), options.pages, options.folder.resolve())
        return
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed. Run apt-get install chromium")
    library = options.folder / "library"
    with randslot.Library(library) as opened:
        num = len(opened)
    with serving(library) as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        rows = measure_all(browser, address, num)
        if options.axe:
            rows += check_access(browser, address, QUERIES[0], options.axe.read_text())
        browser.close()
    print_table(rows)
    keep("page", rows)


if __name__ == "__main__":
    main()
