"""The paper's claims, one by one: what it found, what is found here, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from randslot.evaluation.compare import LEVEL, judge
from randslot.evaluation.published import PublishedRow, published_tables

from .measures import FULL, Array, Measured
from .plan import BASE, BUDGET, METHOD, STRATEGIES, Extra, Study

CONFIRMED, CONTRADICTED, NOISE = "confirmed", "contradicted", "within noise"
MARGIN = 1.0  # points within which two inferences count as alike
SMALL, LARGE = "Qwen2.5-VL-3B", "Qwen3-VL-4B"
V3 = "ViDoRe(v3)"
RULE = (
    f"A difference is *confirmed* when its {LEVEL} % interval lies on the paper's side of zero and every seed is on "
    "that side, and *contradicted* when both hold on the other side; all else is *within noise*. That zeros may "
    f"replace random slots is confirmed when the interval lies within {MARGIN:g} point on either side of zero, and "
    "contradicted when it lies beyond."
)
EXTRA_RULE = (
    f"*Better* is judged as above. *No worse* is confirmed when the whole interval lies above -{MARGIN:g} point, and "
    "contradicted when it lies below. The hypothesis holds when all of it is confirmed; it does not when a part is "
    "contradicted."
)
Key = tuple[str, str]  # arm, inference
Measurements = Mapping[Key, Measured]


@dataclass(frozen=True)
class Question:
    """Whether a measure of an arm with an inference is above that of another, below it, alike, or no worse."""

    group: str
    text: str
    measure: str
    left: Key
    right: Key
    paper: dict[str, float | None]  # the difference that it has, by backbone
    wanted: Literal["above", "below", "alike", "no worse"] = "above"
    right_measure: str = ""  # if it is another than that of the left

    def look(self, found: Measurements) -> tuple[list[float], Array]:
        """Return the difference of each seed, and its mean over seeds in every draw."""
        left, right = found[self.left], found[self.right]
        other_measure = self.right_measure or self.measure
        seeds = zip(left.seeds(self.measure), right.seeds(other_measure), strict=True)
        return [one - other for one, other in seeds], left.draws(self.measure) - right.draws(other_measure)


@dataclass(frozen=True)
class Claim:
    """A question with its answer: the difference, its interval, how many seeds agree, and the verdict."""

    question: Question
    difference: float
    low: float
    high: float
    agreeing: int
    verdict: str


def judge_claims(found: Measurements) -> list[Claim]:
    """Judge every claim of the paper that can be judged here."""
    questions = [*_ask_strategies(), *_ask_zeros(), *_ask_budgets(), *_ask_diagnostics()]
    return [judge_question(question, found) for question in questions]


def judge_question(question: Question, found: Measurements) -> Claim:
    """Judge whether a difference is as the question wants it, by its interval and by each seed."""
    by_seed, draws = question.look(found)
    difference, low, high, _ = judge(mean(by_seed), draws)
    if question.wanted == "alike":
        agreeing = [abs(value) < MARGIN for value in by_seed]
        confirmed, contradicted = low > -MARGIN and high < MARGIN, low > MARGIN or high < -MARGIN
    elif question.wanted == "no worse":
        agreeing = [value > -MARGIN for value in by_seed]
        confirmed, contradicted = low > -MARGIN, high < -MARGIN
    else:
        is_above, is_below = low > 0, high < 0
        agreeing = [value > 0 if question.wanted == "above" else value < 0 for value in by_seed]
        as_wanted, opposite = (is_above, is_below) if question.wanted == "above" else (is_below, is_above)
        confirmed, contradicted = as_wanted and all(agreeing), opposite and not any(agreeing)
    verdict = CONFIRMED if confirmed else CONTRADICTED if contradicted else NOISE
    return Claim(question, difference, low, high, sum(agreeing), verdict)


def _ask_strategies() -> Iterator[Question]:
    for arm, title in STRATEGIES.items():
        if arm != METHOD:
            paper = _differences("table3", STRATEGIES[METHOD], title)
            yield Question("strategy", f"RandSlot is better than {title}", FULL, (METHOD, METHOD), (arm, arm), paper)


def _ask_zeros() -> Iterator[Question]:
    text = "RandSlot with zeros at inference (RS-Z) is better than Zero-Feedback"
    paper = _differences("table4", "RS-Z", STRATEGIES[BASE])
    yield Question("inference", text, FULL, (METHOD, BASE), (BASE, BASE), paper)
    text = "zeros at inference are as good as random slots (RS-Z minus RS-R)"
    paper = _differences("table4", "RS-Z", STRATEGIES[METHOD])
    yield Question("inference", text, FULL, (METHOD, BASE), (METHOD, METHOD), paper, "alike")


def _ask_budgets() -> Iterator[Question]:
    sweeps = zip(paper_budgets(STRATEGIES[METHOD]), paper_budgets(STRATEGIES[BASE]), strict=True)
    for num, (ours, base) in enumerate(sweeps, start=1):
        if num == BUDGET:
            continue  # asked among the strategies
        place = "ahead of" if ours > base else "behind"
        text = f"with {_vectors(num)} a side RandSlot is {place} {STRATEGIES[BASE]}"
        paper = {SMALL: round(ours - base, 1), LARGE: None}
        yield Question(
            "budget", text, f"k{num}", (METHOD, METHOD), (BASE, BASE), paper, "above" if ours > base else "below"
        )


def _ask_diagnostics() -> Iterator[Question]:
    for group, text, measure, table, column in (
        ("winners", "wins are spread more evenly (H)", "H", "figure4", "H"),
        ("winners", "more readouts win in a pair (U)", "U", "figure4", "U"),
        ("joint use", "page readouts gain more together", "gain", "figure5", "joint-use gain"),
    ):
        ours = paper_value(table, STRATEGIES[METHOD], column)
        for arm, title in STRATEGIES.items():
            theirs = paper_value(table, title, column)
            if arm != METHOD and theirs is not None:
                paper = {SMALL: _minus(ours, theirs, 3), LARGE: None}
                yield Question(group, f"{text} than in {title}", measure, (METHOD, METHOD), (arm, arm), paper)


def _vectors(num: int) -> str:
    return f"{num} vector{'s' * (num > 1)}"


def judge_crossover(claims: list[Claim]) -> str:
    """Return whether Zero-Feedback leads with few vectors and RandSlot with more: in the first budget and the last."""
    verdicts = [claim.verdict for claim in claims if claim.question.group == "budget"]
    ends = {verdicts[0], verdicts[-1]}
    if CONTRADICTED in ends:
        return CONTRADICTED
    return CONFIRMED if ends == {CONFIRMED} else NOISE


def judge_extra(study: Study, extra: Extra, found: Measurements) -> tuple[list[Claim], str] | None:
    """Judge an extra's hypothesis: its differences by budget, and whether it holds; None without all of its rows."""
    left, right = ((arm, study.inferences(arm)[0]) for arm in (extra.name, extra.against))
    if left not in found or right not in found:
        return None
    against, claims = study.arms[extra.against], []
    for num in sorted({*extra.better, *extra.no_worse}):
        words = "better" if num in extra.better else "no worse"
        text = f"{_vectors(num)} a side: {words} than {against}"
        question = Question(words, text, f"k{num}", left, right, {}, "above" if num in extra.better else "no worse")
        claims.append(judge_question(question, found))
    for num in extra.below:
        text = f"{_vectors(num)} a side: below {against} with {BUDGET}"
        claims.append(judge_question(Question("below", text, f"k{num}", left, right, {}, "below", FULL), found))
    verdicts = {claim.verdict for claim in claims}
    if CONTRADICTED in verdicts:
        return claims, "it does not hold"
    return claims, "it holds" if verdicts == {CONFIRMED} else "it is not decided: within noise"


# -- the paper's numbers


def _rows(table: str, method: str) -> list[PublishedRow]:
    return [row for row in published_tables()[table].rows if row.method == method]


def paper_average(table: str, backbone: str, method: str) -> float | None:
    """Return a printed average on ViDoRe V3."""
    return next((row.averages[V3] for row in _rows(table, method) if row.backbone == backbone), None)


def _differences(table: str, left: str, right: str) -> dict[str, float | None]:
    differences = {}
    for backbone in (SMALL, LARGE):
        ours, theirs = paper_average(table, backbone, left), paper_average(table, backbone, right)
        differences[backbone] = _minus(ours, theirs, 1)
    return differences


def _minus(ours: float | None, theirs: float | None, digits: int) -> float | None:
    return None if ours is None or theirs is None else round(ours - theirs, digits)


def paper_budgets(method: str) -> list[float]:
    """Return the paper's sweep of one method, from one vector a side on; empty if it has none."""
    return [row.averages[V3] for row in _rows("table11", method)]


def paper_seeds() -> dict[str, tuple[float, float]]:
    """Return mean and sample standard deviation over seeds of the methods that the paper trained with several."""
    return {row.method: (row.averages[V3], row.average_deviations[V3]) for row in published_tables()["table8"].rows}


def paper_value(table: str, method: str, column: str, side: str | None = None) -> float | None:
    """Return one of the paper's diagnostics, or None if it has none."""
    fitting = [row for row in _rows(table, method) if side in (None, row.side)]
    return fitting[0].values.get(column) if fitting else None
