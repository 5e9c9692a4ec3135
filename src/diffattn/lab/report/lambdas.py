"""λ along training: a heat map of each arm's layers (and heads, where λ is theirs), and its curves seed by seed."""

from typing import Any

from diffattn.lab.report import captions
from diffattn.lab.report.figure import Figure, figure
from diffattn.lab.report.heat import Heat, heat_panel
from diffattn.lab.report.panels import Line, Mark, line_panel
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import styles
from diffattn.lab.report.words import nats

Json = dict[str, Any]
WHOLE = -1
"""In place of a head, where one λ serves all heads of a layer."""
FEW_ROWS = 12
"""Up to this many rows every head has its label."""


def lambdas(task: Json) -> Figure:
    """λ over layers and training, one heat map per arm that has one; its curves behind a click."""
    heats, curves = [], []
    for name in styles(task):
        seeds = {seed: rows for seed, s in task["arms"][name]["seeds"].items() if (rows := _rows(s["lambda"]))}
        if seeds:
            heats.append(_heat(name, seeds))
            curves.append(_curves(name, seeds))
    missing = "No arm here has a λ." if task["ended"] else "No arm here has a λ, or none has trained yet."
    more = ("curves of λ, seed by seed", curves)
    said = captions.LAMBDAS
    return figure(task, "lambdas", "λ along training", heats, said, missing, more=more, legend="1", exploratory=True)


def _rows(logged: list[Json]) -> dict[float, dict[tuple[int, int], float]]:
    """Tokens -> (layer, head or WHOLE) -> mean λ over tokens."""
    found: dict[float, dict[tuple[int, int], float]] = {}
    for row in logged:
        for layer, summary in enumerate(row["layers"]):
            if summary:
                heads = summary.get("heads")
                own = list(enumerate(heads)) if heads else [(WHOLE, summary["mean"])]
                found.setdefault(row["tokens"], {}).update({(layer, head): lam for head, lam in own})
    return found


def _heat(name: str, seeds: dict[str, Any]) -> str:
    places = sorted({place for rows in seeds.values() for row in rows.values() for place in row})
    at = sorted({tokens for rows in seeds.values() for tokens in rows})
    values, tips = [], []
    for layer, head in places:
        of_seeds = [[rows[t][layer, head] for rows in seeds.values() if (layer, head) in rows.get(t, {})] for t in at]
        values.append([sum(lams) / len(lams) if lams else None for lams in of_seeds])
        where = f"layer {layer}" + ("" if head == WHOLE else f", head {head}")
        tips.append([f"{where}, {short(t)} tokens: {_spread(lams)}" for t, lams in zip(at, of_seeds, strict=True)])
    labelled = {0, len(at) // 2, len(at) - 1}
    return heat_panel(
        Heat(
            title=f"λ of {name}",
            unit="mean λ; on the right, its last value",
            rows=[_label(layer, head, len(places) <= FEW_ROWS) for layer, head in places],
            columns=[short(tokens) if number in labelled else "" for number, tokens in enumerate(at)],
            x_name="training tokens",
            values=values,
            tips=tips,
            ends=[nats(row[-1], 2) for row in values] if len(places) <= FEW_ROWS else [],
        )
    )


def _label(layer: int, head: int, few: bool) -> str:
    if head == WHOLE:
        return f"layer {layer}"
    if not few:
        return f"layer {layer}" if head == 0 else ""
    return f"layer {layer}, head 0" if head == 0 else f"head {head}"


def _spread(lams: list[float]) -> str:
    if not lams:
        return "no λ"
    mean = nats(sum(lams) / len(lams), 2)
    return mean if len(lams) == 1 else f"{mean} (seeds {nats(min(lams), 2)} to {nats(max(lams), 2)})"


def _curves(name: str, seeds: dict[str, Any]) -> str:
    """One thin line per layer and seed, heads averaged."""
    lines = []
    layers = sorted({layer for rows in seeds.values() for row in rows.values() for layer, _ in row})
    for seed, rows in seeds.items():
        for number, layer in enumerate(layers):
            ramp = f"ramp{round(5 * number / max(1, len(layers) - 1))}"
            points = []
            for tokens, row in rows.items():
                lams = [lam for (own, _), lam in row.items() if own == layer]
                points += [(tokens, sum(lams) / len(lams))] if lams else []
            label = f"layer {layer}" if len(layers) <= 8 or layer in (layers[0], layers[-1]) else ""
            lines.append(Line(label, ramp, points, f"{name}, layer {layer}, seed {seed}"))
    return line_panel(f"λ of {name}", "training tokens", "mean λ per layer", lines, across=[Mark("", 0.0)])
