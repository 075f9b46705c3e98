"""What the page shows of a page: parts of its picture, its words, its outline, and pages like it."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from support.libraries import ToyReader
from support.pdf import write_lines, write_pages, write_pdf
from support.services import client_of, documents, serving

LINES = ["Tides of the North Sea in 2018", "The harbour closes at 2018 hours", "Dredging ends in 2018"]


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("docs")
    write_lines(folder / "tides.pdf", LINES)
    write_lines(folder / "turned.pdf", LINES, "/MediaBox [0 0 400 600] /Rotate 90")
    write_pages(folder / "harbour.pdf", [["Dredging of the harbour in the North Sea"], ["A list of trees"]])
    write_lines(folder / "birch.pdf", ["Trees: birch and oak"])
    write_pdf(folder / "book.pdf", 3, [("Preface", 0), ("Chapter", 1), ("Notes", 2)])
    Image.linear_gradient("L").save(folder / "photo.png")
    with serving(tmp_path_factory.mktemp("pages") / "lib", None) as service:
        service.library.add(folder, workers=1)
        yield client_of(service)


def address(client: TestClient, name: str, number: int = 1) -> str:
    return f"/api/documents/{documents(client)[name]['id']}/pages/{number}"


@pytest.mark.parametrize("name", ["tides.pdf", "turned.pdf", "photo.png"])
def test_a_part_of_a_page_is_that_part_of_its_picture(client, name):
    whole = Image.open(BytesIO(client.get(f"{address(client, name)}/image?size=full").content))
    box = {"left": 0.1, "top": 0.05, "right": 0.6, "bottom": 0.3}
    part = client.get(f"{address(client, name)}/crop", params={**box, "width": 200})
    assert part.headers["content-type"] == "image/jpeg"
    shown = Image.open(BytesIO(part.content))
    width, height = whole.size
    expected = whole.crop((round(0.1 * width), round(0.05 * height), round(0.6 * width), round(0.3 * height)))
    assert shown.width == pytest.approx(min(200, expected.width), abs=2)
    assert shown.width / shown.height == pytest.approx(expected.width / expected.height, rel=0.03)
    difference = np.asarray(shown.convert("L"), float) - np.asarray(expected.convert("L").resize(shown.size), float)
    assert abs(difference).mean() < 6


def test_a_part_without_an_area_is_refused(client):
    for box in ({"left": 0.5, "right": 0.4}, {"top": 0.2, "bottom": 0.2}, {"left": -1}, {"width": 100_000}):
        assert client.get(f"{address(client, 'tides.pdf')}/crop", params=box).status_code == 422


def test_a_thin_part_is_no_larger_than_a_page(client):
    params = {"left": 0.5, "right": 0.51, "width": 2400}
    picture = Image.open(BytesIO(client.get(f"{address(client, 'tides.pdf')}/crop", params=params).content))
    assert picture.width * picture.height <= 1.05 * 2400 * 3200


def test_words_of_a_page_have_boxes(client):
    lines = client.get(f"{address(client, 'tides.pdf')}/words").json()["lines"]
    assert [" ".join(word["text"] for word in line) for line in lines] == LINES
    assert lines[0][0]["left"] == pytest.approx(50 / 400, abs=0.01)
    assert lines[0][0]["top"] < lines[1][0]["top"] < lines[2][0]["top"]
    assert client.get(f"{address(client, 'photo.png')}/words").json() == {"lines": []}


def test_the_rarest_match_is_the_one_to_look_at(client):
    body = {"query": "dredging 2018", "name": "tides.pdf", "boxes": True}
    hit = client.post("/api/search", json=body).json()["hits"][0]
    third = client.get(f"{address(client, 'tides.pdf')}/words").json()["lines"][2][0]
    assert hit["best"] == pytest.approx([third[side] for side in ("left", "top", "right", "bottom")], abs=1e-4)


def test_an_outline_has_titles_and_pages(client):
    id = documents(client)["book.pdf"]["id"]
    entries = client.get(f"/api/documents/{id}/outline").json()["entries"]
    assert [(entry["title"], entry["page"]) for entry in entries] == [("Preface", 1), ("Chapter", 2), ("Notes", 3)]
    other = documents(client)["photo.png"]["id"]
    assert client.get(f"/api/documents/{other}/outline").json() == {"entries": []}


def test_pages_like_a_page_are_of_other_documents(client):
    hits = client.get(f"{address(client, 'harbour.pdf')}/similar").json()["hits"]
    assert {hit["document"]["name"] for hit in hits[:2]} == {"tides.pdf", "turned.pdf"}
    hits = client.get(f"{address(client, 'harbour.pdf', 2)}/similar").json()["hits"]
    assert hits[0]["document"]["name"] == "birch.pdf"
    assert "harbour.pdf" not in {hit["document"]["name"] for hit in hits}


def test_a_search_within_a_document(client):
    id = documents(client)["tides.pdf"]["id"]
    hits = client.post("/api/search", json={"query": "dredging", "within": id}).json()["hits"]
    assert [hit["document"]["id"] for hit in hits] == [id]


def test_pages_like_a_page_by_vectors(tmp_path):
    for name, text in {"one": "alpha beta", "two": "alpha beta gamma", "three": "delta"}.items():
        write_lines(tmp_path / f"{name}.pdf", [text])
    with serving(tmp_path / "lib", ToyReader()) as service:
        service.library.add([tmp_path / f"{name}.pdf" for name in ("one", "two", "three")], workers=1)
        client = client_of(service)
        hits = client.get(f"{address(client, 'one.pdf')}/similar").json()["hits"]
        assert [hit["document"]["name"] for hit in hits] == ["two.pdf", "three.pdf"]
        assert {hit["by"] for hit in hits} == {"words" if service.library.choose_by() == "words" else "vectors"}
