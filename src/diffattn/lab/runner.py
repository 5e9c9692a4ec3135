"""`diffattn compare`: runs what a plan still lacks and writes the report, refreshed after every complete seed."""

import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from diffattn.evals.results import has_result
from diffattn.lab import forecast, manifest
from diffattn.lab.confirm import confirmation
from diffattn.lab.plan import Plan, resolve, select
from diffattn.lab.pool import Pool
from diffattn.lab.progress import Progress, read_done
from diffattn.lab.runs import Run, base_runs, judged_runs
from diffattn.lab.sweep import between, sweep

__all__ = ["compare", "layout", "select"]

LARGE_MODEL = 50_000_000
"""Parameters from which a run takes all cores: several at once would need several times the memory."""
MOST_WORKERS = 8


def compare(
    plan: Plan,
    out: Path,
    *,
    workers: int | None = None,
    dry_run: bool = False,
    hours: float | None = None,
    confirm: Sequence[str] = (),
    quiet: bool = False,
    command: str = "",
) -> Path | None:
    """Train what is missing of a plan in the folder `out`, and give the path of its report.

    dry_run, hours: print what the plan costs and can see, train nothing, give None. confirm: names of at most 4 arms of
    a screen in `out`, compared again on fresh seeds as a plan of its own in the folder `<out>-confirm`.
    ValueError: an impossible plan, a folder that holds another plan, data that cannot be used. ChildProcessError: a
    process that trains keeps dying. KeyboardInterrupt: everything is saved, the same call goes on.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; --out needs a folder for the runs and the report")
    if hours is not None and not 0 < hours < float("inf"):
        raise ValueError(f"--hours is {hours:g}; it needs a positive number of hours")
    plan.validate()
    if confirm:
        plan, out = confirmation(plan, out, confirm), out.with_name(f"{out.name}-confirm")
        plan.validate()
    workers, threads, devices = layout(plan, workers)
    if dry_run or hours is not None:
        _check_data(plan)
        print(forecast.describe(plan, workers=workers, threads=threads, hours=hours))
        return None
    manifest.refuse_another(plan, out)
    # What the report needs is missed now, not after the first hour.
    write_report = importlib.import_module("diffattn.lab.report").write_report
    out.mkdir(parents=True, exist_ok=True)
    with _alone_in(out):
        comparison = Comparison(plan, out, command, quiet)
        comparison.open_data(threads)
        pool = Pool(out, workers, threads, devices)
        try:
            rates = comparison.choose_rates(pool)
            for _ in comparison.train_judged(pool, rates):
                write_report(out)
        except KeyboardInterrupt:
            print(f"stopped; what was being trained is saved in {out}, the same command goes on there", file=sys.stderr)
            raise
        finally:
            pool.close()
        report = write_report(out)
        if comparison.dead:
            raise ChildProcessError("; ".join(comparison.dead))
        return report


def _check_data(plan: Plan) -> None:
    """Refuse data that cannot be used before anything is forecast; data sets of a hub are not fetched for that."""
    from diffattn.data import TextData, open_data

    for task in plan.tasks:
        if not (isinstance(task.data, TextData) and task.data.source.startswith("hf:")):
            for context in {task.base_context or task.model.context, task.model.context}:
                open_data(task.data, context=context, batch_size=task.train.sequences, seed=0)


def layout(plan: Plan, workers: int | None = None) -> tuple[int, int, int]:
    """Decide the processes side by side, the threads of each, and the GPUs among them (0: none).

    Single-thread runs side by side beat one run on all cores (by 12 % on two) until a model is so large that memory
    decides; on GPUs there is one run each.
    """
    import torch

    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    asked = max((task.train.threads or 0 for task in plan.tasks), default=0)
    largest = max(arm.model.cost().parameters for task in plan.tasks for arm in resolve(task).values())
    if devices:
        side_by_side = workers or devices
        return side_by_side, asked or max(1, cores // side_by_side), devices
    if largest >= LARGE_MODEL:
        side_by_side = workers or 1
        return side_by_side, asked or max(1, cores // side_by_side), 0
    return workers or max(1, min(cores // (asked or 1), MOST_WORKERS)), asked or 1, 0


@dataclass
class Comparison:
    """The state of one `compare`: the plan, what is known so far, and the folder where it is written down."""

    plan: Plan
    """As it was declared and hashed."""
    out: Path
    command: str
    quiet: bool
    ready: Plan = field(init=False)
    """The plan with the data's vocabulary and the number of threads filled in: what is trained."""
    surroundings: dict[str, manifest.Surroundings] = field(default_factory=dict)
    swept: list[Run] = field(default_factory=list)
    chosen: dict[str, dict[str, float]] = field(default_factory=dict)
    """Learning rates by task and arm, the arms' own factors included."""
    dead: list[str] = field(default_factory=list)

    def open_data(self, threads: int) -> None:
        """Prepare each task's data once, before several processes want it, and take its captions and vocabulary."""
        from diffattn.data import open_data
        from diffattn.data.bigram import bigram_loss

        tasks = []
        for task in self.plan.tasks:
            data = open_data(task.data, context=task.model.context, batch_size=task.train.batch_size, seed=0)
            bigram = bigram_loss(data, "test", task.train.eval_tokens)
            self.surroundings[task.name] = manifest.Surroundings(data.describe(), bigram)
            model = replace(task.model, vocab_size=data.vocab_size)
            tasks.append(replace(task, model=model, train=replace(task.train, threads=threads)))
        self.ready = replace(self.plan, tasks=tuple(tasks))

    def choose_rates(self, pool: Pool) -> dict[str, dict[str, float]]:
        """Run the sweeps that are planned; gives the rates by task and arm, before the arms' own factors."""
        self._write_plan(judged_runs(self.ready))
        rates: dict[str, dict[str, float]] = {}
        # First those with grids: others may take rates between theirs.
        for task in sorted(self.ready.tasks, key=lambda task: not task.learning_rates):
            if task.learning_rates:
                best, runs = sweep(
                    self.ready, task, self.out, lambda runs: self._train_all(pool, runs, "sweep"), self._say
                )
                rates[task.name] = best
                self.swept += runs
            elif task.rates_between:
                named = {task.name: task for task in self.ready.tasks}
                rates[task.name] = between(task, [(named[name], rates[name]) for name in task.rates_between])
            else:
                rates[task.name] = {arm.name: task.train.learning_rate for arm in task.arms}
            self.chosen[task.name] = {
                arm.name: rates[task.name][arm.name] * arm.learning_rate_factor for arm in task.arms
            }
        return rates

    def train_judged(self, pool: Pool, rates: Mapping[str, Mapping[str, float]]) -> Iterator[int]:
        """Train and evaluate the judged runs; yields each seed when its last run is complete."""
        runs = judged_runs(self.ready, rates)
        self._write_plan(runs)
        missing = Counter(run.seed for run in runs if not self._complete(run))
        for run in self._train(pool, runs, "run"):
            missing[run.seed] -= 1
            if not missing[run.seed]:
                yield run.seed

    def _train_all(self, pool: Pool, runs: Sequence[Run], title: str) -> None:
        for _ in self._train(pool, runs, title):
            pass

    def _train(self, pool: Pool, runs: Sequence[Run], title: str) -> Iterator[Run]:
        """Train what is missing of the runs, and before them the bases that those start from."""
        bases = base_runs(self.ready, [run for run in runs if not self._complete(run)])
        shared = {task.name for task in self.ready.tasks if task.shares_base}
        for _ in self._work_off(pool, bases, "base"):
            pass
        for base in bases:
            status = read_done(self.out / base.folder).get("status")
            # Where it is one arm's own, that arm's runs of the seed fail with it, and the others go on.
            if status == "non-finite" and base.task in shared:
                raise ValueError(
                    f"{base.folder}, which all arms of seed {base.seed} start from, is {status}; give the task a lower "
                    "base_learning_rate"
                )
            if status is None:
                raise ChildProcessError("; ".join(self.dead))
        yield from self._work_off(pool, runs, title)

    def _work_off(self, pool: Pool, runs: Sequence[Run], title: str) -> Iterator[Run]:
        todo = [run for run in runs if not self._complete(run)]
        if len(todo) < len(runs):
            self._say(f"{len(runs) - len(todo)} of {len(runs)} {title}s are complete already")
        if not todo:
            return
        with Progress(self.out, todo, title, quiet=self.quiet) as progress:
            for answer in pool.work(todo):
                progress.draw(pool.active)
                if answer is None:
                    continue
                if answer.status == "error":
                    raise ValueError(answer.message)
                if answer.status == "died":
                    self.dead.append(answer.message)
                progress.finish(answer.run, answer.status)
                yield answer.run

    def _complete(self, run: Run) -> bool:
        folder = self.out / run.folder
        status = read_done(folder).get("status")
        if status != "finished" or not run.judged:
            return status is not None
        judged = all((folder / "evals" / f"{name}.json").exists() for name in ("test", *["maps"] * run.maps))
        return judged and all(has_result(folder, name, run.evals_limit, run.config.seed) for name in run.evals)

    def _write_plan(self, judged: Sequence[Run]) -> None:
        content = manifest.plan_json(
            self.plan,
            self.ready,
            command=self.command,
            surroundings=self.surroundings,
            chosen=self.chosen,
            runs=[*self.swept, *judged],
        )
        manifest.write_plan(self.out, content)

    def _say(self, line: str) -> None:
        if not self.quiet:
            print(line, file=sys.stderr)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Refuse a second comparison in the same folder while one is going on, where the system has file locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another comparison is running in {folder}; wait for it, or choose another --out"
            ) from None
        yield
