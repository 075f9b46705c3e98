"""randslot index: what is read, skipped, renamed, forgotten and refused."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from contract.pdf import write_objects, write_pdf

SUMMARY = {
    "added", "changed", "moved", "unchanged", "removed", "failed", "others", "links", "known_failures", "pages",
    "encoded", "vector_bytes_per_page", "seconds", "by_ocr", "ocr_seconds", "without_text", "library_pages",
    "library_bytes",
}  # fmt: skip


def names(sources: list[str]) -> list[str]:
    return sorted(Path(source).name for source in sources)


def draw_scan(file: Path, *lines: str) -> None:
    image = Image.new("RGB", (600, 800), "white")
    for i, line in enumerate(lines):
        ImageDraw.Draw(image).text((80, 100 + 60 * i), line, "black", ImageFont.load_default(40))
    image.save(file)


def test_a_folder_is_indexed_and_its_numbers_are_told(run, papers):
    answer = run("index", papers, "-l", "mylib")
    assert (answer.code, answer.err) == (0, "")
    assert "4" in answer.out
    assert "9 pages" in answer.out


def test_the_summary_in_json(run, papers):
    summary = run("index", papers, "-l", "mylib", "--json").json
    assert summary.keys() == SUMMARY
    assert names(summary["added"]) == ["brief.pdf", "fleet.pdf", "manual.pdf", "report.pdf"]
    assert (summary["pages"], summary["library_pages"], summary["encoded"]) == (9, 9, 0)
    assert (summary["failed"], summary["others"], summary["unchanged"]) == ({}, [], 0)
    assert summary["library_bytes"] > 0


def test_only_what_changed_is_read_again(run, papers):
    def index(*options: str) -> dict:
        answer = run("index", "papers", "-l", "lib", "--json", *options)
        assert answer.code == 0
        return answer.json

    assert len(index()["added"]) == 4
    assert index()["unchanged"] == 4
    os.utime(papers / "fleet.pdf", (1, 1))  # another time, the same content
    assert index()["unchanged"] == 4
    write_pdf(papers / "report.pdf", [["Zebras graze."]])
    (papers / "fleet.pdf").rename(papers / "ships.pdf")
    (papers / "brief.pdf").unlink()
    summary = index()
    assert (names(summary["changed"]), summary["unchanged"], summary["removed"]) == (["report.pdf"], 1, [])
    assert names(summary["moved"]) == ["ships.pdf"]
    assert summary["library_pages"] == 7  # the file that is gone is kept
    answers = run("search", "-", "-l", "lib", "--json", stdin="seven ships\nwool\nzebra\nRechnung").json
    found = [names([hit["source"] for hit in answer["hits"]]) for answer in answers]
    assert found == [["ships.pdf", "ships.pdf"], [], ["report.pdf"], ["brief.pdf"]]  # the new name counts, too


def test_prune_forgets_what_is_gone_after_asking(run, papers):
    run("index", "papers", "-l", "own", "-q")
    (papers / "brief.pdf").unlink()
    shown = run("index", "papers", "-l", "own", "--prune", "--dry-run")
    assert (shown.code, "brief.pdf" in shown.out, "fleet.pdf" in shown.out) == (0, True, False)
    refused = run("index", "papers", "-l", "own", "--prune")  # nobody can answer
    assert (refused.code, "brief.pdf" in refused.out, "--yes" in refused.err) == (1, True, True)
    assert run("library", "status", "-l", "own", "--json").json["files"] == 4
    done = run("index", "papers", "-l", "own", "--prune", "--yes", "--quiet")
    assert (done.code, done.out) == (0, "")
    assert run("library", "status", "-l", "own", "--json").json["files"] == 3


def test_quiet_prints_only_what_failed(run, papers):
    (papers / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    answer = run("index", "papers", "-l", "mylib", "--quiet", "--yes", "--prune")
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (1, "", 1)
    assert "torn.pdf" in answer.err


def test_files_and_patterns_with_metadata(run, papers):
    assert run("index", "papers/r*.pdf", "-l", "mylib", "--meta", "year=2023", "--meta", "kind=a b", "-q").code == 0
    assert run("index", "papers/fleet.pdf", "papers/below", "-l", "mylib", "-q").code == 0
    (hit,) = run("search", "wool", "-l", "mylib", "--filter", "year=2023", "--json").json
    assert hit["metadata"] == {"year": "2023", "kind": "a b"}
    nothing = run("search", "battery", "-l", "mylib", "--filter", "year=2023", "--json")
    assert (nothing.code, nothing.json) == (0, [])
    none = run("search", "wool", "-l", "mylib", "--filter", "year=1999")
    assert (none.code, "year=1999" in none.err, ".pdf" in none.out) == (0, True, False)
    changed = run("index", "papers/report.pdf", "-l", "mylib", "--meta", "year=2024", "--json").json
    assert changed["unchanged"] == 1
    listed = run("library", "list", "-l", "mylib", "--json").json
    assert [file["metadata"].get("year") for file in listed if file["source"].endswith("report.pdf")] == ["2024"]


def test_damaged_and_hostile_files_fail_alone(run, tmp_path):
    bad = tmp_path / "bad"
    bad.mkdir()
    write_pdf(bad / "good.pdf", [["A good page of words."]])
    (bad / "torn.pdf").write_bytes(b"%PDF-1.4 torn")
    (bad / "empty.pdf").write_bytes(b"")
    (bad / "fake.png").write_bytes(b"not an image")
    (bad / "notes.xyz").write_text("mine")
    (bad / ".hidden.pdf").write_bytes(b"%PDF-1.4 torn")
    write_objects(
        bad / "nopages.pdf", {1: "<< /Type /Catalog /Pages 2 0 R >>", 2: "<< /Type /Pages /Count 0 /Kids [] >>"}
    )
    key = f"<{'41' * 32}>"
    write_objects(
        bad / "secret.pdf",
        {
            1: "<< /Type /Catalog /Pages 2 0 R >>",
            2: "<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
            3: "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 100 100] >>",
            4: f"<< /Filter /Standard /V 1 /R 2 /O {key} /U {key} /P -44 >>",
        },
        f"/Encrypt 4 0 R /ID [<{'00' * 16}> <{'00' * 16}>]",
    )
    answer = run("index", "bad", "-l", "mylib", "--json")
    assert (answer.code, "Traceback" in answer.err) == (1, False)
    summary = answer.json
    assert names(summary["added"]) == ["good.pdf"]
    assert names(summary["others"]) == ["notes.xyz"]
    failed = {Path(source).name: reason for source, reason in summary["failed"].items()}
    assert failed.keys() == {"torn.pdf", "empty.pdf", "fake.png", "nopages.pdf", "secret.pdf"}
    assert "password" in failed["secret.pdf"]
    answer = run("index", "bad", "-l", "mylib", "--strict")
    assert answer.code == 1
    assert all(name in answer.err for name in [*failed, "notes.xyz"])
    assert len(answer.err.splitlines()) == 6  # one line for each
    assert "good.pdf" in run("search", "good", "-l", "mylib").out


def test_a_named_file_that_is_no_document_fails(run, papers):
    (papers / "notes.xyz").write_text("mine")
    os.mkfifo(papers / "pipe.pdf")
    answer = run("index", "papers/notes.xyz", "papers/pipe.pdf", "papers/fleet.pdf", "-l", "mylib", "--json")
    assert answer.code == 1
    assert names(answer.json["failed"]) == ["notes.xyz", "pipe.pdf"]
    assert names(answer.json["added"]) == ["fleet.pdf"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["papers", "nowhere.pdf"], "nowhere.pdf"),
        ([""], ""),
        pytest.param(["papers", "--model", "gone"], "gone", marks=pytest.mark.slow),
        (["papers", "--page-vectors", "6"], "--page-vectors"),
        (["papers", "--meta", "year"], "year"),
        (["papers", "--meta", "a=1", "--meta", "a=2"], "a"),
        (["papers", "--ocr", "some"], "some"),
        (["papers", "--meta", "page=3"], "page"),
        (["papers", "--language", "klingon"], "klingon"),
        (["papers", "--workers", "-2"], "-2"),
        (["papers", "--batch", "0"], "0"),
    ],
)
def test_wrong_usage_is_one_line_and_makes_no_library(run, papers, tmp_path, words, named):
    answer = run("index", *words, "-l", "new/lib")
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1), answer.err
    assert named in answer.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--meta", "page=3"], "page"), (["--language", "klingon"], "klingon"), (["--workers", "-2"], "-2")],
)
def test_a_wrong_value_is_one_line_and_nothing_is_indexed(run, library, papers, words, named):
    answer = run("index", papers, "-l", library, *words)
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1), answer.err
    assert named in answer.err
    assert run("library", "list", "-l", library).out.count("report.pdf") == 1


def test_a_folder_that_is_no_library_is_left_alone(run, papers):
    before = names([str(file) for file in papers.rglob("*")])
    answer = run("index", "papers", "-l", "papers")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "papers" in answer.err
    assert names([str(file) for file in papers.rglob("*")]) == before


def test_an_empty_folder_is_no_failure(run, tmp_path):
    (tmp_path / "empty").mkdir()
    answer = run("index", "empty", "-l", "mylib")
    assert (answer.code, answer.err, ".pdf" in answer.out) == (0, "", True)  # what is read is told
    assert run("search", "tax", "-l", "mylib").code == 0


def test_ones_own_library_needs_no_name(run, papers, home, tmp_path):
    assert run("index", papers, "-q").code == 0
    assert (home / ".local" / "share" / "randslot" / "library" / "library.json").is_file()
    assert "report.pdf" in run("search", "wool").out
    other = {"RANDSLOT_LIBRARY": str(tmp_path / "other")}
    answer = run("search", "wool", env=other)
    assert (answer.code, len(answer.err.splitlines()), str(tmp_path / "other") in answer.err) == (2, 1, True)
    assert run("index", papers / "fleet.pdf", "-q", env=other).code == 0
    assert run("library", "status", "--json", env=other).json["files"] == 1


def test_all_words_in_one_language(run, papers):
    assert run("index", papers, "-l", "mylib", "--language", "de", "-q").code == 0
    status = run("library", "status", "-l", "mylib", "--json").json
    assert (status["language"], status["languages"]) == ("german", ["german"])
    assert "brief.pdf" in run("search", "Rechnung", "-l", "mylib").out


def test_images_are_pages(run, tmp_path):
    pages = [Image.new("L", (40, 60), shade) for shade in (0, 100, 200)]
    pages[0].save(tmp_path / "three.tif", save_all=True, append_images=pages[1:])
    pages[1].save(tmp_path / "one.gif", save_all=True, append_images=pages[2:])
    for kind in ("png", "jpg", "webp", "bmp"):
        pages[2].save(tmp_path / f"x.{kind}")
    summary = run("index", ".", "-l", "mylib", "--no-ocr", "--json").json
    assert (len(summary["added"]), summary["pages"], summary["without_text"]) == (6, 8, 8)


def test_odd_names_are_printed_as_they_are_on_one_line(run, tmp_path):
    (tmp_path / "in").mkdir()
    write_pdf(tmp_path / "in" / "[bold]x.pdf", [["wool"]])
    write_pdf(tmp_path / "in" / "line\nbreak.pdf", [["wool and cotton"]])
    assert run("index", "in", "-l", "mylib", "-q").code == 0
    out = run("library", "list", "-l", "mylib").out
    assert "[bold]x.pdf" in out
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize("engine", ["tesseract", "rapidocr"])
def test_scans_are_read_by_ocr(run, tmp_path, engine):
    """By index, or later by library words."""
    env = {"RANDSLOT_OCR": engine}
    if "no engine" in run("doctor", env=env).out:
        pytest.skip(f"{engine} is not installed")
    draw_scan(tmp_path / "scan.png", "Harbour masters", "guard the crane")
    if engine == "tesseract":
        first = run("index", "scan.png", "-l", "mylib", "--no-ocr", "--json", env=env).json
        assert (first["without_text"], first["by_ocr"]) == (1, 0)
        assert run("search", "crane", "-l", "mylib", "--json").json == []
        assert run("library", "words", "-l", "mylib", env=env).code == 0
    else:
        assert run("index", "scan.png", "-l", "mylib", "--json", env=env).json["by_ocr"] == 1
    (hit,) = run("search", "crane", "-l", "mylib", "--json").json
    assert (Path(hit["source"]).name, len(hit["boxes"])) == ("scan.png", 1)
    assert run("library", "status", "-l", "mylib", "--json").json["origins"] == {"ocr": 1}


def test_ocr_that_is_asked_for_needs_an_engine(run, library):
    answer = run("library", "words", "-l", library, "--ocr", "all")
    assert (answer.code, len(answer.err.splitlines())) == (1, 1)
    assert "randslot[ocr]" in answer.err


@pytest.fixture(scope="session")
def many(tmp_path_factory) -> Path:
    """A folder that takes some seconds to index: 600 pages."""
    folder = tmp_path_factory.mktemp("many")
    for i in range(100):
        line = " ".join(f"word{i * k % 977}" for k in range(8))
        write_pdf(folder / f"{i}.pdf", [[f"Number{i} side{page}", *[line] * 20] for page in range(6)])
    return folder


def wait_until_writing(process: subprocess.Popen[str], library: Path) -> None:
    while process.poll() is None and not (library / "library.json").exists():
        time.sleep(0.02)
    time.sleep(0.3)
    assert process.poll() is None, "it was done before it could be killed"


def test_killed_it_goes_on_where_it_stopped(run, start, many, tmp_path):
    process = start("index", many, "-l", "mylib")
    wait_until_writing(process, tmp_path / "mylib")
    process.kill()
    process.wait()
    assert run("library", "verify", "-l", "mylib").code == 0
    status = run("library", "status", "-l", "mylib", "--json").json
    assert status["pages"] == 6 * status["files"]  # no file is visible in part
    summary = run("index", many, "-l", "mylib", "--json").json
    assert (len(summary["added"]), summary["library_pages"]) == (100 - status["files"], 600)
    verified = run("library", "verify", "-l", "mylib")
    assert (verified.code, "600 pages" in verified.out) == (0, True)
    assert len(run("search", '"Number77"', "-l", "mylib", "-k", "9", "--json").json) == 6


def test_while_one_process_writes_others_read_and_may_not_write(run, start, many, papers, tmp_path):
    process = start("index", many, "-l", "mylib")
    wait_until_writing(process, tmp_path / "mylib")
    searched = run("search", "Number3", "-l", "mylib", "--json")
    assert searched.code == 0, searched.err
    for words in (["index", papers, "-l", "mylib"], ["library", "remove", "*", "-l", "mylib", "--yes"]):
        if process.poll() is None:
            refused = run(*words)
            assert process.poll() is not None or (refused.code, len(refused.err.splitlines())) == (1, 1), refused
            assert process.poll() is not None or str(process.pid) in refused.err
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode in (0, 130)
    assert run("library", "verify", "-l", "mylib").code == 0
