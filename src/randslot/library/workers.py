"""A pool of worker processes that open files: if one hangs or dies on a file, only that file fails."""

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


class WorkerEnded(RandSlotError):
    """A worker died or took too long."""


@dataclass(frozen=True)
class Inspected:
    """What a file is: the hash of its content, and how many pages it has."""

    hash: str
    num_pages: int


class WorkerPool:
    """Some worker processes; close them, or use them in a `with` block."""

    def __init__(self, num: int, seconds: float = 60.0, ocr_seconds: float = 120.0) -> None:
        """seconds: that one page may take. ocr_seconds: that OCR of one may take, and loading its models before."""
        self.seconds, self.ocr_seconds = seconds, ocr_seconds
        self.workers = [Worker() for _ in range(num)]
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)
        self.threads = ThreadPoolExecutor(num)
        self.kept: dict[tuple[str, int], PageText] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers at once."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.close()
        self.threads.shutdown()

    def inspect(self, file: str) -> Inspected:
        """Hash a file and count its pages. Errors: RandSlotError with the reason why it cannot be opened."""
        return Inspected(**self._ask({"file": file}, self.seconds)[0])

    def render(self, file: str, number: int, pixels: int) -> Image.Image:
        """Open one page of a file as an image of about `pixels` pixels."""
        reply, content = self._ask({"file": file, "number": number, "pixels": pixels}, self.seconds)
        return Image.frombytes("RGB", reply["size"], content)

    def read_text(self, file: str, number: int, *, keep: bool = False) -> PageText:
        """Read the text of one page of a file, without rendering it. keep: for the next call, which forgets it.

        A page that takes too much time or memory has no text but a `problem`: the file may still be fine.
        """
        text = self.kept.pop((file, number), None)
        if text is None:
            try:
                text = unpack_text(self._ask({"file": file, "number": number, "text": True}, self.seconds)[0])
            except WorkerEnded as error:
                text = PageText(has_layer=False, problem=f"its text cannot be read: {error}")
        if keep:
            self.kept[file, number] = text
        return text

    def read_by_ocr(self, file: str, number: int) -> PageText:
        """Read the text of one page in its image, even if the file has text for it."""
        return unpack_text(self._ask({"file": file, "number": number, "ocr": True}, self.ocr_seconds)[0])

    def ahead(self, do: Callable[[T], R], work: Iterable[T], depth: int) -> Iterator[tuple[T, Future[R]]]:
        """Do pieces of work in threads, at most `depth` ahead; yield each in order, with a future that is done."""
        waiting: deque[tuple[T, Future[R]]] = deque()

        def take() -> tuple[T, Future[R]]:
            piece, future = waiting.popleft()
            future.exception()  # waits
            return piece, future

        for piece in work:
            waiting.append((piece, self.threads.submit(do, piece)))
            if len(waiting) > depth:
                yield take()
        while waiting:
            yield take()

    def _ask(self, request: dict[str, Any], seconds: float) -> tuple[dict[str, Any], bytes]:
        worker = self.idle.get()
        try:
            return worker.ask(request, seconds)
        finally:
            self.idle.put(worker)


def unpack_text(reply: dict[str, Any]) -> PageText:
    """Make the text of a page from the answer of a worker."""
    boxes = (np.array(reply["boxes"]) / PARTS).reshape(-1, 4).tolist()
    words = [Word(text, *box) for text, box in zip(reply["text"].split(), boxes, strict=True)]
    return PageText(reply["text"], tuple(words), reply["has_layer"], reply["truncated"], fields=reply["fields"])


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
            width, height = reply.get("size", (0, 0))
            content = process.stdout.read(3 * width * height)
            if len(content) < 3 * width * height:
                raise EOFError
        except (OSError, ValueError, EOFError) as error:
            self._end()
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
                raise RandSlotError("stopped")
            if self.process is None or self.process.poll() is not None:
                self._end()
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "randslot.library.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
            return self.process

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(OSError):  # a request that the process did not read
                    pipe.close()
