"""French questions about English manuals, in a library that has no French page: words, and words with the small reader.

    python -m research.manuals data/manuals
    pip install "randslot[reader]"
    RANDSLOT_OCR=none python -m research.experiments.foreign

The development half of the manuals, without its German and French ones; 81 of the 90 English questions are also asked
in French (reader_french.jsonl).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from manuals import Half, Question, grade
from reader import list_asked, search
from record import keep, print_table

from randslot.evaluation.tasks import own_task
from randslot.library.library import Library
from randslot.library.results import By
from randslot.model.text_reader import NAME

from .readers import FRENCH

ENGLISH = ("bacula", "gnuplot", "krb5-admin", "r-exts", "r-intro")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manuals", type=Path, default=Path("data/manuals"))
    parser.add_argument("--folder", type=Path, default=Path("data/words"), help="for the library")
    options = parser.parse_args()
    questions = []
    for subset in own_task(options.manuals / "dev").subsets():
        for id, text in subset.queries.items():
            grades = subset.grades[id]
            questions.append(Question(text, subset.name, next(iter(grades)).split("#")[0], grades))
    options.folder.mkdir(parents=True, exist_ok=True)
    with Library(options.folder / "foreign", NAME) as library:
        library.add([options.manuals / "dev" / "pages" / f"{name}.pdf" for name in ENGLISH], workers=1)
        half = Half("dev", [one for one in questions if one.manual.removesuffix(".pdf") in ENGLISH], {}, library)
        asked = [one for one in list_asked(half, FRENCH) if one.language in ("en", "fr-on-en")]
        rows = []
        searches: tuple[By, ...] = ("words", "both")
        for by in searches:
            rows.append({"search": by} | grade(asked, [search(library, one, by) for one in asked], 5))
    print_table(rows)
    keep("foreign", rows)


if __name__ == "__main__":
    main()
