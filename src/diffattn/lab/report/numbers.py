"""The instruments' remaining numbers as two compact tables."""

import math
from collections.abc import Callable
from typing import Any

from diffattn.lab.report.inside import arms, inner, map_of, mean, overall
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import Column, Table, styles
from diffattn.lab.report.words import nats

Json = dict[str, Any]
Pick = Callable[[Json], float | None]


def _of(key: str) -> Pick:
    return lambda layer: (found := map_of(layer, "effective")) and found[key]


EFFECTIVE = (
    ("Keys used", "effective number", 1, _of("effective_keys")),
    ("Negative", "% of |mass|", 100, _of("negative_mass")),
    ("Zeros", "% of entries", 100, _of("exact_zeros")),
    ("Not convex", "% of rows", 100, _of("non_convex_rows")),
    ("Outside the hull", "% of reads", 100, inner("outputs", "outside_hull")),
    ("Dead keys", "%", 100, _of("dead_keys")),
    ("Heads alike", "cosine", 1, _of("head_cosine")),
)
PAIR = (
    ("Alike", "cosine", 1, inner("pair", "cosine")),
    ("Apart", "nats, Jensen–Shannon", 1, inner("pair", "jensen_shannon")),
    ("Apart at surprises", "correlation with the loss", 1, inner("pair", "js_loss_correlation")),
    ("R², best λ", "second tells first", 1, inner("pair", "r2")),
    ("R², the λ of the model", "second tells first", 1, inner("pair", "r2_learned")),
)


def inside_tables(task: Json) -> list[Table]:
    """Rows of arms, the lowest loss first; columns and tables that have no number are left out."""
    names = sorted(arms(task), key=lambda name: _loss(task, name))
    paired = [name for name in names if overall(task, name, inner("pair", "cosine")) is not None]
    loss = [Column("Loss", "nats per token", [nats(task["arms"][name]["loss"]["mean"]) for name in names])]
    massive = [
        (words, _spread(task, names, part)) for part, words in (("logits", "Logits"), ("hidden", "Hidden states"))
    ]
    drawn = [
        (names, [("", loss), ("Effective map", mean_columns(task, names, EFFECTIVE))]),
        (paired, [("The two maps of a head", mean_columns(task, paired, PAIR))]),
        (names, [*massive, ("Whole model", _whole(task, names))]),
    ]
    number = styles(task)
    tables = [Table([(name, "", number[name]) for name in rows], filled(groups)) for rows, groups in drawn]
    return [table for table in tables if table.rows and table.groups]


def mean_columns(task: Json, names: list[str], wanted: tuple[tuple[str, str, float, Pick], ...]) -> list[Column]:
    """Means over layers and seeds, times a factor."""
    found = [(name, unit, times, [overall(task, arm, pick) for arm in names]) for name, unit, times, pick in wanted]
    return [
        Column(name, unit, [number_cell(None if value is None else times * value) for value in values])
        for name, unit, times, values in found
    ]


def _spread(task: Json, names: list[str], part: str) -> list[Column]:
    return [
        Column("Top 1", "|value|", [_model(task, arm, part, "top1") for arm in names]),
        Column("Top 10", "|value|", [_model(task, arm, part, "top10") for arm in names]),
        Column("Median", "|value|", [_model(task, arm, part, "median") for arm in names]),
        Column("Top 1", "/ root mean square", [_model(task, arm, part, "ratio") for arm in names]),
        Column("Kurtosis", "normal: 3", [_model(task, arm, part, "kurtosis") for arm in names]),
    ]


def _whole(task: Json, names: list[str]) -> list[Column]:
    channels = [_model(task, arm, "int8_channels") for arm in names]
    first = [_model(task, arm, "first_token") for arm in names]
    return [Column("Outlier channels", "LLM.int8()’s rule", channels), Column("First key", "share of |mass|", first)]


def _model(task: Json, arm: str, *keys: str) -> str:
    """Mean over seeds of a number of the whole model."""
    found = []
    for seed in task["arms"][arm]["seeds"].values():
        value = seed["inside"] and seed["inside"]["outliers"]
        for key in keys:
            value = value and value[key]
        found += [] if value is None else [value]
    return number_cell(mean(found))


def number_cell(value: float | None) -> str:
    """A number in few figures."""
    return "—" if value is None else short(value)


def filled(groups: list[tuple[str, list[Column]]]) -> list[tuple[str, list[Column]]]:
    """The groups without columns that hold no number, and without groups that then are empty."""
    kept = [(name, [one for one in columns if any(cell != "—" for cell in one.cells)]) for name, columns in groups]
    return [(name, columns) for name, columns in kept if columns]


def _loss(task: Json, name: str) -> float:
    loss = task["arms"][name]["loss"]["mean"]
    return math.inf if loss is None else loss
