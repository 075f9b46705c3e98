"""A worker process of a `WorkerPool`: what pdfium or Pillow does with a bad file stays in here.

It reads requests as lines of JSON and answers each with a line of JSON, which the bytes of an image may follow. A
request has a "file" and, for a page, its "number" with "pixels" (for its image), "text" (for what the file says) or
"ocr" (for what can be read in its image). It loads no model but those of OCR, at the first such request. It ends when
its parent does, and its memory is limited.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RandSlotError
from ..pages import DOCUMENT_SUFFIXES, PARTS, OpenPdf, PageText, num_pages, read_file_text, render_file_page, short
from ..pages.ocr import OCR_PIXELS, read_image_text
from ..pages.page import check_pixels

MEMORY = 4 * 2**30  # bytes that one file may take


def answer(request: dict[str, Any], kept: OpenPdf | None = None) -> tuple[dict[str, Any], bytes]:
    """Return the answer to a request: its line, and the bytes that follow it. kept: where a PDF stays open."""
    file = Path(request["file"])
    try:
        if "text" in request:
            return pack_text(read_file_text(file, request["number"], kept)), b""
        if "ocr" in request:
            return pack_text(read_image_text(render_file_page(file, request["number"], OCR_PIXELS))), b""
        if "pixels" in request:
            image = render_file_page(file, request["number"], request["pixels"])
            return {"size": image.size}, image.tobytes()
        return inspect(file), b""
    except RandSlotError as error:  # the parent process adds the name of the file
        reason = re.sub(rf"(:| of|) {re.escape(str(file))}", "", str(error)).replace(str(file), "it")
    except MemoryError:
        reason = f"needs more than {MEMORY >> 30} GB of memory"
    except OSError as error:
        reason = error.strerror or str(error)
    except Exception as error:  # a broken file can make a library fail in any way
        reason = f"cannot be read: {type(error).__name__}: {error}"
    return {"error": short(reason)}, b""


def inspect(file: Path) -> dict[str, Any]:
    """Return the hash of a file's content and how many pages it has."""
    if file.suffix.lower() not in DOCUMENT_SUFFIXES:
        raise RandSlotError("not a PDF or an image")
    with file.open("rb") as content:
        if not os.fstat(content.fileno()).st_size:
            raise RandSlotError("the file is empty")
        digest = hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    num = num_pages(file)
    if not num:
        raise RandSlotError("it has no pages")
    check_pixels(file)
    return {"hash": digest, "num_pages": num}


def pack_text(text: PageText) -> dict[str, Any]:
    """Return a text for JSON; "boxes" has left, top, right, bottom of one word after the other, times `PARTS`."""
    sides: list[float] = []
    for word in text.words:
        sides += (word.left, word.top, word.right, word.bottom)
    boxes = np.rint(np.array(sides) * PARTS).astype(int).tolist()
    about = {"has_layer": text.has_layer, "truncated": text.truncated, "fields": dict(text.fields)}
    return {"text": text.text, "boxes": boxes, **about}


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    warnings.simplefilter("ignore")
    with suppress(ImportError, ValueError, OSError):  # not on this system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get among the answers
    kept = OpenPdf()
    try:
        while True:
            # A file that nobody asks for is closed after two seconds, so that it can be moved and deleted.
            if kept.pdf is not None and os.name == "posix" and not select.select([sys.stdin], [], [], 2.0)[0]:
                kept.close()
            line = sys.stdin.buffer.readline()
            if not line:
                return
            reply, content = answer(json.loads(line), kept)
            out.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n" + content)
            out.flush()
    except BrokenPipeError:  # the parent has ended
        with suppress(BrokenPipeError):
            out.close()  # Python would print a traceback when it closes the pipe at exit


if __name__ == "__main__":
    main()
