"""Bars of several parts: what is positive to the right of zero, what is negative to its left."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffattn.lab.report.panels import LETTER, MOST_LETTERS, WIDTH, panel
from diffattn.lab.report.svg import Scale, element, labels, line, shortened, text, tip

TOP, STEP, THICK = 26, 24, 14


@dataclass(frozen=True)
class Part:
    """A piece of a bar."""

    value: float
    """Its length, with the side it lies on as its sign."""
    style: str
    """Class of the style sheet, for example "place0"."""
    tip: str


@dataclass(frozen=True)
class Bar:
    """One row."""

    name: str
    style: str
    """Class of the name's colour."""
    parts: Sequence[Part]


def bar_panel(title: str, x_name: str, bars: Sequence[Bar]) -> str:
    """One bar per row; parts of one sign follow each other from zero outwards."""
    left = 16 + LETTER * min(MOST_LETTERS, max(len(bar.name) for bar in bars))
    right = WIDTH - 14
    high = max(sum(max(0.0, part.value) for part in bar.parts) for bar in bars)
    low = min(sum(min(0.0, part.value) for part in bar.parts) for bar in bars)
    x = Scale(low, high if high > low else low + 1, left, right)
    bottom = TOP + STEP * len(bars)
    ticks = x.ticks(4)
    body = [text(6, 13, title, "title")]
    for value, label in zip(ticks, labels(ticks), strict=True):
        body.append(line(x(value), TOP, x(value), bottom, "grid"))
        body.append(text(x(value), bottom + 15, label, "tick", text_anchor="middle"))
    body += [_bar(bar, TOP + STEP * number, x, left) for number, bar in enumerate(bars)]
    body.append(line(x(0.0), TOP, x(0.0), bottom, "zero"))
    body.append(text((left + right) / 2, bottom + 31, x_name, "unit", text_anchor="middle"))
    return panel(title, body, bottom + 36)


def _bar(bar: Bar, top: float, x: Scale, left: float) -> str:
    name = shortened(bar.name, MOST_LETTERS)
    parts = [element("g", text(left - 10, top + 15, name, "name", text_anchor="end"), class_=bar.style)]
    reached = {True: 0.0, False: 0.0}
    for part in bar.parts:
        start = reached[part.value < 0]
        end = reached[part.value < 0] = start + part.value
        box = {"x": min(x(start), x(end)), "y": top + 4, "width": abs(x(end) - x(start)), "height": THICK}
        parts.append(element("rect", tip(part.tip), class_=f"cell {part.style}", **box))
    return "".join(parts)
