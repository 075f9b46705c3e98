"""Compare two analyses of a multilingual library: each page in its own language, and all in the most common one.

    python -m research.manuals data/manuals
    python -m research.experiments.languages          # needs Debian's packages: four more manuals

The manuals of both halves, most of them English, and four others in French, Spanish, Italian and Russian form one
library. Additional questions about the German one and these four (language_questions.jsonl) were written by reading
them. Every question is run in full, and as its two longest words, like typical queries.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from manuals import HALVES, Question, rank
from record import keep, print_table

from randslot.evaluation.compare import judge_tasks
from randslot.evaluation.metrics import ndcg
from randslot.evaluation.tasks import own_task
from randslot.library.library import Library
from randslot.words.analyzer import tokenize
from research.debian import take_file, unpack_debian

QUESTIONS = Path(__file__).with_name("language_questions.jsonl")
MANUALS = {  # paths in packages of Debian 12, and hashes
    "developers-reference.fr": (
        "developers-reference-fr",
        "usr/share/developers-reference/fr/developers-reference.pdf",
        "446d245dcb381aa1e389158bc65d7d54",
    ),
    "debian-edu.es": (
        "debian-edu-doc-es",
        "usr/share/doc/debian-edu-doc-es/debian-edu-bookworm-manual.pdf",
        "a790aeaa97334e9b25f3ce5bea0a3296",
    ),
    "maint-guide.it": (
        "maint-guide-it",
        "usr/share/doc/maint-guide-it/maint-guide.it.pdf",
        "8ccef7b52f98eea4612b56f0538abfcb",
    ),
    "maint-guide.ru": (
        "maint-guide-ru",
        "usr/share/doc/maint-guide-ru/maint-guide.ru.pdf",
        "c14232d2f165502a8275257624073166",
    ),
}
WAYS = {"one language": "english", "each page its own": "auto"}
OTHERS = "all but en and fr-on-en"


def fetch(folder: Path) -> None:
    """Write the manuals that are in neither half into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (package, file, expected) in MANUALS.items():
        target = folder / f"{name}.pdf"
        if not target.is_file():
            with tempfile.TemporaryDirectory() as place:
                unpack_debian(package, Path(place))
                take_file(Path(place, file), target, expected)  # Debian 12 has this version


def read_questions(manuals: Path) -> list[Question]:
    """Return the questions of both halves, and those about manuals in other languages."""
    questions = []
    for half in HALVES:
        for subset in own_task(manuals / half).subsets():
            for id, text in subset.queries.items():
                questions.append(Question(text, f"{subset.name}, {half}", "", subset.grades[id]))
    for line in QUESTIONS.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        grades = {f"{one['manual']}.pdf#page={page}": grade for page, grade in one["pages"].items()}
        questions.append(Question(one["query"], f"{one['language']}, new", one["manual"], grades))
    return questions


def shorten(text: str) -> str:
    """Return the two longest words of a question, in order."""
    words = [token.text for token in tokenize(text) if not token.extra]
    longest = sorted(words, key=len, reverse=True)[:2]
    return " ".join(word for word in words if word in longest)


def measure(folder: Path, sources: Sequence[Path], language: str, questions: Sequence[Question]) -> list[np.ndarray]:
    """Return nDCG@5 of each question, in percent: in full, and by two words."""
    with Library(folder / f"library-{language}") as library:
        library.read_words(language=language)
        library.add(sources, workers=1)
        print(f"{language}: {len(library):,} pages, {', '.join(library.words.languages)}", file=sys.stderr)
        found = []
        for ask in (str, shorten):
            found.append(np.array([100 * ndcg(rank(library, ask(one.text)), one.grades, 5) for one in questions]))
        return found


def make_rows(asked: str, questions: Sequence[Question], found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return a row per language, and one for all questions about non-English pages."""
    languages = list(dict.fromkeys(one.language for one in questions))
    groups = {language: [language] for language in languages}
    groups[OTHERS] = [language for language in languages if not language.startswith(("en", "fr-on-en"))]
    one, each = found.values()
    rows = []
    for name, group in groups.items():
        at = np.array([question.language in group for question in questions])
        row: dict[str, Any] = {"questions": name, "asked": asked, "number": int(at.sum())}
        row |= {way: float(values[at].mean()) for way, values in found.items()}
        judged = judge_tasks({"set": [each[at] - one[at]]})["set"]
        rows.append(row | dict(zip(("difference", "from", "to", "verdict"), judged, strict=True)))
    return rows


def main() -> None:
    """Measure, print a table and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/languages"), help="for manuals and libraries")
    options = parser.parse_args()
    fetch(options.folder / "pages")
    questions = read_questions(options.manuals)
    sources = [options.folder / "pages", *(options.manuals / half / "pages" for half in HALVES)]
    found = {}
    for way, language in WAYS.items():
        found[way] = measure(options.folder, sources, language, questions)
    rows = []
    for i, asked in enumerate(("whole", "two words")):
        rows += make_rows(asked, questions, {way: values[i] for way, values in found.items()})
    print_table(rows)
    keep("languages", rows)


if __name__ == "__main__":
    main()
