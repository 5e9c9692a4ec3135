"""What a plan costs and what it can see, told before anything is spent (`--dry-run`, `--hours`)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from diffattn import stats
from diffattn.data import SyntheticData, TextData
from diffattn.lab.budget import measure_speed, run_flops
from diffattn.lab.effects import detectable_in_screen
from diffattn.lab.manifest import UNITS, base_words
from diffattn.lab.plan import Plan, Task, resolve
from diffattn.lab.progress import duration
from diffattn.lab.rules import FEWEST_SEEDS
from diffattn.lab.runs import base_runs, judged_runs, sweep_runs
from diffattn.train.config import RunConfig

RUN_SECONDS = 1.0
"""What a run takes besides its FLOPs: opening data, measuring the machine, saving, attention maps."""
SEEDS = (3, 5, 10)
"""A screen, the first look and the last one."""


def describe(plan: Plan, *, workers: int, threads: int, hours: float | None = None) -> str:
    """Tell arms, costs, runs, time and the visible difference of a plan; with hours, what fits into them.

    The time rests on a second of real steps per task on this machine, large models on a guess that is marked as one; it
    holds where nothing else runs.
    """
    plan = replace(plan, tasks=tuple(_with_vocabulary(task) for task in plan.tasks))
    lines = [f"{plan.name}: {plan.description}"]
    lines += [f"asks      {plan.question}"] * bool(plan.question) + [f"limits    {plan.limits}"] * bool(plan.limits)
    lines.append(f"{workers} run(s) side by side, {threads} thread(s) each; nothing is trained now")
    speeds: dict[str, float] = {}
    for task in plan.tasks:
        speeds[task.name], how = measure_speed(_baseline_run(task), threads)
        lines += ["", *_task(plan, task), f"  speed     {speeds[task.name] / 1e9:,.0f} GFLOP/s a run, {how}"]
        lines += [f"  {line}" for line in _visible(task, task.seeds)]
    total = plan_seconds(plan, speeds, workers)
    lines += ["", f"in all: {_count(plan)} runs, {_flops(plan):.3g} FLOPs, about {duration(total)} on this machine"]
    lines[-1] += " with nothing else running"
    if any(task.learning_rates for task in plan.tasks):
        lines.append("  (with the sweeps as they are declared; a best rate at the edge of its grid adds runs)")
    if hours is not None:
        lines += ["", *_fitting(plan, speeds, workers, hours)]
    return "\n".join(lines)


def plan_seconds(plan: Plan, speeds: dict[str, float], workers: int) -> float:
    """Seconds that a plan takes with so many processes, at FLOP/s by task."""
    return sum(work / speeds[task] + RUN_SECONDS for task, work in _work(plan)) / workers


def seeds_that_fit(plan: Plan, speeds: dict[str, float], workers: int, hours: float) -> int:
    """How many seeds of every task fit into so many hours, sweeps included; 0 where not even one does."""
    per_seed = plan_seconds(_with_seeds(plan, 1), speeds, workers)
    one_more = plan_seconds(_with_seeds(plan, 2), speeds, workers) - per_seed
    return max(0, int((3600 * hours - (per_seed - one_more)) / one_more))


def look_alpha(seeds: int) -> float:
    """Share of false alarms that a look at so many seeds may spend: 0.02 at 5, 0.03 at 10, 0.05 for a screen."""
    return 0.05 if seeds < FEWEST_SEEDS else 0.02 if seeds < 10 else 0.03


def visible_difference(task: Task, seeds: int, runs: int = 2) -> float | None:
    """True difference that so many seeds see with 80 % power, from the recorded sd; None where none is recorded.

    runs: behind each difference; 4 for a contrast, whose variance is twice as large. A screen pools the variance over
    its arms, whose own sd is that of a paired difference divided by sqrt 2.
    """
    if task.recorded_sd is None or seeds < 2:
        return None
    m = max(1, task.comparisons)
    if seeds < FEWEST_SEEDS:
        return detectable_in_screen((task.recorded_sd / 2**0.5, len(task.arms) * (seeds - 1)), seeds, m, runs)
    return stats.detectable_difference(task.recorded_sd * (runs / 2) ** 0.5, seeds, look_alpha(seeds), m)


def _task(plan: Plan, task: Task) -> Iterator[str]:
    model, train = task.model, task.train
    tokens = train.steps * train.sequences * model.context
    yield f"task {task.name}: {_data(task.data)}; primary metric {task.metric} ({UNITS[task.metric]})"
    yield (
        f"  recipe    width {model.width}, {model.layers} layers, context {model.context}; {train.steps} steps, "
        f"{tokens:,} tokens; token shift {'on' if model.token_shift else 'off'}"
    )
    judged = judged_runs(replace(plan, tasks=(task,)))
    runs = Counter(run.budget for run in [*base_runs(plan, judged), *judged])
    sweep = len(sweep_runs(plan, task, task.learning_rates))
    listed = [f"{count} {budget}" for budget, count in runs.items()] + [f"{sweep} or more of the sweep"] * bool(sweep)
    yield f"  runs      {', '.join(listed)} ({task.seeds} seeds from {task.first_seed})"
    yield "  arm               ffn  other parameters  mismatch    MFLOPs/token  executed  cache bytes/token"
    for name, arm in resolve(task).items():
        cost = arm.model.cost()
        yield (
            f"  {name:<16}{arm.model.ffn_width:>5}{cost.other_parameters:>18,}{arm.mismatch_percent:>+9.2f} %"
            f"{cost.flops_algebra / 1e6:>16.2f}{cost.flops_executed / 1e6:>10.2f}{cost.cache_bytes:>19,}"
        )
    if task.evals:
        yield (
            f"  evals     {', '.join(task.evals)}: every run of the full budget, at most {task.evals_limit} items of "
            "each; their time comes on top and is not forecast"
        )
    if task.base_steps:
        yield f"  base      {base_words(task)}"
    for contrast in task.contrasts:
        (a, b), (c, d) = contrast.first, contrast.second
        yield f"  contrast  {contrast.lead}, {' against '.join(contrast.under)}: ({a} - {b}) - ({c} - {d})"


def _with_vocabulary(task: Task) -> Task:
    """The task as it will be once its data is open, as far as that is known: a trained vocabulary has a given size."""
    if not isinstance(task.data, TextData) or task.data.tokenizer != "bpe":
        return task
    return replace(task, model=replace(task.model, vocab_size=task.data.vocab_size))


def _data(data: TextData | SyntheticData) -> str:
    """The fields that apply: the vocabulary's size where one is trained, the name of a column where it was chosen."""
    fields = {name: value for name, value in data.to_dict().items() if value is not None}
    if isinstance(data, TextData):
        if data.tokenizer != "bpe":
            del fields["vocab_size"]
        if data.text_field == TextData.text_field:
            del fields["text_field"]
    return ", ".join(f"{name} {value}" for name, value in fields.items())


def _visible(task: Task, seeds: int) -> Iterator[str]:
    kind = "a screen, never a verdict" if seeds < 5 else "a look at 5" if seeds < 10 else "looks at 5 and at 10"
    difference = visible_difference(task, seeds)
    if difference is None:
        yield f"can see   {seeds} seeds: {kind}; no standard deviation is recorded for this setting, so no forecast"
        return
    yield (
        f"can see   {seeds} seeds: {kind}; a true difference of {difference:.3f} {UNITS[task.metric]} with 80 % power "
        f"(sd {task.recorded_sd:g}, {task.recorded_sd_source})"
    )
    if task.contrasts:
        yield f"          and a contrast of {visible_difference(task, seeds, 4):.3f} {UNITS[task.metric]}"
    if task.margin is not None:
        alpha, m = look_alpha(seeds), max(1, task.comparisons)
        needed = stats.seeds_needed(task.margin, task.recorded_sd or 0.0, alpha, m)
        yield f"          the margin of {task.margin:g} {UNITS[task.metric]} would need {needed} seeds"


def _fitting(plan: Plan, speeds: dict[str, float], workers: int, hours: float) -> Iterator[str]:
    fit = seeds_that_fit(plan, speeds, workers, hours)
    yield f"{hours:g} h: {fit} seed(s) fit"
    for seeds in [n for n in SEEDS if n < fit] + [fit] * (fit > 0):
        cost = duration(plan_seconds(_with_seeds(plan, seeds), speeds, workers))
        seen = [(task, visible_difference(task, seeds)) for task in plan.tasks]
        words = [f"{task.name} sees {d:.3f} {UNITS[task.metric]}" for task, d in seen if d is not None]
        yield f"  {seeds:>3} seeds, about {cost}: {'; '.join(words) or 'no standard deviation is recorded'}"
    usable = max((n for n in SEEDS if n <= fit), default=0)
    if usable:
        yield f"  declared looks are at 5 and 10 seeds, so choose --seeds {usable}"
    else:
        yield "  fewer than the 3 seeds of a screen: choose fewer arms (--arms), fewer steps, or a smaller recipe"


def _work(plan: Plan) -> Iterator[tuple[str, float]]:
    runs = judged_runs(plan)
    for task in plan.tasks:
        runs += sweep_runs(plan, task, task.learning_rates)
    for run in [*base_runs(plan, runs), *runs]:
        yield run.task, run_flops(run.config)


def _count(plan: Plan) -> int:
    return sum(1 for _ in _work(plan))


def _flops(plan: Plan) -> float:
    return sum(work for _, work in _work(plan))


def _with_seeds(plan: Plan, seeds: int) -> Plan:
    return replace(plan, tasks=tuple(replace(task, seeds=seeds) for task in plan.tasks))


def _baseline_run(task: Task) -> RunConfig:
    return RunConfig(model=resolve(task)[task.baseline].model, data=task.data, train=task.train)
