"""The text of page images by OCR: words with their boxes, as a text layer would give them.

The only file that knows an OCR engine. RapidOCR comes with the extra randslot[ocr], models included; Tesseract is used
where it is installed and the extra is not.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image

from ..errors import RandSlotError, UsageError, first_line
from .images import WHITE, limit_aspect, shrink
from .text import PageText, Word

OCR_PIXELS = 2_000_000  # of an image that is read; larger ones are shrunk
CHOICE = "RANDSLOT_OCR"
MISSING = 'reading the text of page images needs an OCR engine: pip install "randslot[ocr]"'
ASPECT = 4.0  # the detector enlarges images by their short side, so strips are padded to this shape
TURNS = {1: Image.Transpose.ROTATE_90, 2: Image.Transpose.ROTATE_180, 3: Image.Transpose.ROTATE_270}  # to turn back
DIGITS = 5  # of a box
TESSERACT_SECONDS = 100.0  # less than a worker process may take: one that is ended would leave the program running

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line as RapidOCR reads it.

    corners: in pixels; upper left, upper right, lower right and lower left for somebody who reads the line.
    turn: by how many quarters of a circle, clockwise, the line is turned.
    words: each with where it begins and ends, in fractions of the line's length.
    """

    corners: list[Point]
    turn: int
    words: list[tuple[str, float, float]]
    score: float


def find_engine() -> str | None:
    """Return the name of the OCR engine, or None if there is none. Loads nothing.

    The environment may choose one: RANDSLOT_OCR=tesseract, or none.
    """
    chosen = os.environ.get(CHOICE, "")
    if chosen not in ("", "none", "rapidocr", "tesseract"):
        raise UsageError(f"{CHOICE} in the environment is rapidocr, tesseract or none, not {chosen!r}")
    if chosen:
        return None if chosen == "none" else chosen
    if find_spec("rapidocr") and find_spec("onnxruntime"):
        return "rapidocr"
    return "tesseract" if shutil.which("tesseract") else None


def show_advice() -> str:
    """Return how pages without text get some."""
    reads = "randslot library words reads them by OCR"
    return reads if find_engine() else f'pip install "randslot[ocr]", then {reads}'


def read_image_text(image: Image.Image, engine: str | None = None, pixels: int = OCR_PIXELS) -> PageText:
    """Read the text of a page image, shrunk to at most `pixels` pixels; upright, on its side or upside down."""
    engine = engine or find_engine()
    if engine is None:
        raise RandSlotError(MISSING)
    width, height = image.size
    padded = max(width, height / ASPECT) * max(height, width / ASPECT)  # pixels of a strip when it is padded
    small = shrink(image.convert("RGB"), round(pixels * width * height / padded))
    lines = _join_hyphenated(_read_by_rapidocr(small) if engine == "rapidocr" else _read_by_tesseract(small))
    words = [word for line in lines for word in line]
    # An engine that cannot write a script leaves dots and commas.
    legible = sum(any(character.isalnum() for character in word.text) for word in words)
    if 2 * legible < len(words):
        return PageText(has_layer=False)
    text = "\n".join(" ".join(word.text for word in line) for line in lines)
    return PageText(text, tuple(words), has_layer=False)


def _join_hyphenated(lines: list[list[Word]]) -> list[list[Word]]:
    """Make one word of each that is hyphenated at the end of a line, as the text layer of a PDF has it."""
    joined: list[list[Word]] = []
    for line in lines:
        rest = line
        first, second = joined[-1][-1] if joined else None, line[0]
        if first and re.search(r"[^\W\d_]{2}[-\u2010]$", first.text) and second.text[0].islower():
            left, top = min(first.left, second.left), min(first.top, second.top)
            right, bottom = max(first.right, second.right), max(first.bottom, second.bottom)
            joined[-1][-1] = Word(first.text[:-1] + second.text, left, top, right, bottom)
            rest = line[1:]
        if rest:
            joined.append(rest)
    return joined


def _make_word(text: str, points: list[Point], size: tuple[int, int]) -> Word:
    """Return a word with the box around some points of an image of `size` pixels."""
    xs = [round(min(max(0.0, x / size[0]), 1.0), DIGITS) for x, _ in points]
    ys = [round(min(max(0.0, y / size[1]), 1.0), DIGITS) for _, y in points]
    return Word(text, min(xs), min(ys), max(xs), max(ys))


# RapidOCR: a detector finds lines, a recogniser reads each.


def _read_by_rapidocr(image: Image.Image) -> list[list[Word]]:
    """Return the words of each line, in the order of reading."""
    lines = _read_lines(image)
    letters: Counter[int] = Counter()
    for line in lines:
        letters[line.turn] += sum(len(text) for text, _, _ in line.words)
    turn = letters.most_common(1)[0][0] if lines else 0
    if not turn:
        return _make_words(lines, image.size)
    # The page lies on its side or on its head: short words are read better, and lines sorted, when it is upright.
    upright = image.transpose(TURNS[turn])
    turned = []
    for words in _make_words(_read_lines(upright), upright.size):
        turned.append([_turn_word(word, turn) for word in words])
    return turned


def _read_lines(image: Image.Image) -> list[Line]:
    engine = _load_rapidocr()
    size = (max(image.width, 32), max(image.height, 32))  # the engine fails on tiny images
    paper = Image.new("RGB", size, WHITE)
    left, top = (size[0] - image.width) // 2, (size[1] - image.height) // 2
    paper.paste(image, (left, top))
    padded = limit_aspect(paper, ASPECT)
    left, top = left + (padded.width - size[0]) // 2, top + (padded.height - size[1]) // 2
    found = _run(engine, padded, use_det=True, use_cls=False, use_rec=False)
    lines = []
    for box in [] if found.boxes is None else found.boxes.tolist():
        line = _read_line(engine, padded, box)
        if line is not None:
            lines.append(replace(line, corners=[(x - left, y - top) for x, y in line.corners]))
    return lines


def _make_words(lines: list[Line], size: tuple[int, int]) -> list[list[Word]]:
    """Return the words of each line, in the order of reading, on a page of `size` pixels."""
    found = []
    for line in _sort(lines):
        upper_left, upper_right, lower_right, lower_left = line.corners
        words = []
        for text, *ends in line.words:
            points = []
            for end in ends:
                for (x, y), (to_x, to_y) in ((upper_left, upper_right), (lower_left, lower_right)):
                    points.append((x + end * (to_x - x), y + end * (to_y - y)))
            words.append(_make_word(text, points, size))
        found.append(words)
    return found


def _turn_word(word: Word, quarters: int) -> Word:
    """Return where a word is when the page is turned clockwise by some quarters of a circle."""
    for _ in range(quarters):
        word = Word(word.text, round(1 - word.bottom, DIGITS), word.left, round(1 - word.top, DIGITS), word.right)
    return word


@cache
def _load_rapidocr() -> Any:
    try:
        import cv2
        import rapidocr
        from rapidocr import RapidOCR  # which imports the rest
    except ImportError as error:
        raise RandSlotError(f"cannot load RapidOCR: {first_line(error)}") from error
    cv2.setNumThreads(1)
    models = Path(rapidocr.__file__).parent / "models"
    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.use_preprocess_img": False,  # images are shrunk and padded here
            "Global.use_vertical_padding": False,
            # With paths nothing is ever downloaded: without, a model whose hash differs would be.
            "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),
            "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
            "Det.box_thresh": 0.4,  # 0.5 by default, with which single short words on a wide page are not found
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def _run(engine: Any, image: Image.Image, **steps: bool) -> Any:
    """Run some steps of RapidOCR; it can fail in any way."""
    try:
        return engine(image, **steps)
    except MemoryError:
        raise
    except Exception as error:  # its text can be a traceback, with the reason in the last line
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise RandSlotError(f"RapidOCR failed: {lines[-1]}") from error


def _read_line(engine: Any, image: Image.Image, box: list[Point]) -> Line | None:
    """Read one line; the box has its corners clockwise from the upper left one of the page. None if it has no text.

    The engine's own classifier of upside-down lines is not used: it takes time for every line, and its result, which
    the boxes of words need, is not returned. Instead, a line that is read badly, or may stand on end, is also read
    turned, and the better reading counts.
    """
    ratio = math.dist(box[0], box[3]) / max(math.dist(box[0], box[1]), 1.0)
    is_wide = ratio < 1.5
    turns = (0, 2) if is_wide else (0, 1, 3) if ratio < 3 else (1, 3)  # a single upright character may be tall
    best: Line | None = None
    for turn in turns:
        corners = box[turn:] + box[:turn]
        cut = _cut(image, corners)
        read = _run(engine, cut, use_det=False, use_cls=False, use_rec=True, return_word_box=True)
        line = Line(corners, turn, _split(read.txts[0], read.word_results[0]), read.scores[0])
        if best is None or line.score > best.score:
            best = line
        if is_wide and best.score >= 0.9:
            break
    return best if best and best.words and best.score >= 0.5 else None


def _cut(image: Image.Image, corners: list[Point]) -> Image.Image:
    """Return what is between four corners as an upright image."""
    upper_left, upper_right, lower_right, lower_left = corners
    size = (max(round(math.dist(upper_left, upper_right)), 1), max(round(math.dist(upper_left, lower_left)), 1))
    quad = (*upper_left, *lower_left, *lower_right, *upper_right)
    return image.transform(size, Image.Transform.QUAD, quad, Image.Resampling.BICUBIC)


def _split(text: str, found: Any) -> list[tuple[str, float, float]]:
    """Split a line at its spaces into words, each with its begin and end in fractions of the line's length.

    found: the columns in which the recogniser saw each character but spaces, and the number of all columns. The
    engine's own boxes of words are made from the same, but not divided as the text is, and wrong for turned lines.
    """
    columns = [column for part in found.word_cols for column in part]
    steps = sorted(after - before for before, after in pairwise(columns))
    half = (steps[len(steps) // 2] if steps else 2) / 2  # of the usual width of a character
    words = []
    first = 0
    for word in text.split():
        last = first + len(word) - 1
        begin = (columns[first] + 0.5 - half) / found.line_txt_len
        end = (columns[last] + 0.5 + half) / found.line_txt_len
        words.append((word, max(begin, 0.0), min(end, 1.0)))
        first = last + 1
    return words


def _sort(lines: list[Line]) -> list[Line]:
    """Put lines in the order of reading: rows from top to bottom, each from left to right."""
    placed = []
    for line in lines:
        ys = [y for _, y in line.corners]
        placed.append(((min(ys) + max(ys)) / 2, min(ys), max(ys), min(x for x, _ in line.corners), line))
    rows: list[list[tuple[float, Line]]] = []
    row_middle = row_bottom = 0.0
    for middle, top, bottom, left, line in sorted(placed, key=lambda item: item[0]):
        if rows and middle < row_bottom and top < row_middle:
            rows[-1].append((left, line))
        else:
            rows.append([(left, line)])
            row_middle, row_bottom = middle, bottom
    return [line for row in rows for _, line in sorted(row, key=lambda item: item[0])]


# Tesseract: a program that reads an image and writes a table.


def _read_by_tesseract(image: Image.Image) -> list[list[Word]]:
    """Return the words of each line, in the order of reading."""
    content = io.BytesIO()
    image.save(content, "PPM")
    command = ["tesseract", "stdin", "stdout", *_find_tesseract_options(), "tsv"]
    one_thread = {**os.environ, "OMP_THREAD_LIMIT": "1"}
    try:
        done = subprocess.run(
            command, input=content.getvalue(), capture_output=True, env=one_thread, timeout=TESSERACT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise RandSlotError(f"tesseract took more than {TESSERACT_SECONDS:g} s") from error
    if done.returncode:
        reasons = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise RandSlotError(f"tesseract failed: {reasons[0]}")
    lines: dict[tuple[str, str, str], list[Word]] = {}
    table = io.StringIO(done.stdout.decode(errors="replace"))
    for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE):
        left, top = float(row["left"]), float(row["top"])
        points = [(left, top), (left + float(row["width"]), top + float(row["height"]))]
        for text in row["text"].split():
            line = lines.setdefault((row["block_num"], row["par_num"], row["line_num"]), [])
            line.append(_make_word(text, points, image.size))
    return list(lines.values())


@cache
def _find_tesseract_options() -> tuple[str, ...]:
    """Return the options that make it read all languages it has, and turned pages if it can."""
    listed = subprocess.run(["tesseract", "--list-langs"], capture_output=True, text=True, check=True).stdout
    found = listed.splitlines()[1:]
    languages = [name for name in found if name not in ("osd", "equ")]
    return "-l", "+".join(languages), "--psm", "1" if "osd" in found else "3"
