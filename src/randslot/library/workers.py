"""Worker processes that open files: what pdfium or Pillow does with a bad file stays in there.

`WorkerPool` sends requests; `main` is the worker process. A request is a line of JSON with a "file", for pages their
"numbers", and "pixels" (for an image), "box" (for a part of one), "text" (for what the file says, with "boxes" of words
if asked), "ocr" (for what can be read in the image) or "outline". The answer is a line of JSON, after which "bytes"
bytes may follow: pixels, or boxes of words. A worker loads no model but those of OCR, at the first such request. If it
hangs or dies, only the pages fail that it was asked for.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread, Timer
from types import TracebackType
from typing import Any, Self, TypeVar

from PIL import Image

from .. import pages  # imports what opens files when it is used
from ..errors import RandSlotError
from ..pages import HEAD, KINDS, Box, PageText, short

T = TypeVar("T")
R = TypeVar("R")
MAX_MEMORY = 4 * 2**30  # bytes that one file may take; a quarter of the machine's, if that is less
MAX_CPU = 300  # seconds of one request, if nobody is left to end it
FILE_SECONDS, FILE_RATE = 2.0, 10_000  # of a page of a file, in the mean; bytes of a file a second, at least
FILE_BYTES = 2**16  # of text of a page of a file, in the mean
PIPE_BYTES = 2**20  # an answer fits in, so that a worker does not wait until the parent reads it


class WorkerEnded(RandSlotError):
    """A worker died or took too long."""


class Interrupted(Exception):
    """The pool was closed while somebody waited for it; nothing is wrong with the file."""


@dataclass(frozen=True)
class Inspected:
    """What a file is: the hash of its content, how many pages it has, and what it says about itself."""

    hash: str
    num_pages: int
    properties: Mapping[str, str]


class WorkerPool:
    """Some worker processes; close them, or use them in a `with` block."""

    def __init__(self, num: int, seconds: float = 60.0, ocr_seconds: float = 120.0) -> None:
        """seconds: that one page may take. ocr_seconds: that OCR of one may take, and loading its models before."""
        self.seconds, self.ocr_seconds = seconds, ocr_seconds
        self.workers = [Worker() for _ in range(num)]
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)
        self.threads = ThreadPoolExecutor(num + 1)  # one waits with the next request, so that no worker idles
        self.kept: dict[tuple[str, int], PageText] = {}
        self.used: defaultdict[str, float] = defaultdict(float)  # seconds by file
        self.unpacked: defaultdict[str, int] = defaultdict(int)  # bytes of text by file
        self.budgets: dict[str, tuple[float, int]] = {}  # seconds and bytes that the pages of a file may take together

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers, from any thread; threads that wait for them get `Interrupted`."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.close()
        self.threads.shutdown()

    def inspect(self, file: str) -> Inspected:
        """Hash a file and count its pages. Errors: RandSlotError with the reason why it cannot be opened."""
        reply, _ = self._ask({"file": file}, self.seconds)
        num, size = reply["num_pages"], os.path.getsize(file)
        # A small file whose pages all take long, or have much text, is one that was made to.
        self.budgets[file] = self.seconds + min(FILE_SECONDS * num, size / FILE_RATE), 2**24 + FILE_BYTES * num
        return Inspected(reply["hash"], reply["num_pages"], reply["properties"])

    def render(self, file: str, number: int, pixels: int) -> Image.Image:
        """Open one page of a file as an image of about `pixels` pixels."""
        reply, content = self._ask({"file": file, "numbers": [number], "pixels": pixels}, self.seconds)
        return Image.frombytes("RGB", reply["size"], content)

    def crop(self, file: str, number: int, box: Box, width: int) -> Image.Image:
        """Open a part of a page as an image of some width in pixels; box: in fractions of the page."""
        request = {"file": file, "numbers": [number], "box": box, "width": width}
        reply, content = self._ask(request, self.seconds)
        return Image.frombytes("RGB", reply["size"], content)

    def read_outline(self, file: str) -> list[tuple[int, str, int]]:
        """Return the outline of a file: the level from 0, the title and the page of each entry."""
        reply, _ = self._ask({"file": file, "outline": True}, self.seconds)
        return [(level, title, page) for level, title, page in reply["outline"]]

    def read_text(self, file: str, number: int, *, keep: bool = False, with_boxes: bool = False) -> PageText:
        """Read the text of one page of a file, without rendering it.

        keep: for the next call, which forgets it. with_boxes: also of the words of a PDF; other pages always have them.

        A page that takes too much time or memory has no text but a `problem`: the file may still be fine.
        """
        text = self.kept.pop((file, number), None)
        if text is None:
            try:
                request = {"file": file, "numbers": [number], "text": True, "boxes": with_boxes}
                text = _unpack_texts(*self._ask(request, self.seconds))[0]
            except WorkerEnded as error:
                text = PageText(has_layer=False, problem=f"its text cannot be read: {error}")
        if keep:
            self.kept[file, number] = text
        return text

    def read_texts(self, file: str, numbers: Sequence[int]) -> list[PageText | RandSlotError]:
        """Read the texts of some pages together; an error in place of a page that cannot be read."""
        wanted = [number for number in numbers if (file, number) not in self.kept]
        if len(wanted) > 1:
            with suppress(RandSlotError):  # one page fails: which one is found out below
                read = _unpack_texts(*self._ask({"file": file, "numbers": wanted, "text": True}, self.seconds))
                self.kept.update(((file, number), text) for number, text in zip(wanted, read, strict=True))
        texts: list[PageText | RandSlotError] = []
        for number in numbers:
            try:
                texts.append(self.read_text(file, number))
            except RandSlotError as error:
                texts.append(error)
        return texts

    def read_by_ocr(self, file: str, number: int) -> PageText:
        """Read the text of one page in its image, even if the file has text for it."""
        return _unpack_texts(*self._ask({"file": file, "numbers": [number], "ocr": True}, self.ocr_seconds))[0]

    def ahead(self, do: Callable[[T], R], work: Iterable[T], depth: int) -> Iterator[tuple[T, Future[R]]]:
        """Do pieces of work in threads, at most `depth` ahead; yield each in order, with a future that is done."""
        waiting: deque[tuple[T, Future[R]]] = deque()

        def take() -> tuple[T, Future[R]]:
            piece, future = waiting.popleft()
            if future.cancelled() or isinstance(future.exception(), Interrupted):  # waits
                raise Interrupted
            return piece, future

        for piece in work:
            if self.workers[0].closed:
                raise Interrupted
            waiting.append((piece, self.threads.submit(do, piece)))
            if len(waiting) > depth:
                yield take()
        while waiting:
            yield take()

    def _ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        file = request["file"]
        max_seconds, max_bytes = self.budgets.get(file, (math.inf, math.inf))
        if self.used[file] > max_seconds and "ocr" not in request:
            raise RandSlotError(f"its pages took more than {max_seconds:.0f} s together")
        if self.unpacked[file] > max_bytes:
            raise RandSlotError(f"its pages have more than {max_bytes / 1e6:.0f} MB of text together")
        worker, start = self.idle.get(), time.monotonic()
        try:
            reply, content = worker.ask(request, seconds)
            if "texts" in reply:
                self.unpacked[file] += len(content) + sum(len(row[0]) for row in reply["texts"])
            return reply, content
        finally:
            self.used[file] += time.monotonic() - start
            self.idle.put(worker)


class Worker:
    """One worker process, started at the first request."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.closed = False
        self.lock = Lock()  # no process may start while, or after, another thread closes the worker

    def ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for its answer.

        Errors: RandSlotError if the worker says so; WorkerEnded if it dies, or takes longer than `seconds`.
        """
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        late = Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = Timer(seconds, kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            reply: dict[str, Any] = json.loads(process.stdout.readline())
            content = process.stdout.read(reply.get("bytes", 0))
            if len(content) < reply.get("bytes", 0):
                raise EOFError
        except (OSError, ValueError, EOFError) as error:
            self._end()
            if self.closed:
                raise Interrupted from error
            reason = f"took more than {seconds:g} s" if late.is_set() else "opening it ended the worker process"
            raise WorkerEnded(reason) from error
        finally:
            timer.cancel()
        if "error" in reply:
            raise RandSlotError(reply["error"])
        return reply, content

    def close(self) -> None:
        """End the process for good."""
        with self.lock:
            self.closed = True
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.lock:
            if self.closed:
                raise Interrupted
            if self.process is None or self.process.poll() is not None:
                self._end()
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "randslot.library.workers"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=_make_environment(),
                    bufsize=PIPE_BYTES,
                    pipesize=PIPE_BYTES,
                )
                if passwords := pages.list_passwords():  # not in its arguments or environment, which others can see
                    assert self.process.stdin is not None
                    self.process.stdin.write(json.dumps({"passwords": passwords}).encode() + b"\n")
            return self.process

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(OSError):  # a request that the process did not read
                    pipe.close()


def _make_environment() -> dict[str, str]:
    """Return what a worker needs of the environment: no tokens and keys, which a bad file could get at."""
    kept = r"PATH|HOME|LANG|LANGUAGE|TMPDIR|TEMP|TMP|SYSTEMROOT|\w*LIBRARY_PATH|TESSDATA_PREFIX|RANDSLOT_O\w+"
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name, value in os.environ.items():
        if re.fullmatch(rf"{kept}|LC_\w+|XDG_\w+|PYTHON\w+|VIRTUAL_ENV", name):
            environment[name] = value
    return environment


# -- the worker process


def main() -> None:
    """Answer requests until there are no more, or the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    warnings.simplefilter("ignore")
    gc.set_threshold(100_000, 50, 50)  # usual collections take a fifth of the time
    _limit_rights(os.getppid())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get among the answers
    kept = pages.OpenPdf()
    try:
        while True:
            # A file that nobody asks for is closed after two seconds, so that it can be moved and deleted.
            if kept.pdf is not None and os.name == "posix" and not select.select([sys.stdin], [], [], 2.0)[0]:
                kept.close()
            line = sys.stdin.buffer.readline()
            if not line:
                return
            _limit_cpu()
            request = json.loads(line)
            if "passwords" in request:
                pages.use_passwords(request["passwords"])
                continue
            reply, content = _answer(request, kept)
            out.write(json.dumps(reply | {"bytes": len(content)}, separators=(",", ":")).encode() + b"\n" + content)
            out.flush()
    except BrokenPipeError:
        with suppress(BrokenPipeError):
            out.close()  # Python would print a traceback when it closes the pipe at exit


def _limit_rights(parent: int) -> None:
    """Limit what a bad file can do to this process: memory, sizes of files, privileges, and life after its parent."""
    with suppress(ImportError, ValueError, OSError):  # not on this system
        import resource

        memory = min(MAX_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))  # of files that an OCR engine writes
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    # PR_SET_PDEATHSIG would end it with the thread that has started it, and not with the process.
    Thread(target=_end_with, args=[parent], daemon=True).start()


def _limit_cpu() -> None:
    """Have the system end this process if a request takes far too long; usually the parent does so before."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        limit = int(time.process_time()) + MAX_CPU
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _end_with(parent: int) -> None:
    """End this process soon after its parent, also in the middle of a page."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _answer(request: dict[str, Any], kept: pages.OpenPdf) -> tuple[dict[str, Any], bytes]:
    """Return the answer to a request: its line, and the bytes that follow it. kept: where a PDF stays open."""
    file, numbers = Path(request["file"]), request.get("numbers", [])
    try:
        if "text" in request:
            with_boxes = request.get("boxes", False)
            return _pack_texts([pages.read_file_text(file, number, kept, with_boxes=with_boxes) for number in numbers])
        if "ocr" in request:
            from ..pages.ocr import OCR_PIXELS, read_image_text

            return _pack_texts(
                [read_image_text(pages.render_file_page(file, number, OCR_PIXELS)) for number in numbers]
            )
        if "pixels" in request:
            image = pages.render_file_page(file, numbers[0], request["pixels"])
            return {"size": image.size}, image.tobytes()
        if "box" in request:
            image = pages.crop_file_page(file, numbers[0], request["box"], request["width"])
            return {"size": image.size}, image.tobytes()
        if "outline" in request:
            return {"outline": pages.read_outline(file)}, b""
        return _inspect(file), b""
    except RandSlotError as error:  # the parent process adds the name of the file
        reason = re.sub(rf"(:| of|) {re.escape(str(file))}", "", str(error)).replace(str(file), "it")
    except MemoryError:
        reason = f"needs more than {MAX_MEMORY >> 30} GB of memory"
    except OSError as error:
        reason = error.strerror or str(error)
    except Exception as error:  # a broken file can make a library fail in any way
        reason = f"cannot be read: {type(error).__name__}: {error}"
    return {"error": short(reason)}, b""


def _inspect(file: Path) -> dict[str, Any]:
    if file.suffix.lower() not in KINDS:
        raise RandSlotError("not a document or an image")
    with file.open("rb") as content:
        if not os.fstat(content.fileno()).st_size:
            raise RandSlotError("the file is empty")
        kind = KINDS[file.suffix.lower()]
        if kind.is_converted and not kind.matches(content.read(HEAD)):  # the readers of others say what is wrong
            raise RandSlotError(f"the content is not that of a {file.suffix.lower()} file")
        content.seek(0)
        digest = hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    from ..pages.properties import read_properties  # the parent process needs none of it

    return {"hash": digest, "num_pages": pages.num_pages(file), "properties": read_properties(file)}


def _pack_texts(texts: Sequence[PageText]) -> tuple[dict[str, Any], bytes]:
    rows = []
    for text in texts:
        rows.append([text.text, len(text.boxes), text.has_layer, text.truncated, dict(text.fields)])
    return {"texts": rows}, b"".join(text.boxes for text in texts)


def _unpack_texts(reply: dict[str, Any], boxes: bytes) -> list[PageText]:
    texts = []
    start = 0
    for text, size, has_layer, truncated, fields in reply["texts"]:
        texts.append(PageText(text, boxes[start : start + size], has_layer, truncated, fields=fields))
        start += size
    return texts


if __name__ == "__main__":
    main()
