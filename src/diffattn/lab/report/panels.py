"""The three kinds of picture in the report, each a panel narrow enough for a phone: lines, dots in rows, a map."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from diffattn.lab.report.svg import (
    Scale,
    element,
    labels,
    line,
    marker,
    padded,
    polyline,
    short,
    shortened,
    spread,
    text,
    tip,
)

WIDTH, HEIGHT = 360, 264
TOP, LEFT, BOTTOM = 46, 42, 40
LETTER = 6.5
"""Width of an average letter of the labels, in pixels."""
MOST_LETTERS, FEW_LETTERS = 18, 14
"""Of a name: beside a row, and at the end of a curve."""
GAP = 12.5
"""Between two direct labels, in pixels."""
DOTS_TOP = 28


@dataclass(frozen=True)
class Line:
    """One curve; `name` is the direct label at its end, written once for all lines that share it."""

    name: str
    style: str
    """Class of the style sheet, for example "arm2"."""
    points: Sequence[tuple[float, float]]
    tip: str
    marker: int | None = None
    """Shape of the dot at the last point, if there is one."""
    dots: bool = False
    """A dot at every point."""


@dataclass(frozen=True)
class Mark:
    """A reference value across a panel."""

    name: str
    value: float


@dataclass(frozen=True)
class Dot:
    """One value in a row; None: the event never came."""

    value: float | None
    tip: str
    hollow: bool = False


@dataclass(frozen=True)
class Row:
    """One line of a dot plot."""

    name: str
    style: str
    marker: int
    dots: Sequence[Dot]
    interval: tuple[float, float, float] | None = None
    """Mean, low, high."""


def line_panel(
    title: str,
    x_name: str,
    y_name: str,
    lines: Sequence[Line],
    *,
    across: Sequence[Mark] = (),
    down: Sequence[Mark] = (),
    log: bool = False,
    log_y: bool = False,
    settled: float = 0.0,
    x_ticks: Callable[[float], str] = short,
    x_at: Sequence[float] = (),
    y_range: tuple[float, float] | None = None,
) -> str:
    """Curves with direct labels.

    across, down: reference values.  settled: the y axis spans what lies beyond this share of the x axis.
    x_at: where the x axis has its ticks, if not at round values.
    """
    right = WIDTH - 14 - LETTER * min(FEW_LETTERS, max((len(one.name) for one in lines), default=0))
    # Many names need more height than the curves.
    bottom = max(HEIGHT - BOTTOM, TOP + GAP * len({one.name for one in lines if one.name}))
    xs = [x for one in lines for x, _ in one.points]
    left = min(xs) if log or settled else min(0.0, *xs)
    x = Scale(left, max(xs) if max(xs) > left else left + 1, LEFT, right, log)
    from_here = min(xs) + settled * (max(xs) - min(xs))
    ys = [y for one in lines for at, y in one.points if at >= from_here] + [mark.value for mark in across]
    y = Scale(*(y_range or padded(ys, log=log_y)), bottom, TOP, log_y)
    body = [_frame(title, y_name, y, right), _x_axis(x_name, x, x_at or x.ticks(4), x_ticks, bottom)]
    body += [line(LEFT, y(m.value), right, y(m.value), "mark") for m in across if y.holds(m.value)]
    body += [line(x(m.value), TOP, x(m.value), bottom, "mark") for m in down]
    body += [text(x(m.value), TOP - 4, m.name, "note", text_anchor="middle") for m in down]
    body += [_clipped(_curves(lines, x, y), right, bottom)] + _ends(lines, x, y) + _names(lines, x, y, right)
    # Over the curves: its halo keeps it legible.
    body += [text(LEFT + 3, y(m.value) - 4, m.name, "note") for m in across if y.holds(m.value)]
    return panel(title, body, bottom + BOTTOM)


def dot_panel(
    title: str,
    x_name: str,
    rows: Sequence[Row],
    *,
    marks: Sequence[Mark] = (),
    band: tuple[float, float] | None = None,
    within: tuple[float, float] | None = None,
    zero: bool = False,
) -> str:
    """One row per arm, one dot per seed.

    marks: reference values.  band: shaded.  within: the range that was watched; what did not come in it lies beyond.
    """
    left = 16 + LETTER * min(MOST_LETTERS, max(len(row.name) for row in rows))
    right = WIDTH - (56 if within else 14)
    values = [dot.value for row in rows for dot in row.dots if dot.value is not None]
    values += [v for row in rows if row.interval for v in row.interval] + ([0.0] if zero else []) + list(band or ())
    low, high = padded(values or [1.0])
    near = [m for m in marks if low - (high - low) < m.value < high + (high - low)]
    if near:
        low, high = padded([low, high, *(m.value for m in near)], 0.02)
    x = Scale(*(within or (low, high)), left, right)
    bottom = DOTS_TOP + 14 + 30 * len(rows)
    body = [text(6, 13, title, "title")]
    if band:
        width, height = x(band[1]) - x(band[0]), bottom - DOTS_TOP
        body.append(element("rect", x=x(band[0]), y=DOTS_TOP, width=width, height=height, class_="band"))
    body += _dot_axis(x, x_name, bottom, (left, right))
    body += _dot_marks(marks, near, x, bottom, (left, right))
    if zero:
        body.append(line(x(0), DOTS_TOP, x(0), bottom, "zero"))
    if within:
        body.append(text(right + 30, bottom + 15, "never", "tick", text_anchor="middle"))
    for number, row in enumerate(rows):
        body.append(_dot_row(row, DOTS_TOP + 22 + 30 * number, x, left, right + 30))
    return panel(title, body, bottom + 36)


@dataclass(frozen=True)
class Matrix:
    """A map to draw: rows are queries, columns keys."""

    title: str
    values: Sequence[Sequence[float]]
    tokens: Sequence[str]
    levels: Sequence[float] = field(default=(0.02, 0.05, 0.1, 0.2, 0.35, 0.6))
    """Lower bounds of the steps of colour, for absolute values; below the first an entry is left blank."""


def map_panel(matrix: Matrix) -> str:
    """A square of coloured cells; one path per step of colour, in whole cells, keeps the file small."""
    count = len(matrix.tokens)
    edge = 12 + 5.2 * min(8, max(len(shown(token)) for token in matrix.tokens))
    cell = (WIDTH - 8 - edge) / count
    top = 24 + edge
    paths: dict[str, list[str]] = {}
    for t, row in enumerate(matrix.values):
        first = 0
        for name, same in groupby(_step(value, matrix.levels) for value in row):
            width = len(list(same))
            if name:
                paths.setdefault(name, []).append(f"M{first} {t}h{width}v1h-{width}z")
            first += width
    size = cell * count
    body = [text(6, 13, matrix.title, "title")]
    body.append(element("rect", x=edge, y=top, width=size, height=size, class_="paper"))
    cells = [element("path", d="".join(parts), class_=f"cell {name}") for name, parts in sorted(paths.items())]
    body.append(element("g", *cells, transform=f"translate({edge:.1f} {top:.1f}) scale({cell:.3f})"))
    font = min(9.0, max(6.0, cell * 0.95))
    # Long passages: not every token has room for a label.
    for i, token in list(enumerate(matrix.tokens))[:: math.ceil(6.5 / cell)]:
        at = (i + 0.5) * cell
        style = f"font-size:{font:.1f}px"
        body.append(text(edge - 4, top + at + font / 3, shown(token), "token", text_anchor="end", style=style))
        turn = f"rotate(-90 {edge + at + font / 3:.1f} {top - 4:.1f})"
        body.append(text(edge + at + font / 3, top - 4, shown(token), "token", transform=turn, style=style))
    return panel(matrix.title, body, top + size + 4)


def _step(value: float, levels: Sequence[float]) -> str:
    """Class of the style sheet for a step of colour; empty for an entry that is left blank."""
    step = sum(abs(value) >= level for level in levels)
    return f"{'minus' if value < 0 else 'plus'}{step}" if step else ""


def shown(token: str) -> str:
    """A token as a label: white space made visible, long ones shortened."""
    visible = token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·")
    return shortened(visible, 8)


def panel(title: str, body: Sequence[str], height: float = HEIGHT) -> str:
    """One picture of the page, as wide as all others."""
    return element("svg", *body, viewBox=f"0 0 {WIDTH} {height:.0f}", role="img", aria_label=title, class_="panel")


def _frame(title: str, y_name: str, y: Scale, right: float) -> str:
    parts = [text(6, 13, title, "title"), text(6, 28, y_name, "unit")]
    ticks = y.ticks(5)
    for value, label in zip(ticks, labels(ticks), strict=True):
        parts.append(text(LEFT - 6, y(value) + 3.5, label, "tick", text_anchor="end"))
        parts.append(line(LEFT, y(value), right, y(value), "grid"))
    return "".join(parts)


def _x_axis(name: str, x: Scale, at: Sequence[float], label: Callable[[float], str], bottom: float) -> str:
    parts = [line(x.start, bottom, x.end, bottom, "axis")]
    for value in at:
        parts.append(line(x(value), bottom, x(value), bottom + 4, "axis"))
        parts.append(text(x(value), bottom + 16, label(value), "tick", text_anchor="middle"))
    parts.append(text((x.start + x.end) / 2, bottom + BOTTOM - 7, name, "unit", text_anchor="middle"))
    return "".join(parts)


def _clipped(body: Sequence[str], right: float, bottom: float) -> str:
    """An inner svg cuts off what lies outside the axes, without ids that would have to be unique on the page."""
    height, width = bottom - TOP, right - LEFT
    return element(
        "svg", *body, x=LEFT, y=TOP, width=width, height=height, viewBox=f"{LEFT} {TOP} {width:g} {height:g}"
    )


def _curves(lines: Sequence[Line], x: Scale, y: Scale) -> list[str]:
    return [
        element("g", tip(one.tip), polyline([(x(a), y(b)) for a, b in one.points], "curve"), class_=one.style)
        for one in lines
    ]


def _ends(lines: Sequence[Line], x: Scale, y: Scale) -> list[str]:
    parts = []
    for one in lines:
        if one.marker is not None:
            for a, b in one.points if one.dots else one.points[-1:]:
                if y.holds(b):
                    parts.append(element("g", marker(x(a), y(b), one.marker, one.tip, size=3), class_=one.style))
    return parts


def _names(lines: Sequence[Line], x: Scale, y: Scale, right: float) -> list[str]:
    """Direct labels at the median height of the lines' ends, moved apart where they would overlap."""
    ends: dict[tuple[str, str], list[float]] = {}
    for one in lines:
        if one.name:
            ends.setdefault((one.name, one.style), []).append(y(min(max(one.points[-1][1], y.low), y.high)))
    wanted = [sorted(heights)[len(heights) // 2] for heights in ends.values()]
    places = spread(wanted, GAP, TOP + 4, y.start - 2)
    parts = []
    for (name, style), place in zip(ends, places, strict=True):
        label = shortened(name, FEW_LETTERS)
        parts.append(element("g", text(right + 8, place + 3.5, label, "name"), class_=style))
    return parts


def _dot_axis(x: Scale, x_name: str, bottom: float, edges: tuple[float, float]) -> list[str]:
    parts = []
    ticks = x.ticks(4)
    for value, label in zip(ticks, labels(ticks), strict=True):
        parts.append(line(x(value), DOTS_TOP, x(value), bottom, "grid"))
        parts.append(text(x(value), bottom + 15, label, "tick", text_anchor="middle"))
    parts.append(line(edges[0], bottom, edges[1], bottom, "axis"))
    parts.append(text(sum(edges) / 2, bottom + 31, x_name, "unit", text_anchor="middle"))
    return parts


def _dot_marks(
    marks: Sequence[Mark], near: Sequence[Mark], x: Scale, bottom: float, edges: tuple[float, float]
) -> list[str]:
    """Reference values; one that lies far outside is named at the edge, so that it does not flatten the dots."""
    parts = []
    for mark in marks:
        if mark in near:
            beyond = x(mark.value) > (edges[0] + edges[1]) / 2
            parts.append(line(x(mark.value), DOTS_TOP, x(mark.value), bottom, "mark"))
            place, anchor = (x(mark.value) + (-4 if beyond else 4)), "end" if beyond else "start"
            parts.append(text(place, DOTS_TOP + 6, mark.name, "note", text_anchor=anchor))
        elif mark.value > x.high:
            parts.append(text(edges[1], DOTS_TOP + 6, f"{mark.name} →", "note", text_anchor="end"))
        else:
            parts.append(text(edges[0] + 2, DOTS_TOP + 6, f"← {mark.name}", "note"))
    return parts


def _dot_row(row: Row, at: float, x: Scale, left: float, never: float) -> str:
    name = shortened(row.name, MOST_LETTERS)
    parts = [text(left - 10, at + 4, name, "name", text_anchor="end")]
    if row.interval and all(math.isfinite(v) for v in row.interval):
        mean, low, high = row.interval
        parts.append(line(x(low), at + 9, x(high), at + 9, "interval"))
        parts.append(line(x(mean), at + 5.5, x(mean), at + 12.5, "interval"))
    for number, dot in enumerate(row.dots):
        # Equal values would hide each other: seeds lie a little above and below their row.
        shift = 4 * (number % 3 - 1)
        place = never if dot.value is None else x(dot.value)
        parts.append(marker(place, at + shift - 1, row.marker, dot.tip, hollow=dot.hollow or dot.value is None))
    return element("g", *parts, class_=row.style)
