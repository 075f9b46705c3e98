"""Compare keyword search with other engines on the same PDFs: cost from files to the first hit, and quality.

    python -m research.manuals data/manuals
    python -m research.shelf data/shelf
    pip install bm25s tantivy                    # SQLite's FTS5 is in Python
    apt-get install recollcmd pdfgrep            # optional: skipped if missing
    python benchmarks/peers.py                   # on the development halves
    python benchmarks/peers.py --half test       # on the held-out test halves

Every engine builds its index in one process, and is queried in another. FTS5, bm25s and tantivy get the plain text of
every page from pypdfium2, as from a twenty-line script: no word boxes, headings or language. Recoll reads files itself
and ranks whole documents. pdfgrep has neither index nor ranking. No engine uses OCR here.

Times are CPU times, since the machine may be shared; those of a build include all processes. Memory is the peak sum of
their proportional set sizes, sampled twice a second. `first hit` is a whole process: start, import, open, one query
(the best of three). `p50` and `p95` are over all questions in one open process, ten hits each, after ten warmup
queries; recoll starts a process per query. `hits have` lists what else an engine returns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Import lazily: import time counts.

HITS = 10
SETS = {"manuals": Path("data/manuals"), "shelf": Path("data/shelf")}
HAVE = {
    "randslot": "snippets, boxes, fields",
    "SQLite FTS5": "snippets",
    "bm25s": "numbers",
    "tantivy": "snippets",
    "recoll": "documents",
    "pdfgrep": "lines, not ranked",
}
Ask = Callable[[str, int], list[str]]  # (question, number of hits) -> page names, best first


def read_pages(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and plain text of every page."""
    import pypdfium2

    for file in sorted(folder.rglob("*.pdf")):
        pdf = pypdfium2.PdfDocument(file)
        for number in range(len(pdf)):
            page = pdf[number]
            text = page.get_textpage()
            yield f"{file.relative_to(folder).as_posix()}#page={number + 1}", text.get_text_bounded()
            text.close()
            page.close()
        pdf.close()


def list_words(question: str) -> list[str]:
    return re.findall(r"\w+", question.lower())


# -- the engines: one function builds an index of pages in a folder, one opens it


def build_randslot(pages: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "randslot", "index", str(pages), "-l", str(folder / "library"), "--no-ocr"]
    subprocess.run([*command, "--quiet"], check=True, stdout=subprocess.DEVNULL)


def open_randslot(pages: Path, folder: Path) -> Ask:
    from randslot import Library

    library = Library(folder / "library", create=False)

    def ask(question: str, num: int) -> list[str]:
        found = library.search(question, num)
        for hit in found:
            assert hit.snippet is not None
        return [f"{Path(hit.source).relative_to(pages).as_posix()}#page={hit.page}" for hit in found]

    return ask


def build_fts5(pages: Path, folder: Path) -> None:
    db = sqlite3.connect(folder / "pages.db")
    db.execute("create virtual table pages using fts5(name unindexed, text, tokenize = 'porter unicode61')")
    db.executemany("insert into pages values (?, ?)", read_pages(pages))
    db.execute("insert into pages(pages) values ('optimize')")
    db.commit()
    db.close()


def open_fts5(pages: Path, folder: Path) -> Ask:
    db = sqlite3.connect(folder / "pages.db")
    query = "select name, snippet(pages, 1, '<b>', '</b>', '...', 32) from pages where pages match ? "

    def ask(question: str, num: int) -> list[str]:
        match = " OR ".join(f'"{word}"' for word in list_words(question))
        return [row[0] for row in db.execute(f"{query} order by rank limit ?", (match, num))]

    return ask


def build_bm25s(pages: Path, folder: Path) -> None:
    bm25s, stemmer = importlib.import_module("bm25s"), importlib.import_module("Stemmer").Stemmer("english")
    names, texts = zip(*read_pages(pages), strict=True)
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(texts), stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)
    index.save(folder / "index")
    (folder / "names.json").write_text(json.dumps(names))


def open_bm25s(pages: Path, folder: Path) -> Ask:
    bm25s, stemmer = importlib.import_module("bm25s"), importlib.import_module("Stemmer").Stemmer("english")
    index, names = bm25s.BM25.load(folder / "index", mmap=True), json.loads((folder / "names.json").read_text())

    def ask(question: str, num: int) -> list[str]:
        words = bm25s.tokenize([question], stopwords="en", stemmer=stemmer, show_progress=False)
        return [names[i] for i in index.retrieve(words, k=num, show_progress=False).documents[0]]

    return ask


def build_tantivy(pages: Path, folder: Path) -> None:
    tantivy = importlib.import_module("tantivy")
    schema = tantivy.SchemaBuilder().add_text_field("name", stored=True, tokenizer_name="raw")
    schema = schema.add_text_field("text", stored=True, tokenizer_name="en_stem").build()
    index = tantivy.Index(schema, path=str(folder))
    writer = index.writer(num_threads=1)
    for name, text in read_pages(pages):
        writer.add_document(tantivy.Document(name=name, text=text))
    writer.commit()
    writer.wait_merging_threads()


def open_tantivy(pages: Path, folder: Path) -> Ask:
    tantivy = importlib.import_module("tantivy")
    index = tantivy.Index.open(str(folder))
    searcher = index.searcher()

    def ask(question: str, num: int) -> list[str]:
        query = index.parse_query(" ".join(list_words(question)), ["text"])
        maker = tantivy.SnippetGenerator.create(searcher, query, index.schema, "text")
        names = []
        for _, address in searcher.search(query, num).hits:
            document = searcher.doc(address)
            maker.snippet_from_doc(document).to_html()
            names.append(document["name"][0])
        return names

    return ask


def build_recoll(pages: Path, folder: Path) -> None:
    (folder / "recoll.conf").write_text(f"topdirs = {pages}\nloglevel = 1\n")
    subprocess.run(["recollindex", "-c", str(folder)], check=True, capture_output=True)


def open_recoll(pages: Path, folder: Path) -> Ask:
    def ask(question: str, num: int) -> list[str]:
        command = ["recollq", "-c", str(folder), "-o", "-b", "-n", str(num), " ".join(list_words(question))]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        files = [line.removeprefix("file://") for line in answer.stdout.splitlines() if line.startswith("file://")]
        return [Path(file).relative_to(pages).as_posix() for file in files]

    return ask


def open_pdfgrep(pages: Path, folder: Path) -> Ask:
    def ask(question: str, num: int) -> list[str]:
        word = max(list_words(question), key=len)
        subprocess.run(["pdfgrep", "-r", "-i", "-m", "1", word, str(pages)], check=False, capture_output=True)
        return []

    return ask


BUILD = {
    "randslot": build_randslot,
    "SQLite FTS5": build_fts5,
    "bm25s": build_bm25s,
    "tantivy": build_tantivy,
    "recoll": build_recoll,
}
OPEN = {
    "randslot": open_randslot,
    "SQLite FTS5": open_fts5,
    "bm25s": open_bm25s,
    "tantivy": open_tantivy,
    "recoll": open_recoll,
    "pdfgrep": open_pdfgrep,
}


def is_here(engine: str) -> bool:
    """Whether an engine is installed."""
    if engine in ("recoll", "pdfgrep"):
        return shutil.which({"recoll": "recollindex"}.get(engine, engine)) is not None
    return engine not in ("bm25s", "tantivy") or importlib.util.find_spec(engine) is not None


# -- measures


def count_cpu(*who: int) -> float:
    """Return the CPU seconds of this process, of its finished children, or of both."""
    total = 0.0
    for one in who:
        used = resource.getrusage(one)
        total += used.ru_utime + used.ru_stime
    return total


def watch(command: list[str]) -> tuple[float, float]:
    """Run a command; return the CPU seconds and peak megabytes of all its processes."""
    import psutil

    before, most = count_cpu(resource.RUSAGE_CHILDREN), 0.0
    with subprocess.Popen(command) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            size = 0
            try:
                for one in [root, *root.children(recursive=True)]:
                    size += one.memory_full_info().pss
            except psutil.Error:  # one has just ended
                size = 0
            most = max(most, size / 1e6)
            time.sleep(0.5)
    assert process.returncode == 0, command
    return count_cpu(resource.RUSAGE_CHILDREN) - before, most


def ask_all(engine: str, data: Path, folder: Path) -> dict[str, Any]:
    """Run all questions of a set; return the CPU milliseconds of each, and quality over pages and documents."""
    from randslot.evaluation.metrics import ndcg

    pages = (data / "pages").resolve()
    ask = OPEN[engine](pages, folder)
    questions = [json.loads(line) for line in (data / "queries.jsonl").read_text().splitlines()]
    grades: dict[str, dict[str, int]] = {}
    for line in (data / "qrels.jsonl").read_text().splitlines():
        row = json.loads(line)
        grades.setdefault(row["query"], {})[row["page"]] = row["grade"]
    questions = [one for one in questions if any(grades.get(one["id"], {}).values())]
    milliseconds = []
    for one in questions[:10]:  # to warm up
        ask(one["query"], HITS)
    for one in questions:
        before = count_cpu(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ask(one["query"], HITS)
        milliseconds.append(1000 * (count_cpu(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) - before))
    by_page, by_document = [], []
    for one in questions:
        ranked, graded = ask(one["query"], 10 * HITS), grades[one["id"]]
        documents: dict[str, int] = {}
        for page, grade in graded.items():
            name = page.partition("#")[0]
            documents[name] = max(grade, documents.get(name, 0))
        by_page.append(ndcg(ranked, graded, 5))
        by_document.append(ndcg(list(dict.fromkeys(page.partition("#")[0] for page in ranked)), documents, 5))
    return {
        "p50 ms": statistics.median(milliseconds),
        "p95 ms": statistics.quantiles(milliseconds, n=20)[-1],
        "nDCG@5": 100 * statistics.mean(by_page) if engine != "recoll" else None,
        "nDCG@5 of documents": 100 * statistics.mean(by_document),
    }


def measure(engine: str, name: str, data: Path, folder: Path) -> dict[str, Any]:
    """Build, open and query one engine, each in a separate process."""
    columns = ["index s", "memory MB", "disk MB", "first hit s", "p50 ms", "p95 ms", "nDCG@5", "nDCG@5 of documents"]
    row: dict[str, Any] = {"set": name, "engine": engine, **dict.fromkeys(columns)}
    script = [sys.executable, str(Path(__file__).resolve())]
    place = ["--engine", engine, "--data", str(data), "--folder", str(folder)]
    if engine in BUILD:
        row["index s"], row["memory MB"] = watch([*script, "build", *place])
        row["disk MB"] = sum(512 * file.stat().st_blocks for file in folder.rglob("*")) / 1e6  # files may be sparse
    row["first hit s"] = min(watch([*script, "first", *place])[0] for _ in range(3 if engine in BUILD else 1))
    if engine in BUILD:
        answer = subprocess.run([*script, "ask", *place], check=True, capture_output=True, text=True)
        row |= json.loads(answer.stdout)
    return row | {"hits have": HAVE[engine]}


def measure_all(engines: list[str], sets: list[str], half: str) -> None:
    """Measure engines on one half of each set; keep the rows of other engines."""
    from record import keep, print_table, read_rows

    rows: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    file = "peers" if half == "dev" else f"peers-{half}"
    for row in read_rows(file):
        if row["set"] not in sets or row.get("engine", engines[0]) not in engines:
            (rows if "engine" in row else texts).append(row)
    for name in sets:
        data = SETS[name] / half
        started = count_cpu(resource.RUSAGE_SELF)
        num = sum(1 for _ in read_pages(data / "pages"))
        texts.append({"set": name, "pages": num, "read plain text s": count_cpu(resource.RUSAGE_SELF) - started})
        for engine in filter(is_here, engines):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(engine, name, data.resolve(), Path(folder)))
    order = [*SETS, *OPEN]
    rows.sort(key=lambda row: (order.index(row["set"]), order.index(row["engine"])))
    print_table([*texts, *rows])
    keep(file, [*texts, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", default="all", choices=["all", "build", "first", "ask"])
    parser.add_argument("--engine", choices=OPEN, help="only this one")
    parser.add_argument("--set", choices=SETS, help="only this one")
    parser.add_argument("--half", default="dev", choices=["dev", "test"])
    parser.add_argument("--data", type=Path, help="of a step that is not all")
    parser.add_argument("--folder", type=Path, help="of the index, of a step that is not all")
    options = parser.parse_args()
    if options.step == "all":
        engines = [options.engine] if options.engine else list(OPEN)
        measure_all(engines, [options.set] if options.set else list(SETS), options.half)
        return
    pages = (options.data / "pages").resolve()
    if options.step == "build":
        BUILD[options.engine](pages, options.folder)
    elif options.step == "first":
        query = json.loads((options.data / "queries.jsonl").read_text().splitlines()[0])["query"]
        OPEN[options.engine](pages, options.folder)(query, HITS)
    else:
        print(json.dumps(ask_all(options.engine, options.data, options.folder)))


if __name__ == "__main__":
    main()
