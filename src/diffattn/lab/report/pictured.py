"""What the pictures of the models' inside show, as a table of means for readers of the text."""

from typing import Any

from diffattn.evals.inside import DISTANCES
from diffattn.lab.report.attention import EFFECTIVE, share_of
from diffattn.lab.report.inside import arms, inner, map_of
from diffattn.lab.report.numbers import filled, mean_columns, number_cell
from diffattn.lab.report.pairs import STAGES, decibels
from diffattn.lab.report.tables import Column, Table, styles

Json = dict[str, Any]
NEAR = 8
"""Tokens that count as near."""


def pictured_table(task: Json) -> Table | None:
    """A row per arm that was looked into: where attention goes, what the two maps share, what clears the signal."""
    names, number = arms(task), styles(task)
    clear = [
        Column("Signal / noise", f"decibels, {words}", [number_cell(decibels(task, arm, key)) for arm in names])
        for key, words in STAGES
    ]
    groups = filled(
        [("Effective map", mean_columns(task, names, MAP)), ("λ", mean_columns(task, names, LAM)), ("", clear)]
    )
    return Table([(name, "", number[name]) for name in names], groups) if groups else None


def _heaviest(layer: Json) -> float | None:
    found = map_of(layer, EFFECTIVE)
    return found["sorted_mass"][0] if found and found["sorted_mass"] else None


def _near(layer: Json) -> float | None:
    found = map_of(layer, EFFECTIVE)
    shares = found and [
        share for share, first in zip(found["mass_by_distance"], DISTANCES, strict=False) if first < NEAR
    ]
    return sum(share for share in shares if share is not None) if shares else None


MAP = (
    ("On the answer", "% of |mass|", 100.0, share_of(EFFECTIVE, "answer")),
    ("On the first key", "% of |mass|", 100.0, share_of(EFFECTIVE, "first")),
    ("On the heaviest key", "% of |mass|", 100.0, _heaviest),
    (f"On the nearest {NEAR} tokens", "% of |mass|", 100.0, _near),
)
LAM = (
    ("λ of the model", "mean", 1.0, inner("pair", "lam")),
    ("λ that would cancel most", "least squares", 1.0, inner("pair", "lam_least_squares")),
)
"""Name, unit, factor, and the number of a layer."""
