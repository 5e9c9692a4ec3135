"""Tables of coloured cells: blue above zero, orange below, the more the further."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffattn.lab.report.panels import LETTER, WIDTH, Mark, panel
from diffattn.lab.report.svg import Scale, element, line, short, text, tip

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
    y_name: str = ""
    """Beside the rows, upwards."""


def heat_panel(heat: Heat) -> str:
    """Cells as wide as there is room, and at most 24 pixels high."""
    left = (28 if heat.y_name else 10) + LETTER * max(len(name) for name in heat.rows)
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
    if heat.y_name:
        turn = f"rotate(-90 14 {(TOP + bottom) / 2:.1f})"
        body.append(text(14, (TOP + bottom) / 2, heat.y_name, "unit", text_anchor="middle", transform=turn))
    return panel(heat.title, body, bottom + BOTTOM)


def heat_key(title: str, ends: tuple[float, float], unit: str, marks: Sequence[Mark]) -> str:
    """What the colours mean whose full depth is 1: from end to end, with marks; unit: "%" or nothing."""
    scale, count = Scale(*ends, 28, WIDTH - 28), 40
    step = (ends[1] - ends[0]) / count
    body = [text(6, 13, title, "title"), element("rect", x=28, y=34, width=WIDTH - 56, height=14, class_="paper")]
    for number in range(count):
        value, wide = ends[0] + step * (number + 0.5), (WIDTH - 56) / count
        shade = "minus5" if value < 0 else "plus5"
        box = {"x": scale(ends[0] + step * number), "y": 34, "width": wide, "height": 14}
        body.append(element("rect", **box, class_=f"cell {shade}", fill_opacity=abs(value)))
    for tick in scale.ticks():
        body.append(line(scale(tick), 48, scale(tick), 52, "axis"))
        words = f"{100 * tick:.0f} %" if unit == "%" else short(tick)
        body.append(text(scale(tick), 63, words, "tick", text_anchor="middle"))
    for mark in marks:
        body.append(line(scale(mark.value), 30, scale(mark.value), 52, "zero"))
        words = f"{mark.name}: {100 * mark.value:.0f} %" if unit == "%" else f"{mark.name}: {short(mark.value)}"
        body.append(text(scale(mark.value), 27, words, "note", text_anchor="middle"))
    return panel(title, body, 70)


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
