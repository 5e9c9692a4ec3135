"""The learning-rate sweep: the same factor-2 grid for every arm, on seeds that are never judged, chosen on dev."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from diffattn.lab.plan import Plan, Task, resolve
from diffattn.lab.progress import read_done
from diffattn.lab.runs import Run, sweep_runs

EXTENSIONS = 4
"""How often the grid grows by one rate before an arm's best is taken from its edge, with a word about it."""


def sweep(
    plan: Plan,
    task: Task,
    folder: Path,
    work: Callable[[Sequence[Run]], None],
    say: Callable[[str], None],
) -> tuple[dict[str, float], list[Run]]:
    """Choose each arm's learning rate, before its own factor; also gives the runs that chose it.

    work: trains the runs that are missing in the folder. The grid grows, for all arms, until every best lies inside.
    """
    grid = sorted(task.learning_rates)
    extensions = 0
    while True:
        runs = sweep_runs(plan, task, grid)
        work(runs)
        best = choose(task, grid, dev_losses(runs, folder))
        low, high = grid[0] in best.values(), grid[-1] in best.values()
        if not low and not high:
            return best, runs
        if extensions == EXTENSIONS:
            say(f"{task.name}: a best rate still lies at the edge of the grid, {grid[0]:g} to {grid[-1]:g}")
            return best, runs
        grid = [grid[0] / 2] * low + grid + [grid[-1] * 2] * high
        extensions += 1


def between(task: Task, ends: Sequence[tuple[Task, Mapping[str, float]]]) -> dict[str, float]:
    """Give each arm the rate between those of two tasks: log rate is linear in log (parameters x tokens).

    ends: two tasks and the rates chosen there. Parameters are the baseline's, without embeddings. Three figures.
    """
    (first, low), (second, high) = ends
    start, end, here = (math.log(_work(one)) for one in (first, second, task))
    share = (here - start) / (end - start)
    return {arm.name: float(f"{low[arm.name] ** (1 - share) * high[arm.name] ** share:.3g}") for arm in task.arms}


def _work(task: Task) -> float:
    parameters = resolve(task)[task.baseline].model.cost().other_parameters
    return parameters * task.train.steps * task.train.sequences * task.model.context


def dev_losses(runs: Sequence[Run], folder: Path) -> dict[tuple[str, float, int], float]:
    """Final dev loss by arm, learning rate and seed; infinite where the run failed."""
    losses: dict[tuple[str, float, int], float] = {}
    for run in runs:
        done = read_done(folder / run.folder)
        finished = done.get("status") == "finished" and math.isfinite(done["loss"])
        losses[run.arm, run.learning_rate, run.seed] = done["loss"] if finished else math.inf
    return losses


def choose(task: Task, grid: Sequence[float], losses: Mapping[tuple[str, float, int], float]) -> dict[str, float]:
    """Give each arm the rate with the lowest mean dev loss over the sweep's seeds; the lower rate where they tie.

    So an arm that failed at every rate gets the lowest one: its judged runs show how it fails.
    """
    best: dict[str, float] = {}
    for arm in task.arms:
        means = {}
        for rate in grid:
            own = rate * arm.learning_rate_factor
            means[rate] = fmean(loss for (name, lr, _), loss in losses.items() if name == arm.name and lr == own)
        best[arm.name] = min(means, key=lambda rate: (means[rate], rate))
    return best
