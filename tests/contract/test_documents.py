"""A folder as people have it: notes, mail, web pages and Office files beside PDFs."""

from __future__ import annotations

from .pdf import write_pdf


def test_a_mixed_folder_is_indexed_and_found(run, tmp_path):
    folder = tmp_path / "in"
    write_pdf(folder / "plan.pdf", [["The harbour plan of the city."]])
    (folder / "notes.md").write_text("# Harbour notes\n\nThe crane is broken.\n")
    (folder / "page.html").write_text("<title>Harbour</title><h1>Ferry</h1><p>Leaves at nine.<script>x()</script>")
    (folder / "mail.eml").write_text("Subject: Harbour fees\nFrom: a@example.com\n\nPlease pay 40 crowns.\n")
    (folder / "table.csv").write_text("ship,berth\nOrion,7\n")
    (folder / "broken.docx").write_bytes(b"PK\x03\x04 torn")
    (folder / "notes.xyz").write_text("no document")
    (folder / "noise.txt").write_bytes(bytes(range(256)))
    answer = run("index", "in", "-l", "lib")
    assert answer.code == 1
    assert "broken.docx" in answer.err
    assert "noise.txt: the content is not that of a .txt file" in answer.err
    assert "Traceback" not in answer.err
    expected = {
        "crane": "notes.md",
        "ferry": "page.html",
        "crowns": "mail.eml",
        "orion": "table.csv",
        "city": "plan.pdf",
    }
    for query, name in expected.items():
        (hit,) = run("search", query, "-l", "lib", "--json").json
        assert hit["source"].endswith(f"/{name}"), query
        assert hit["boxes"]
    for name, words in {
        "mail.eml": ["--type", "mail"],
        "plan.pdf": ["--in", "PLAN"],
        "page.html": ["--type", "html"],
    }.items():
        (hit,) = run("search", "harbour", "-l", "lib", "--json", *words).json
        assert hit["source"].endswith(f"/{name}")
    answer = run("search", "harbour", "-l", "lib", "--year", "1999-2001")
    assert "note: no file with year 1999-2001: the library has 20" in answer.err
    answer = run("search", "table.csv", "-l", "lib", "--json")
    assert (len(answer.json), answer.err) == (1, "")  # also by its whole name
    (folder / "notes.md").write_text("# Harbour notes\n\nThe crane works.\n")
    run("index", "in", "-l", "lib", "-q")
    assert run("search", '"crane is broken"', "-l", "lib", "--json").json == []
    assert len(run("search", '"crane works"', "-l", "lib", "--json").json) == 1
    (folder / "mail.eml").unlink()
    assert "the file is no longer on disk" in run("search", "crowns", "-l", "lib").out
    assert "1 file is no longer on disk: --prune forgets it" in run("index", "in", "-l", "lib").out
