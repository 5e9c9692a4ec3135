"""Figures of the tasks beside the loss: dots of each seed, differences over seeds, and what a task alone has."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from diffattn.lab.report import captions, shapes
from diffattn.lab.report.beside import failed_words
from diffattn.lab.report.figure import Figure, figure, style
from diffattn.lab.report.heat import Heat, heat_panel
from diffattn.lab.report.panels import Dot, Line, Mark, Row, dot_panel, line_panel
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import styles

Json = dict[str, Any]
Points = list[tuple[float, float]]
Panels = tuple[list[str], list[str]]
"""Those that are shown, and those behind a click."""


def beside(task: Json) -> list[Figure]:
    """A figure for each task that was planned."""
    return [_figure(task, name, found) for name, found in task["evals"].items()]


def _figure(task: Json, name: str, found: Json) -> Figure:
    panels = [panel for quantity in found["quantities"] for panel in _of_quantity(task, quantity)]
    kind = shapes.kind(name)
    own, hidden = DRAW[kind](task, name) if kind in DRAW and panels else ([], [])
    said = captions.BESIDE.format(metrics="; ".join(quantity["name"] for quantity in found["quantities"]))
    said += captions.BESIDE_OF.get(kind, "")
    settings = ", ".join(f"{key} {words}" for key, value in found["settings"].items() if (words := _words(value)))
    said += f" Settings: {settings}{failed_words(found)}."
    missing = f"No result{failed_words(found)}." if found["failed"] else ""
    more = (f"further ones of {name}", hidden)
    return figure(
        task, f"beside-{name}", f"Beside the loss: {name}", panels + own, said, missing, more=more, exploratory=True
    )


def _of_quantity(task: Json, quantity: Json) -> Iterable[str]:
    """Values of each seed, and differences to the baseline with their intervals."""
    numbers, title = styles(task), "Log-loss" if quantity["key"] == "log_loss" else "Score"
    values, apart = [], []
    for arm, number in numbers.items():
        found = quantity["arms"][arm]
        dots, away = (_dots(arm, found[part]) for part in ("seeds", "differences"))
        if dots:
            values.append(Row(arm, style(number), number, dots))
        if away:
            interval = found["interval"]
            bar = (interval["mean"], interval["low"], interval["high"]) if interval else None
            apart.append(Row(arm, style(number), number, away, bar))
    if values:
        yield dot_panel(title, "a dot per seed", values)
    if apart:
        yield dot_panel(f"{title}, less {task['baseline']}’s", "a dot per seed", apart, zero=True)


def _dots(arm: str, values: Json) -> list[Dot]:
    return [Dot(value, f"{arm}, seed {seed}: {short(value, 4)}") for seed, value in values.items()]


def _needle(task: Json, name: str) -> Panels:
    """A heat map of each arm over length and depth, means over seeds."""
    shown, hidden = [], []
    for arm in styles(task):
        heats = [found["parts"].get("heat", []) for _, found in _results(task, name, arm)]
        if any(heats):
            shown.append(_heat(f"{arm}: answers written", heats, "each"))
            hidden.append(_heat(f"{arm}: chosen among the numbers that stand there", heats, "chosen"))
    return shown, hidden


def _heat(title: str, heats: list[list[Json]], score: str) -> str:
    values: dict[tuple[tuple[int, int, int], int], list[float]] = {}
    for heat in heats:
        for entry in heat:
            row = entry["facts"], entry["asked"], entry["length"]
            values.setdefault((row, entry["depth"]), []).append(entry[score]["value"])
    rows, depths = sorted({row for row, _ in values}), sorted({depth for _, depth in values})
    found = [[values.get((row, depth), []) for depth in depths] for row in rows]
    means = [[sum(some) / len(some) if some else None for some in line] for line in found]
    return heat_panel(
        Heat(
            title=title,
            unit="per cent right, mean over seeds",
            rows=[f"{asked} of {facts}, {length}" for facts, asked, length in rows],
            columns=[f"{depth} %" for depth in depths],
            x_name="depth; on the left: numbers asked of those told, tokens",
            values=means,
            tips=[
                ["by seed: " + ", ".join(f"{100 * value:.0f} %" for value in some) for some in line] for line in found
            ],
            written=[["" if mean is None else f"{100 * mean:.0f}" for mean in line] for line in means],
        )
    )


def _many_shot(task: Json, name: str) -> Panels:
    """Accuracy and log-loss against the number of demonstrations."""
    shots = sorted({level["shots"] for found in _all(task, name) for level in found["parts"]["shots"]})
    chance = next(found["parts"]["chance"] for found in _all(task, name))

    def panel(title: str, key: str, unit: str, y_range: tuple[float, float] | None) -> str:
        lines = _lines(
            task, name, lambda found: [(_place(x["shots"]), x[key]["value"]) for x in found["parts"]["shots"]]
        )
        across = [Mark("guess", chance[key])]
        at = [_place(number) for number in shots]
        ticks = dict(zip(at, map(str, shots), strict=True))
        return line_panel(
            title, "demonstrations", unit, lines, across=across, x_at=at, x_ticks=ticks.__getitem__, y_range=y_range
        )

    return [
        panel("Right, by demonstrations", "accuracy", "share labelled right", (0.0, 1.02)),
        panel("Log-loss, by demonstrations", "log_loss", "nats", None),
    ], []


def _place(shots: int) -> float:
    """Steps of a factor 2, with a place for none."""
    return math.log2(shots) + 1 if shots else 0.0


def _long_context(task: Json, name: str) -> Panels:
    """Gain from more context, and loss up to each position: within the context of training, and beyond by scaling."""
    context = task["context"]

    def gains(scaling: str, furthest: float) -> Callable[[Json], Points]:
        return lambda found: [
            (entry["length"], entry["gain"]["value"])
            for entry in found["parts"]["lengths"]
            if entry["length"] <= furthest and (entry["length"] <= context or entry["scaling"] == scaling)
        ]

    def losses(scaling: str, furthest: float) -> Callable[[Json], Points]:
        return lambda found: [
            (entry["position"], entry["loss"]["value"])
            for reading in found["parts"]["cumulative"]
            for entry in reading["positions"]
            if reading["scaling"] == scaling and entry["position"] <= furthest
        ]

    def panels(scaling: str, furthest: float, words: str) -> list[str]:
        titles = (f"Gain from context{words}", gains), (f"Loss up to a position{words}", losses)
        axes, drawn = ("tokens seen", "position"), []
        for (title, points), axis in zip(titles, axes, strict=True):
            lines = _lines(task, name, points(scaling, furthest))
            if lines:
                at = sorted({x for one in lines for x, _ in one.points})
                down = [Mark("context", context)] if furthest > context else []
                drawn.append(line_panel(title, axis, "nats per token", lines, log=True, x_at=at, down=down))
        return drawn

    scalings = list(dict.fromkeys(r["scaling"] for found in _all(task, name) for r in found["parts"]["cumulative"]))
    beyond = [panel for scaling in scalings for panel in panels(scaling, math.inf, f", scaling {scaling}")]
    return panels(scalings[0], context, ""), beyond


def _quantise(task: Json, name: str) -> Panels:
    """What rounding to few bits adds to the loss, by what is rounded."""
    settings = dict.fromkeys((x["what"], x.get("per")) for found in _all(task, name) for x in found["parts"]["rounded"])
    panels = []
    for what, per in settings:
        lines = _lines(
            task,
            name,
            lambda found, setting=(what, per): sorted(
                (x["bits"], x["change"]["value"])
                for x in found["parts"]["rounded"]
                if (x["what"], x.get("per")) == setting
            ),
        )
        at = sorted({bits for one in lines for bits, _ in one.points})
        words = f"{what} rounded" + (f" per {per}" if per else "")
        panels.append(line_panel(words.capitalize(), "bits", "nats per token, added", lines, log=True, x_at=at))
    return panels, []


DRAW: dict[str, Callable[[Json, str], Panels]] = {
    "needle": _needle,
    "many_shot": _many_shot,
    "long_context": _long_context,
    "quantise": _quantise,
}


def _results(task: Json, name: str, arm: str) -> list[tuple[str, Json]]:
    """Seed and result of an arm, where there is one."""
    seeds = task["arms"][arm]["seeds"].items()
    return [(seed, found) for seed, of in seeds if "value" in (found := of["evals"].get(name, {}))]


def _all(task: Json, name: str) -> list[Json]:
    return [found for arm in styles(task) for _, found in _results(task, name, arm)]


def _lines(task: Json, name: str, points: Callable[[Json], Points]) -> list[Line]:
    """A line per arm and seed."""
    return [
        Line(arm, style(number), drawn, f"{arm}, seed {seed}", number, dots=True)
        for arm, number in styles(task).items()
        for seed, found in _results(task, name, arm)
        if (drawn := points(found))
    ]


def _words(value: Any) -> str:
    """A setting as the caption tells it; empty where there is nothing to tell."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_words(of)}" for key, of in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
