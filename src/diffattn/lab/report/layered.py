"""Arms against layers: a number in each cell, and beside it the colour that lets the eye find the large ones."""

from collections.abc import Callable, Sequence
from typing import Any

from diffattn.lab.report.heat import Heat, heat_panel
from diffattn.lab.report.inside import by_layer, mean
from diffattn.lab.report.svg import short

Json = dict[str, Any]
MOST = 8
"""Layers whose numbers find room in their cells."""


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
            rows=[name if len(name) <= 18 else name[:17] + "…" for name in rows],
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


def _seeds(values: list[float]) -> str:
    """The mean, and each seed where there are several."""
    own = mean(values)
    if own is None:
        return "—"
    return short(own) + (f" (seeds {', '.join(short(v) for v in values)})" if len(values) > 1 else "")
