"""The documentation: links work, commands and snippets run, the reference is current, the English is plain."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import docs_site
import pytest
from docs_site import DOCS, ROOT, find_anchors, find_links, read_nav
from english import find_odd
from notebooks import list_notebooks, run_notebook
from reference import PARTS, make_reference
from typer.main import get_command

import randslot
from randslot.cli import app
from support.models import noise
from support.pdf import write_pages

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LINKED = [*ROOT.glob("*.md"), *(ROOT / "research").glob("*.md")]
PAGES = [*sorted(DOCS.glob("*.md")), *list_notebooks()]


def read_texts(file: Path) -> str:
    """Return the Markdown of a page, or of the texts in a notebook."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("file", [*LINKED, *PAGES], ids=lambda file: file.name)
def test_every_link_leads_to_a_file_and_a_heading(file):
    text = read_texts(file)
    own = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert own <= find_anchors(text), own - find_anchors(text)
    for path, anchor in find_links(text):
        target = (file.parent / path).resolve()
        assert target.exists(), path
        assert target.is_relative_to(ROOT), path
        if anchor:
            assert anchor in find_anchors(read_texts(target)), f"{path}#{anchor}"


def test_the_site_has_every_page_once():
    """A new page goes into `nav` of zensical.toml."""
    listed = [(DOCS / name).resolve() for name in read_nav()]
    assert sorted(listed) == sorted([*PAGES, ROOT / "CHANGELOG.md"])


def test_files_and_names_of_the_architecture_are_in_the_code():
    """A file is named from the package or the project on, or alone after others of its folder."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "randslot"
    files = {file.name for file in package.rglob("*")}
    code = [*package.rglob("*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("research/**/*.py")]
    known = set(re.findall(r"\w+", " ".join(file.read_text(encoding="utf-8") for file in code)))
    for name in re.findall(r"`([^`\n]+)`", text):
        if name.endswith((".py", "/")):
            assert (package / name).exists() or (ROOT / name).exists() or name.strip("/") in files, name
        elif re.fullmatch(r"\w[\w.]*", name):
            assert set(name.split(".")) <= known | {"json"}, name


def test_every_page_begins_with_its_title():
    for file in PAGES:
        first = read_texts(file).splitlines()[0]
        assert re.fullmatch(r"# \S.*", first), file


def test_anchors_are_those_of_github():
    assert find_anchors("# What K = 4 costs\n\n```\n# no\n```\n\n## A `name`, [a link](x.md)") == {
        "what-k--4-costs",
        "a-name-a-link",
    }


def test_the_reference_is_what_the_code_says():
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert reference == make_reference(), "run make reference"
    for name in {*randslot.__all__} - {"__version__"}:
        assert f"\n### {name}\n" in reference
    assert all(f"\n## {part}\n" in reference for part in PARTS)


def test_pages_for_the_site_show_notebooks_and_files_of_the_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_site, "WORK", tmp_path)
    docs_site.stage()
    notebook, page, source = (
        (tmp_path / "docs" / name).read_text(encoding="utf-8")
        for name in ("notebooks/search-pdfs.md", "paper.md", "repository/src/randslot/model/slots.py.md")
    )
    assert "```python\n" in notebook
    assert "```text\n" in notebook
    assert "](../search.md)" in notebook
    assert "](data:image/png;base64," in notebook
    assert "](repository/src/randslot/model/slots.py.md)" in page
    assert "````python\n" in source
    assert '"changelog.md"' in (tmp_path / "zensical.toml").read_text(encoding="utf-8")


def test_a_link_that_leads_nowhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_site, "ROOT", tmp_path)
    monkeypatch.setattr(docs_site, "DOCS", tmp_path)
    (tmp_path / "page.md").write_text("# Page\n\n[gone](gone.md)\n")
    with pytest.raises(SystemExit, match=r"the link gone\.md leads nowhere"):
        docs_site.read_page(tmp_path / "page.md")


def test_a_page_that_loads_from_another_host_is_refused(tmp_path):
    (tmp_path / "assets" / "javascripts").mkdir(parents=True)
    page = tmp_path / "below" / "page.html"
    page.parent.mkdir()
    page.write_text(f'<script src="{docs_site.SHIM}"></script><a href="https://example.org">elsewhere</a>')
    docs_site.keep_inside(tmp_path)
    assert 'src="../assets/javascripts/docs_site.js"' in page.read_text()
    page.write_text('<link rel="stylesheet" href="https://fonts.example/css">')
    with pytest.raises(SystemExit, match="loads from another host"):
        docs_site.keep_inside(tmp_path)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does it, strict about links; data/ is left alone."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docs_site, "WORK", folder / "work")
        patch.setattr(docs_site, "SITE", folder / "site")
        docs_site.main()
    return folder / "site"


@pytest.mark.nightly
@pytest.mark.xdist_group("site")
def test_the_site_is_built(site):
    pages = {file.name for file in site.glob("*.html")}
    assert {"index.html", "choose.html", "library.html", "reference.html", "changelog.html"} <= pages
    assert (site / "notebooks" / "four-vectors.html").is_file()


@pytest.mark.nightly
@pytest.mark.xdist_group("site")
def test_the_search_of_the_site_has_its_pages_only(site):
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    pages = {item["location"].partition("#")[0] for item in items}
    assert {"index.html", "search.html", "reference.html"} <= pages
    assert not [page for page in pages if page.startswith("repository/")]


@pytest.mark.nightly
@pytest.mark.xdist_group("site")
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_the_site_opens_from_files_and_can_be_searched(site):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "notebooks" / "search-pdfs.html").as_uri())
        page.keyboard.press("Control+k")
        page.get_by_placeholder("Search").fill("rerank")
        page.get_by_role("option", name="Rerank").first.click()
        page.wait_for_url("**/search.html*")
        browser.close()
    assert not [url for url in asked if url.startswith("http")]


@pytest.mark.nightly
@pytest.mark.parametrize("file", list_notebooks(), ids=lambda file: file.stem)
def test_notebooks_run_and_show_what_they_print(file, tmp_path, capsys):
    book = json.loads(file.read_text(encoding="utf-8"))
    assert file.stat().st_size < 200_000
    assert not re.search(r"/tmp|/home|/root|/work", json.dumps(book))
    again = run_notebook(file, tmp_path)
    for before, after in zip(book["cells"], again["cells"], strict=True):
        shown, now = ([output["output_type"] for output in cell.get("outputs", [])] for cell in (before, after))
        assert shown == now, "run make notebooks"


# -- commands and snippets

TEXTS = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
# Commands that need a model, a server, a display or an answer are only parsed.
NEEDS = re.compile(
    r"://|--(?:model|rerank|open|ray|exact|by|ocr all|width)\b|\b(?:serve|mcp|paper|rerank|remove|watch)\b"
)


def read_blocks(file: Path, *languages: str) -> list[str]:
    """Return the code blocks of a page in some languages; "" for those that name none."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if language in languages]


def list_commands(file: Path) -> list[str]:
    """Return what follows `randslot` in each command of a page."""
    found = []
    for block in read_blocks(file, "", "bash"):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            call = re.match(r"(?:[A-Z_]+=\S+ |torchrun .*-m |docker exec papers )*randslot (?!\.)(.*)", line)
            if call:
                found.append(re.sub(r"\s+(?:#|\| ).*", "", call[1]).strip())
    return found


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_every_command_parses(file, tmp_path, monkeypatch):
    (tmp_path / "~" / "manuals").mkdir(parents=True)  # `randslot pairs` checks that its folder exists
    monkeypatch.chdir(tmp_path)
    for line in list_commands(file):
        words = shlex.split(line.partition(" <")[0])
        group = get_command(app)
        context = group.make_context("randslot", words)
        while hasattr(group, "commands"):
            name, group, words = group.resolve_command(context, words)
            context = group.make_context(name, words, parent=context)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index", "search", "library"])
def test_commands_run(name, tmp_path, monkeypatch):
    """Each command of a page in its order, in a home with documents; those that need more are only parsed."""
    for folder in ("papers", "manuals", "2023", "papers/2019"):
        (tmp_path / folder).mkdir(exist_ok=True)
        lines = ["Deferred tax in 2023: invoice INV-20931", "Read a table from a file", f"The report of {folder}"]
        write_pages(tmp_path / folder / "report.pdf", [lines, ["Income tax"]])
    (tmp_path / "questions.txt").write_text("deferred tax\nrevenue\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    run("index ~/papers", tmp_path)
    run("index ~/papers -l mylib", tmp_path)
    commands = [line for line in list_commands(DOCS / f"{name}.md") if not NEEDS.search(line)]
    assert len(commands) >= 2
    for line in commands:
        run(line, tmp_path)


def run(line: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{shlex.quote(sys.executable)} -m randslot {line}"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in TEXTS if read_blocks(file, "python")], ids=lambda file: file.name)
def test_snippets_run(file, tmp_path, monkeypatch):
    """Those of a page in order; one that needs the hub or a server says so in its first line."""
    if file.name == "reference.md":
        pytest.skip("signatures")
    monkeypatch.chdir(tmp_path)
    noise(100, 140).save("page.png")
    names: dict[str, object] = {}
    for block in read_blocks(file, "python"):
        if not block.startswith(("# needs the hub", "# needs a server")):
            exec(compile(block, str(file), "exec"), names)


# -- language


def test_the_english_is_plain():
    """tools/english.py lists the words, and where they may stand."""
    assert not find_odd()


def test_help_texts_have_at_most_eight_words():
    def check(command):
        for param in command.params:
            text = re.sub(r"\(.*?\)", "", param.help or "")
            assert len(text.split()) <= 8, f"{command.name} {param.opts}: {param.help}"
        for one in getattr(command, "commands", {}).values():
            check(one)

    check(get_command(app))


def test_readme_and_docs_are_short():
    words = {file.name: len(file.read_text(encoding="utf-8").split()) for file in TEXTS}
    assert words["README.md"] <= 700
    assert sum(words.values()) <= 30_000, words


def test_the_install_command_has_one_spelling():
    for file in TEXTS:
        for what in re.findall(r"pip install ([^\n`]*)", file.read_text(encoding="utf-8")):
            assert what.startswith(('"randslot[', "--no-build-isolation ", ".", "...")), f"{file.name}: {what}"
            assert "[serve]" not in what or what.startswith('"randslot'), f"{file.name}: {what}"


def test_scores_in_the_readme_are_in_the_tables():
    """Tables are made of rows (tests/test_package.py); a quoted score must follow when they are made again."""
    special = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[2]
    scores = re.findall(r"\b\d\d\.\d\b", special)
    assert scores
    tables = re.findall(r"^\|.*", (DOCS / "results.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    cells = {cell.strip() for line in tables for cell in line.split("|")}
    assert set(scores) <= cells


def test_every_promise_names_a_test_that_exists():
    promises = (DOCS / "promises.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", promises)
    assert len(named) > 30
    for file, name in named:
        assert f"def {name}(" in (DOCS.parent / file).read_text(encoding="utf-8"), f"{file}::{name}"
