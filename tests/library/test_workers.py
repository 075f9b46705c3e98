"""Worker processes open files as the model needs them; one that hangs or dies takes only its own file with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from randslot.errors import RandSlotError
from randslot.library.reading.workers import Renderers
from randslot.pages import open_page
from support.libraries import write_tiff
from support.models import noise
from support.pdf import write_pdf


@pytest.fixture(scope="module")
def renderers():
    with Renderers(2) as made:
        yield made


def test_a_pdf_is_rendered_as_the_model_would_open_it(renderers, tmp_path):
    write_pdf(tmp_path / "x.pdf", 3, [])
    assert renderers.inspect(str(tmp_path / "x.pdf")).num_pages == 3
    for pixels in (20_000, 90_000):
        image = renderers.render(str(tmp_path / "x.pdf"), 2, pixels)
        assert image.width * image.height == pytest.approx(pixels, rel=0.02)
        assert image.tobytes() == open_page(f"{tmp_path}/x.pdf#page=2", pixels).tobytes()


def test_images_are_sent_no_larger_than_needed(renderers, tmp_path):
    noise(300, 400).save(tmp_path / "x.png")
    small = renderers.render(str(tmp_path / "x.png"), 1, 30_000)
    assert small.size == (150, 200)
    assert renderers.render(str(tmp_path / "x.png"), 1, 120_000).tobytes() == noise(300, 400).tobytes()


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".PNG"])
def test_every_kind_of_image_is_opened(renderers, tmp_path, suffix):
    file = tmp_path / f"x{suffix}"
    noise(50, 60).save(file)
    assert renderers.inspect(str(file)).num_pages == 1
    assert renderers.render(str(file), 1, 10_000).size == (50, 60)


def test_a_tiff_has_pages(renderers, tmp_path):
    write_tiff(tmp_path / "x.tif", [1, 2, 3])
    assert renderers.inspect(str(tmp_path / "x.tif")).num_pages == 3
    assert renderers.render(str(tmp_path / "x.tif"), 3, 10_000).tobytes() == noise(64, 96, 3).tobytes()
    assert open_page(f"{tmp_path}/x.tif#page=2").tobytes() == noise(64, 96, 2).tobytes()
    with pytest.raises(RandSlotError, match="has 3 pages, so there is no page 4"):
        open_page(f"{tmp_path}/x.tif#page=4")


def test_the_same_content_has_the_same_hash(renderers, tmp_path):
    for name, seed in (("a.png", 1), ("b.png", 1), ("c.png", 2)):
        noise(20, 20, seed).save(tmp_path / name)
    a, b, c = (renderers.inspect(str(tmp_path / f"{name}.png")).hash for name in "abc")
    assert a == b != c


def test_work_is_done_in_order_and_not_far_ahead(renderers):
    begun: list[int] = []
    lock = threading.Lock()

    def work(number: int) -> int:
        with lock:
            begun.append(number)
        time.sleep(0.001 * (number % 3))
        return number

    seen = []
    for number, future in renderers.ahead(work, range(40), 5):
        assert future.result() == number
        seen.append(number)
        time.sleep(0.002)
        assert len(begun) <= len(seen) + 6
    assert seen == list(range(40))


def test_a_worker_that_dies_is_replaced(tmp_path):
    noise(50, 60).save(tmp_path / "x.png")
    with Renderers(1) as renderers:
        renderers.inspect(str(tmp_path / "x.png"))
        first = renderers.workers[0].process.pid
        os.kill(first, signal.SIGKILL)
        time.sleep(0.05)
        assert renderers.render(str(tmp_path / "x.png"), 1, 10_000).size == (50, 60)
        assert renderers.workers[0].process.pid != first


def test_a_file_that_takes_too_long_fails_alone(tmp_path):
    """A pipe that nobody writes to: opening it waits for ever."""
    os.mkfifo(tmp_path / "slow.png")
    noise(50, 60).save(tmp_path / "x.png")
    with Renderers(1) as renderers:
        renderers.inspect(str(tmp_path / "x.png"))
        renderers.seconds = 0.3
        with pytest.raises(RandSlotError, match=r"took more than 0\.3 s"):
            renderers.inspect(str(tmp_path / "slow.png"))
        renderers.seconds = 60
        assert renderers.inspect(str(tmp_path / "x.png")).num_pages == 1


def test_a_file_that_kills_its_worker_fails_alone(tmp_path):
    os.mkfifo(tmp_path / "deadly.png")
    with Renderers(1) as renderers:
        worker = renderers.workers[0]
        worker._start()
        threading.Timer(0.3, lambda: os.kill(worker.process.pid, signal.SIGSEGV)).start()
        with pytest.raises(RandSlotError, match="opening it ended the renderer"):
            renderers.inspect(str(tmp_path / "deadly.png"))


def test_closing_ends_workers_whatever_they_do(tmp_path):
    os.mkfifo(tmp_path / "slow.png")
    renderers = Renderers(1)
    waiting = renderers.threads.submit(renderers.inspect, str(tmp_path / "slow.png"))
    while renderers.workers[0].process is None:
        time.sleep(0.01)
    renderers.close()
    assert isinstance(waiting.exception(), RandSlotError)
    assert renderers.workers[0].process.poll() is not None


def test_a_worker_loads_no_model_and_ends_with_its_parent(tmp_path):
    noise(50, 60).save(tmp_path / "x.png")
    code = (
        "import sys; from randslot.library.reading import worker; worker.main()\n"
        "print(sorted({'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    request = json.dumps({"file": str(tmp_path / "x.png")}) + "\n"
    answer = subprocess.run([sys.executable, "-c", code], input=request, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["num_pages"] == 1
    assert answer.stderr.strip() == "[]"


def test_memory_has_a_limit(tmp_path, monkeypatch):
    code = (
        "from randslot.library.reading import worker\n"
        "worker.MEMORY = 2**30\n"
        "worker.render = lambda *_: bytearray(2**31)\n"
        "worker.main()"
    )
    request = json.dumps({"file": str(tmp_path / "x.png"), "number": 1, "pixels": 100}) + "\n"
    answer = subprocess.run([sys.executable, "-c", code], input=request, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == {"error": "needs more than 1 GB of memory"}


def test_a_file_that_changes_its_name_to_nothing(renderers, tmp_path):
    with pytest.raises(RandSlotError, match="No such file"):
        renderers.inspect(str(Path(tmp_path, "gone.png")))
