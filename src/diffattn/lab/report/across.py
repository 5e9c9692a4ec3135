"""One arm's difference to the baseline, laid side by side over the tasks of a plan: does its sign survive them?"""

from collections.abc import Sequence
from typing import Any

from diffattn.lab.report.tables import Column, Table
from diffattn.lab.report.words import signed

Json = dict[str, Any]


def across(arms: Sequence[str], tasks: Json) -> list[Json]:
    """For each of the arms a row per task that has seen a difference, and a sentence; empty without a row."""
    found = []
    for arm in arms:
        rows = [_row(name, f) for name, task in tasks.items() for f in task["findings"] if f["arm"] == arm]
        if rows:
            found.append({"arm": arm, "rows": rows, "sentence": _sentence(arm, rows)})
    return found


def across_table(found: Json) -> Table:
    """The rows as a table: tasks, differences, intervals."""
    rows = found["rows"]
    columns = [
        Column("Difference", "negative: better", [signed(row["mean"]) for row in rows]),
        Column("Interval", "low to high", [_interval(row) for row in rows]),
        Column("Unit", "", [row["unit"] for row in rows]),
        Column("Seeds", "", [str(row["n"]) for row in rows]),
    ]
    return Table([(row["task"], "", -1) for row in rows], [(f"{found['arm']} against the baseline", columns)])


def _row(task: str, finding: Json) -> Json:
    unit = finding["numbers"]["unit"]
    return {"task": task, **{key: finding[key] for key in ("verdict", "mean", "low", "high", "n")}, "unit": unit}


def _sentence(arm: str, rows: list[Json]) -> str:
    ahead = [row["task"] for row in rows if row["mean"] is not None and row["mean"] < 0]
    behind = [row["task"] for row in rows if row["mean"] is not None and row["mean"] > 0]
    clear = [row["task"] for row in rows if row["low"] is not None and (row["low"] > 0 or row["high"] < 0)]
    side = f"{arm} is ahead of the baseline in {_listed(ahead, rows)}, behind in {_listed(behind, rows)}"
    return (
        f"{side}; the interval excludes 0 in {_listed(clear, rows)}. Exploratory: each interval is that of its own "
        "task, and no verdict rests on laying them side by side."
    )


def _listed(tasks: list[str], rows: list[Json]) -> str:
    return f"{len(tasks)} of {len(rows)} tasks ({', '.join(tasks)})" if tasks else "none"


def _interval(row: Json) -> str:
    if row["low"] is None or row["high"] is None:
        return row["verdict"] if row["verdict"] == "UNSTABLE" else "too few seeds"
    return f"{signed(row['low'])} to {signed(row['high'])}"
