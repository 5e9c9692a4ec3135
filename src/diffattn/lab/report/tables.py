"""The tables of the report as rows of finished strings, so that page and Markdown show the same."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diffattn.lab.report.words import count, mixer_words, nats, percent, rate, scaled, with_interval

Json = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A quantity of the table of arms."""

    name: str
    unit: str
    cells: list[str]
    """One per row of the table; empty where the quantity has no meaning."""


@dataclass(frozen=True)
class Table:
    """Groups of columns over rows of arms."""

    rows: list[tuple[str, str, int]]
    """Name, what it is, and number of the colour; below 0: no arm of its own."""
    groups: list[tuple[str, list[Column]]]


def styles(task: Json) -> dict[str, int]:
    """Number of each arm's colour and shape: the baseline has 0."""
    others = [name for name in task["arms"] if name != task["baseline"]]
    return {task["baseline"]: 0, **{name: number for number, name in enumerate(others, 1)}}


def never_reaching(task: Json) -> bool:
    """Whether this task is about when answers become right: then "never" is a result."""
    return task["metric"] == "tokens_to_50" or task["bigram_loss"] is None


def arm_tables(task: Json) -> list[Table]:
    """Two tables: what came out; how each arm was trained, what it is and what it costs."""
    arms, numbers = task["arms"], styles(task)
    rows = [(name, arm["note"] or mixer_words(arm["mixer"]), numbers[name]) for name, arm in arms.items()]
    training = [
        _column("Learning rate", "", arms, lambda a: rate(a["learning_rate"])),
        _column("Speed", "tokens/s", arms, lambda a: count(a["tokens_per_second"])),
        _column("Time", "µs per token", arms, lambda a: _micro(a["seconds_per_token"])),
        _column("Peak memory", "", arms, lambda a: scaled(a["peak_memory_bytes"], "B")),
    ]
    size = [
        _column("FFN", "width", arms, lambda a: count(a["ffn_width"])),
        _column("Parameters", "without embeddings", arms, lambda a: count(a["other_parameters"])),
        _column("Mismatch", "to the baseline", arms, lambda a: percent(a["mismatch_percent"])),
        _column("Parameters", "of embeddings", arms, lambda a: count(a["embedding_parameters"])),
    ]
    cost = [
        _column("FLOPs", "of the algebra", arms, lambda a: scaled(a["flops_algebra"])),
        _column("FLOPs", "executed", arms, lambda a: scaled(a["flops_executed"])),
        _column("Cache", "bytes", arms, lambda a: count(a["cache_bytes"])),
    ]
    outcome = Table(list(rows), [("Result", _results(task))])
    for name, words, loss in _beside(task):
        outcome.rows.append((name, words, -1))
        for _, columns in outcome.groups:
            for column in columns:
                column.cells.append(loss if column.name == "Loss" else "")
    groups = [("Training", training), ("Size", size), ("Cost per token", cost)]
    return [outcome, Table([(name, "", number) for name, _, number in rows], groups)]


def _results(task: Json) -> list[Column]:
    arms, split = task["arms"], task["split"]
    columns = []
    if never_reaching(task):
        columns.append(_column("Tokens to 50 %", "each seed, dev", arms, lambda a: _events(a, "tokens_to_50")))
        columns.append(_column("Tokens to 90 %", "each seed, dev", arms, lambda a: _events(a, "tokens_to_90")))
        columns.append(_column("Loss", f"nats, each seed, {split}", arms, lambda a: _losses(a, "final_loss")))
        columns.append(_column("At equal time", "nats, dev", arms, lambda a: _losses(a, "loss_at_equal_time")))
    else:
        columns.append(_column("Loss", f"nats per token, {split}", arms, lambda a: with_interval(a["loss"])))
        columns.append(_column("At equal time", "nats, dev", arms, _mean_at_equal_time))
    if any(arm["bits_per_byte"]["n"] for arm in arms.values()):
        columns.append(_column("Bits per byte", split, arms, lambda a: with_interval(a["bits_per_byte"])))
    columns.append(_column("Seeds", "finished", arms, _progress))
    return columns


def _beside(task: Json) -> list[tuple[str, str, str]]:
    """Values that stand beside the arms: the bigram table and the ruler."""
    found = []
    if task["bigram_loss"] is not None:
        found.append(("bigram table", "smoothed, fitted on the training tokens", nats(task["bigram_loss"])))
    planned = task["arms"][task["baseline"]]["ruler"].values()
    ruler = [value for value in planned if value is not None]
    if ruler:
        words = f"{task['baseline']} with 1.25 × tokens, {len(ruler)} of {len(planned)} seeds"
        found.append(("ruler", words, nats(sum(ruler) / len(ruler))))
    return found


def _column(name: str, unit: str, arms: Json, cell: Any) -> Column:
    return Column(name, unit, [cell(arm) for arm in arms.values()])


def _events(arm: Json, key: str) -> str:
    """When each finished seed got there, earliest first; "never" is an outcome like any other."""
    ended = [seed[key] for seed in arm["seeds"].values() if seed["status"] == "finished"]
    return _each(sorted(ended, key=lambda value: math.inf if value is None else value), scaled, "never")


def _losses(arm: Json, key: str) -> str:
    return _each(sorted(v for seed in arm["seeds"].values() if (v := seed[key]) is not None), nats, "")


def _each(values: list[Any], words: Callable[[Any], str], absent: str) -> str:
    """All of a few sorted values, or the median and the ends of many."""
    shown = [absent if value is None else words(value) for value in values]
    if len(shown) > 5:
        return f"{shown[len(shown) // 2]} ({shown[0]} to {shown[-1]})"
    return " · ".join(shown) or "—"


def _mean_at_equal_time(arm: Json) -> str:
    values = [v for seed in arm["seeds"].values() if (v := seed["loss_at_equal_time"]) is not None]
    return nats(sum(values) / len(values)) if values and not arm["failed_seeds"] else "—"


def _progress(arm: Json) -> str:
    """How many seeds the numbers of this row rest on; a failed one is counted, never left out in silence."""
    finished = sum(seed["status"] == "finished" for seed in arm["seeds"].values())
    failed = f", {len(arm['failed_seeds'])} failed" if arm["failed_seeds"] else ""
    return f"{finished} of {len(arm['seeds'])}{failed}"


def _micro(seconds: float | None) -> str:
    return "—" if seconds is None else f"{seconds * 1e6:.3g}"
