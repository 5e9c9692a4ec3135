"""How the two maps of a head relate, what is left of the answer after the subtraction, and what heads put out."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from diffattn.evals.inside import LOSSES, WEIGHTS
from diffattn.lab.report import captions
from diffattn.lab.report.figure import Figure, figure, style
from diffattn.lab.report.inside import arms, by_layer, curve, inner, looked_into, marks_answers, mean
from diffattn.lab.report.layered import curves_panel, layer_panel
from diffattn.lab.report.panels import Line, Mark, line_panel
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import styles

Json = dict[str, Any]
STAGES = (("first_map", "first map"), ("effective", "effective map"), ("normed", "map and norm"))


def prediction(task: Json) -> Figure | None:
    """How well the second map predicts the first, and the λ that would predict best beside the learned one."""
    drawn = [
        ("R²: noise of the first map that the second tells", "share of its variance", "r2", 1.0),
        ("λ that would cancel most of it", "least squares", "lam_least_squares", 1.0),
        ("λ of the model", "mean over tokens and heads", "lam", 1.0),
    ]
    names = arms(task)
    panels = [layer_panel(task, title, unit, names, inner("pair", key), full) for title, unit, key, full in drawn]
    if panels[0] is None:
        return None
    more = [
        _binned(
            task,
            "Where the maps part",
            "loss of the token, nats, from",
            "Jensen–Shannon divergence, nats",
            _surprise,
            LOSSES,
        )
    ]
    more.append(layer_panel(task, "Cosine of the two maps", "1: the same map", names, inner("pair", "cosine"), 1.0))
    said = captions.PREDICTION + ("" if marks_answers(task) else captions.ALL_KEYS)
    title = "Does the second map know the first one’s noise?"
    hidden = ("how alike the two maps are", [panel for panel in more if panel])
    shown = [panel for panel in panels if panel]
    return figure(
        task, "prediction", title, shown, said, more=hidden, legend="1", exploratory=True, seeds=looked_into(task)
    )


def signal_to_noise(task: Json) -> Figure | None:
    """What is read from the answer against what is read from all other keys, before and after the subtraction."""
    lines, numbers = [], styles(task)
    for name in arms(task):
        found = [decibels(task, name, key) for key, _ in STAGES]
        points = [(float(at), value) for at, value in enumerate(found) if value is not None]
        if len(points) > 1:
            lines.append(Line(name, style(numbers[name]), points, name, numbers[name], dots=True))
    if not lines:
        return None
    stages = {float(at): words for at, (_, words) in enumerate(STAGES)}
    draw = partial(line_panel, across=[Mark("", 0.0)])
    panels = [
        curves_panel(
            "Signal to noise",
            "what the values are read through",
            "decibels; 0: as much signal as noise",
            lines,
            stages,
            draw,
        )
    ]
    unit = "power of signal / noise"
    layered = [layer_panel(task, f"Through the {words}", unit, arms(task), _ratio(key)) for key, words in STAGES]
    title, more = "Does the subtraction clear the signal?", ("by layer", [panel for panel in layered if panel])
    return figure(task, "signal", title, panels, captions.SIGNAL, more=more, exploratory=True, seeds=looked_into(task))


def contribution(task: Json) -> Figure | None:
    """Attention is not contribution: |A| beside |A v W_O|, and what heads add to the residual stream."""
    drawn = [
        ("Weight of the first key", "share of |A|", "first_weight", 1.0),
        ("Contribution of the first key", "share of |A v W_O|", "first_contribution", 1.0),
        ("Output of a head", "its size / the residual stream’s", "relative_norm", 0.0),
    ]
    panels = [
        layer_panel(task, title, unit, arms(task), inner("outputs", key), full) for title, unit, key, full in drawn
    ]
    shown = [panel for panel in panels if panel]
    if not shown:
        return None
    title = "Attention is not contribution"
    return figure(task, "contribution", title, shown, captions.CONTRIBUTION, exploratory=True, seeds=looked_into(task))


def gradients(task: Json) -> Figure | None:
    """Gradient of the loss in the logits, per map and by the weight it flows through."""
    panels = []
    for at, words in enumerate(("First map", "Second map")):
        own = _nth(at, "gradient_by_weight")
        panels.append(
            _binned(task, words, "attention weight, from", "mean |gradient| of a logit", own, WEIGHTS, log=True)
        )
    for at, words in enumerate(("first map", "second map")):
        norm = _nth(at, "gradient_norm")
        panels.append(layer_panel(task, f"Gradient of the {words}", "root mean square over rows", arms(task), norm))
    shown = [panel for panel in panels if panel]
    if not shown:
        return None
    return figure(
        task,
        "gradients",
        "What training can change",
        shown,
        captions.GRADIENTS,
        exploratory=True,
        seeds=looked_into(task),
    )


def _binned(
    task: Json,
    title: str,
    x_name: str,
    y_name: str,
    pick: Callable[[Json], Any],
    bins: tuple[float, ...],
    log: bool = False,
) -> str | None:
    lines, numbers = [], styles(task)
    for name in arms(task):
        values = curve(task, name, pick)
        points = [(float(at), value) for at, value in enumerate(values) if value is not None and (value > 0 or not log)]
        if len(points) > 1:
            lines.append(Line(name, style(numbers[name]), points, name))
    if not lines:
        return None
    at = sorted({place for one in lines for place, _ in one.points})
    return line_panel(title, x_name, y_name, lines, x_at=at, x_ticks=lambda place: short(bins[int(place)]), log_y=log)


def _surprise(layer: Json) -> Any:
    return layer["pair"] and layer["pair"]["js_by_loss"]


def _ratio(stage: str) -> Callable[[Json], float | None]:
    def pick(layer: Json) -> float | None:
        found = layer["outputs"] and layer["outputs"]["signal_to_noise"]
        return found and found[stage]

    return pick


def decibels(task: Json, arm: str, stage: str) -> float | None:
    """Mean over layers and seeds of 10 log10 of the ratio of powers."""
    ratios = [ratio for seeds in by_layer(task, arm, _ratio(stage)) for ratio in seeds if ratio > 0]
    return mean(10 * math.log10(ratio) for ratio in ratios)


def _nth(at: int, key: str) -> Callable[[Json], Any]:
    """Of the first or second of a layer's own maps; the effective one is none of them."""

    def pick(layer: Json) -> Any:
        own = [one for one in layer["maps"] if one["name"] != "effective"]
        return own[at][key] if at < len(own) else None

    return pick
