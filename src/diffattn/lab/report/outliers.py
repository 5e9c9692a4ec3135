"""Massive values in logits and hidden states: along training, and layer by layer at its end."""

from functools import partial
from typing import Any

from diffattn.lab.report import captions
from diffattn.lab.report.figure import Figure, figure, style
from diffattn.lab.report.inside import arms, mean
from diffattn.lab.report.layered import MOST, curves_panel, layer_panel
from diffattn.lab.report.panels import Line, Mark, line_panel
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import styles

Json = dict[str, Any]
DRAWN = (
    ("hidden", "top1", "Largest |hidden value|", "after both residual additions"),
    ("logits", "top1", "Largest |attention logit|", "before mask and position bias"),
    ("hidden", "kurtosis", "Kurtosis of hidden values", "3: normal distribution"),
    ("logits", "kurtosis", "Kurtosis of logits", "3: normal distribution"),
)
USUAL = 3.0
"""Kurtosis of a normal distribution."""


def outliers(task: Json) -> Figure | None:
    """Top-1 and kurtosis of logits and hidden states against training tokens, a thin line per seed."""
    panels = []
    for part, key, title, unit in DRAWN:
        lines = _lines(task, part, key)
        if lines:
            across = [Mark("normal", USUAL)] if key == "kurtosis" else []
            draw = partial(line_panel, across=across, log_y=True)
            together = _means(lines)
            panels.append(
                draw(title, "training tokens", unit, lines)
                if len(together) <= MOST
                else curves_panel(title, "training tokens", unit, together, _places(together))
            )
    layered = [
        layer_panel(task, f"{title}, by layer", unit, arms(task), lambda layer, p=part, k=key: layer["outliers"][p][k])
        for part, key, title, unit in DRAWN
    ]
    hidden = [panel for panel in layered if panel]
    if not panels and not hidden:
        return None
    more = ("by layer, at the end of training", hidden)
    shown, more = (panels, more) if panels else (hidden, ("", []))
    return figure(task, "outliers", "Outliers along training", shown, captions.OUTLIERS, more=more, exploratory=True)


def _lines(task: Json, part: str, key: str) -> list[Line]:
    lines, numbers = [], styles(task)
    for name, number in numbers.items():
        for seed, found in task["arms"][name]["seeds"].items():
            spreads = [(row["tokens"], row[part][key]) for row in found["outliers"]]
            points = [(tokens, value) for tokens, value in spreads if value]
            if len(points) > 1:
                lines.append(Line(name, style(number), points, f"{name}, seed {seed}"))
    return lines


def _means(lines: list[Line]) -> list[Line]:
    """Of each arm the mean over seeds."""
    found = []
    for name, shade in {one.name: one.style for one in lines}.items():
        own = [dict(one.points) for one in lines if one.name == name]
        at = sorted({tokens for points in own for tokens in points})
        points = [(t, value) for t in at if (value := mean(p[t] for p in own if t in p)) is not None]
        found.append(Line(name, shade, points, name))
    return found


def _places(lines: list[Line]) -> dict[float, str]:
    """Evaluations for a table of colours, at most `MOST`, the last among them."""
    at = sorted({tokens for one in lines for tokens, _ in one.points})
    step = -(-len(at) // MOST)
    return {tokens: short(tokens) for tokens in at[::-1][::step][::-1]}
