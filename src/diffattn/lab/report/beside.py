"""Tasks beside the loss: the numbers of each seed, what they are less the baseline's, and both as a table."""

from collections.abc import Sequence
from typing import Any

from diffattn import stats
from diffattn.lab.report import shapes
from diffattn.lab.report.svg import short
from diffattn.lab.report.tables import Column, Table, styles

Json = dict[str, Any]
ALPHA = 0.05
"""Of each interval by itself: nothing here is corrected for how many there are, and nothing is decided."""
UNTOLD = ("seed", "limit")
"""Settings that differ from run to run, or are told otherwise."""


def condense(task: str, result: Json) -> Json:
    """What report.json keeps of a run's result: its number, a log-loss where there is one, and what is drawn."""
    if result.get("failed") is not None:
        return {"failed": result["failed"]}
    parts = result["parts"]
    drawn = {name: parts[name] for name in shapes.PARTS.get(shapes.kind(task), ())}
    kept = {name: result[name] for name in ("metric", "measure", "settings")}
    return {**kept, "value": result["measure"]["value"], "log_loss": _log_loss(task, parts), "parts": drawn}


def _log_loss(task: str, parts: Json) -> float | None:
    """Accuracies jump from guessing to 1; the log-loss of the right answer moves before."""
    if shapes.kind(task) == "many_shot":
        return parts["shots"][-1]["log_loss"]["value"]
    if shapes.kind(task) == "needle":
        found = [cell["chosen"]["log_loss"]["value"] for cell in parts["cells"].values()]
        return sum(found) / len(found)
    return None


def compared(names: Sequence[str], arms: Json, baseline: str) -> Json:
    """Each task's numbers by arm: a value for each seed, and the paired difference to the baseline over seeds."""
    found = {}
    for name in names:
        results = {arm: _done(numbers, name) for arm, numbers in arms.items()}
        some = next((result for seeds in results.values() for result in seeds.values()), None)
        said = {
            arm: {s: r["evals"][name] for s, r in a["seeds"].items() if name in r["evals"]} for arm, a in arms.items()
        }
        quantities = [("value", some["metric"]), ("log_loss", "log-loss of the right answer, nats")] if some else []
        found[name] = {
            "settings": {key: value for key, value in some["settings"].items() if key not in UNTOLD} if some else {},
            "items": sorted({result["measure"]["n"] for seeds in results.values() for result in seeds.values()}),
            "failed": [
                {"arm": arm, "seed": seed, "reason": result["failed"]}
                for arm, seeds in said.items()
                for seed, result in seeds.items()
                if "failed" in result
            ],
            "quantities": [
                {"key": key, "name": what, "arms": _by_arm(key, results, arms, baseline)}
                for key, what in quantities
                if any(result[key] is not None for seeds in results.values() for result in seeds.values())
            ],
        }
    return found


def _done(arm: Json, name: str) -> Json:
    """Seed -> result, where there is one."""
    found = {seed: numbers["evals"].get(name, {}) for seed, numbers in arm["seeds"].items()}
    return {seed: result for seed, result in found.items() if "value" in result}


def _by_arm(key: str, results: Json, arms: Json, baseline: str) -> Json:
    found = {}
    for arm, seeds in results.items():
        values = {seed: result[key] for seed, result in seeds.items()}
        apart = {}
        for seed, result in seeds.items() if arm != baseline else ():
            base = results[baseline].get(seed)
            # Asked other things, for instance by hand, two models cannot be paired.
            if base and base["settings"] == result["settings"]:
                apart[seed] = result[key] - base[key]
        failed = arms[arm]["failed_seeds"] or arms[baseline]["failed_seeds"]
        found[arm] = {"seeds": values, "differences": apart, "interval": None if failed else _interval(apart)}
    return found


def _interval(apart: Json) -> Json | None:
    """Mean and t interval over seeds; none without spread, where all items are easy or hard for both."""
    values = list(apart.values())
    if len(values) < 2 or len(set(values)) == 1:
        return None
    mean, half = map(float, stats.paired_interval(values, ALPHA))
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(values)}


def beside_table(task: Json) -> Table | None:
    """Every task's numbers, each seed by itself, and the differences with their intervals; None: no tasks planned."""
    if not task["evals"]:
        return None
    numbers = styles(task)
    groups = [(name, _columns(name, found, list(numbers))) for name, found in task["evals"].items()]
    return Table([(arm, "", number) for arm, number in numbers.items()], groups)


def _columns(name: str, found: Json, arms: list[str]) -> list[Column]:
    columns = []
    for quantity in found["quantities"]:
        what = name if quantity["key"] == "value" else f"{name}, log-loss"
        of_arms = [quantity["arms"][arm] for arm in arms]
        columns.append(Column(what, "each seed", [_each(arm["seeds"]) for arm in of_arms]))
        columns.append(Column(f"{what}, difference", "95 % over seeds", [_difference(arm) for arm in of_arms]))
    return columns or [Column(name, "each seed", ["—"] * len(arms))]


def _each(values: Json) -> str:
    return " · ".join(short(value) for value in values.values()) or "—"


def _difference(arm: Json) -> str:
    interval = arm["interval"]
    if interval is None:
        return "no spread" if len(arm["differences"]) > 1 and len(set(arm["differences"].values())) == 1 else "—"
    mean, low, high = (("+" if interval[end] > 0 else "") + short(interval[end]) for end in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def beside_words(task: Json) -> str:
    """What the table's numbers are, and how far they carry."""
    said = [f"{name}: {_what(found)}." for name, found in task["evals"].items()]
    return " ".join(said) + (
        f" Differences to {task['baseline']}: the same items for all arms of a seed, Student’s t over seeds, each "
        "interval by itself and not corrected for their number; “no spread”: equal in every seed, so that these items "
        "tell nothing. Exploratory: no verdict rests on this."
    )


def _what(found: Json) -> str:
    names = "; ".join(quantity["name"] for quantity in found["quantities"]) or "no result yet"
    asked = f" ({' or '.join(map(str, found['items']))} scores a run)" if found["items"] else ""
    return f"{names}{asked}{failed_words(found)}"


def failed_words(found: Json) -> str:
    """Where a task could not be done, and why."""
    told: dict[str, list[str]] = {}
    for one in found["failed"]:
        told.setdefault(one["reason"], []).append(f"{one['arm']} seed {one['seed']}")
    return "".join(f"; not done for {', '.join(runs)} ({reason})" for reason, runs in told.items())
