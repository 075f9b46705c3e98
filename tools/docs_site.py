"""Build the documentation site: docs/ as HTML in data/site, which works offline, without a server.

python tools/docs_site.py              # needs the extra `docs`; `make docs` creates an environment for it

Zensical builds it from zensical.toml, and fails on broken links or anchors. It reads a copy of docs/, with notebooks
converted to Markdown, and with extra pages for linked files of the repository.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS, CONFIG = ROOT / "docs", ROOT / "zensical.toml"
WORK, SITE = ROOT / "data" / "site-pages", ROOT / "data" / "site"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
WORKER, SCRIPTS = Path(__file__).with_suffix(".js"), "assets/javascripts"
SHIM = "https://unpkg.com/iframe-worker/shim"  # what the theme loads to search pages opened from files
IN_TABLES = re.compile(r"<code>[^<]*</code>")
OUTSIDE = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="https?:[^>]*>|<link\b[^>]*\bhref="https?:[^>]*>""")
KINDS = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml"}


def list_pages(nav: list[Any]) -> list[str]:
    """Return the files of a navigation, in order."""
    files = []
    for entry in nav:
        if isinstance(entry, str):
            files.append(entry)
        else:
            for value in entry.values():
                files += list_pages(value if isinstance(value, list) else [value])
    return files


def read_nav() -> list[str]:
    """Return the pages of the site, as paths relative to docs/."""
    return list_pages(tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"])


def find_links(text: str) -> list[tuple[str, str]]:
    """Return the path and anchor of each link to a file, outside code."""
    return [(match[1], (match[2] or "").removeprefix("#")) for match in LINK.finditer(_without_code(text))]


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`(?!\])", "", CODE.sub("", text))


def make_slug(heading: str) -> str:
    """Return the anchor of a heading, as on GitHub and the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def find_anchors(text: str) -> set[str]:
    """Return the anchors of a Markdown text."""
    heads = re.findall(r"^#+ (.+)$", CODE.sub("", text), flags=re.MULTILINE)
    return {make_slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head)) for head in heads}


def convert_notebook(file: Path) -> str:
    """Return a notebook as Markdown: its texts, code, and outputs."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![What the code above shows](data:image/png;base64,{data['image/png']})")
            else:
                text = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def name_page(path: Path) -> Path:
    """Return the site's path of a file or folder of the repository."""
    if path.is_relative_to(DOCS):
        path = path.relative_to(DOCS)
        return path.with_suffix(".md") if path.suffix == ".ipynb" else path
    if path == ROOT / "README.md":
        return Path("index.md")
    if path.suffix == ".svg":
        return Path("images", path.name)
    path = path.relative_to(ROOT)
    return Path(path.name.lower()) if path.suffix == ".md" else Path("repository", f"{path}.md")


def show_file(path: Path) -> str:
    """Return a page that shows a file or lists a folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"# {name}\n\n" + "".join(f"- {one.name}\n" for one in sorted(path.iterdir()) if one.name[0] not in "._")
    text = path.read_text(encoding="utf-8")
    return text if path.suffix in (".md", ".svg") else f"# {name}\n\n````{KINDS.get(path.suffix, 'text')}\n{text}````\n"


def read_page(file: Path) -> tuple[str, list[Path]]:
    """Return a page with links rewritten for the site, and the linked files."""
    text = convert_notebook(file) if file.suffix == ".ipynb" else show_file(file)
    if file.suffix not in (".md", ".ipynb"):
        return text, []
    targets = []

    def turn(match: re.Match[str]) -> str:
        target = (file.parent / match[1]).resolve()
        if not target.exists():
            sys.exit(f"{file}: broken link {match[1]}")
        targets.append(target)
        path = os.path.relpath(name_page(target), name_page(file).parent)
        return Path(path).as_posix() + (match[2] or "")

    pieces = re.split(f"({CODE.pattern})", text, flags=CODE.flags)
    turned = [piece if piece.startswith("```") else LINK.sub(turn, piece) for piece in pieces]
    return "".join(turned), targets


def stage() -> None:
    """Write the sources of the site: the pages of the navigation, and all that they link to."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(DOCS, WORK / "docs", ignore=shutil.ignore_patterns("*.ipynb", "*.md"))
    config, names = CONFIG.read_text(encoding="utf-8"), read_nav()
    waiting = [(DOCS / name).resolve() for name in names]
    for name, file in zip(names, waiting, strict=True):
        config = config.replace(f'"{name}"', f'"{name_page(file).as_posix()}"')
    (WORK / "zensical.toml").write_text(config, encoding="utf-8")
    while waiting:
        file = waiting.pop()
        page = WORK / "docs" / name_page(file)
        if not page.exists():
            page.parent.mkdir(parents=True, exist_ok=True)
            text, targets = read_page(file)
            page.write_text(text, encoding="utf-8")
            waiting += targets


def keep_inside(site: Path) -> None:
    """Replace the only external script by our own, and fail if a page loads anything else from another host.

    Unescape bars in code in tables, which Markdown needs escaped. Remove the 404 page: it only works at the root of a
    server.
    """
    (site / "404.html").unlink(missing_ok=True)
    shutil.copy(WORKER, site / SCRIPTS)
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        home = Path(os.path.relpath(site, page.parent)).as_posix()
        html = html.replace(SHIM, f"{home}/{SCRIPTS}/{WORKER.name}")
        html = IN_TABLES.sub(lambda found: found[0].replace("\\|", "|"), html)
        outside = OUTSIDE.search(html)
        if outside:
            sys.exit(f"{page} loads from another host: {outside[0]}")
        page.write_text(html, encoding="utf-8")


def limit_search(site: Path) -> None:
    """Limit the search index to pages of the navigation, without linked files."""
    pages = {name_page((DOCS / name).resolve()).with_suffix(".html").as_posix() for name in read_nav()}
    for file in (site / "search.json", site / "search.js"):
        before, brace, rest = file.read_text(encoding="utf-8").partition("{")
        index, end = json.JSONDecoder().raw_decode(brace + rest)
        index["items"] = [item for item in index["items"] if item["location"].partition("#")[0] in pages]
        file.write_text(before + json.dumps(index, ensure_ascii=False) + (brace + rest)[end:], encoding="utf-8")


def main() -> None:
    stage()
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.is_file():
        sys.exit('Zensical is not installed. Run pip install -c constraints.txt -e ".[docs]", or make docs')
    built = subprocess.run([zensical, "build", "--strict"], cwd=WORK)
    if built.returncode:
        sys.exit("building the site failed: see above")
    keep_inside(WORK / "site")
    limit_search(WORK / "site")
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.move(WORK / "site", SITE)
    print(f"open {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
