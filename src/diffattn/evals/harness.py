"""The tasks of lm-eval, the Language Model Evaluation Harness: its questions and its scores, a model of ours.

The package is imported once one of its tasks is asked for: pip install 'diffattn[eval]'.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import numpy as np

from diffattn.evals.base import Item, Progress, Result, ask
from diffattn.evals.intervals import DRAWS, Measure, Z, share
from diffattn.evals.reader import GREEDY, ModelReader, Sampling
from diffattn.evals.windows import Windowed

OUTSIDE = "lm-eval:"
"""In front of a task's name, for instance lm-eval:arc_easy."""
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What lm-eval's tasks call the longest text to write; the first that is given counts."""
LONGEST = 256
"""Tokens, where a task does not say it; lm-eval's own number."""
HEEDED = {*LENGTHS, "until", "do_sample", "temperature", "top_k", "top_p", "min_p"}
"""How a task wants its texts; anything else is named in the settings as ignored."""


class Questions:
    """Answers what lm-eval asks of its models; joined with its class LM where that is imported."""

    def __init__(self, reader: ModelReader, name: str, seed: int, progress: Progress) -> None:
        """name: of the task, for answers that are kept."""
        super().__init__()
        self.windowed, self.name, self.seed, self.progress = Windowed(reader), name, seed, progress
        self.counts = dict.fromkeys(("requests", "prompts_cut", "texts_in_windows", "answers_shortened"), 0)
        self.ignored: set[str] = set()

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Judge continuations of prompts: log-probability, nats, and whether greedy decoding writes them."""
        return self._judged("choices", [(prompt, text) for prompt, text in (request.args for request in requests)])

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Judge whole texts: log-probability, nats, each read by itself."""
        return [total for total, _ in self._judged("texts", [("", *request.args) for request in requests])]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Write texts; what lm-eval asks several times over is drawn anew each time."""
        times: Counter[int] = Counter()
        alike: dict[Sampling, list[Item]] = defaultdict(list)
        for i, request in enumerate(requests):
            prompt, wanted = request.args
            how = self._sampling(wanted, times[id(request)])
            times[id(request)] += 1
            alike[how].append(self._to_write(str(i), prompt, wanted))
        written: dict[str, str] = {}
        for how, items in alike.items():
            answers = ask(self.windowed, f"{self.name}-written", items, self.progress, how)
            written |= {answer.id: answer.text for answer in answers}
        return [written[str(i)] for i in range(len(requests))]

    def _judged(self, kind: str, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        # An empty text is certain.
        items = [Item(str(i), prompt, choices=(text,)) for i, (prompt, text) in enumerate(pairs) if text]
        context = self.windowed.context
        for prompt, new in self.windowed.reader.split([(item.prompt, item.choices[0]) for item in items]):
            self.counts["prompts_cut"] += len(new) <= context < len(prompt) + len(new) - 1
            self.counts["texts_in_windows"] += len(new) > context
        self.counts["requests"] += len(pairs)
        found = {answer.id: answer for answer in ask(self.windowed, f"{self.name}-{kind}", items, self.progress)}
        judged = [found.get(str(i)) for i in range(len(pairs))]
        return [(answer.log_probabilities[0], answer.greedy[0]) if answer else (0.0, True) for answer in judged]

    def _sampling(self, wanted: Mapping[str, Any], time: int) -> Sampling:
        self.ignored |= wanted.keys() - HEEDED
        temperature = float(wanted.get("temperature", 1.0 if wanted.get("do_sample") else 0.0))
        if wanted.get("do_sample") is False or temperature == 0:
            return GREEDY
        # 0 turns top_k off, as in transformers.
        top_k, top_p, min_p = wanted.get("top_k") or None, wanted.get("top_p"), wanted.get("min_p")
        return Sampling(temperature, top_k, top_p, min_p, seed=self.seed + 1000 * time)

    def _to_write(self, id: str, prompt: str, wanted: Mapping[str, Any]) -> Item:
        until = wanted.get("until") or ()
        stops = tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop)
        asked = int(next((wanted[name] for name in LENGTHS if wanted.get(name) is not None), LONGEST))
        # Half of the context is the prompt's at least, or a short context had no room for it.
        length = min(asked, self.windowed.context // 2)
        self.counts["requests"] += 1
        self.counts["answers_shortened"] += length < asked
        self.counts["prompts_cut"] += self.windowed.count(prompt) > self.windowed.context - length
        return Item(id, prompt, max_new_tokens=length, stops=stops)


@dataclass(frozen=True, kw_only=True)
class Harness:
    """A task of lm-eval, or a group of its tasks that has a score."""

    name: ClassVar[str] = "harness"

    task: str
    """As lm-eval calls it, for instance arc_easy."""
    shots: int | None = None
    """Solved examples before each question; None: the task's own number."""
    include: tuple[Path, ...] = ()
    """Folders with tasks of one's own, YAML as lm-eval reads it."""

    @classmethod
    def named(cls, name: str, include: tuple[Path, ...] = ()) -> "Harness":
        """Read a name as the command line has it: lm-eval:arc_easy, or lm-eval:arc_easy@5 with five examples."""
        task, at, shots = name.removeprefix(OUTSIDE).partition("@")
        if not task or (at and not shots.isdecimal()):
            raise ValueError(f"{name!r} is no task of lm-eval; expected {OUTSIDE}NAME or {OUTSIDE}NAME@SHOTS")
        return cls(task=task, shots=int(shots) if at else None, include=include)

    def check(self) -> None:
        """Let lm-eval load the task with its data; ValueError: it cannot, or not with so many examples."""
        for task in self._load()["tasks"].values():
            self._prepare(task, 0)

    def run(self, reader: ModelReader, limit: int | None, seed: int, progress: Progress) -> Result:
        """Let lm-eval ask and judge; its first metric, under its first filter, is the result, the others are beside it.

        Of a share of right answers the interval is `intervals.share`'s; of any other metric it is the normal one of
        lm-eval's standard error, where lm-eval gives one. parts: every metric and standard error of every task. limit:
        at most so many questions of each task. The seed draws these, the examples and sampled texts. ValueError: an
        unknown task, one that cannot be loaded, a group without a score.
        """
        from lm_eval.api.model import LM
        from lm_eval.evaluator import evaluate

        class Model(Questions, LM):
            """Ours, as lm-eval knows it."""

        # Some tasks draw from the generators that all of Python shares.
        random.seed(seed)
        np.random.seed(seed)
        loaded = self._load()
        for task in loaded["tasks"].values():
            self._prepare(task, seed)
        drawn = None
        if limit is not None:
            sizes = {name: len(task.eval_docs) for name, task in loaded["tasks"].items()}
            draw = random.Random(seed)
            drawn = {name: sorted(draw.sample(range(n), max(1, min(n, limit)))) for name, n in sizes.items()}
        model = Model(reader, f"harness-{self.task}", seed, progress)
        found = evaluate(model, loaded, samples=drawn, bootstrap_iters=DRAWS)
        assert found is not None, "there is one process"
        return self._result(found, model, seed)

    def _load(self) -> dict[str, Any]:
        from lm_eval.tasks import TaskManager

        for folder in self.include:
            if not folder.is_dir():
                raise ValueError(f"{folder} is no folder; --harness.include names one with tasks of lm-eval as YAML")
        # Reading the list of all of lm-eval's own takes seconds.
        index = TaskManager(include_path=list(self.include), include_defaults=False)
        if self.task not in index.all_subtasks:
            index = TaskManager(include_path=list(self.include))
        if self.task not in index.all_tasks:
            raise ValueError(f"lm-eval has no task {self.task!r}; `lm-eval ls tasks` lists them")
        try:
            loaded: dict[str, Any] = dict(index.load(self.task))
        # Loading runs the code of datasets, of the hub's client and of the task, each with errors of its own.
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise ValueError(
                f"lm-eval's {self.task} cannot be loaded ({type(error).__name__}: {said}); its data have to be in the "
                "cache of `datasets` or within reach, and the packages that it needs installed"
            ) from error
        groups = (name for name, group in loaded["groups"].items() if group.has_aggregation)
        if self.task not in (*loaded["tasks"], *groups):
            raise ValueError(f"lm-eval's {self.task} has no score of its own; ask for {', '.join(loaded['tasks'])}")
        return loaded

    def _prepare(self, task: Any, seed: int) -> None:
        given = task.get_config("num_fewshot")
        if self.shots and given == 0 and task.task_name == self.task:
            raise ValueError(f"lm-eval asks {self.task} without examples; leave out @{self.shots}")
        # As lm-eval does it: 0 in a task's file stands.
        task.set_config("num_fewshot", (given or 0) if self.shots is None or given == 0 else self.shots)
        task.set_fewshot_seed(seed)

    def _result(self, found: Mapping[str, Any], model: Questions, seed: int) -> Result:
        from lm_eval import __version__

        scores = {name: _numbers(metrics) for name, metrics in found["results"].items()}
        mine = scores[self.task]
        better = found["higher_is_better"].get(self.task, {})
        first = next((key for metric in better for key in mine if key.split(",")[0] == metric), next(iter(mine)))
        metric, _, chosen = first.partition(",")
        outcomes = {
            f"{sample['doc_id']}, {sample['prompt_hash'][:16]}": sample[metric]
            for sample in found["samples"].get(self.task, ())
            if sample["filter"] == chosen and metric in sample
        }
        right = outcomes and all(isinstance(one, int | float) and one in (0, 1) for one in outcomes.values())
        n = sum(found["n-samples"][name]["effective"] for name in found["samples"])
        beside = {_plain(key): number["value"] for key, number in mine.items() if key != first}
        return Result(
            task=f"{OUTSIDE}{self.task}",
            metric=_plain(first) + (", lower is better" if better.get(metric) is False else ""),
            measure=share(list(outcomes.values())) if right else _normal(mine[first], n),
            settings={
                "task": self.task,
                "version": found["versions"].get(self.task),
                "lm_eval": __version__,
                "shots": found["n-shot"].get(self.task),
                "items": n,
                "context": model.windowed.context,
                "seed": seed,
                **model.counts,
                "options_ignored": sorted(model.ignored),
            },
            seconds=model.progress.seconds,
            model=model.windowed.identity,
            parts={
                "beside": beside,
                "scores": {task: {_plain(key): of for key, of in numbers.items()} for task, numbers in scores.items()},
                "shots": found["n-shot"],
            },
            outcomes={item: float(one) for item, one in outcomes.items()} if right else {},
        )


class Number(TypedDict):
    """A metric of lm-eval, with its standard error where there is one."""

    value: float
    stderr: float | None


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Number]:
    """Metrics by lm-eval's key, "metric,filter"."""
    found: dict[str, Number] = {}
    for key, value in metrics.items():
        metric, comma, chosen = key.partition(",")
        if comma and not metric.endswith("_stderr") and isinstance(value, int | float | np.number):
            error = metrics.get(f"{metric}_stderr,{chosen}")
            known = isinstance(error, int | float | np.number)
            found[key] = {"value": float(value), "stderr": float(error) if known else None}
    return found


def _plain(key: str) -> str:
    return key.removesuffix(",none").replace(",", ", ")


def _normal(number: Number, n: int) -> Measure:
    value, error = number["value"], number["stderr"]
    if error is None:
        return Measure(value, -math.inf, math.inf, n, "none: lm-eval gives no standard error of this metric")
    return Measure(value, value - Z * error, value + Z * error, n, "normal, from lm-eval's standard error")
