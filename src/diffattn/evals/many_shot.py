"""Learning from many labelled examples in the context: accuracy by their number, and does their order matter?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import numpy as np

from diffattn.evals.base import Answer, Item, Progress, Result, ask, digest
from diffattn.evals.intervals import mcnemar, mean, share
from diffattn.evals.labelled import DOCSTRINGS, Example, labelled
from diffattn.evals.orders import by_group, spread
from diffattn.evals.reader import Reader
from diffattn.evals.shots import ARRANGED, LENGTHS, choice, curve, fitted, ordered

Judged = tuple[np.ndarray, np.ndarray]
"""Hits [n], 0 or 1, and log-losses [n] in nats."""


@dataclass(frozen=True, kw_only=True)
class ManyShot:
    """Labels of texts after 0, 1, 2, 4 ... labelled ones, as many as fit; the same under 10 orders and by class."""

    name: ClassVar[str] = "many_shot"

    data: str = DOCSTRINGS
    """"docstrings" of the standard library, by module, or a file or folder: TREC, Banking-77, CLINC-150, JSONL, CSV."""
    fine: bool = False
    """TREC's 50 fine classes in place of its 6."""
    classes: int | None = None
    """The largest ones only; None: all of them, or as many as the context can show once each."""
    characters: int | None = None
    """Longest text; None: 200, or where 4 demonstrations of that do not fit 100, 50 or 25."""
    questions: int = 100
    """Texts to label."""
    orders: int = 10
    """Random orders of the same demonstrations."""

    def check(self) -> None:
        """Look at the options, and read the labelled texts; ValueError: one cannot be used."""
        if self.questions < 1 or self.orders < 2 or (self.characters or 1) < 1:
            raise ValueError("many_shot needs at least 1 question, 2 orders and 1 character of each text")
        labelled(self.data, self.fine).cut(self.characters or LENGTHS[0], self.classes)

    def run(self, reader: Reader, limit: int | None, seed: int, progress: Progress) -> Result:
        """Measure accuracy with the most shots that fit; each question has its own demonstrations, classes in turn.

        A demonstration is `text -> label` on a line. The answer is the label that is likeliest together with the line's
        end, of equals the more frequent one; log-loss is that of the right one when the labels' probabilities sum to 1.
        parts: "shots", both by number of demonstrations; "orders", one set of demonstrations for all questions, in
        random orders (`orders.spread` says what items alone would cause, `orders.by_group` the same class by class),
        with classes in blocks, and with the block of the question's class last or first. limit: at most so many
        questions. The seed draws questions, demonstrations and orders. ValueError: not one demonstration fits, or no
        such data.
        """
        self.check()
        data = fitted(labelled(self.data, self.fine), reader, self.characters, self.classes)
        wanted = self.questions if limit is None else min(self.questions, limit)
        rng = np.random.default_rng(seed)
        questions = [data.asked[i] for i in rng.permutation(len(data.asked))[:wanted]]
        by_number = curve(reader, data, questions, seed)
        most = max(by_number)
        shots, by_order = ordered(reader, data, questions, most, self.orders, rng)
        named = {f"{n} shots": prompts for n, prompts in by_number.items()} | by_order
        judged = _ask(reader, data.labels, questions, named, progress)
        hits, losses = judged[f"{most} shots"]
        effects = _order_effects({name: judged[name] for name in by_order}, questions) if by_order else None
        chance = {"accuracy": 1 / len(data.labels), "log_loss": log(len(data.labels))}
        majority = max(sum(q.label == label for q in questions) for label in data.labels) / len(questions)
        return Result(
            task=self.name,
            metric="share of questions labelled right, with the most shots that fit",
            measure=share(hits),
            settings={
                "data": data.name,
                "fine": self.fine,
                "classes": len(data.labels),
                "characters": max(len(example.text) for example in (*data.shown, *data.asked)),
                "questions": len(questions),
                "shots": list(by_number),
                "shots_in_orders": shots,
                "orders": len(by_order.keys() - set(ARRANGED)),
                "context": reader.context,
                "seed": seed,
            },
            seconds=progress.seconds,
            model=reader.identity,
            parts={
                "beside": _beside(most, chance, majority, float(losses.mean()), effects),
                "labels": list(data.labels),
                "chance": chance,
                "majority": majority,
                "shots": [_level(n, judged[f"{n} shots"]) for n in by_number],
                "orders": effects,
            },
            outcomes={digest(prompt): float(hit) for prompt, hit in zip(by_number[most], hits, strict=True)},
            unit="questions",
        )


def _ask(
    reader: Reader,
    labels: Sequence[str],
    questions: Sequence[Example],
    prompts: Mapping[str, Sequence[str]],
    progress: Progress,
) -> dict[str, Judged]:
    """Ask every question under every name; its choices stand together, so that a prompt is read once for all."""
    choices = tuple(map(choice, labels))
    items = [Item(f"{name}, {i}", prompt, choices) for name in prompts for i, prompt in enumerate(prompts[name])]
    answers = ask(reader, ManyShot.name, items, progress)
    right = [labels.index(question.label) for question in questions]
    rows = [answers[first : first + len(right)] for first in range(0, len(answers), len(right))]
    return {name: _judged(row, right) for name, row in zip(prompts, rows, strict=True)}


def _judged(answers: Sequence[Answer], right: Sequence[int]) -> Judged:
    logs = np.array([answer.log_probabilities for answer in answers])
    losses = [answer.log_loss(label) for answer, label in zip(answers, right, strict=True)]
    return (logs.argmax(axis=1) == right).astype(float), np.array(losses)


def _level(shots: int, judged: Judged) -> dict[str, Any]:
    return {"shots": shots, "accuracy": share(judged[0]).to_dict(), "log_loss": mean(judged[1]).to_dict()}


def _order_effects(judged: Mapping[str, Judged], questions: Sequence[Example]) -> dict[str, Any]:
    drawn = [found for name, found in judged.items() if name not in ARRANGED]
    hits, losses = (np.stack([found[kind] for found in drawn], axis=1) for kind in (0, 1))
    first, last = judged["own class first"], judged["own class last"]
    difference, p = mcnemar(first[0], last[0])
    return {
        "accuracy": spread(hits).to_dict(),
        "accuracy_by_class": by_group(hits, [question.label for question in questions]),
        "log_loss": spread(losses).to_dict(),
        "arranged": {
            name: {
                "accuracy": share(judged[name][0]).to_dict(),
                "log_loss": mean(judged[name][1]).to_dict(),
                "accuracy_over_random": mean(judged[name][0] - hits.mean(axis=1)).to_dict(),
            }
            for name in ARRANGED
        },
        "last_over_first": {
            "accuracy": difference.to_dict(),
            "p": p,
            "log_loss": mean(last[1] - first[1]).to_dict(),
        },
    }


def _beside(
    shots: int, chance: dict[str, float], majority: float, loss: float, effects: dict[str, Any] | None
) -> dict[str, float | None]:
    """Numbers that a table shows under the accuracy."""
    accuracy, by_class, pair = (
        (effects or {}).get(part, {}) for part in ("accuracy", "accuracy_by_class", "last_over_first")
    )
    return {
        "shots": shots,
        "chance": chance["accuracy"],
        "majority share": majority,
        "log-loss, nats": loss,
        "log-loss of chance, nats": chance["log_loss"],
        "best order": accuracy.get("highest"),
        "worst order": accuracy.get("lowest"),
        "range of orders without effect": accuracy.get("range_without_effect"),
        "deviation by order, beyond items": accuracy.get("deviation", {}).get("value"),
        "p of order": accuracy.get("p"),
        "p of order, class by class": by_class.get("p"),
        "own class last - first": pair.get("accuracy", {}).get("value"),
    }
