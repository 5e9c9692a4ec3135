"""Arms in rows, a number in each cell, and the colour that lets the eye find the large ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffattn.lab.report.heat import Heat, heat_panel
from diffattn.lab.report.inside import by_layer, mean
from diffattn.lab.report.panels import MOST_LETTERS, Line, line_panel
from diffattn.lab.report.svg import short, shortened

Json = dict[str, Any]
MOST = 8
"""Columns whose numbers find room in their cells, and curves that the eye can keep apart."""


def layer_panel(
    task: Json, title: str, unit: str, names: Sequence[str], pick: Callable[[Json], float | None], full: float = 0.0
) -> str | None:
    """A row per arm, a column per layer; None where no layer has the number.

    pick: a condensed layer -> its number.  full: the |value| of the deepest colour; 0: the largest.
    """
    rows = {name: by_layer(task, name, pick) for name in names}
    rows = {name: cells for name, cells in rows.items() if any(cells)}
    if not rows:
        return None
    count = max(len(cells) for cells in rows.values())
    padded = {name: cells + [[]] * (count - len(cells)) for name, cells in rows.items()}
    values = [[mean(seeds) for seeds in cells] for cells in padded.values()]
    largest = max(abs(v) for row in values for v in row if v is not None)
    written = [["" if v is None else short(v, 2) for v in row] for row in values]
    return heat_panel(
        Heat(
            title=title,
            unit=unit,
            rows=[shortened(name, MOST_LETTERS) for name in rows],
            columns=[str(n) if count <= 12 or n in (0, count // 2, count - 1) else "" for n in range(count)],
            x_name="layer",
            values=values,
            tips=[
                [f"{name}, layer {n}: {_seeds(seeds)}" for n, seeds in enumerate(cells)]
                for name, cells in padded.items()
            ],
            # Away from full colour, so that all numbers stay legible.
            full=full or 1.4 * largest or 1.0,
            written=written if count <= MOST else (),
        )
    )


def curves_panel(
    title: str,
    x_name: str,
    unit: str,
    lines: Sequence[Line],
    at: Mapping[float, str],
    draw: Callable[..., str] = line_panel,
) -> str:
    """Curves, or, where there are too many, their values at some places as a table of colours.

    at: those places, and their labels.  draw: makes the panel of curves.
    """
    if len(lines) <= MOST:
        return draw(title, x_name, unit, lines, x_at=list(at), x_ticks=lambda place: at[place])
    values = [[dict(one.points).get(place) for place in at] for one in lines]
    return heat_panel(
        Heat(
            title=title,
            unit=unit,
            rows=[shortened(one.name, MOST_LETTERS) for one in lines],
            columns=list(at.values()),
            x_name=x_name,
            values=values,
            tips=[
                [
                    f"{one.tip}, {label}: {'—' if v is None else short(v)}"
                    for label, v in zip(at.values(), row, strict=True)
                ]
                for one, row in zip(lines, values, strict=True)
            ],
            full=1.4 * max((abs(v) for row in values for v in row if v is not None), default=0.0) or 1.0,
            written=[["" if v is None else short(v, 2) for v in row] for row in values],
        )
    )


def _seeds(values: list[float]) -> str:
    """The mean, and each seed where there are several."""
    own = mean(values)
    if own is None:
        return "—"
    return short(own) + (f" (seeds {', '.join(short(v) for v in values)})" if len(values) > 1 else "")
