"""Worker processes that open files ahead of the model, a bounded number of pages ahead.

A worker that hangs or dies on a file is replaced, and only that file fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from queue import SimpleQueue
from threading import Event, Lock, Timer
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from PIL import Image

from ..errors import RandSlotError
from ..pages import PARTS, PageText, Word

T = TypeVar("T")
R = TypeVar("R")

SECONDS = 60.0  # that one page may take
OCR_SECONDS = 120.0  # that OCR of one page may take, and loading its models before the first


class WorkerEnded(RandSlotError):
    """A worker died or took too long."""


@dataclass(frozen=True)
class Inspected:
    """What a file is: the hash of its content, and how many pages it has."""

    hash: str
    num_pages: int


class WorkerPool:
    """Some worker processes; close them, or use them in a `with` block."""

    def __init__(self, num: int, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.ocr_seconds = OCR_SECONDS
        self.workers = [Worker() for _ in range(num)]
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)
        self.threads = ThreadPoolExecutor(num)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.close()
        self.threads.shutdown()

    def inspect(self, file: str) -> Inspected:
        """Look at a file.

        Errors: RandSlotError with the reason why it cannot be indexed.
        """
        reply, _ = self._ask({"file": file}, self.seconds)
        return Inspected(**reply)

    def render(self, file: str, number: int, pixels: int) -> Image.Image:
        """Open one page of a file as an image of about `pixels` pixels.

        Errors: RandSlotError with the reason why it cannot be opened.
        """
        reply, content = self._ask({"file": file, "number": number, "pixels": pixels}, self.seconds)
        return Image.frombytes("RGB", reply["size"], content)

    def read_text(self, file: str, number: int) -> PageText:
        """Read the text of one page of a file, without rendering it.

        A page that takes too much time or memory has no text, and says so as its `problem`: the file may still be fine.

        Errors: RandSlotError with the reason why it cannot be read.
        """
        try:
            reply, _ = self._ask({"file": file, "number": number, "text": True}, self.seconds)
        except WorkerEnded as error:
            return PageText(has_layer=False, problem=f"its text cannot be read: {error}")
        return _make_text(reply)

    def read_by_ocr(self, file: str, number: int) -> PageText:
        """Read the text of one page of a file in its image, whether or not the file has text for it.

        Errors: RandSlotError with the reason why it cannot be read, or what to install if there is no OCR engine.
        """
        reply, _ = self._ask({"file": file, "number": number, "ocr": True}, self.ocr_seconds)
        return _make_text(reply)

    def ahead(self, do: Callable[[T], R], work: Iterable[T], depth: int) -> Iterator[tuple[T, Future[R]]]:
        """Do pieces of work in order, at most `depth` ahead of the one that is used; yield each when it is done.

        The future holds the result or the error.
        """
        waiting: deque[tuple[T, Future[R]]] = deque()
        for piece in work:
            waiting.append((piece, self.threads.submit(do, piece)))
            if len(waiting) > depth:
                yield _done(waiting)
        while waiting:
            yield _done(waiting)

    def _ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        worker = self.idle.get()
        try:
            return worker.ask(request, seconds)
        finally:
            self.idle.put(worker)


def _done(waiting: deque[tuple[T, Future[R]]]) -> tuple[T, Future[R]]:
    piece, future = waiting.popleft()
    future.exception()  # waits
    return piece, future


def _make_text(reply: dict[str, Any]) -> PageText:
    """Make the text of a page from the answer of a worker."""
    boxes = (np.array(reply["boxes"]) / PARTS).reshape(-1, 4).tolist()
    words = [Word(text, *box) for text, box in zip(reply["text"].split(), boxes, strict=True)]
    return PageText(reply["text"], tuple(words), reply["has_layer"], reply["truncated"])


def hash_image(image: Image.Image) -> str:
    """Return a hash of an image's pixels."""
    return blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=16).hexdigest()


class Worker:
    """One worker process, started when it is first asked."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.closed = False
        self.lock = Lock()  # no process may be started while, or after, another thread closes the worker

    def ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for its answer.

        Errors: RandSlotError if the worker says so, dies, or takes longer than `seconds`.
        """
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        late = Event()
        timer = Timer(seconds, _kill, [process, late])
        timer.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            reply: dict[str, Any] = json.loads(line)
            width, height = reply.get("size", (0, 0))
            content = process.stdout.read(3 * width * height)
            if len(content) < 3 * width * height:
                raise EOFError
        except (OSError, ValueError, EOFError) as error:
            self._end()
            raise WorkerEnded(
                f"took more than {seconds:g} s" if late.is_set() else "opening it ended the renderer"
            ) from error
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
                raise RandSlotError("stopped")
            if self.process is None or self.process.poll() is not None:
                self._end()
                self.process = _start_process()
            return self.process

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(OSError):  # a request that the process did not read
                    pipe.close()


def _start_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "randslot.library.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def _kill(process: subprocess.Popen[bytes], late: Event) -> None:
    late.set()
    process.kill()
