"""The laboratory's verbs: compare, report, verdict."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import AvoidSubcommands, Positional, arg

from diffattn.cli.arguments import command, first, load_plugins, nearest, parse, take_each

if TYPE_CHECKING:
    from diffattn.lab.plan import Plan, Task


def compare(argv: list[str]) -> int:
    """Train a recipe's arms fairly and write the report (runs what is missing, goes on where it stopped)."""
    from diffattn import recipes

    listing = "\n".join(f"  {name:<14}{recipes.get(name).description}" for name in recipes.names())
    name, rest = first(load_plugins(argv), "compare", "RECIPE", listing)
    rest, added = take_each(rest, "--add")
    recipe = recipes.get(name)
    from diffattn.lab import runner
    from diffattn.lab.manifest import changes
    from diffattn.lab.plan import Task
    from diffattn.recipes.added import with_variants

    plan = with_variants(recipe, added)

    def run(
        task: Annotated[Task, arg(name="")] = plan.tasks[0],
        out: Path | None = None,
        tasks: tuple[str, ...] = (),
        arms: tuple[str, ...] = (),
        dry_run: bool = False,
        hours: float | None = None,
        confirm: tuple[str, ...] = (),
        workers: int | None = None,
    ) -> int:
        """Compares the arms of a recipe; dotted options change its first task.

        Before these options: --add NAME (a further arm in every task: any variant, its heads as wide as the baseline's,
        its parameters matched), --plugin my_attention.py (a variant of your own, also package.module); both repeatable.

        Args:
            task: The first task of the recipe.
            out: Folder of the runs and the report; runs/RECIPE when left out.
            tasks: Only these tasks of the recipe.
            arms: Only these arms (the baseline always stays).
            dry_run: Say what the plan costs and what difference it can see; train nothing.
            hours: Say how many seeds fit into so many hours and what they can see; train nothing.
            confirm: After a screen: these arms (at most 4) again on fresh seeds, as a plan of its own.
            workers: Runs side by side; chosen from the cores when left out.
        """
        if "--confirm" in rest and not confirm:
            raise ValueError(f"--confirm needs arms: {', '.join(a.name for a in task.arms if a.name != task.baseline)}")
        if (task.data, task.model) != (plan.tasks[0].data, plan.tasks[0].model):
            # What is recorded of other data or another model forecasts nothing here.
            task = replace(task, recorded_sd=None, recorded_sd_source="")
        resolved = replace(plan, tasks=_chosen((task, *plan.tasks[1:]), tasks, arms))
        folder = out or Path("runs") / plan.name
        for change in [*_only("tasks", tasks), *_only("arms", arms), *changes(_chosen_of(recipe, resolved), resolved)]:
            print(f"differs from the recipe: {change}", file=sys.stderr)
        asked = {"workers": workers, "dry_run": dry_run, "hours": hours, "confirm": confirm}
        report = runner.compare(resolved, folder, **asked, command=command("compare", argv))
        if report is not None:
            print(report)
        return 0

    return parse(run, rest, f"compare {name}", config=(AvoidSubcommands,))


def _chosen(tasks: "tuple[Task, ...]", names: tuple[str, ...], arms: tuple[str, ...]) -> "tuple[Task, ...]":
    from diffattn.lab.plan import select

    known = [task.name for task in tasks]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no task {name!r}{nearest(name, known)}; the recipe has {', '.join(known)}")
    kept = [task for task in tasks if not names or task.name in names]
    return tuple(select(task, arms) if arms else task for task in kept)


def _only(what: str, names: tuple[str, ...]) -> list[str]:
    return [f"only the {what} {', '.join(names)}"] * bool(names)


def _chosen_of(recipe: "Plan", plan: "Plan") -> "Plan":
    """The recipe without the tasks and arms that the plan leaves out: those are told in a line, not one by one."""
    from diffattn.lab.plan import select

    kept = {task.name: {arm.name for arm in task.arms} for task in plan.tasks}
    tasks = [task for task in recipe.tasks if task.name in kept]
    chosen = [select(task, [arm.name for arm in task.arms if arm.name in kept[task.name]]) for task in tasks]
    return replace(recipe, tasks=tuple(chosen))


def report(argv: list[str]) -> int:
    """Write report.html, report.json and report.md again from a plan's folder. Needs no torch."""

    def run(folder: Annotated[Path, Positional]) -> int:
        """Writes the report of a plan's folder.

        Args:
            folder: For instance runs/quick.
        """
        from diffattn.lab.report import write_report

        print(write_report(folder))
        return 0

    return parse(run, argv, "report")


def verdict(argv: list[str]) -> int:
    """Judge losses from any trainer: a CSV with the columns arm, seed, budget, loss. Needs no torch."""

    def run(losses: Annotated[Path, Positional], baseline: str | None = None, margin: float | None = None) -> int:
        """Prints intervals and verdict sentences.

        Args:
            losses: CSV with a header: arm, seed, loss, and budget (full, quarter or ruler; full where it is absent).
            baseline: The arm that the others are compared with; softmax, baseline or transformer when left out.
            margin: The smallest difference that matters, in nats; 0.43 of the ruler's effect when left out.
        """
        from diffattn.lab.verdict import verdict as judge

        print(judge(losses, baseline=baseline, margin=margin))
        return 0

    return parse(run, argv, "verdict")
