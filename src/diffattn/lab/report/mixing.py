"""The learned matrix that mixes the heads' maps: as a picture, and in words how sparse it became and into what."""

from typing import Any

from diffattn.lab.report import captions
from diffattn.lab.report.figure import Figure, figure
from diffattn.lab.report.heat import Heat, heat_panel
from diffattn.lab.report.inside import arms, looked_into
from diffattn.lab.report.svg import short
from diffattn.lab.report.words import nats

Json = dict[str, Any]
SMALL = 0.1
"""An entry below this share of the largest of its row is near 0."""
MOST = 0.8
"""Share of a row's mass that one map must have, or two, for the row to be called by them. The second of two must have
at least as much as all others, or any row with one large entry would be a pair."""
KINDS = (
    ("pair", "subtract one map from another (+1, −λ)"),
    ("one", "read one map"),
    ("sum", "add two maps"),
    ("many", "read more maps"),
)
"""In the order in which they are told."""
ROOM = 10
"""Heads up to which the entries are written."""


def mixing(task: Json) -> Figure | None:
    """The matrix of each layer and seed of the arms that learn one."""
    panels, hidden, said = [], [], []
    for name in arms(task):
        seeds = {seed: _matrices(s) for seed, s in task["arms"][name]["seeds"].items() if s["inside"]}
        for at, (seed, layers) in enumerate((seed, layers) for seed, layers in seeds.items() if layers):
            drawn = [_panel(f"M of {name}, layer {layer}, seed {seed}", matrix) for layer, matrix in layers.items()]
            (hidden if at else panels).extend(drawn)
        found = [matrix for layers in seeds.values() for matrix in layers.values()]
        if found:
            said.append(f"{name}, all layers and seeds: {mixing_words(found)}.")
    if not panels:
        return None
    title, more = "Which maps each head mixes", ("M of other layers and seeds", hidden)
    caption = f"{captions.MIXING} {' '.join(said)}"
    return figure(
        task, "mixing", title, panels, caption, more=more, legend="1", exploratory=True, seeds=looked_into(task)
    )


def mixing_words(matrices: list[list[list[float]]]) -> str:
    """Say how many entries are near 0, and how many rows read one map, a difference of two maps, or more."""
    rows = [row for matrix in matrices for row in matrix]
    small = sum(abs(value) < SMALL * max(map(abs, row)) for row in rows for value in row)
    kinds = [_kind(row) for row in rows]
    pairs = [lam for kind, lam in kinds if kind == "pair"]
    read = [(words, sum(kind == wanted for kind, _ in kinds)) for wanted, words in KINDS]
    parts = [f"{count} of {len(rows)} rows {words}" for words, count in read if count]
    low, high = (nats(end(pairs, default=0.0), 2) for end in (min, max))
    lam = low if low == high else f"{low} to {high}"
    emerged = f"λ of the pairs: {lam}" if pairs else "no pair (+1, −λ) emerged"
    return f"{100 * small / sum(map(len, rows)):.0f} % of the entries are near 0; {', '.join(parts)}; {emerged}"


def _kind(row: list[float]) -> tuple[str, float]:
    """What a row is, and the ratio of its second entry to its first where it is a pair."""
    first, *others = sorted(row, key=abs, reverse=True)
    mass = sum(map(abs, row))
    if abs(first) >= MOST * mass or not others:
        return "one", 0.0
    second = others[0]
    rest = mass - abs(first) - abs(second)
    if rest > (1 - MOST) * mass or abs(second) < rest:
        return "many", 0.0
    return ("pair", -second / first) if first * second < 0 else ("sum", 0.0)


def _matrices(seed: Json) -> dict[int, list[list[float]]]:
    return {layer["layer"]: layer["mixing"] for layer in seed["inside"]["layers"] if layer.get("mixing")}


def _panel(title: str, matrix: list[list[float]]) -> str:
    count = len(matrix)
    shown = [str(head) if count <= 2 * ROOM or head % 4 == 0 else "" for head in range(count)]
    return heat_panel(
        Heat(
            title=title,
            unit="rows: heads; columns: the maps they mix",
            rows=shown,
            columns=shown,
            x_name="map of head",
            values=matrix,
            tips=[[f"head {i} takes {short(v)} of map {j}" for j, v in enumerate(row)] for i, row in enumerate(matrix)],
            written=[[nats(round(value, 2) + 0.0, 2) for value in row] for row in matrix] if count <= ROOM else (),
        )
    )
