"""What the maps look like: where they put their mass, how concentrated it is, how far away it lies."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from diffattn.evals.inside import DISTANCES
from diffattn.lab.report import captions
from diffattn.lab.report.bars import Bar, Part, bar_panel
from diffattn.lab.report.figure import Figure, figure, style
from diffattn.lab.report.inside import arms, curve, layers, looked_into, map_of, marks_answers, overall
from diffattn.lab.report.layered import curves_panel, layer_panel
from diffattn.lab.report.panels import Line, line_panel
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import styles

Json = dict[str, Any]
PLACES = (("answer", "on the answer"), ("first", "on the first key"), ("rest", "on all other keys"))
EFFECTIVE = "effective"
MAP_STYLES = {"A1": "plus5", "A2": "minus5", EFFECTIVE: "arm0"}
"""What is added is blue and what is subtracted orange, as in the pictures of maps."""


def allocation(task: Json) -> Figure | None:
    """Share of |map| mass on the answer, on the first key and on the rest, with its sign."""
    names, number = arms(task), styles(task)
    bars = [_bar(task, name, EFFECTIVE, name, style(number[name])) for name in names]
    bars = [bar for bar in bars if bar.parts]
    if not bars:
        return None
    panels = [bar_panel("Effective map", "share of |map| mass; left of 0: negative", bars)]
    for key, words in PLACES[:2]:
        panels += _shown(
            layer_panel(task, f"Mass {words}, by layer", "share of |map| mass", names, share_of(EFFECTIVE, key), 1.0)
        )
    hidden = []
    for name in _of_several(task, names):
        own = [_bar(task, name, which, which, MAP_STYLES.get(which, "arm3")) for which in _map_names(task, name)]
        hidden.append(bar_panel(f"Maps of {name}", "share of |map| mass; left of 0: negative", own))
    answers = marks_answers(task)
    key = [(f"place{at}", words) for at, (_, words) in enumerate(PLACES) if at or answers]
    said = captions.ALLOCATION + (captions.ANSWERS if answers else captions.NO_ANSWERS)
    more = ("each map by itself", hidden)
    return figure(
        task,
        "allocation",
        "Where attention goes",
        panels,
        said,
        more=more,
        key=key,
        exploratory=True,
        seeds=looked_into(task),
    )


def concentration(task: Json) -> Figure | None:
    """Sorted |map| mass: how much of it the heaviest keys have."""
    title = "How concentrated attention is"
    return _curves(task, "concentration", title, captions.CONCENTRATION, "sorted_mass", _rank_panel)


def distance(task: Json) -> Figure | None:
    """|Map| mass by distance to the key, for each map and the effective one."""
    title = "How far away attention looks"
    return _curves(task, "distance", title, captions.DISTANCE, "mass_by_distance", _distance_panel)


def _curves(
    task: Json, name: str, title: str, caption: str, key: str, panel: Callable[[str, list[Line]], str]
) -> Figure | None:
    """All arms' effective maps in one panel, and a panel for the maps of each arm that has several."""
    names, number = arms(task), styles(task)
    together = [_line(task, arm, EFFECTIVE, key, arm, style(number[arm])) for arm in names]
    if not any(one.points for one in together):
        return None
    panels = [panel("Effective maps", together)]
    for arm in _of_several(task, names):
        own = [_line(task, arm, which, key, which, MAP_STYLES.get(which, "arm3")) for which in _map_names(task, arm)]
        panels.append(panel(f"Maps of {arm}", own))
    return figure(
        task, name, title, panels, caption, more=("maps of each arm", []), exploratory=True, seeds=looked_into(task)
    )


def _line(task: Json, arm: str, which: str, key: str, label: str, shade: str) -> Line:
    values = curve(task, arm, lambda layer: (found := map_of(layer, which)) and found[key])
    points = [(float(place), value) for place, value in enumerate(values) if value is not None]
    return Line(label, shade, points, f"{arm}, {which}")


def _rank_panel(title: str, lines: list[Line]) -> str:
    """Running sums: the share of the k heaviest keys."""
    summed = [
        replace(one, points=[(float(k), total) for k, total in enumerate(accumulate(v for _, v in one.points), 1)])
        for one in lines
    ]
    at = {float(k): str(k) for k in (1, 2, 4, 8, 16, 32, 64) if k <= max(len(one.points) for one in lines)}
    draw = partial(line_panel, log=True, y_range=(0.0, 1.02))
    return curves_panel(title, "number of heaviest keys", "share of |map| mass on them", summed, at, draw)


def _distance_panel(title: str, lines: list[Line]) -> str:
    count = max(len(one.points) for one in lines)
    at = {float(place): short(DISTANCES[place]) for place in range(0, count, 1 + count // 9)}
    return curves_panel(title, "distance to the key in tokens", "share of |map| mass", lines, at)


def _bar(task: Json, arm: str, which: str, label: str, shade: str) -> Bar:
    """|Entries| are split into those above and those below zero: (absolute ± signed) / 2."""
    parts = []
    for at, (key, words) in enumerate(PLACES):
        absolute, signed = overall(task, arm, share_of(which, key)), overall(task, arm, share_of(which, key, "signed"))
        if absolute is None or signed is None:
            continue
        for value, side in (((absolute + signed) / 2, ""), ((signed - absolute) / 2, " with a negative weight")):
            if value:
                parts.append(Part(value, f"place{at}", f"{words}{side}: {100 * abs(value):.1f} % ({arm}, {which})"))
    return Bar(label, shade, parts)


def share_of(which: str, place: str, kind: str = "absolute") -> Any:
    """Picks the share of a map's mass on a place out of a layer; None where it has none."""

    def pick(layer: Json) -> float | None:
        found = map_of(layer, which)
        share = found["allocation"][place] if found else None
        return share[kind] if share else None

    return pick


def _map_names(task: Json, arm: str) -> list[str]:
    """Names of an arm's maps, in the order of its first layer."""
    return [one["name"] for one in layers(task, arm)[0][0]["maps"]]


def _of_several(task: Json, names: list[str]) -> list[str]:
    """Those arms whose effective map is made of several."""
    return [name for name in names if len(_map_names(task, name)) > 2]


def _shown(panel: str | None) -> list[str]:
    return [panel] if panel else []
