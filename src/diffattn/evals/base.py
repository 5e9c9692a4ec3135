"""What every task has in common: items, answers, a result, and answers that are kept while a task runs."""

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import diffattn
from diffattn.evals.intervals import Measure, difference, mcnemar, mean
from diffattn.evals.reader import GREEDY, ModelReader, Reader, Sampling

Thing = TypeVar("Thing")
EVERY = 10.0
"""Seconds between two lines about how far a task is, where stderr is no terminal."""


@dataclass(frozen=True)
class Item:
    """One thing to ask a model."""

    id: str
    """Unique within its task: answers are kept under it."""
    prompt: str
    choices: tuple[str, ...] = ()
    """Continuations that are compared by log-probability; empty: the model writes."""
    max_new_tokens: int = 0
    """Longest text to write."""
    stops: tuple[str, ...] = ("\n",)
    """A written text ends before the first of these."""
    cluster: str = ""
    """The document, sample or record that it shares with other items; empty: it stands alone."""
    about: dict[str, Any] = field(default_factory=dict)
    """What the task needs to judge the answer."""


@dataclass(frozen=True)
class Answer:
    """What a model made of an item."""

    id: str
    text: str
    """What it wrote, or the likeliest choice; of equals, the first."""
    log_probabilities: tuple[float, ...] = ()
    """Of each choice, nats: the sum over its tokens."""
    greedy: tuple[bool, ...] = ()
    """Of each choice: greedy decoding would write it."""

    def log_loss(self, right: int) -> float:
        """Give -log of a choice's probability, nats, where those of all choices are made to sum to 1."""
        largest = max(self.log_probabilities)
        whole = math.log(sum(math.exp(log - largest) for log in self.log_probabilities))
        return largest + whole - self.log_probabilities[right]


@dataclass(frozen=True)
class Result:
    """What a task found out about one model."""

    task: str
    metric: str
    """What `measure` is, with its unit, for instance "share of answers found"."""
    measure: Measure
    settings: dict[str, Any]
    """All that another run needs to give the same number."""
    seconds: float
    model: str
    """Hash of the model's config and weights."""
    parts: dict[str, Any] = field(default_factory=dict)
    """The numbers beside it, ready for JSON; those under "beside", name to number or None, stand in the table too."""
    outcomes: dict[str, float] = field(default_factory=dict)
    """Score of each item, where `measure` is their mean, by a name that holds the `digest` of what was asked, so that
    two models are paired on the same items only."""
    against: dict[str, float] = field(default_factory=dict)
    """Where `measure` is a difference of two groups of items, the scores of the group whose mean is subtracted."""
    clusters: dict[str, str] = field(default_factory=dict)
    """Document of each of these items, where several share one; empty: each stands alone."""
    unit: str = "items"
    """What `measure` counts: questions, tokens, bytes ..."""
    paired_by: str = ""
    """What has a score in `outcomes`, where that is something else: a passage of many tokens; empty: the same."""

    def to_dict(self) -> dict[str, Any]:
        """Give the fields ready for JSON."""
        return asdict(self)


def digest(prompt: str) -> str:
    """Name a prompt by its hash."""
    return hashlib.blake2b(prompt.encode(errors="replace"), digest_size=8).hexdigest()


def paired(first: Result, second: Result) -> tuple[Measure, float | None]:
    """Two models on the same items: second - first, and McNemar's p value where items, right or wrong, stand alone.

    ValueError: another task, or other items.
    """
    if not pairable(first, second):
        raise ValueError(f"{first.task} and {second.task} were not asked the same items, so they cannot be paired")
    a, b = ([result.outcomes[name] for name in first.outcomes] for result in (first, second))
    if {*a, *b} <= {0.0, 1.0} and not first.clusters:
        return mcnemar([x == 1 for x in a], [x == 1 for x in b])
    change = _change(first.outcomes, second.outcomes, first.clusters)
    return difference(change, _change(first.against, second.against, first.clusters)) if first.against else change, None


def pairable(first: Result, second: Result) -> bool:
    """Whether two results have scores of the same task's same items."""
    same = all(getattr(first, one).keys() == getattr(second, one).keys() for one in ("outcomes", "against"))
    return bool(first.outcomes) and first.task == second.task and same


def _change(first: Mapping[str, float], second: Mapping[str, float], clusters: Mapping[str, str]) -> Measure:
    return mean([second[name] - x for name, x in first.items()], [clusters.get(name, name) for name in first])


class Task(Protocol):
    """A frozen dataclass whose fields are the task's options."""

    name: ClassVar[str]

    def check(self) -> None:
        """Look at all options, and read the files that they name, without a model; ValueError: one cannot be used."""
        ...

    def run(self, reader: ModelReader, limit: int | None, seed: int, progress: "Progress") -> Result:
        """Ask the model and sum up; limit: at most so many items (documents, sequences), 1 or more; None: all."""
        ...


class Progress:
    """Tells on stderr how far a task is, and keeps its answers, so that what was stopped goes on where it ended."""

    def __init__(self, file: Path | None = None, quiet: bool = False, title: str = "") -> None:
        """file: where answers are kept, one a line; None: nowhere. quiet: say nothing. title: the model's name."""
        self.file, self.quiet, self.title = file, quiet, title
        self.bar = sys.stderr.isatty()
        self.started = self.told = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since this was made."""
        return time.perf_counter() - self.started

    def tell(self, name: str, done: int, count: int | None) -> None:
        """Show that `done` of `count` items of a task are behind: at once on a terminal, else now and then as a line.

        count: None where it is not known.
        """
        now = time.perf_counter()
        if self.quiet or not (self.bar or now - self.told >= EVERY):
            return
        self.told = now
        far = f"{done}" if count is None else f"{done}/{count}"
        line = f"{self.title}{', ' if self.title else ''}{name}: {far}, {self.seconds:.0f} s"
        start, end = ("\r", "\n" if done == count else "") if self.bar else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)

    def over(self, name: str, things: Iterable[Thing]) -> Iterator[Thing]:
        """Give things, as many as are asked for, and tell how many are behind."""
        done = 0
        try:
            for thing in things:
                yield thing
                done += 1
                self.tell(name, done, None)
        finally:
            self.tell(name, done, done)

    @cached_property
    def kept(self) -> dict[str, Answer]:
        """Answers of earlier calls, each under the digest of what was asked."""
        if self.file is None or not self.file.exists():
            return {}
        *lines, rest = self.file.read_text(encoding="utf-8", errors="replace").split("\n")
        whole = {line: answer for line in lines if (answer := _kept_answer(line))}
        if rest or len(whole) < len(lines):
            # What a killed process left without its end, or a full disk without its content, is asked again.
            self.file.write_text("".join(line + "\n" for line in whole), encoding="utf-8")
        return dict(whole.values())

    def keep(self, new: Mapping[str, Answer]) -> None:
        """Write down answers by the digest of what was asked."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps({"asked": asked, **asdict(one)}) + "\n" for asked, one in new.items())
        self.kept.update(new)


def _kept_answer(line: str) -> tuple[str, Answer] | None:
    """Read what was asked and the answer; None: the line is damaged."""
    try:
        fields = json.loads(line)
        lists = (tuple(fields[name]) for name in ("log_probabilities", "greedy"))
        return fields["asked"], Answer(fields["id"], fields["text"], *lists)
    except (ValueError, TypeError, KeyError):
        return None


def ask(
    reader: Reader,
    name: str,
    items: Sequence[Item],
    progress: Progress,
    sampling: Sampling = GREEDY,
    batch_size: int = 16,
) -> list[Answer]:
    """Put the items to a model and give its answers in their order; what an earlier run has answered is kept.

    Items of similar length go together; batch_size changes no answer. ValueError: two items of one id.
    """
    if len({item.id for item in items}) < len(items):
        raise ValueError(f"{name}: two items have the same id")
    alike = [diffattn.__version__, reader.identity, asdict(sampling)]
    asked = {item.id: digest(json.dumps([*alike, asdict(item)], sort_keys=True, default=str)) for item in items}
    answers = {id: progress.kept[key] for id, key in asked.items() if key in progress.kept}
    missing = sorted((item for item in items if item.id not in answers), key=lambda item: len(item.prompt))
    for group in _groups(missing, batch_size):
        new = _answers(reader, group, sampling)
        answers |= {answer.id: answer for answer in new}
        progress.keep({asked[answer.id]: answer for answer in new})
        progress.tell(name, len(answers), len(items))
    return [answers[item.id] for item in items]


def _groups(items: Iterable[Item], size: int) -> list[list[Item]]:
    """Neighbours of one kind, at most `size` together."""
    groups: list[list[Item]] = []
    for item in items:
        kind = (bool(item.choices), item.max_new_tokens, item.stops)
        if groups and len(groups[-1]) < size:
            last = groups[-1][-1]
            if kind == (bool(last.choices), last.max_new_tokens, last.stops):
                groups[-1].append(item)
                continue
        groups.append([item])
    return groups


def _answers(reader: Reader, items: list[Item], sampling: Sampling) -> list[Answer]:
    if not items[0].choices:
        first = items[0]
        texts = reader.write([item.prompt for item in items], first.max_new_tokens, first.stops, sampling)
        return [Answer(item.id, text) for item, text in zip(items, texts, strict=True)]
    scored = iter(reader.score([(item.prompt, choice) for item in items for choice in item.choices]))
    answers: list[Answer] = []
    for item in items:
        judged = [next(scored) for _ in item.choices]
        totals = tuple(choice.total for choice in judged)
        likeliest = item.choices[totals.index(max(totals))]
        answers.append(Answer(item.id, likeliest, totals, tuple(choice.greedy for choice in judged)))
    return answers
