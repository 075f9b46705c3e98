"""The figures of another study, to stand beside those of a study in its report."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from randslot.tables import Cell

from .claims import CONFIRMED, CONTRADICTED, NOISE, Claim, Key, Measurements, judge_claims, judge_extra
from .measures import measure_rows
from .plan import Study, read_study
from .rows import read_rows


@dataclass(frozen=True)
class OtherStudy:
    """What another study found. name: what tables call it. claims: the paper's, by their text."""

    name: str
    study: Study
    found: Measurements
    claims: dict[str, Claim]

    def judged(self, text: str, digits: int) -> list[Cell]:
        """Return the difference that a claim has there, and its verdict."""
        claim = self.claims[text]
        return [f"{claim.difference:+.{digits}f}", claim.verdict]

    def average(self, key: Key, measure: str) -> float | None:
        """Return a measure as its mean over seeds; None if that study lacks the arm."""
        return mean(self.found[key].seeds(measure)) if key in self.found else None

    def verdict(self, extra: str) -> str | None:
        """Return whether the hypothesis of an extra of that name holds there; None if that study lacks it."""
        for one in self.study.extra:
            if one.name == extra and (judged := judge_extra(self.study, one, self.found)):
                return judged[1]
        return None

    def describe(self, report: Path) -> str:
        """Return in a sentence how many claims it has confirmed, with a link from a report to its own."""
        counts = Counter(claim.verdict for claim in self.claims.values())
        link = Path(os.path.relpath(self.study.report, report.parent)).as_posix()
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (CONFIRMED, CONTRADICTED, NOISE))
        return f"In [{self.name}]({link}) these were {told}; its figures stand beside the paper's."


def read_other(study: Study) -> OtherStudy | None:
    """Read the rows of the study that stands beside this one, if its file names one."""
    if study.beside is None:
        return None
    other = read_study(Path(study.beside.study))
    found = measure_rows(read_rows(other))
    claims = {claim.question.text: claim for claim in judge_claims(found)}
    return OtherStudy(study.beside.name, other, found, claims)
