"""The runs that a plan needs: which model is trained where, on which seed, at which rate, and from which weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from diffattn.lab.bases import base_model
from diffattn.lab.plan import SWEEP_SEED, Arm, Plan, Task, resolve
from diffattn.model.config import ModelConfig
from diffattn.train.config import RunConfig

Budget = Literal["full", "quarter", "ruler", "base"]
# What each budget multiplies the number of steps by, with a complete schedule of its own; a base has its own steps.
BUDGETS: dict[Budget, float] = {"full": 1.0, "quarter": 0.25, "ruler": 1.25}
BASE = "base"
"""Label of a run that starts from a base: the folder of that one."""
REDRAW = "redraw_attention"
"""Label of a run whose attention starts from other random numbers than its seed's."""
BASE_SEED = 200
"""Added to a seed for the base that its runs start from: they go on with tokens in another order."""


@dataclass(frozen=True)
class Run:
    """One training: its folder's name inside the plan's, and what is trained there."""

    folder: str
    task: str
    arm: str
    budget: Budget
    seed: int
    learning_rate: float
    sweep: bool
    """It only chooses a learning rate, on a seed that is never judged."""
    maps: bool
    """Its attention maps are saved for the report."""
    config: RunConfig
    evals: tuple[str, ...] = ()
    """Tasks that it is put to once it is trained."""
    evals_limit: int = 0
    """Most items of each."""

    @property
    def judged(self) -> bool:
        """Whether it is evaluated on test: no sweep and no base is."""
        return not self.sweep and self.budget != "base"


Rates = Mapping[str, Mapping[str, float]]
"""Learning rates by task and arm, each before the arm's own factor."""


def judged_runs(plan: Plan, rates: Rates | None = None) -> list[Run]:
    """List the runs that are judged: seed by seed, so that a plan that is stopped early has complete seeds.

    rates: by task and arm, from the sweeps; where there is none the middle of the grid, or train.learning_rate, stands.
    """
    # A ladder is fitted to what each arm does at its own rate; what one shared rate does, its sweeps have shown.
    ladder = any(task.rates_between for task in plan.tasks)
    cells = {task.name: _cells(task, (rates or {}).get(task.name, {}), shared=not ladder) for task in plan.tasks}
    models = {task.name: resolve(task) for task in plan.tasks}
    return [
        _run(plan, task, arm, models[task.name][arm.name].model, budget, task.first_seed + number, rate, sweep=False)
        for number in range(max(task.seeds for task in plan.tasks))
        for task in plan.tasks
        if number < task.seeds
        for arm, budget, rate in cells[task.name]
    ]


def sweep_runs(plan: Plan, task: Task, rates: Sequence[float]) -> list[Run]:
    """List the runs that choose learning rates: every arm at every rate, on seeds that are never judged."""
    models = resolve(task)
    seeds = range(SWEEP_SEED, SWEEP_SEED + task.sweep_seeds)
    return [
        _run(plan, task, arm, models[arm.name].model, "full", seed, rate, sweep=True)
        for seed in seeds
        for rate in sorted(rates)
        for arm in task.arms
    ]


def base_runs(plan: Plan, runs: Sequence[Run]) -> list[Run]:
    """List the trainings whose weights these runs start from: one per task and seed, or per arm of each."""
    tasks = {task.name: task for task in plan.tasks if task.base_steps}
    wanted = dict.fromkeys(
        (run.task, tasks[run.task].baseline if tasks[run.task].shares_base else run.arm, run.seed)
        for run in runs
        if run.task in tasks
    )
    return [_base(plan, tasks[name], arm, seed) for name, arm, seed in wanted]


def _base(plan: Plan, task: Task, arm: str, seed: int) -> Run:
    model = base_model(task, resolve(task)[arm].model)
    settings = {
        "learning_rate": task.base_rate,
        "steps": task.base_steps,
        "train_only": (),
        # Shorter windows, but as many tokens a step.
        "batch_size": task.train.batch_size * (task.model.context // model.context),
    }
    return Run(
        folder=_base_folder(plan, task, arm, seed),
        task=task.name,
        arm=arm,
        budget="base",
        seed=seed,
        learning_rate=task.base_rate,
        sweep=False,
        maps=False,
        config=RunConfig(
            model=model,
            data=task.data,
            train=replace(task.train, **settings),
            seed=seed + BASE_SEED,
            labels=_labels(plan, task, arm, "base"),
        ),
    )


def _cells(task: Task, chosen: Mapping[str, float], shared: bool) -> list[tuple[Arm, Budget, float]]:
    """The trainings of one seed: all arms in full, the ruler, all at a quarter, all at the baseline's rate."""
    grid = sorted(task.learning_rates) or [task.train.learning_rate]
    rates = {arm.name: chosen.get(arm.name, grid[len(grid) // 2]) for arm in task.arms}
    baseline = task.arm(task.baseline)
    cells: list[tuple[Arm, Budget, float]] = [(arm, "full", rates[arm.name]) for arm in task.arms]
    if task.ruler:
        cells.append((baseline, "ruler", rates[baseline.name]))
    if task.quarter:
        cells.extend((arm, "quarter", rates[arm.name]) for arm in task.arms)
    if shared:
        rate = rates[baseline.name]
        cells.extend((arm, "full", rate) for arm in task.arms if rates[arm.name] != rate)
    return cells


def _run(
    plan: Plan, task: Task, arm: Arm, model: ModelConfig, budget: Budget, seed: int, rate: float, *, sweep: bool
) -> Run:
    rate *= arm.learning_rate_factor
    share = BUDGETS[budget]
    steps, evals = (max(1, round(share * count)) for count in (task.train.steps, task.train.evals))
    trained = arm.trains or task.train.train_only
    train = replace(task.train, learning_rate=rate, steps=steps, evals=evals, train_only=trained)
    labels = _labels(plan, task, arm.name, budget)
    if task.base_steps:
        labels[BASE] = _base_folder(plan, task, arm.name, seed)
    if arm.redraw_attention:
        labels[REDRAW] = str(arm.redraw_attention)
    middle = "" if budget == "full" else f"-{budget}"
    return Run(
        folder=f"{_prefix(plan, task)}{arm.name}{middle}-lr{rate:g}-s{seed}",
        task=task.name,
        arm=arm.name,
        budget=budget,
        seed=seed,
        learning_rate=rate,
        sweep=sweep,
        maps=not sweep and budget == "full" and seed == task.first_seed,
        config=RunConfig(model=model, data=task.data, train=train, seed=seed, labels=labels),
        evals=task.evals if not sweep and budget == "full" else (),
        evals_limit=task.evals_limit,
    )


def _labels(plan: Plan, task: Task, arm: str, budget: Budget) -> dict[str, str]:
    return {"plan": plan.name, "task": task.name, "arm": arm, "budget": budget}


def _base_folder(plan: Plan, task: Task, arm: str, seed: int) -> str:
    return f"{_prefix(plan, task)}{'' if task.shares_base else f'{arm}-'}base-s{seed}"


def _prefix(plan: Plan, task: Task) -> str:
    return f"{task.name}-" if len(plan.tasks) > 1 else ""
