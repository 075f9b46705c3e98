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
from dataclasses import astuple, dataclass
from functools import cache
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import RandSlotError, UsageError, first_line, in_one_line
from .images import limit_aspect, shrink
from .text import PageText, Word, pack_boxes

OCR_PIXELS = 2_000_000  # of an image that is read; larger ones are shrunk
FIND_PIXELS = 1_000_000  # of the image that lines are found in: reading them takes more
MISSING = 'reading the text of page images needs an OCR engine: pip install "randslot[ocr]"'
MAX_ASPECT = 4.0  # the detector enlarges images by their short side, so strips are padded to this shape

Point = tuple[float, float]


def find_engine() -> str | None:
    """Return the name of the OCR engine, or None if there is none. Loads nothing.

    The environment may choose one: RANDSLOT_OCR=tesseract, or none.
    """
    chosen = os.environ.get("RANDSLOT_OCR", "")
    if chosen not in ("", "none", "rapidocr", "tesseract"):
        raise UsageError(f"RANDSLOT_OCR must be rapidocr, tesseract or none, not {chosen!r}")
    if chosen:
        return None if chosen == "none" else chosen
    if find_spec("rapidocr") and find_spec("onnxruntime"):
        return "rapidocr"
    return "tesseract" if shutil.which("tesseract") else None


def show_advice() -> str:
    """Return how pages without text get some."""
    run = "run randslot library words"
    return run if find_engine() else f'pip install "randslot[ocr]", then {run}'


def read_image_text(image: Image.Image, engine: str | None = None, pixels: int = OCR_PIXELS) -> PageText:
    """Read the text of a page image, shrunk to at most `pixels` pixels; upright, on its side or upside down."""
    engine = engine or find_engine()
    if engine is None:
        raise RandSlotError(MISSING)
    width, height = image.size
    padded = max(width, height / MAX_ASPECT) * max(height, width / MAX_ASPECT)  # pixels of a strip when it is padded
    small = shrink(image.convert("RGB"), round(pixels * width * height / padded))
    lines = _join_hyphenated(_read_by_rapidocr(small) if engine == "rapidocr" else _read_by_tesseract(small))
    words = list(chain.from_iterable(lines))
    # An engine that cannot write a script leaves dots and commas.
    legible = sum(re.search(r"[^\W_]", word.text) is not None for word in words)
    if not words or 2 * legible < len(words):
        return PageText(has_layer=False)
    text = "\n".join(" ".join(word.text for word in line) for line in lines)
    return PageText(text, pack_boxes([astuple(word)[1:] for word in words]), has_layer=False)


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


# RapidOCR: a detector finds lines, a recogniser reads them.


@dataclass(frozen=True)
class Line:
    """A line as RapidOCR reads it.

    corners: in pixels; upper left, upper right, lower right and lower left in reading direction.
    turn: by how many quarters of a circle, clockwise, the line is turned.
    words: each with where it begins and ends, in fractions of the line's length.
    """

    corners: list[Point]
    turn: int
    words: list[tuple[str, float, float]]
    score: float


def _read_by_rapidocr(image: Image.Image) -> list[list[Word]]:
    """Return the words of each line, in the order of reading."""
    lines = _read_lines(image)
    letters: Counter[int] = Counter()
    for line in lines:
        letters[line.turn] += sum(len(text) for text, _, _ in line.words)
    turn = letters.most_common(1)[0][0] if lines else 0
    if turn:  # short words are read better, and lines sorted, when the page is upright
        back = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)[turn - 1]
        image = image.transpose(back)
        lines = _read_lines(image)
    found = []
    for line in _sort(lines):
        words = []
        for text, begin, end in line.words:
            (left, top), (right, bottom) = _find_box(line.corners, begin, end, image.size)
            for _ in range(turn):
                left, top, right, bottom = 1 - bottom, left, 1 - top, right
            words.append(Word(text, left, top, right, bottom))
        found.append(words)
    return found


def _read_lines(image: Image.Image) -> list[Line]:
    """Find the lines of an image and read them.

    The engine's own classifier of upside-down lines is not used: it takes time for every line, and its result, which
    the boxes of words need, is not returned. Instead, a line that is read badly, or may stand on end, is also read
    turned, and the best reading counts.
    """
    engine = _load_rapidocr()
    size = (max(image.width, 32), max(image.height, 32))  # the engine fails on tiny images
    paper = Image.new("RGB", size, "white")
    left, top = (size[0] - image.width) // 2, (size[1] - image.height) // 2
    paper.paste(image, (left, top))
    padded = limit_aspect(paper, MAX_ASPECT)
    left, top = left + (padded.width - size[0]) // 2, top + (padded.height - size[1]) // 2
    seen = shrink(padded, FIND_PIXELS)
    found = engine(seen, use_det=True, use_cls=False, use_rec=False)
    best: dict[int, Line] = {}
    boxes = [] if found.boxes is None else (found.boxes * (padded.width / seen.width)).tolist()
    wide: list[int] = []
    wanted = []
    for i, box in enumerate(boxes):
        ratio = math.dist(box[0], box[3]) / max(math.dist(box[0], box[1]), 1.0)
        if ratio < 1.5:
            wide.append(i)
        turns = (0,) if ratio < 1.5 else (0, 1, 3) if ratio < 3 else (1, 3)  # a single upright character may be tall
        wanted += [(i, turn) for turn in turns]
    _recognise(engine, padded, boxes, wanted, best)
    _recognise(engine, padded, boxes, [(i, 2) for i in wide if best[i].score < 0.9], best)
    lines = []
    for line in best.values():
        if line.words and line.score >= 0.5:
            corners = [(x - left, y - top) for x, y in line.corners]
            lines.append(Line(corners, line.turn, line.words, line.score))
    return lines


def _recognise(
    engine: Any, image: Image.Image, boxes: list[list[Point]], wanted: list[tuple[int, int]], best: dict[int, Line]
) -> None:
    """Read boxes at some turns, all together; keep the best reading of each.

    boxes: corners clockwise from the upper left one of the page. wanted: the place of a box among them, and its turn.
    """
    if not wanted:
        return
    cuts, cornered = [], []
    for i, turn in wanted:
        corners = boxes[i][turn:] + boxes[i][:turn]
        upper_left, upper_right, lower_right, lower_left = corners
        size = (max(round(math.dist(upper_left, upper_right)), 1), max(round(math.dist(upper_left, lower_left)), 1))
        quad = (*upper_left, *lower_left, *lower_right, *upper_right)
        cut = image.transform(size, Image.Transform.QUAD, quad, Image.Resampling.BICUBIC)
        cuts.append(np.ascontiguousarray(np.asarray(cut)[:, :, ::-1]))  # as OpenCV has colours
        cornered.append(corners)
    engine.return_word_box = True
    read = engine.recognize_txt(cuts)
    for place, (i, turn) in enumerate(wanted):
        score = read.scores[place]
        if i not in best or score > best[i].score:
            words = _split(read.txts[place], read.word_results[place])
            best[i] = Line(cornered[place], turn, words, score)


@cache
def _load_rapidocr() -> Any:
    with in_one_line("load RapidOCR"):
        import cv2
        import rapidocr
        from rapidocr import RapidOCR  # which imports the rest
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
            "Rec.rec_batch_num": 1,  # lines of a batch are padded to the widest one, which takes a third more time
            "Rec.rec_img_shape": [3, 48, 48],  # the last is the least width, to which short lines are padded
            "Det.box_thresh": 0.4,  # 0.5 by default, with which single short words on a wide page are not found
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def _split(text: str, found: Any) -> list[tuple[str, float, float]]:
    """Split a line at its spaces into words, each with its begin and end in fractions of the line's length.

    found: the columns in which the recogniser saw each character but spaces, and the number of all columns. The
    engine's own boxes of words are made from the same, but not divided as the text is, and wrong for turned lines.
    """
    columns = list(chain.from_iterable(found.word_cols))
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


def _find_box(corners: list[Point], begin: float, end: float, size: tuple[int, int]) -> tuple[Point, Point]:
    """Return the upper left and lower right corner of a part of a line, in fractions of an image of `size` pixels."""
    upper_left, upper_right, lower_right, lower_left = np.array(corners) / size
    points = []
    for place in (begin, end):
        points.append(upper_left + place * (upper_right - upper_left))
        points.append(lower_left + place * (lower_right - lower_left))
    inside = np.clip(points, 0.0, 1.0)
    return tuple(inside.min(axis=0).tolist()), tuple(inside.max(axis=0).tolist())


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
        # Less time than a worker process may take: one that is ended would leave the program running.
        done = subprocess.run(
            command, input=content.getvalue(), capture_output=True, env=one_thread, timeout=100, check=True
        )
    except subprocess.SubprocessError as error:
        reason = (error.stderr or b"").decode(errors="replace").strip() if hasattr(error, "stderr") else ""
        raise RandSlotError(f"tesseract failed: {reason.splitlines()[0] if reason else first_line(error)}") from error
    lines: dict[tuple[str, str, str], list[Word]] = {}
    table = io.StringIO(done.stdout.decode(errors="replace"))
    for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE):
        left, top = float(row["left"]) / image.width, float(row["top"]) / image.height
        right, bottom = left + float(row["width"]) / image.width, top + float(row["height"]) / image.height
        for text in row["text"].split():
            line = lines.setdefault((row["block_num"], row["par_num"], row["line_num"]), [])
            line.append(Word(text, left, top, right, bottom))
    return list(lines.values())


@cache
def _find_tesseract_options() -> tuple[str, ...]:
    """Return the options that make it read all languages it has, and turned pages if it can."""
    listed = subprocess.run(["tesseract", "--list-langs"], capture_output=True, text=True, check=True).stdout
    found = listed.splitlines()[1:]
    languages = [name for name in found if name not in ("osd", "equ")]
    return "-l", "+".join(languages), "--psm", "1" if "osd" in found else "3"
