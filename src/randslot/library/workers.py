"""Worker processes that open files, to isolate pdfium and Pillow from bad files.

`WorkerPool` sends requests; `main` is the worker process. A request is a line of JSON with a "file", the "numbers" of
pages, and "pixels" (for an image), "box" (for a part of it), "text" (from the file, optionally with "boxes" of words),
"ocr" (for text from the image) or "outline". The response is a line of JSON, followed by "bytes" bytes of pixels or
boxes. A worker loads no models except those of OCR, on demand. If it hangs or dies, only the requested pages fail.
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

from .. import pages  # imports lazily
from ..errors import RandSlotError
from ..pages import HEAD, KINDS, Box, PageText, short

T = TypeVar("T")
R = TypeVar("R")
MAX_MEMORY = 4 * 2**30  # bytes per worker, and at most a quarter of the machine's
MAX_CPU = 300  # seconds per request, if the parent has died
FILE_SECONDS, FILE_RATE = 2.0, 10_000  # budget of a file: mean seconds per page, or bytes per second
FILE_BYTES = 2**16  # budget of a file: mean bytes of text per page


class WorkerEnded(RandSlotError):
    """A worker died or timed out."""


class Interrupted(Exception):
    """The pool was closed while a thread waited for it; the file is fine."""


@dataclass(frozen=True)
class Inspected:
    """The content hash, number of pages and metadata of a file."""

    hash: str
    num_pages: int
    properties: Mapping[str, str]


class WorkerPool:
    """A pool of worker processes; close it, or use it in a `with` block."""

    def __init__(self, num: int, seconds: float = 60.0, ocr_seconds: float = 120.0) -> None:
        """seconds: timeout per request, of some pages.

        ocr_seconds: timeout for OCR of a page, including loading the models.
        """
        self.seconds, self.ocr_seconds = seconds, ocr_seconds
        self.workers = [Worker() for _ in range(num)]
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)
        self.threads = ThreadPoolExecutor(num + 1)  # one more waits with the next request, so that no worker idles
        self.cache: dict[tuple[str, int], PageText] = {}
        self.used: defaultdict[str, float] = defaultdict(float)  # seconds by file
        self.unpacked: defaultdict[str, int] = defaultdict(int)  # bytes of text by file
        self.budgets: dict[str, tuple[float, int]] = {}  # max seconds and bytes for all pages of a file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers, from any thread; waiting threads get `Interrupted`."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.close()
        self.threads.shutdown()

    def inspect(self, file: str) -> Inspected:
        """Hash a file, count its pages and read its metadata. Errors: RandSlotError if it cannot be opened."""
        reply, _ = self._ask({"file": file}, self.seconds)
        num, size = reply["num_pages"], os.path.getsize(file)
        # A budget per file stops malicious small files whose pages are all slow, or have much text.
        self.budgets[file] = self.seconds + min(FILE_SECONDS * num, size / FILE_RATE), 2**24 + FILE_BYTES * num
        return Inspected(reply["hash"], reply["num_pages"], reply["properties"])

    def render(self, file: str, number: int, pixels: int) -> Image.Image:
        """Render one page of a file at about `pixels` pixels."""
        reply, content = self._ask({"file": file, "numbers": [number], "pixels": pixels}, self.seconds)
        return Image.frombytes("RGB", reply["size"], content)

    def crop(self, file: str, number: int, box: Box, width: int) -> Image.Image:
        """Render a part of a page at `width` pixels; box: in fractions of the page."""
        request = {"file": file, "numbers": [number], "box": box, "width": width}
        reply, content = self._ask(request, self.seconds)
        return Image.frombytes("RGB", reply["size"], content)

    def read_outline(self, file: str) -> list[tuple[int, str, int]]:
        """Read the outline of a file: the level (from 0), title and page of each entry."""
        reply, _ = self._ask({"file": file, "outline": True}, self.seconds)
        return [(level, title, page) for level, title, page in reply["outline"]]

    def read_text(self, file: str, number: int, *, keep: bool = False, with_boxes: bool = False) -> PageText:
        """Read the text of one page of a file, without rendering it.

        keep: cache the text for the next call. with_boxes: read boxes of words in PDFs; other pages always have them.

        If the worker dies or times out, the page has a `problem` and no text: other pages of the file may be fine.
        """
        text = self.cache.pop((file, number), None)
        if text is None:
            try:
                request = {"file": file, "numbers": [number], "text": True, "boxes": with_boxes}
                text = _unpack_texts(*self._ask(request, self.seconds))[0]
            except WorkerEnded as error:
                text = PageText(has_layer=False, problem=f"its text cannot be read: {error}")
        if keep:
            self.cache[file, number] = text
        return text

    def read_texts(self, file: str, numbers: Sequence[int]) -> list[PageText | RandSlotError]:
        """Read the texts of pages in one request; return an error in place of an unreadable page."""
        missing = [number for number in numbers if (file, number) not in self.cache]
        if len(missing) > 1:
            with suppress(RandSlotError):  # if a page fails, retry one by one below
                read = _unpack_texts(*self._ask({"file": file, "numbers": missing, "text": True}, self.seconds))
                self.cache.update(((file, number), text) for number, text in zip(missing, read, strict=True))
        texts: list[PageText | RandSlotError] = []
        for number in numbers:
            try:
                texts.append(self.read_text(file, number))
            except RandSlotError as error:
                texts.append(error)
        return texts

    def read_by_ocr(self, file: str, number: int) -> PageText:
        """Read the text of one page by OCR, even if the file has text for it."""
        return _unpack_texts(*self._ask({"file": file, "numbers": [number], "ocr": True}, self.ocr_seconds))[0]

    def ahead(self, do: Callable[[T], R], work: Iterable[T], depth: int) -> Iterator[tuple[T, Future[R]]]:
        """Run tasks in threads, at most `depth` ahead; yield each in order, with its finished future."""
        pending: deque[tuple[T, Future[R]]] = deque()

        def take() -> tuple[T, Future[R]]:
            task, future = pending.popleft()
            if future.cancelled() or isinstance(future.exception(), Interrupted):  # exception() waits
                raise Interrupted
            return task, future

        for task in work:
            if self.workers[0].closed:
                raise Interrupted
            pending.append((task, self.threads.submit(do, task)))
            if len(pending) > depth:
                yield take()
        while pending:
            yield take()

    def _ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        file = request["file"]
        max_seconds, max_bytes = self.budgets.get(file, (math.inf, math.inf))
        if self.used[file] > max_seconds and "ocr" not in request:
            raise RandSlotError(f"its pages took more than {max_seconds:.0f} s in total")
        if self.unpacked[file] > max_bytes:
            raise RandSlotError(f"its pages have more than {max_bytes / 1e6:.0f} MB of text in total")
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
    """One worker process, started on the first request."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.closed = False
        self.lock = Lock()  # no process may start once another thread closes the worker

    def ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for its response.

        Errors: RandSlotError from the worker; WorkerEnded if it dies or times out after `seconds`.
        """
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        timed_out = Event()

        def kill() -> None:
            timed_out.set()
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
            self._kill()
            if self.closed:
                raise Interrupted from error
            reason = f"took more than {seconds:g} s" if timed_out.is_set() else "opening it crashed the worker process"
            raise WorkerEnded(reason) from error
        finally:
            timer.cancel()
        if "error" in reply:
            raise RandSlotError(reply["error"])
        return reply, content

    def close(self) -> None:
        """Kill the process and start no other."""
        with self.lock:
            self.closed = True
            self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.lock:
            if self.closed:
                raise Interrupted
            if self.process is None or self.process.poll() is not None:
                self._kill()
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "randslot.library.workers"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=_make_environment(),
                )
                if passwords := pages.list_passwords():  # arguments and environment are visible to other processes
                    assert self.process.stdin is not None
                    self.process.stdin.write(json.dumps({"passwords": passwords}).encode() + b"\n")
            return self.process

    def _kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(OSError):  # the process may not have read a request
                    pipe.close()


def _make_environment() -> dict[str, str]:
    """Return the environment of a worker, without tokens and keys that a malicious file could steal."""
    allowed = r"PATH|HOME|LANG|LANGUAGE|TMPDIR|TEMP|TMP|SYSTEMROOT|\w*LIBRARY_PATH|TESSDATA_PREFIX|RANDSLOT_O\w+"
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name, value in os.environ.items():
        if re.fullmatch(rf"{allowed}|LC_\w+|XDG_\w+|PYTHON\w+|VIRTUAL_ENV", name):
            environment[name] = value
    return environment


# -- the worker process


def main() -> None:
    """Answer requests until stdin closes or the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    warnings.simplefilter("ignore")
    gc.set_threshold(100_000, 50, 50)  # default garbage collection takes a fifth of the time
    _restrict(os.getppid())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep the output of libraries out of the responses
    open_pdf = pages.OpenPdf()
    try:
        while True:
            # Close a file after two idle seconds, so that it can be moved and deleted.
            if open_pdf.pdf is not None and os.name == "posix" and not select.select([sys.stdin], [], [], 2.0)[0]:
                open_pdf.close()
            line = sys.stdin.buffer.readline()
            if not line:
                return
            _limit_cpu()
            request = json.loads(line)
            if "passwords" in request:
                pages.use_passwords(request["passwords"])
                continue
            reply, content = _answer(request, open_pdf)
            out.write(json.dumps(reply | {"bytes": len(content)}, separators=(",", ":")).encode() + b"\n" + content)
            out.flush()
    except BrokenPipeError:
        with suppress(BrokenPipeError):
            out.close()  # else Python prints a traceback when it closes the pipe at exit


def _restrict(parent: int) -> None:
    """Limit memory, file sizes and privileges of this process, and exit with its parent."""
    with suppress(ImportError, ValueError, OSError):  # not supported on this system
        import resource

        memory = min(MAX_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))  # OCR engines write files
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    # PR_SET_PDEATHSIG would kill it with the parent's thread, not the parent process.
    Thread(target=_exit_with, args=[parent], daemon=True).start()


def _limit_cpu() -> None:
    """Limit the CPU time of a request; usually the parent's timeout comes first."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        limit = int(time.process_time()) + MAX_CPU
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _exit_with(parent: int) -> None:
    """Exit soon after the parent, even in the middle of a page."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _answer(request: dict[str, Any], open_pdf: pages.OpenPdf) -> tuple[dict[str, Any], bytes]:
    """Return the response to a request: its JSON, and the bytes that follow. open_pdf: keeps a PDF open."""
    file, numbers = Path(request["file"]), request.get("numbers", [])
    try:
        if "text" in request:
            with_boxes = request.get("boxes", False)
            return _pack_texts(
                [pages.read_file_text(file, number, open_pdf, with_boxes=with_boxes) for number in numbers]
            )
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
    except RandSlotError as error:  # the parent process adds the file name
        reason = re.sub(rf"(:| of|) {re.escape(str(file))}", "", str(error)).replace(str(file), "it")
    except MemoryError:
        reason = f"needs more than {MAX_MEMORY >> 30} GB of memory"
    except OSError as error:
        reason = error.strerror or str(error)
    except Exception as error:  # parsers can fail in any way on a damaged file
        reason = f"cannot be read: {type(error).__name__}: {error}"
    return {"error": short(reason)}, b""


def _inspect(file: Path) -> dict[str, Any]:
    if file.suffix.lower() not in KINDS:
        raise RandSlotError("not a document or an image")
    with file.open("rb") as content:
        if not os.fstat(content.fileno()).st_size:
            raise RandSlotError("the file is empty")
        kind = KINDS[file.suffix.lower()]
        if kind.is_converted and not kind.matches(content.read(HEAD)):  # other formats fail with clear errors
            raise RandSlotError(f"the content is not that of a {file.suffix.lower()} file")
        content.seek(0)
        digest = hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    from ..pages.properties import read_properties  # not needed in the parent process

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
