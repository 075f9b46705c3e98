"""Find words that plain engineering English does not use here, in docs and in the package.

python tools/english.py              # list them

CONTRIBUTING.md says how we write. EXCEPTIONS names each sentence that may keep such a word.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ODD = re.compile(
    r"\b(?:whoever|whatever|whichever|who (?:searches|asks|wants|writes|reads)|anew|of before|go(?:es)? on\b(?! to)|"
    r"(?:is|are) told|what is there|that are there|as they come|of theirs|of one's own|if one insists|beforehand|"
    r"stands? (?:for|around)|lets? go of|each once|so many each|alone|meanwhile|hitherto|takes? over from)\b",
    re.IGNORECASE,
)
PLACES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md", "src/randslot/**/*.py")
# Names of tests in the promises, and quotations.
EXCEPTIONS = (re.compile(r"`tests/[^`]+`"),)


def find_odd() -> list[str]:
    """Return place and text of each odd word."""
    found = []
    for pattern in PLACES:
        for file in sorted(ROOT.glob(pattern)):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
                for exception in EXCEPTIONS:
                    line = exception.sub("", line)
                found += [f"{file.relative_to(ROOT)}:{number}: {match[0]}" for match in ODD.finditer(line)]
    return found


if __name__ == "__main__":
    print(*(places := find_odd()), sep="\n")
    sys.exit(bool(places))
