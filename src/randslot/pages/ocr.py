"""Read the text of page images by OCR: words with their boxes, as in a text layer.

The only file that uses OCR engines: RapidOCR from the extra randslot[ocr], models included, with Tesseract as fallback.
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

OCR_PIXELS = 2_000_000  # to recognise text; larger images are shrunk
FIND_PIXELS = 1_000_000  # to detect lines, which needs fewer
MISSING = 'reading the text of page images needs an OCR engine: pip install "randslot[ocr]"'
MAX_ASPECT = 4.0  # the detector scales images by their short side, so strips are padded to this aspect ratio

Point = tuple[float, float]


def find_engine() -> str | None:
    """Return the name of the OCR engine, None if none is installed, without loading it.

    RANDSLOT_OCR=tesseract (or rapidocr, none) overrides the choice.
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
    """Return a hint on how to run OCR."""
    run = "run randslot library words"
    if os.environ.get("RANDSLOT_OCR") == "none":
        return f"unset RANDSLOT_OCR, then {run}"
    return run if find_engine() else f'pip install "randslot[ocr]", then {run}'


def read_image_text(image: Image.Image, engine: str | None = None, pixels: int = OCR_PIXELS) -> PageText:
    """Read the text of a page image, shrunk to at most `pixels` pixels, in any of four orientations."""
    engine = engine or find_engine()
    if engine is None:
        raise RandSlotError(MISSING)
    width, height = image.size
    padded = max(width, height / MAX_ASPECT) * max(height, width / MAX_ASPECT)  # pixels of the padded image
    small = shrink(image.convert("RGB"), round(pixels * width * height / padded))
    lines = _join_hyphenated(_read_by_rapidocr(small) if engine == "rapidocr" else _read_by_tesseract(small))
    words = list(chain.from_iterable(lines))
    # An engine that does not know a script returns dots and commas.
    legible = sum(re.search(r"[^\W_]", word.text) is not None for word in words)
    if not words or 2 * legible < len(words):
        return PageText(has_layer=False)
    text = "\n".join(" ".join(word.text for word in line) for line in lines)
    return PageText(text, pack_boxes([astuple(word)[1:] for word in words]), has_layer=False)


def _join_hyphenated(lines: list[list[Word]]) -> list[list[Word]]:
    """Join words that are hyphenated across lines, as in the text layer of a PDF."""
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


# -- RapidOCR: a detector finds lines, a recogniser reads them


@dataclass(frozen=True)
class Line:
    """A line read by RapidOCR.

    corners: upper left, upper right, lower right and lower left in reading direction, in pixels.
    turn: clockwise rotation of the line, in quarter turns.
    words: each with its start and end, in fractions of the line's length.
    """

    corners: list[Point]
    turn: int
    words: list[tuple[str, float, float]]
    score: float


def _read_by_rapidocr(image: Image.Image) -> list[list[Word]]:
    """Return the words of each line, in reading order."""
    lines = _read_lines(image)
    letters: Counter[int] = Counter()
    for line in lines:
        letters[line.turn] += sum(len(text) for text, _, _ in line.words)
    turn = letters.most_common(1)[0][0] if lines else 0
    if turn:  # an upright page is read better, and its lines are sorted
        rotation = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)[turn - 1]
        image = image.transpose(rotation)
        lines = _read_lines(image)
    found = []
    for line in _sort_lines(lines):
        words = []
        for text, begin, end in line.words:
            (left, top), (right, bottom) = _find_box(line.corners, begin, end, image.size)
            for _ in range(turn):
                left, top, right, bottom = 1 - bottom, left, 1 - top, right
            words.append(Word(text, left, top, right, bottom))
        found.append(words)
    return found


def _read_lines(image: Image.Image) -> list[Line]:
    """Detect and recognise the lines of an image.

    The engine's classifier of upside-down lines is not used: it takes time for every line and does not return its
    result, which word boxes need. Instead, lines with a low score, and tall ones, are also read rotated; the reading
    with the best score counts.
    """
    engine = _load_rapidocr()
    size = (max(image.width, 32), max(image.height, 32))  # the engine fails on tiny images
    paper = Image.new("RGB", size, "white")
    left, top = (size[0] - image.width) // 2, (size[1] - image.height) // 2
    paper.paste(image, (left, top))
    padded = limit_aspect(paper, MAX_ASPECT)
    left, top = left + (padded.width - size[0]) // 2, top + (padded.height - size[1]) // 2
    small = shrink(padded, FIND_PIXELS)
    found = engine(small, use_det=True, use_cls=False, use_rec=False)
    best: dict[int, Line] = {}
    boxes = [] if found.boxes is None else (found.boxes * (padded.width / small.width)).tolist()
    wide: list[int] = []
    readings = []
    for i, box in enumerate(boxes):
        ratio = math.dist(box[0], box[3]) / max(math.dist(box[0], box[1]), 1.0)
        if ratio < 1.5:
            wide.append(i)
        turns = (0,) if ratio < 1.5 else (0, 1, 3) if ratio < 3 else (1, 3)  # a single upright character may be tall
        readings += [(i, turn) for turn in turns]
    _recognise(engine, padded, boxes, readings, best)
    _recognise(engine, padded, boxes, [(i, 2) for i in wide if best[i].score < 0.9], best)
    lines = []
    for line in best.values():
        if line.words and line.score >= 0.5:
            corners = [(x - left, y - top) for x, y in line.corners]
            lines.append(Line(corners, line.turn, line.words, line.score))
    return lines


def _recognise(
    engine: Any, image: Image.Image, boxes: list[list[Point]], readings: list[tuple[int, int]], best: dict[int, Line]
) -> None:
    """Recognise rotated boxes in one batch, and update the best reading of each box.

    boxes: corners clockwise from the upper left one of the page. readings: the index of a box, and its rotation.
    """
    if not readings:
        return
    crops, all_corners = [], []
    for i, turn in readings:
        corners = boxes[i][turn:] + boxes[i][:turn]
        upper_left, upper_right, lower_right, lower_left = corners
        size = (max(round(math.dist(upper_left, upper_right)), 1), max(round(math.dist(upper_left, lower_left)), 1))
        quad = (*upper_left, *lower_left, *lower_right, *upper_right)
        crop = image.transform(size, Image.Transform.QUAD, quad, Image.Resampling.BICUBIC)
        crops.append(np.ascontiguousarray(np.asarray(crop)[:, :, ::-1]))  # BGR, for OpenCV
        all_corners.append(corners)
    engine.return_word_box = True
    read = engine.recognize_txt(crops)
    for place, (i, turn) in enumerate(readings):
        score = read.scores[place]
        if i not in best or score > best[i].score:
            words = _split_line(read.txts[place], read.word_results[place])
            best[i] = Line(all_corners[place], turn, words, score)


@cache
def _load_rapidocr() -> Any:
    with in_one_line("load RapidOCR"):
        import cv2
        import rapidocr
        from rapidocr import RapidOCR
    cv2.setNumThreads(1)
    models = Path(rapidocr.__file__).parent / "models"
    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.use_preprocess_img": False,  # images are shrunk and padded here
            "Global.use_vertical_padding": False,
            # Without paths, RapidOCR downloads a model whose hash differs.
            "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),
            "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
            "Rec.rec_batch_num": 1,  # larger batches pad lines to the widest one and take a third longer
            "Rec.rec_img_shape": [3, 48, 48],  # the last is the minimum width: short lines are padded to it
            "Det.box_thresh": 0.4,  # the default, 0.5, misses single short words on a wide page
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def _split_line(text: str, found: Any) -> list[tuple[str, float, float]]:
    """Split a line into words, each with its start and end in fractions of the line's length.

    found: the column of each character but spaces, and the number of columns. The engine's own word boxes come from the
    same columns, but do not match the words of the text and are wrong for rotated lines.
    """
    columns = list(chain.from_iterable(found.word_cols))
    steps = sorted(after - before for before, after in pairwise(columns))
    half = (steps[len(steps) // 2] if steps else 2) / 2  # of the median width of a character
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
    """Return the corners of the box of a part of a line, in fractions of an image of `size` pixels."""
    upper_left, upper_right, lower_right, lower_left = np.array(corners) / size
    points = []
    for place in (begin, end):
        points.append(upper_left + place * (upper_right - upper_left))
        points.append(lower_left + place * (lower_right - lower_left))
    inside = np.clip(points, 0.0, 1.0)
    return tuple(inside.min(axis=0).tolist()), tuple(inside.max(axis=0).tolist())


def _sort_lines(lines: list[Line]) -> list[Line]:
    """Sort lines in reading order: rows from top to bottom, each from left to right."""
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


# -- Tesseract: reads an image from stdin and writes a table


def _read_by_tesseract(image: Image.Image) -> list[list[Word]]:
    """Return the words of each line, in reading order."""
    content = io.BytesIO()
    image.save(content, "PPM")
    command = ["tesseract", "stdin", "stdout", *_find_tesseract_options(), "tsv"]
    one_thread = {**os.environ, "OMP_THREAD_LIMIT": "1"}
    try:
        # A shorter timeout than that of the worker process, whose end would leave Tesseract running.
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
    """Return the options for all installed languages and, if possible, for rotated pages."""
    listed = subprocess.run(["tesseract", "--list-langs"], capture_output=True, text=True, check=True).stdout
    found = listed.splitlines()[1:]
    languages = [name for name in found if name not in ("osd", "equ")]
    return "-l", "+".join(languages), "--psm", "1" if "osd" in found else "3"
