"""Libraries with the vectors of the embedded model, and libraries on disk of this format."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from contract.conftest import Answer, run_command, write_papers
from contract.pdf import write_pdf

DATA = Path(__file__).parent / "data"
INDEXED = "/srv/contract/papers"  # where the files of the stored libraries were


@pytest.fixture(scope="session")
def added_once(library_once: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A library of words that was given vectors, and what was told; never change it."""
    folder = tmp_path_factory.mktemp("vectors")
    subprocess.run(["cp", "-r", library_once, folder / "lib"], check=True)
    papers = library_once.parent / "papers"
    write_pdf(folder / "huge.pdf", [["Too large to draw."]], box="0 0 20000 20000")
    words = ["index", papers, folder / "huge.pdf", "-l", folder / "lib", "--model", "embedded", "--json"]
    return folder / "lib", run_command(*words, home=folder)


def unpack(name: str, folder: Path) -> Path:
    with tarfile.open(DATA / name) as archive:
        archive.extractall(folder, filter="data")
    return folder / name.split(".")[0]


def test_a_model_adds_vectors_to_a_library_of_words(added_once):
    _, answer = added_once
    assert answer.code == 1  # of the page that is too large
    summary = answer.json
    assert [Path(source).name for source in summary["failed"]] == ["huge.pdf"]
    assert (summary["encoded"], summary["library_pages"]) == (9, 9)


def test_status_tells_the_model_and_whether_it_can_read(run, added_once):
    library, _ = added_once
    status = run("library", "status", "-l", library, "--json").json
    model = status["model"]
    assert (model["name"], model["page_vectors"], model["query_vectors"], model["dimension"]) == ("embedded", 4, 4, 128)
    assert {"revision", "weights", "slots", "inference", "visual_tokens", "reads"} <= model.keys()
    assert status["with_vectors"] == 9
    assert len(status["notes"]) == 2  # a miniature, and no better than chance
    assert "embedded" in run("library", "status", "-l", library).out
    assert run("library", "verify", "-l", library).code == 0


def test_words_are_relied_on_if_the_model_cannot_read(run, added_once):
    answer = run("search", "deferred tax", "-l", added_once[0], "--json")
    assert answer.json[0]["by"] == "words"
    assert "embedded" in answer.err


@pytest.mark.slow
def test_words_and_vectors_together_are_explained(run, added_once):
    answer = run("search", "wool", "-l", added_once[0], "--by", "both", "--query-vectors", "2", "--explain", "-k", "1")
    assert answer.code == 0, answer.err
    assert "report.pdf" in answer.out
    assert "1>" in answer.out
    assert "2>" in answer.out
    assert "3>" not in answer.out


def test_sketches_need_many_queries(run, added_once):
    for words in ([], ["--queries", "nowhere.txt"]):
        answer = run("library", "sketch", "-l", added_once[0], *words)
        assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1), answer.err
    assert "nowhere.txt" in answer.err


@pytest.mark.slow
def test_sketches_are_made_and_forgotten(run, added_once, tmp_path):
    subprocess.run(["cp", "-r", added_once[0], tmp_path / "lib"], check=True)
    (tmp_path / "questions.txt").write_text("\n".join(f"the ships and wool of {i}" for i in range(200)))
    answer = run("library", "sketch", "-l", "lib", "--queries", "questions.txt")
    assert (answer.code, "9 pages" in answer.out) == (0, True), answer.err
    assert run("library", "status", "-l", "lib", "--json").json["sketches"]
    assert run("library", "sketch", "-l", "lib", "--remove").code == 0
    assert not run("library", "status", "-l", "lib", "--json").json["sketches"]


def test_a_library_of_words_on_disk_opens(run, tmp_path):
    library = unpack("words.tar.gz", tmp_path)
    status = run("library", "status", "-l", library, "--json").json
    assert (status["files"], status["pages"], status["format"]) == (5, 10, 2)
    assert (status["origins"], set(status["languages"])) == ({"layer": 9, "ocr": 1}, {"english", "german"})
    (hit,) = run("search", '"wool grew"', "-l", library, "--filter", "year=2023", "--json").json
    assert (hit["source"], hit["page"], hit["metadata"]) == (f"{INDEXED}/report.pdf", 3, {"year": "2023"})
    assert len(hit["boxes"]) == 2
    (hit,) = run("search", "crane", "-l", library, "--json").json  # read by OCR
    assert hit["source"] == f"{INDEXED}/scan.png"
    write_pdf(tmp_path / "more.pdf", [["Zebras graze beside the wool."]])
    assert run("index", "more.pdf", "-l", library, "-q").code == 0
    found = run("search", "zebra wool", "-l", library, "--json").json
    assert [Path(hit["source"]).name for hit in found] == ["more.pdf", "report.pdf"]
    verified = run("library", "verify", "-l", library)
    assert (verified.code, "11 pages" in verified.out) == (0, True)


def test_its_files_are_known_where_they_are_now(run, tmp_path):
    """The same contents at another place are renamed, not read."""
    library = unpack("words.tar.gz", tmp_path)
    write_papers(tmp_path / "papers")
    summary = run("index", "papers", "-l", library, "--json").json
    assert (len(summary["moved"]), summary["added"], summary["pages"]) == (4, [], 0)


def test_a_library_with_vectors_on_disk_opens(run, tmp_path):
    library = unpack("vectors.tar.gz", tmp_path)
    verified = run("library", "verify", "-l", library)
    assert (verified.code, "10 pages" in verified.out) == (0, True)
    (hit,) = run("search", "deferred tax", "-l", library, "--by", "vectors", "-k", "1", "--json").json
    assert (hit["source"], hit["page"], hit["by"]) == (f"{INDEXED}/below/manual.pdf", 2, "vectors")
    assert [copy["source"] for copy in hit["copies"]] == [f"{INDEXED}/fleet.pdf"]
    assert hit["score"] == pytest.approx(2.7536, abs=2e-3)
    assert [(match["query"], match["page"]) for match in hit["matches"]] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    similarities = [match["similarity"] for match in hit["matches"]]
    assert similarities == pytest.approx([0.7105, 0.6846, 0.6790, 0.6794], abs=1e-3)


@pytest.mark.slow
def test_a_library_with_sketches_on_disk_goes_on(run, tmp_path):
    library = unpack("sketched.tar.xz", tmp_path)
    status = run("library", "status", "-l", library, "--json").json
    assert (status["format"], bool(status["sketches"])) == (3, True)
    write_pdf(tmp_path / "more.pdf", [["Zebras graze beside the wool."]])
    summary = run("index", "more.pdf", "-l", library, "--json").json  # with the model that it knows
    assert (summary["encoded"], summary["library_pages"]) == (1, 11)
    status = run("library", "status", "-l", library, "--json").json
    assert (status["with_vectors"], bool(status["sketches"])) == (11, True)
    verified = run("library", "verify", "-l", library)
    assert (verified.code, "11 pages" in verified.out) == (0, True)


@pytest.mark.slow
def test_it_is_searched_by_its_sketches(run, tmp_path):
    library = unpack("sketched.tar.xz", tmp_path)
    for options in ([], ["--exact"]):
        (hit,) = run("search", "deferred tax", "-l", library, "--by", "vectors", "-k", "1", "--json", *options).json
        assert (hit["source"], hit["score"]) == (f"{INDEXED}/below/manual.pdf", pytest.approx(2.7536, abs=2e-3))


def test_a_copy_has_the_vectors_too(run, tmp_path):
    library = unpack("vectors.tar.gz", tmp_path)
    answer = run("library", "copy", library, "copied", "--json")
    assert (answer.code, answer.json["pages"], answer.json["problems"]) == (0, 10, [])
    shutil.rmtree(library)
    assert run("library", "status", "-l", "copied", "--json").json["with_vectors"] == 10
