"""Tables of coloured cells: blue above zero, orange below, the more the further."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffattn.lab.report.panels import LETTER, WIDTH, panel
from diffattn.lab.report.svg import element, text, tip

TOP, BOTTOM = 34, 34
CHARACTER = 6.4
"""Width of a digit of 10 pixels, with some air."""
DEEP = 0.75


@dataclass(frozen=True)
class Heat:
    """Rows of values, the first at the top; None leaves a cell empty."""

    title: str
    unit: str
    rows: Sequence[str]
    """Names on the left; an empty one leaves its row without a label."""
    columns: Sequence[str]
    """Labels below; an empty one leaves its column without."""
    x_name: str
    values: Sequence[Sequence[float | None]]
    tips: Sequence[Sequence[str]]
    """What a pointer on a cell reads."""
    full: float = 1.0
    """The |value| from which on the colour is full."""
    ends: Sequence[str] = ()
    """Numbers on the right of the rows."""
    written: Sequence[Sequence[str]] = ()
    """Numbers in the cells."""


def heat_panel(heat: Heat) -> str:
    """Cells as wide as there is room, and at most 24 pixels high."""
    left = 10 + LETTER * max(len(name) for name in heat.rows)
    right = WIDTH - 6 - LETTER * max((len(end) for end in heat.ends), default=0)
    width = (right - left) / len(heat.columns)
    height = 24.0 if heat.written else min(24.0, max(7.0, 180 / len(heat.rows)))
    bottom = TOP + height * len(heat.rows)
    body = [text(6, 13, heat.title, "title"), text(6, 27, heat.unit, "unit")]
    body.append(element("rect", x=left, y=TOP, width=right - left, height=bottom - TOP, class_="paper"))
    for number, name in enumerate(heat.rows):
        y = TOP + height * number
        body += [
            _cell((left + width * i, y, width, height), value, heat, (number, i))
            for i, value in enumerate(heat.values[number])
            if value is not None
        ]
        body.append(text(left - 5, y + height / 2 + 3.5, name, "tick", text_anchor="end"))
        if heat.ends:
            body.append(text(right + 5, y + height / 2 + 3.5, heat.ends[number], "tick"))
    for number, name in enumerate(heat.columns):
        body.append(text(left + width * (number + 0.5), bottom + 13, name, "tick", text_anchor="middle"))
    body.append(text((left + right) / 2, bottom + 27, heat.x_name, "unit", text_anchor="middle"))
    return panel(heat.title, body, bottom + BOTTOM)


def _cell(box: tuple[float, float, float, float], value: float, heat: Heat, at: tuple[int, int]) -> str:
    x, y, width, height = box
    depth = min(1.0, abs(value) / heat.full)
    shade, words = "minus5" if value < 0 else "plus5", tip(heat.tips[at[0]][at[1]])
    cell = element("rect", words, x=x, y=y, width=width, height=height, class_=f"cell {shade}", fill_opacity=depth)
    if not heat.written:
        return cell
    longest = max(len(number) for row in heat.written for number in row)
    size = min(10.5, 10 * width / (CHARACTER * max(1, longest)))
    # The ground's colour is legible on a deep cell, the ink's on a pale one.
    tone, style = "over" if depth > DEEP else "under", f"font-size:{size:.1f}px"
    number, middle = heat.written[at[0]][at[1]], (x + width / 2, y + height / 2 + size / 3)
    return cell + text(*middle, number, tone, text_anchor="middle", style=style)
