"""Measure OCR engines on pages of real manuals, with the text layer as ground truth.

python -m research.manuals data/manuals                # fetch them
python -m research.experiments.ocr data/manuals         # every PDF in its folders, three pages of each

Words are compared as in a search: lower case, split at punctuation. Recall is the share of the text layer's words that
were recognised, precision the share of recognised words that are in the text layer, both counting repetitions. "in box"
is the share of words, of those that are on a page once, whose centre was recognised inside the word's box. A "scan" is
the same page, printed and badly scanned: rotated by a degree, blurred, noisy, and saved as a JPEG.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import resource
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from randslot.pages import Page, PageText, num_pages
from randslot.pages.ocr import read_image_text

SEED = 17
LEAST_WORDS = 50  # of a page that is taken
PAGES = 3  # of each PDF
MOST_LETTERS = 0.3  # maximum share of one-character words: a text layer with more is split into letters, and unusable
SIZES = (1_000_000, 2_000_000)  # pixels
ENGINES = ("rapidocr", "tesseract")
WORD = re.compile(r"[^\W_]+")


def choose_pages(folder: Path) -> list[tuple[str, int]]:
    """Return a fixed sample of pages with enough words: (file, number)."""
    chance = random.Random(SEED)
    chosen = []
    for file in sorted(folder.rglob("*.pdf")):
        numbers = list(range(1, num_pages(file) + 1))
        chance.shuffle(numbers)
        found: list[tuple[str, int]] = []
        for number in numbers:
            if len(found) == PAGES:
                break
            if is_truth(Page(file, number).text()):
                found.append((str(file), number))
        chosen += found
    return chosen


def is_truth(text: PageText) -> bool:
    """Whether a text layer has enough real words."""
    letters = [word for word in text.words if len(word.text) == 1]
    return len(text.words) >= LEAST_WORDS and len(letters) <= MOST_LETTERS * len(text.words)


def find_language(file: str) -> str:
    """Return the language of a manual from the end of its name, as in "debian-fr.pdf"."""
    last = Path(file).stem.rpartition("-")[2]
    return last if last in ("de", "fr", "es") else "en"


def scan(image: Image.Image) -> Image.Image:
    """Simulate a bad scan of a page."""
    turned = image.rotate(1.0, Image.Resampling.BICUBIC, fillcolor=(255, 255, 255))
    values = np.asarray(turned.filter(ImageFilter.GaussianBlur(0.7))).astype(np.float64)
    noise = np.random.default_rng(SEED).normal(0.0, 12.0, values.shape[:2])
    noisy = Image.fromarray(np.clip(values * 0.9 + noise[..., None], 0, 255).astype(np.uint8))
    content = io.BytesIO()
    noisy.save(content, "JPEG", quality=40)
    return Image.open(content).convert("RGB")


def split(text: PageText) -> Counter[str]:
    """Return the words of a page as a search tokenizes them."""
    return Counter(WORD.findall(text.text.lower()))


def count_in_boxes(truth: PageText, read: PageText) -> tuple[int, int]:
    """Return the number of correctly located words, of those that both have once, and the total."""
    places = find_single_words(read)
    inside = num = 0
    for text, word in find_single_words(truth).items():
        if text in places:
            x = (places[text].left + places[text].right) / 2
            y = (places[text].top + places[text].bottom) / 2
            inside += word.left <= x <= word.right and word.top <= y <= word.bottom
            num += 1
    return inside, num


def find_single_words(text: PageText) -> dict[str, Any]:
    """Return the words that a page has once, by their text."""
    counts = Counter(word.text for word in text.words)
    return {word.text: word for word in text.words if counts[word.text] == 1}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children, as other jobs share the machine."""
    return sum(os.times()[:4])


def measure(engine: str, pixels: int, kind: str, pages: list[tuple[str, int]]) -> dict[str, Any]:
    """Run OCR on all pages in this process, which must be new to measure its peak memory."""
    sums: Counter[str] = Counter()
    seconds = 0.0
    for file, number in pages:
        page = Page(file, number)
        image = page.image(pixels)
        image = scan(image) if kind == "scan" else image
        start = cpu_seconds()
        read = read_image_text(image, engine, pixels)
        seconds += cpu_seconds() - start
        truth, words = split(page.text()), split(read)
        common = (truth & words).total()
        language = find_language(file)
        inside, num = count_in_boxes(page.text(), read) if kind == "page" else (0, 0)
        counted = {"common": common, "read": words.total(), "true": truth.total(), "inside": inside, "single": num}
        sums.update({**counted, f"common {language}": common, f"true {language}": truth.total()})
    whose = resource.RUSAGE_SELF if engine == "rapidocr" else resource.RUSAGE_CHILDREN
    row = {"engine": engine, "image": kind, "megapixels": pixels / 1e6, "pages": len(pages)}
    row |= {"recall": sums["common"] / sums["true"], "precision": sums["common"] / max(sums["read"], 1)}
    for language in ("en", "de", "fr", "es"):
        row[f"recall {language}"] = sums[f"common {language}"] / max(sums[f"true {language}"], 1)
    row["in box"] = sums["inside"] / sums["single"] if sums["single"] else "-"
    return row | {"CPU s a page": seconds / len(pages), "peak MB": resource.getrusage(whose).ru_maxrss / 1000}


def list_ways() -> Iterator[tuple[str, int, str]]:
    for kind in ("page", "scan"):
        for pixels in SIZES:
            for engine in ENGINES:
                yield engine, pixels, kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with PDFs in subfolders")
    pages = choose_pages(parser.parse_args().folder)
    rows = []
    for engine, pixels, kind in list_ways():
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            rows.append(process.submit(measure, engine, pixels, kind, pages).result())
        print(rows[-1], flush=True)

    from record import keep, print_table  # imported late: torch would count as memory of the engines

    print_table(rows)
    keep("ocr", rows)


if __name__ == "__main__":
    main()
