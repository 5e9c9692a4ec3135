"""The verb scaling: a ladder of sizes and token budgets, and what each arm needs for the baseline's loss."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diffattn.cli.arguments import command, first, load_plugins, parse

if TYPE_CHECKING:
    from diffattn.lab.plan import Plan
    from diffattn.lab.scaling import Rung


def scaling(argv: list[str]) -> int:
    """Train a ladder's points, and say which share of parameters, tokens, FLOPs and seconds an arm needs."""
    from diffattn import recipes

    ladders = [name for name in recipes.names() if name.startswith("scale_")]
    listing = "\n".join(f"  {name:<14}{recipes.get(name).description}" for name in ladders)
    name, rest = first(load_plugins(argv), "scaling", "RECIPE", listing)
    recipe = recipes.get(name)
    from diffattn.lab import runner
    from diffattn.lab.plan import select
    from diffattn.lab.report.ladder import write_scaling
    from diffattn.lab.scaling import check_ladder

    def run(
        out: Path | None = None,
        arms: tuple[str, ...] = (),
        seeds: int | None = None,
        dry_run: bool = False,
        hours: float | None = None,
        workers: int | None = None,
    ) -> int:
        """Trains what is missing of a ladder, writes the report of its points, and scaling.html, .md and .json.

        Args:
            out: Folder of the runs and the pages; runs/RECIPE when left out.
            arms: Only these arms (the baseline always stays).
            seeds: Seeds of every point; the recipe's when left out.
            dry_run: Say what the ladder costs; train nothing.
            hours: Say how many seeds fit into so many hours; train nothing.
            workers: Runs side by side; chosen from the cores when left out.
        """
        tasks = (select(task, arms) if arms else task for task in recipe.tasks)
        plan = replace(recipe, tasks=tuple(task if seeds is None else replace(task, seeds=seeds) for task in tasks))
        check_ladder(_rungs(plan))
        folder = out or Path("runs") / plan.name
        asked = {"workers": workers, "dry_run": dry_run, "hours": hours}
        if runner.compare(plan, folder, **asked, command=command("scaling", argv)) is not None:
            page = write_scaling(folder)
            print(page.with_suffix(".md").read_text(encoding="utf-8"))
            print(page)
        return 0

    return parse(run, rest, f"scaling {name}")


def _rungs(plan: "Plan") -> "list[Rung]":
    from diffattn.lab.plan import resolve
    from diffattn.lab.scaling import Rung

    rungs = []
    for task in plan.tasks:
        same = {"data": task.data, "context": task.model.context, "metric": task.metric, "baseline": task.baseline}
        arms = [arm.name for arm in task.arms]
        tokens = task.train.steps * task.train.sequences * task.model.context
        parameters = resolve(task)[task.baseline].model.cost().other_parameters
        rungs.append(Rung(task.name, parameters, tokens, {**same, "arms": arms}))
    return rungs
