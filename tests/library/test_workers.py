"""Worker processes open files as the model needs them; one that hangs or dies takes only its own file with it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from randslot.errors import RandSlotError
from randslot.library import workers
from randslot.library.workers import Interrupted, Worker, WorkerPool
from randslot.pages import NO_TEXT, Page, open_page
from support.libraries import write_tiff
from support.models import noise
from support.pdf import write_drawings, write_lines, write_pdf
from support.scans import draw_scan


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2) as made:
        yield made


def test_a_pdf_is_rendered_as_the_model_would_open_it(pool, tmp_path):
    write_pdf(tmp_path / "x.pdf", 3, [])
    assert pool.inspect(str(tmp_path / "x.pdf")).num_pages == 3
    image = pool.render(str(tmp_path / "x.pdf"), 2, 20_000)
    assert image.width * image.height == pytest.approx(20_000, rel=0.02)
    assert image.tobytes() == open_page(f"{tmp_path}/x.pdf#page=2", 20_000).tobytes()


def test_images_and_tiffs_are_opened_no_larger_than_needed(pool, tmp_path):
    noise(300, 400).save(tmp_path / "x.WEBP", lossless=True)
    assert pool.render(str(tmp_path / "x.WEBP"), 1, 30_000).size == (150, 200)
    assert pool.render(str(tmp_path / "x.WEBP"), 1, 120_000).tobytes() == noise(300, 400).tobytes()
    write_tiff(tmp_path / "x.tif", [1, 2, 3])
    assert pool.inspect(str(tmp_path / "x.tif")).num_pages == 3
    assert pool.render(str(tmp_path / "x.tif"), 3, 10_000).tobytes() == noise(64, 96, 3).tobytes()
    assert pool.read_text(str(tmp_path / "x.tif"), 2) == NO_TEXT
    with pytest.raises(RandSlotError, match="it has 3 pages, so there is no page 4"):
        pool.read_text(str(tmp_path / "x.tif"), 4)


def test_a_text_that_is_kept_is_read_once(pool, tmp_path):
    write_pdf(tmp_path / "x.pdf", 1, [])
    kept = pool.read_text(str(tmp_path / "x.pdf"), 1, keep=True)
    os.unlink(tmp_path / "x.pdf")
    assert pool.read_text(str(tmp_path / "x.pdf"), 1) is kept
    with pytest.raises(RandSlotError, match="not found"):
        pool.read_text(str(tmp_path / "x.pdf"), 1)


def test_text_is_what_this_process_would_read(pool, tmp_path):
    write_lines(tmp_path / "x.pdf", ["Some words, größer".encode().decode("latin-1"), "and an exam-", "ple"])
    text = pool.read_text(str(tmp_path / "x.pdf"), 1, with_boxes=True)
    assert text == Page(tmp_path / "x.pdf").text()
    assert pool.read_text(str(tmp_path / "x.pdf"), 1) == replace(text, boxes=b"")
    assert text.text.endswith("and an example")
    assert len(text.words) == 6


def test_text_of_a_broken_file_is_one_line_without_its_name(pool, tmp_path):
    (tmp_path / "x.pdf").write_bytes(b"%PDF-1.4 torn")
    with pytest.raises(RandSlotError, match=r"^cannot read page 1: it is corrupt, or not a PDF"):
        pool.read_text(str(tmp_path / "x.pdf"), 1)
    with pytest.raises(RandSlotError, match=r"^PDF not found$"):
        pool.read_text(str(tmp_path / "gone.pdf"), 1)


def test_texts_of_several_pages_are_those_of_each(pool, tmp_path):
    write_pdf(tmp_path / "x.pdf", 4, [])
    file = str(tmp_path / "x.pdf")
    kept = pool.read_text(file, 3, keep=True)
    texts = pool.read_texts(file, (1, 3, 4))
    pages = {number: replace(Page(file, number).text(), boxes=b"") for number in range(1, 5)}
    assert texts == [pages[1], pages[3], pages[4]]
    assert texts[1] is kept
    assert pool.read_texts(file, (1, 2)) == [pages[1], pages[2]]
    first, bad = pool.read_texts(file, (4, 5))
    assert first == pages[4]
    assert str(bad) == "it has 4 pages, so there is no page 5"


def test_a_page_that_needs_too_much_memory_has_no_text_and_the_others_do(tmp_path, monkeypatch):
    """A single text object of megabytes, for which pdfium ends its process."""
    code = "from randslot.library import workers; workers.MAX_MEMORY = 700 * 2**20; workers.main()"
    start = workers.subprocess.Popen
    monkeypatch.setattr(workers.subprocess, "Popen", lambda command, **rest: start([command[0], "-c", code], **rest))
    huge = "BT /F1 12 Tf 50 300 Td [" + f"({'a' * 30_000})" * 200 + "] TJ ET"
    write_drawings(tmp_path / "x.pdf", ["BT /F1 12 Tf 50 300 Td (before) Tj ET", huge, "BT /F1 12 Tf (after) Tj ET"])
    with WorkerPool(1) as pool:
        before, bad, after = pool.read_texts(str(tmp_path / "x.pdf"), (1, 2, 3))
    assert (before.text, after.text) == ("before", "after")
    assert bad.problem == "its text cannot be read: opening it crashed the worker process"
    assert not bad.has_layer


def test_a_file_is_closed_when_nobody_asks_for_it(tmp_path):
    write_pdf(tmp_path / "x.pdf", 1, [])
    with WorkerPool(1) as pool:
        assert pool.read_text(str(tmp_path / "x.pdf"), 1).text == "Page 1"
        files = Path(f"/proc/{pool.workers[0].process.pid}/fd")
        assert str(tmp_path / "x.pdf") in [os.readlink(file) for file in files.iterdir()]
        time.sleep(2.5)
        assert str(tmp_path / "x.pdf") not in [os.readlink(file) for file in files.iterdir()]
        assert pool.read_text(str(tmp_path / "x.pdf"), 1).text == "Page 1"


@pytest.fixture
def ocr_pool(ocr_engine):
    with WorkerPool(1) as made:
        yield made


def test_scans_are_read_by_ocr(ocr_pool, tmp_path):
    pages = [draw_scan("First invoice"), draw_scan("Second invoice")]
    file = str(tmp_path / "x.pdf")
    pages[0].save(file, save_all=True, append_images=pages[1:])
    assert ocr_pool.read_text(file, 2).text == ""
    text = ocr_pool.read_by_ocr(file, 2)
    assert text.text == "Second invoice"
    assert not text.has_layer
    assert [word.text for word in text.words] == ["Second", "invoice"]
    assert text.words[0].left == pytest.approx(80 / 600, abs=0.02)
    assert text.words[0].top == pytest.approx(110 / 800, abs=0.03)
    with pytest.raises(RandSlotError, match="it has 2 pages, so there is no page 3"):
        ocr_pool.read_by_ocr(file, 3)


def test_ocr_has_its_own_limit_of_time(tmp_path):
    noise(50, 60).save(tmp_path / "x.png")
    with WorkerPool(1) as pool:
        assert pool.ocr_seconds > pool.seconds
        pool.inspect(str(tmp_path / "x.png"))
        os.kill(pool.workers[0].process.pid, signal.SIGSTOP)
        pool.ocr_seconds = 0.3
        with pytest.raises(RandSlotError, match=r"took more than 0\.3 s"):
            pool.read_by_ocr(str(tmp_path / "x.png"), 1)
        assert pool.inspect(str(tmp_path / "x.png")).num_pages == 1


@pytest.mark.nightly
def test_ocr_has_the_limit_of_memory(ocr_engine, tmp_path):
    draw_scan("Second invoice").save(tmp_path / "x.png")
    code = "from randslot.library import workers; workers.MAX_MEMORY = 2**28; workers.main()"
    request = json.dumps({"file": str(tmp_path / "x.png"), "numbers": [1], "ocr": True}) + "\n"
    answer = subprocess.run([sys.executable, "-c", code], input=request, capture_output=True, text=True)
    # A library may end the process when it gets no memory, and then nothing is answered.
    assert answer.stdout == "" or "error" in json.loads(answer.stdout)


def test_work_is_done_in_order_and_not_far_ahead(pool):
    begun: list[int] = []
    lock = threading.Lock()

    def work(number: int) -> int:
        with lock:
            begun.append(number)
        time.sleep(0.001 * (number % 3))
        return number

    seen = []
    for number, future in pool.ahead(work, range(40), 5):
        assert future.result() == number
        seen.append(number)
        time.sleep(0.002)
        assert len(begun) <= len(seen) + 6
    assert seen == list(range(40))


def test_a_worker_that_dies_is_replaced(tmp_path):
    noise(50, 60).save(tmp_path / "x.png")
    with WorkerPool(1) as pool:
        pool.inspect(str(tmp_path / "x.png"))
        first = pool.workers[0].process.pid
        os.kill(first, signal.SIGKILL)
        time.sleep(0.05)
        assert pool.render(str(tmp_path / "x.png"), 1, 10_000).size == (50, 60)
        assert pool.workers[0].process.pid != first


def test_a_file_that_takes_too_long_fails_alone(tmp_path):
    """A pipe that nobody writes to: opening it waits for ever."""
    os.mkfifo(tmp_path / "slow.png")
    noise(50, 60).save(tmp_path / "x.png")
    with WorkerPool(1) as pool:
        pool.inspect(str(tmp_path / "x.png"))
        pool.seconds = 0.3
        with pytest.raises(RandSlotError, match=r"took more than 0\.3 s"):
            pool.inspect(str(tmp_path / "slow.png"))
        pool.seconds = 60
        assert pool.inspect(str(tmp_path / "x.png")).num_pages == 1


def test_a_file_that_kills_its_worker_fails_alone(tmp_path):
    os.mkfifo(tmp_path / "deadly.png")
    with WorkerPool(1) as pool:
        worker = pool.workers[0]
        worker._start()
        threading.Timer(0.3, lambda: os.kill(worker.process.pid, signal.SIGSEGV)).start()
        with pytest.raises(RandSlotError, match="opening it crashed the worker process"):
            pool.inspect(str(tmp_path / "deadly.png"))


def test_closing_ends_workers_whatever_they_do(tmp_path):
    os.mkfifo(tmp_path / "slow.png")
    pool = WorkerPool(1)
    waiting = pool.threads.submit(pool.inspect, str(tmp_path / "slow.png"))
    while pool.workers[0].process is None:
        time.sleep(0.01)
    pool.close()
    assert isinstance(waiting.exception(), Interrupted)
    assert pool.workers[0].process.poll() is not None


def test_closing_while_a_process_is_being_started_ends_it(monkeypatch):
    one, closing = Worker(), []
    start = workers.subprocess.Popen

    def start_while_closing(*command, **options):
        closing.append(threading.Thread(target=one.close))
        closing[0].start()
        time.sleep(0.1)
        return start(*command, **options)

    monkeypatch.setattr(workers.subprocess, "Popen", start_while_closing)
    process = one._start()
    closing[0].join()
    assert process.poll() is not None
    with pytest.raises(Interrupted):
        one.ask({"file": "x.png"}, 60)


def test_nothing_is_printed_when_a_worker_is_killed_while_a_request_is_written(tmp_path):
    """Not then, and not at the exit of Python, which closes pipes."""
    code = """
import os, signal, threading
from randslot.library.workers import WorkerPool
pool = WorkerPool(2)
for worker in pool.workers:
    worker._start()
    os.kill(worker.process.pid, signal.SIGSTOP)
first, second = pool.workers
requests = [pool.threads.submit(pool.inspect, "x" * 1_000_000) for _ in range(2)]
threading.Timer(0.3, first.process.kill).start()
threading.Timer(0.3, second.process.kill).start()
for request in requests:
    print(request.exception())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["opening it crashed the worker process"] * 2
    assert done.stderr == ""


def test_a_worker_whose_parent_ends_before_the_answer_prints_nothing(tmp_path):
    noise(500, 600).save(tmp_path / "x.png")
    process = subprocess.Popen(
        [sys.executable, "-m", "randslot.library.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    request = {"file": str(tmp_path / "x.png"), "numbers": [1], "pixels": 1_000_000}
    _, errors = process.communicate(json.dumps(request).encode() + b"\n", timeout=60)
    assert errors == b""
    assert process.returncode == 0


def run_worker(requests: list[dict[str, object]]) -> tuple[list[dict[str, object]], str]:
    """Return the answers of a new worker to requests without images, and which heavy modules it has loaded."""
    code = (
        "import sys; from randslot.library import workers; workers.main()\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'rapidocr', 'onnxruntime', 'cv2'}\n"
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    lines = "".join(json.dumps(request) + "\n" for request in requests).encode()
    answer = subprocess.run([sys.executable, "-c", code], input=lines, capture_output=True, check=True)
    out, replies = io.BytesIO(answer.stdout), []
    while line := out.readline():
        replies.append(json.loads(line))
        out.read(replies[-1]["bytes"])
    return replies, answer.stderr.decode().strip()


def test_a_worker_loads_no_model_and_ends_with_its_parent(tmp_path):
    write_pdf(tmp_path / "x.pdf", 3, [])
    file = {"file": str(tmp_path / "x.pdf")}
    replies, loaded = run_worker([file, {**file, "numbers": [2], "text": True}])
    assert replies[0]["num_pages"] == 3
    assert replies[1]["texts"][0][0] == "Page 2"
    assert loaded == ""


@pytest.mark.nightly
def test_a_worker_loads_the_engine_of_ocr_when_it_is_asked_for(ocr_engine, tmp_path):
    pytest.importorskip("rapidocr", reason="RapidOCR is not installed: the extra randslot[ocr]")
    draw_scan("Second invoice").save(tmp_path / "x.png")
    replies, loaded = run_worker([{"file": str(tmp_path / "x.png"), "numbers": [1], "ocr": True}] * 2)
    assert [reply["texts"][0][0] for reply in replies] == ["Second invoice"] * 2
    assert loaded == "cv2 onnxruntime rapidocr"


def test_memory_has_a_limit(tmp_path, monkeypatch):
    code = (
        "from randslot import pages\n"
        "from randslot.library import workers\n"
        "workers.MAX_MEMORY = 2**30\n"
        "pages.render_file_page = lambda *_: bytearray(2**31)\n"
        "workers.main()"
    )
    request = json.dumps({"file": str(tmp_path / "x.png"), "numbers": [1], "pixels": 100}) + "\n"
    answer = subprocess.run([sys.executable, "-c", code], input=request, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == {"error": "needs more than 1 GB of memory", "bytes": 0}


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process's memory is read in /proc")
@pytest.mark.parametrize(("mode", "suffix"), [("RGB", "png"), ("RGB", "jpg"), ("RGBA", "png"), ("I;16", "png")])
def test_a_huge_image_takes_less_than_a_gigabyte(mode, suffix, tmp_path):
    file = tmp_path / f"huge.{suffix}"
    Image.new(mode, (12_000, 12_000), 40_000 if mode == "I;16" else "teal").save(file)  # RGB takes 4 bytes a pixel
    asked = Worker()
    try:
        reply, _ = asked.ask({"file": str(file), "numbers": [1], "pixels": 1_000_000}, 60)
        assert reply["size"] == [1000, 1000]
        status = Path(f"/proc/{asked.process.pid}/status").read_text()
    finally:
        asked.close()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))  # KB
    assert peak < 10**9 / 1024


def test_a_worker_gets_no_secrets(monkeypatch, tmp_path):
    for name in ("RANDSLOT_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "QDRANT_API_KEY"):
        monkeypatch.setenv(name, "secret")
    (tmp_path / "empty.png").write_bytes(b"")
    with WorkerPool(1) as pool:
        with pytest.raises(RandSlotError, match="empty"):
            pool.inspect(str(tmp_path / "empty.png"))
        environment = Path(f"/proc/{pool.workers[0].process.pid}/environ").read_bytes()
    assert b"PATH=" in environment
    assert b"secret" not in environment


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="Linux says what a process may do in /proc")
def test_a_worker_has_no_new_privileges_and_limits_of_cpu_and_file_size(tmp_path):
    write_pdf(tmp_path / "x.pdf", 1, [])
    with WorkerPool(1) as pool:
        pool.inspect(str(tmp_path / "x.pdf"))
        place = Path(f"/proc/{pool.workers[0].process.pid}")
        limits = {line[:25].strip(): line[25:].split()[0] for line in (place / "limits").read_text().splitlines()}
        assert "NoNewPrivs:\t1" in (place / "status").read_text()
    assert workers.MAX_CPU <= int(limits["Max cpu time"]) <= workers.MAX_CPU + 60
    assert int(limits["Max file size"]) == 2**28
    assert int(limits["Max address space"]) <= workers.MAX_MEMORY


def test_the_texts_of_a_file_have_a_budget_of_bytes_together(tmp_path, monkeypatch):
    write_lines(tmp_path / "x.pdf", ["some words"])
    file = str(tmp_path / "x.pdf")
    with WorkerPool(1) as pool:
        pool.inspect(file)
        assert pool.read_text(file, 1).text == "some words"
        pool.unpacked[file] += pool.budgets[file][1]
        with pytest.raises(RandSlotError, match="more than 17 MB of text in total"):
            pool.read_text(file, 1)
