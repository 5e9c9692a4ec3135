"""How much less an arm needs for the baseline's loss, from a ladder of sizes and token budgets.

Takes the report's dictionary of a plan whose tasks are the points of the ladder, and gives the one that scaling.json
holds. Needs no torch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn import stats
from diffattn.lab.report.words import inequalities
from diffattn.lab.scaling_fit import BOOTSTRAPS, Curves, Points, bootstrap, fit, varies
from diffattn.lab.scaling_sentence import sentence
from diffattn.lab.scaling_shares import Fits, cost_line, measured, shares_at, varied

Json = dict[str, Any]
BEYOND = 2.0
"""How far curves are drawn beyond what was run."""


@dataclass(frozen=True)
class Rung:
    """One point of a ladder: a size of the baseline, a token budget, and what must be the same at all of them."""

    task: str
    parameters: float
    """Of the baseline, without embeddings."""
    tokens: float
    same: Json
    """Data, context, metric, baseline, arms."""


def check_ladder(rungs: Sequence[Rung]) -> None:
    """Raise ValueError where these points are no ladder: they differ in more than size and tokens, or are too few."""
    first = rungs[0]
    for rung in rungs:
        for name, value in rung.same.items():
            if value != first.same[name]:
                raise ValueError(
                    f"this is no ladder: {name} of {rung.task} is {value}, of {first.task} {first.same[name]}; the "
                    "points of a ladder differ in size and tokens only"
                )
    if first.same["metric"] != "loss":
        raise ValueError(f"this is no ladder: its metric is {first.same['metric']}, and curves are fitted to a loss")
    varies([rung.parameters for rung in rungs], [rung.tokens for rung in rungs])


def measure(report: Json, draws: int = BOOTSTRAPS) -> Json:
    """Fit the ladder of a report and say what every arm needs; without a complete seed there are points only.

    Seeds count that are finished at every point in every arm. An arm with a failed run is left out, and said to be.
    ValueError: no ladder.
    """
    rungs = [_rung(name, task) for name, task in report["tasks"].items()]
    check_ladder(rungs)
    tasks = list(report["tasks"].values())
    baseline = tasks[0]["baseline"]
    failed = {arm: sum(len(task["arms"][arm]["failed_seeds"]) for task in tasks) for arm in tasks[0]["arms"]}
    arms = [baseline, *(arm for arm in failed if arm != baseline)]
    kept = [arm for arm in arms if not failed[arm]]
    seeds = _complete(tasks, kept) if baseline in kept else []
    points = [_point(rung, task) for rung, task in zip(rungs, tasks, strict=True)]
    found: Json = {
        "format": "diffattn scaling",
        "version": 1,
        "plan": {key: report["plan"][key] for key in ("name", "description", "question", "limits", "hash", "command")},
        "runs": report["plan"]["runs"],
        "baseline": baseline,
        "arms": arms,
        "unstable": {arm: count for arm, count in failed.items() if count},
        "data": tasks[0]["data"],
        "split": "test" if all(task["split"] == "test" for task in tasks) else "dev",
        "hardware": "; ".join(dict.fromkeys(task["hardware"] for task in tasks if task["hardware"])),
        "seeds": seeds,
        "points": points,
        "varied": varied(points),
        "learning_rate_policy": "; ".join(
            # What follows the colon are the rates of a point, which stand in its row.
            dict.fromkeys(task["learning_rate_policy"].partition(":")[0] for task in tasks)
        ),
        "not_equal": inequalities(tasks[-1]["arms"], baseline),
        "fit": None,
        "findings": {},
        "curves": [],
    }
    if seeds and len(kept) > 1:
        _fit(found, _points(tasks, kept, seeds), kept, draws)
    return _plain(found)


def _fit(found: Json, points: Points, arms: list[str], draws: int) -> None:
    fitted = fit(points)
    seeds = len(found["seeds"])
    fits = Fits(fitted, bootstrap(points, fitted, draws) if seeds > 1 else None, seeds)
    residuals = np.log(points.loss) - np.log(
        [float(fitted.loss(arm, n, d)) for arm, n, d in zip(points.arm, points.parameters, points.tokens, strict=True)]
    )
    # Of what all had the same there is no term: its exponent is the prior's.
    there = [np.exp(term) > 0 for term in fitted.p[1:3]]
    (size, tokens), (alpha, beta) = (
        np.where(there, pair, np.nan) for pair in (np.exp(fitted.p[1:3]), fitted.exponents)
    )
    found["fit"] = {
        "centre": {"parameters": math.exp(fitted.centre[0]), "tokens": math.exp(fitted.centre[1])},
        "floor": fitted.floor,
        "size_term": size,
        "tokens_term": tokens,
        "alpha": alpha,
        "beta": beta,
        "residual_sd": float(np.sqrt(np.mean(residuals**2))),
        "bootstraps": draws if seeds > 1 else 0,
    }
    for number, arm in enumerate(arms[1:], 1):
        finding = _finding(found, fits, number, arm)
        found["findings"][arm] = {**finding, "sentence": sentence(found, arm, finding)}
    found["curves"] = list(_curves(found["points"], fitted, arms))


def _finding(found: Json, fits: Fits, number: int, arm: str) -> Json:
    """The arm's shifts, and its shares in the middle of the ladder and at every point."""
    points, baseline = found["points"], found["baseline"]
    crossing = _crossing(points, baseline, arm, found["seeds"])
    cost = {kind: [cost_line(points, one, kind) for one in (baseline, arm)] for kind in ("flops", "seconds")}
    middle, *others = (shares_at(place, points, cost, number, fits) for place in (found["fit"]["centre"], *points))
    # Where the curves cross, a share is less than 100 % on one side and more on the other.
    both_sides = crossing and crossing["above"] and crossing["below"]
    spread = (None, None) if fits.drawn is None else fits.drawn.shifts(number)
    shifts = zip(("parameters", "tokens"), fits.fitted.shifts(number), spread, strict=True)
    return {
        # Where all have the same, nothing told a shift.
        "shifts": {key: measured(at, drawn, fits.seeds) for key, at, drawn in shifts if middle[key]},
        "crossing": crossing,
        "shares": {} if both_sides else middle,
        "by_point": {} if both_sides else {p["task"]: s for p, s in zip(points, others, strict=True)},
    }


def _crossing(points: list[Json], baseline: str, arm: str, seeds: list[int]) -> Json | None:
    """Where the arm lies above the baseline and where below it, if both were seen at 95 %; else None.

    Asked without curves: the differences of each seed are laid on a plane over log N and log D, whose values at every
    point then vary over seeds. With one seed nothing tells what luck does: it is not judged, and the sides are those of
    the bare points.
    """
    logs = np.log([[p[key] for key in varied(points)] for p in points])
    plane = np.hstack([np.ones((len(points), 1)), logs - logs.mean(axis=0)])
    gaps = np.array([[p["losses"][arm][str(s)] - p["losses"][baseline][str(s)] for p in points] for s in seeds])
    judged = len(seeds) > 1
    smooth = plane @ np.linalg.pinv(plane) @ gaps.T
    mean, half = stats.paired_interval(smooth, 0.05) if judged else (gaps[0], 0.0)
    above, below = ([points[i]["task"] for i in np.flatnonzero(side > half)] for side in (mean, -mean))
    return {"judged": judged, "above": above, "below": below} if (above and below) or not judged else None


def _curves(points: list[Json], fitted: Curves, arms: list[str]) -> Iterator[Json]:
    """Lines for the figures: along sizes for the smallest, second, ... budget of each, along tokens for each size."""
    sizes = sorted({p["parameters"] for p in points})
    budgets = [sorted(p["tokens"] for p in points if p["parameters"] == size) for size in sizes]
    for number, arm in enumerate(arms):
        for rank in range(min(map(len, budgets)) if len(sizes) > 1 else 0):
            line = np.polynomial.Polynomial.fit(np.log(sizes), np.log([own[rank] for own in budgets]), 1)
            at = np.geomspace(sizes[0] / BEYOND, sizes[-1] * BEYOND, 49)
            loss = fitted.loss(number, at, np.exp(line(np.log(at))))
            yield _curve(arm, "parameters", rank, at, loss, sizes)
        for rank, own in enumerate(budgets):
            if len(own) > 1:
                at = np.geomspace(own[0] / BEYOND, own[-1] * BEYOND, 49)
                yield _curve(arm, "tokens", rank, at, fitted.loss(number, sizes[rank], at), own)


def _curve(arm: str, along: str, rank: int, at: np.ndarray, loss: np.ndarray, run: Sequence[float]) -> Json:
    places = zip(at.tolist(), loss.tolist(), strict=True)
    return {"arm": arm, "along": along, "rank": rank, "points": [list(p) for p in places], "run": [run[0], run[-1]]}


def _rung(name: str, task: Json) -> Rung:
    same = {"data": task["data"], "context": task["context"], "metric": task["metric"], "baseline": task["baseline"]}
    baseline = task["arms"][task["baseline"]]
    return Rung(name, baseline["other_parameters"], task["tokens"], {**same, "arms": list(task["arms"])})


def _point(rung: Rung, task: Json) -> Json:
    arms = task["arms"]
    return {
        "task": rung.task,
        "parameters": rung.parameters,
        "tokens": rung.tokens,
        "learning_rates": {name: arm["learning_rate"] for name, arm in arms.items()},
        "flops": {name: arm["flops_algebra"] for name, arm in arms.items()},
        "seconds": {name: arm["seconds_per_token"] for name, arm in arms.items()},
        "losses": {name: {s: n["final_loss"] for s, n in arm["seeds"].items()} for name, arm in arms.items()},
    }


def _complete(tasks: list[Json], arms: list[str]) -> list[int]:
    """Seeds that are finished at every point, in every one of these arms."""

    def there(task: Json, arm: str) -> set[int]:
        return {int(s) for s, numbers in task["arms"][arm]["seeds"].items() if numbers["final_loss"] is not None}

    return sorted(set.intersection(*(there(task, arm) for task in tasks for arm in arms)))


def _points(tasks: list[Json], arms: list[str], seeds: list[int]) -> Points:
    rows = [
        (number, one["other_parameters"], task["tokens"], one["seeds"][str(seed)]["final_loss"], seed)
        for task in tasks
        for number, arm in enumerate(arms)
        for seed in seeds
        if (one := task["arms"][arm])
    ]
    arm, parameters, tokens, loss, seed = (np.array(column) for column in zip(*rows, strict=True))
    return Points(arm, parameters, tokens, loss, seed)


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, what is not finite as None."""
    if isinstance(value, dict):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
