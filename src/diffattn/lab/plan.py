"""What is compared, fixed before the first run: arms, tasks, plans, and the runs that a plan needs."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Self

from diffattn.data import SyntheticData, TextData
from diffattn.data.base import nearest
from diffattn.lab.arms import Arm, plain_fields
from diffattn.lab.bases import validate_base
from diffattn.lab.budget import match
from diffattn.lab.rules import Contrast
from diffattn.model.config import ModelConfig
from diffattn.train.config import RunConfig, TrainConfig

__all__ = ["Arm", "Contrast", "Plan", "Resolved", "Task", "resolve", "select"]

SWEEP_SEED = 100
"""First seed of every learning-rate sweep; judged seeds lie elsewhere."""
LATER = {"rates_between": (), "evals": (), "base_of": "baseline", "base_context": 0}
"""Fields that are not written where they are so: the plans of comparisons that were begun before keep their hashes."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One comparison: data, the baseline's sizes, the training recipe that all arms share, and the rules."""

    name: str
    """Short name, part of the run's folder where a plan has several tasks."""
    data: TextData | SyntheticData
    """What the models are trained and judged on."""
    model: ModelConfig
    """Sizes of the baseline; its mixer is replaced by each arm's, its vocabulary by the data's."""
    train: TrainConfig
    """The training recipe, the same for every arm."""
    arms: tuple[Arm, ...]
    """The baseline and what is compared with it."""
    base_steps: int = 0
    """Steps for which a model is trained first, once per seed; the runs of a seed start from its weights."""
    base_of: Literal["baseline", "arm"] = "baseline"
    """Whose model that is: the baseline's, which all arms continue, or each arm's own."""
    base_context: int = 0
    """Its context, read with as many tokens a step and without rotary scaling; 0: the context of the runs, as they."""
    base_learning_rate: float | None = None
    """Learning rate of that training; None: train.learning_rate."""
    contrasts: tuple[Contrast, ...] = ()
    """Differences of differences, declared beforehand; each counts as one comparison more."""
    baseline: str = "softmax"
    """Name of the arm that the others are compared with."""
    seeds: int = 3
    """Seeds of every arm: 3 or 4 are a screen; 5, or 10 with a look at 5, can carry a verdict."""
    first_seed: int = 0
    """The seeds are first_seed, first_seed + 1 and so on; a confirmation begins where no screen has been."""
    learning_rates: tuple[float, ...] = ()
    """Grid of factor 2, the same for every arm, swept on seeds of its own; empty: all use train.learning_rate."""
    sweep_seeds: int = 2
    """Seeds of the sweep: 100, 101 and so on, never judged."""
    ruler: bool = True
    """Also train the baseline on 1.25 x the tokens, to show that the setting could have seen a difference."""
    quarter: bool = True
    """Also train every arm on a quarter of the tokens, with a full schedule of its own."""
    metric: Literal["loss", "tokens_to_50"] = "loss"
    """The one primary metric: held-out loss at the last step, or tokens until half of the answers are right."""
    margin: float | None = None
    """Smallest difference that matters, in the metric's unit; None: 0.43 x the ruler's effect."""
    rates_from: str = ""
    """Name of the plan whose sweep chose the learning rates, where another one did."""
    rates_between: tuple[str, ...] = ()
    """Two tasks with grids: each arm's rate lies between theirs, geometrically in parameters x tokens."""
    evals: tuple[str, ...] = ()
    """Tasks of `diffattn eval`, with their defaults, that every run of the full budget is put to, beside the loss."""
    evals_limit: int = 32
    """At most so many items of each; a seed draws its own, the same for all arms."""
    recorded_sd: float | None = None
    """Standard deviation of a paired difference seen before in this setting, for power beforehand."""
    recorded_sd_source: str = ""
    """Where recorded_sd comes from."""

    def validate(self) -> None:
        """Raise ValueError where this task cannot be a fair comparison as it stands."""
        names = [named.name for named in (*self.arms, *self.contrasts)]
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9_.]+", name) or names.count(name) > 1:
                raise ValueError(f"arm {name!r}: names are letters, digits, _ and ., each used once in a task")
        for arm in self.arms:
            arm.validate()
        validate_base(self)
        self._validate_evals()
        for contrast in self.contrasts:
            if len({self.arm(name).name for name in contrast.arms}) < 4:
                raise ValueError(f"contrast {contrast.name!r} of task {self.name!r} needs four different arms")
        baseline = self.arm(self.baseline)
        if self.model.mixer not in (baseline.mixer, ModelConfig().mixer) or self.model.mixers_by_layer:
            raise ValueError(f"the attention of task {self.name!r} is given by its arms; leave model.mixer alone")
        if self.seeds < 1 or self.first_seed < 0 or self.sweep_seeds < 1:
            raise ValueError(f"task {self.name!r} needs at least one seed, none of them negative")
        if self.first_seed <= SWEEP_SEED < self.first_seed + self.seeds:
            raise ValueError(f"task {self.name!r}: seeds from {SWEEP_SEED} on belong to the learning-rate sweep")
        for low, high in pairwise(sorted(self.learning_rates)):
            if not 1.99 < high / low < 2.01:
                raise ValueError(
                    f"learning_rates of {self.name!r} must be a grid of factor 2, got {low:g} and {high:g}"
                )

    def _validate_evals(self) -> None:
        if not self.evals:
            return
        if isinstance(self.data, SyntheticData):
            raise ValueError(
                f"evals of task {self.name!r} are {', '.join(self.evals)}: they ask models that read text, and this "
                "task's data are synthetic; leave evals empty here"
            )
        from diffattn.evals.tasks import TASKS

        for name in self.evals:
            if name not in TASKS or self.evals.count(name) > 1:
                raise ValueError(
                    f"evals of task {self.name!r} name {name!r}{nearest(name, list(TASKS))}; each of "
                    f"{', '.join(TASKS)} can be named once"
                )
        if self.evals_limit < 1:
            raise ValueError(f"evals_limit of task {self.name!r} is {self.evals_limit}; it needs at least one item")

    def arm(self, name: str) -> Arm:
        """Find an arm by its name; ValueError where there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise ValueError(f"task {self.name!r} has no arm {name!r}; its arms are {', '.join(a.name for a in self.arms)}")

    @property
    def shares_base(self) -> bool:
        """Whether all arms of a seed continue one model, the baseline's, so that they keep its feed-forward."""
        return self.base_steps > 0 and self.base_of == "baseline"

    @property
    def base_rate(self) -> float:
        """Learning rate of the base."""
        return self.train.learning_rate if self.base_learning_rate is None else self.base_learning_rate

    @property
    def comparisons(self) -> int:
        """m: what is judged on the primary metric, the other arms and the contrasts."""
        return len(self.arms) - 1 + len(self.contrasts)

    def to_dict(self) -> dict[str, Any]:
        """Give the fields, ready for JSON."""
        shared = RunConfig(model=self.model, data=self.data, train=self.train).to_dict()
        parts = {"data": shared["data"], "model": shared["model"], "train": shared["train"]}
        own = {name: value for name, value in plain_fields(self).items() if LATER.get(name, ...) != value}
        if not self.evals:
            del own["evals_limit"]
        lists = {name: list(own[name]) for name in ("learning_rates", "rates_between", "evals") if name in own}
        return {
            **own,
            **lists,
            **parts,
            "arms": [arm.to_dict() for arm in self.arms],
            "contrasts": [contrast.to_dict() for contrast in self.contrasts],
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Undo `to_dict`."""
        shared = RunConfig.from_dict({part: given[part] for part in ("data", "model", "train")})
        parts = {"data": shared.data, "model": shared.model, "train": shared.train}
        arms = tuple(Arm.from_dict(arm) for arm in given["arms"])
        contrasts = tuple(Contrast.from_dict(contrast) for contrast in given["contrasts"])
        rates = {"learning_rates": tuple(given["learning_rates"])}
        lists = {name: tuple(given.get(name, ())) for name in ("rates_between", "evals")}
        return cls(**{**given, **parts, **rates, **lists, "arms": arms, "contrasts": contrasts})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that `diffattn compare` needs to know; any change after the first run makes another plan."""

    name: str
    """Name of the plan and of its folder under runs/."""
    description: str
    """One line for the list of recipes."""
    tasks: tuple[Task, ...]
    """The comparisons, judged one by one."""
    question: str = ""
    """What it asks, in one line."""
    limits: str = ""
    """What these runs cannot answer, and why: told before they start."""
    across: tuple[str, ...] = ()
    """Arms whose difference to the baseline is laid side by side over all tasks: does its sign survive them?"""

    def validate(self) -> None:
        """Raise ValueError where two tasks share a name or a task is not a fair comparison."""
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"plan {self.name!r} needs tasks with different names, got {names}")
        swept = {task.name: {arm.name for arm in task.arms} for task in self.tasks if task.learning_rates}
        for task in self.tasks:
            task.validate()
            ends = [swept.get(name, set()) for name in task.rates_between]
            if ends and (
                task.learning_rates
                or len(set(task.rates_between)) != 2
                or not all({arm.name for arm in task.arms} <= arms for arms in ends)
            ):
                raise ValueError(
                    f"task {task.name!r}: rates_between is {task.rates_between}; it needs two other tasks of the plan "
                    "that have grids and all of its arms, and no grid of its own"
                )

    def to_dict(self) -> dict[str, Any]:
        """Give the fields, ready for JSON."""
        return {**plain_fields(self), "tasks": [task.to_dict() for task in self.tasks], "across": list(self.across)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Undo `to_dict`."""
        tasks = tuple(Task.from_dict(task) for task in given["tasks"])
        return cls(**{**given, "tasks": tasks, "across": tuple(given["across"])})

    def hash(self) -> str:
        """Give the SHA-256 of everything that is fixed beforehand."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Resolved:
    """An arm with its model worked out."""

    arm: Arm
    model: ModelConfig
    mismatch_percent: float
    """Non-embedding parameters above (+) or below (-) the baseline's."""


def select(task: Task, arms: Sequence[str]) -> Task:
    """Keep the named arms of a task, the baseline, and contrasts between those; ValueError for an unknown name."""
    for name in arms:
        task.arm(name)
    kept = {*arms, task.baseline}
    return replace(
        task,
        arms=tuple(arm for arm in task.arms if arm.name in kept),
        contrasts=tuple(contrast for contrast in task.contrasts if kept.issuperset(contrast.arms)),
    )


def resolve(task: Task) -> dict[str, Resolved]:
    """Work out every arm's model: the baseline's sizes, its own attention, the feed-forward matched by parameters.

    Nothing is matched where arms continue the baseline's trained model, whose feed-forward they keep.
    """
    baseline = task.arm(task.baseline).model_from(task.model)
    target = baseline.cost().other_parameters
    resolved: dict[str, Resolved] = {}
    for arm in task.arms:
        model = arm.model_from(task.model)
        if arm.name != task.baseline and arm.ffn_width is None and arm.match == "ffn" and not task.shares_base:
            model = match(model, target)
        mismatch = 100 * (model.cost().other_parameters / target - 1)
        resolved[arm.name] = Resolved(arm, model, mismatch)
    return resolved
