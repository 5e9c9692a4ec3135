"""What was answered to which kind of question, where the data tell them apart: figure, table and sentence."""

from typing import Any

from diffattn.lab.report import captions
from diffattn.lab.report.bars import Bar, Part, bar_panel
from diffattn.lab.report.figure import Figure, figure, style
from diffattn.lab.report.panels import Dot, Line, Mark, Row, dot_panel, line_panel
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import Column, Table, styles

Json = dict[str, Any]
COLOURS = ("place0", "place1", "minus5", "place2")
"""Of the kinds of answers, the right one first."""


def answers(task: Json) -> Figure | None:
    """Share of right answers by kind of question, a line or dot per seed, and what was given instead."""
    found = _kinds(task)
    if not found:
        return None
    units = list(dict.fromkeys(kind["unit"] for kind in found if kind["unit"]))
    panels = [_line_panel(task, [kind for kind in found if kind["unit"] == unit]) for unit in units]
    panels += [_dot_panel(task, kind) for kind in found if not kind["unit"]]
    panels += [_bar_panel(task, kind) for kind in found]
    said = captions.ANSWERED.format(split=task["split"], guess=_percent(_guess(found)))
    key = list(zip(COLOURS, found[0]["answers"], strict=False))
    more = ("further kinds of questions", [])
    return figure(task, "answers", "Answers by kind of question", panels, said, more=more, key=key, exploratory=True)


def answer_table(task: Json) -> Table | None:
    """Every kind of answer to every kind of question in percent, each seed by itself; what never came is left out."""
    found, numbers = _kinds(task), styles(task)
    columns = []
    for kind in found:
        for answer in kind["answers"]:
            cells = []
            for arm in numbers:
                shares = [one["answers"][answer] / one["count"] for _, one in _of_arm(task, arm, kind)]
                cells.append(", ".join(f"{100 * share:.1f}" for share in shares) or "—")
            if any(cell.strip("0., —") for cell in cells):
                columns.append(Column(f"{kind['name']}: {answer}", "%", cells))
    rows = [(arm, "", number) for arm, number in numbers.items()]
    return Table(rows, [("Answers", columns)]) if columns else None


def guess_words(task: Json) -> str:
    """How far guessing reaches, and each arm's best evaluation along training; nothing where guessing is not known."""
    found = _kinds(task)
    if not found:
        return ""
    best = []
    for arm in styles(task):
        seeds = task["arms"][arm]["seeds"].values()
        right = [point["accuracy"] for seed in seeds for point in seed["curve"] if point["accuracy"] is not None]
        best += [f"{arm} {_percent(max(right))}"] if right else []
    return (
        f"Guessing among the values that stand before a question is right in {_percent(_guess(found))}. Most right "
        f"answers at any evaluation along training (dev), of each arm's best seed: {', '.join(best)}."
    )


def guess_marks(task: Json) -> list[Mark]:
    """The line that guessing draws across a panel of accuracies."""
    found = _kinds(task)
    return [Mark("guess", _guess(found))] if found else []


def _kinds(task: Json) -> list[Json]:
    """The kinds of questions of any seed: all are asked the same."""
    seeds = [seed for arm in task["arms"].values() for seed in arm["seeds"].values()]
    return next((seed["kinds"] for seed in seeds if seed["kinds"]), [])


def _of_arm(task: Json, arm: str, kind: Json) -> list[tuple[str, Json]]:
    """An arm's seeds and their answers to one kind of question."""
    seeds = task["arms"][arm]["seeds"].items()
    return [(seed, one) for seed, of in seeds for one in of["kinds"] or () if one["name"] == kind["name"]]


def _line_panel(task: Json, kinds: list[Json]) -> str:
    """Kinds that are steps of a quantity."""
    lines = [Line("guess", "contrast", [(kind["place"], kind["guess"]) for kind in kinds], "guess")]
    for arm, number in styles(task).items():
        for seed in task["arms"][arm]["seeds"]:
            found = {kind["place"]: dict(_of_arm(task, arm, kind)).get(seed) for kind in kinds}
            points = [(place, _right(one)) for place, one in found.items() if one]
            if points:
                lines.append(Line(arm, style(number), points, f"{arm}, seed {seed}", number, dots=True))
    unit, at = kinds[0]["unit"], [kind["place"] for kind in kinds]
    return line_panel(
        f"Right, by {unit}", unit, "share of answers right", lines, log=True, x_at=at, y_range=(0.0, 1.02)
    )


def _dot_panel(task: Json, kind: Json) -> str:
    rows = []
    for arm, number in styles(task).items():
        found = _of_arm(task, arm, kind)
        dots = [Dot(_right(one), f"{arm}, seed {seed}: {_percent(_right(one))}") for seed, one in found]
        if dots:
            rows.append(Row(arm, style(number), number, dots))
    marks = [Mark(f"guess {short(kind['guess'], 2)}", kind["guess"])]
    return dot_panel(f"Right: {kind['name']}", "share of answers right", rows, marks=marks)


def _bar_panel(task: Json, kind: Json) -> str:
    bars = []
    for arm, number in styles(task).items():
        for seed, one in _of_arm(task, arm, kind):
            shares = {answer: times / one["count"] for answer, times in one["answers"].items()}
            parts = [
                Part(share, colour, f"{arm}, seed {seed}: {answer} {_percent(share)}")
                for colour, (answer, share) in zip(COLOURS, shares.items(), strict=False)
            ]
            bars.append(Bar(f"{arm} {seed}", style(number), parts))
    return bar_panel(f"Answers: {kind['name']}", "share of answers", bars)


def _right(kind: Json) -> float:
    return next(iter(kind["answers"].values())) / kind["count"]


def _guess(kinds: list[Json]) -> float:
    """Of all questions together."""
    return sum(kind["guess"] * kind["count"] for kind in kinds) / sum(kind["count"] for kind in kinds)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
