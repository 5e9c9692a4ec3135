"""Hallucination in context: is what a model answers in the text it was given, and could it know where not?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from diffattn.evals.base import Item, Progress, Result, ask
from diffattn.evals.confidence import PROBABILITIES, judged, signals
from diffattn.evals.diversity import compared
from diffattn.evals.grounding import KINDS, WRONG, Kind, claim, cut, paraphrases, said
from diffattn.evals.intervals import mean, share
from diffattn.evals.judge import Judge, second_opinion
from diffattn.evals.reader import GREEDY, ModelReader, Reader, Sampling
from diffattn.evals.records import GENERATED, MOST_FACTS, UNKNOWN, Asked, from_file, prepare
from diffattn.evals.summaries import summaries, summed
from diffattn.variants.base import check_whole


@dataclass(frozen=True, kw_only=True)
class Hallucination:
    """Answers and summaries judged against their context: grounded, misread, not in it, or abstained."""

    name: ClassVar[str] = "hallucination"

    data: str = GENERATED
    """"records", generated with known facts, or a JSONL file of {"context", "question", "answers"}."""
    what: tuple[Literal["summaries", "confidence", "diversity"], ...] = ("summaries", "confidence", "diversity")
    """Beside the answers."""
    records: int = 50
    """Contexts; each generated one has three questions that it answers and one that it does not."""
    facts: int = 6
    """Of each generated record, 3 to 15; fewer where the context does not hold them."""
    distractors: int = 1
    """Other records' paragraphs in each context, as far as they fit and none answers its questions."""
    characters: int = 32
    """Every answer is cut at so many, at least 16, before a word that would be cut; so is an accepted one."""
    statements: int = 3
    """Of a summary, the first ones are judged; fewer where the context does not hold them."""
    entropies: tuple[float, ...] = (0.25, 0.5, 0.75)
    """At which to sample: shares of plain sampling's entropy."""
    drawn: int = 48
    """Questions to sample answers to, and as many records to sum up at most."""
    seeds: int = 3
    """Texts sampled for each."""
    judge: str = ""
    """Address of an OpenAI-compatible endpoint, up to and with its version, whose model judges the answers as well; its
    key, if any, is in the environment variable DIFFATTN_JUDGE_KEY."""
    judge_model: str = ""
    """Its model's name."""

    def run(self, reader: Reader, limit: int | None, seed: int, progress: Progress) -> Result:
        """Measure the share of wrong answers, misread or not in the context, to questions that it answers; greedy.

        limit: at most so many questions. parts: the kinds of answers (`grounding.Kind`) to answerable questions and to
        others; "chosen", the same where values are chosen among, log-loss beside it (generated records); "summaries",
        wrong statements among the first ones (generated records); "confidence", signals of being wrong; "diversity",
        wrong answers under sampling at equal entropy (a model, not a planted reader); "judge". ValueError: nothing
        fits, options out of range, no such data, no answer from the judge.
        """
        self.check()
        check_whole("limit", 1 if limit is None else limit, 1)
        prepared = prepare(reader, self.data, self.records, self.facts, self.distractors, self.characters, seed)
        asked = prepared.asked()[:limit]
        if not any(one.answerable for one in asked):
            raise ValueError(f"hallucination: none of {len(asked)} questions of {self.data} has an answer")
        answer = partial(self._answers, reader, progress)
        kinds, texts = answer(asked, GREEDY)
        some = summaries(reader, prepared, self.statements, limit, seed) if "summaries" in self.what else None
        parts: dict[str, Any] = _by_answerable(asked, kinds) | {
            "chosen": self._chosen(reader, progress, asked) if self.data == GENERATED else None,
            "summaries": None if some is None else summed(some.write(reader, self.name, GREEDY, progress)[0]),
            "confidence": _confidence(reader, asked, texts, kinds) if "confidence" in self.what else None,
            "diversity": None,
            "judge": None,
        }
        if "diversity" in self.what and isinstance(reader, ModelReader):
            few = None if some is None else some.first(self.drawn)
            summarise = few and (lambda how: few.write(reader, self.name, how, progress))
            first = slice(self.drawn)
            parts["diversity"] = compared(
                reader, asked[first], (kinds[first], texts[first]), answer, self.entropies, self.seeds, summarise
            )
        if self.judge:
            other = Judge(self.judge, self.judge_model)
            parts["judge"] = second_opinion(other, self.name, asked, texts, kinds, progress)
        wrong = {one.id: float(kind in WRONG) for one, kind in zip(asked, kinds, strict=True) if one.answerable}
        settings = {
            "context": reader.context,
            "records": len({one.record for one in asked}),
            "questions": len(asked),
            "facts": prepared.facts,
            "lead": prepared.lead,
            "left_out": prepared.left_out,
            "contexts_with_fewer_distractors": len(prepared.short & {one.record for one in asked}),
            "statements": some.statements if some else 0,
            "limit": limit,
            "seed": seed,
        }
        return Result(
            task=self.name,
            metric="share of wrong answers, misread or not in the context, where it holds the answer",
            measure=share(list(wrong.values()), [one.record for one in asked if one.answerable]),
            settings={**asdict(self), **settings},
            seconds=progress.seconds,
            model=reader.identity,
            parts={"beside": _beside(parts), **parts},
            outcomes=wrong,
            clusters={one.id: str(one.record) for one in asked if one.answerable},
            unit="questions",
        )

    def check(self) -> None:
        """Look at the options, and read the file of questions; ValueError: one cannot be used."""
        least = {"records": 1, "facts": 3, "distractors": 0, "characters": 16, "statements": 1, "drawn": 1, "seeds": 2}
        for name, lowest in least.items():
            check_whole(name, getattr(self, name), lowest)
        if self.facts > MOST_FACTS:
            raise ValueError(f"facts is {self.facts}; two people have {MOST_FACTS} at most, so that one is not told")
        if not all(0 < x <= 1 for x in self.entropies):
            raise ValueError(f"entropies are shares of plain sampling's, above 0 and up to 1; got {self.entropies}")
        if self.judge:
            Judge(self.judge, self.judge_model)
        if self.data != GENERATED:
            from_file(self.data, self.records, 0, self.characters)

    def _answers(
        self, reader: Reader, progress: Progress, asked: Sequence[Asked], how: Sampling
    ) -> tuple[list[Kind], list[str]]:
        """Write answers, all cut at the same length, and judge them."""
        items = [Item(one.id, one.prompt, max_new_tokens=self.characters, cluster=str(one.record)) for one in asked]
        answers = ask(reader, f"{self.name}-written", items, progress, how)
        texts = [cut(answer.text, self.characters) for answer in answers]
        return [one.judge(text) for one, text in zip(asked, texts, strict=True)], texts

    def _chosen(self, reader: Reader, progress: Progress, asked: Sequence[Asked]) -> dict[str, Any]:
        """Choose among the record's values, one that it does not tell, and unknown."""
        ways = [tuple(f" {option}\n" for option in one.question.options) for one in asked]
        items = [Item(one.id, one.prompt, some, cluster=str(one.record)) for one, some in zip(asked, ways, strict=True)]
        answers = ask(reader, f"{self.name}-chosen", items, progress)
        logs = [np.array(answer.log_probabilities) for answer in answers]
        right = [one.question.options.index((*one.question.answers, UNKNOWN)[0]) for one in asked]
        losses = [float(np.logaddexp.reduce(some) - some[at]) for some, at in zip(logs, right, strict=True)]
        clusters = [one.record for one in asked]
        return _by_answerable(asked, [one.judge(answer.text) for one, answer in zip(asked, answers, strict=True)]) | {
            "right": share(
                [int(some.argmax()) == at for some, at in zip(logs, right, strict=True)], clusters
            ).to_dict(),
            "log_loss": mean(losses, clusters).to_dict(),
            "guess": float(np.mean([1 / len(some) for some in logs])),
            "log_loss_of_guess": float(np.mean([np.log(len(some)) for some in logs])),
        }


def _by_answerable(asked: Sequence[Asked], kinds: Sequence[Kind]) -> dict[str, Any]:
    """Give the share of each kind of answer, for questions that the context answers and for others."""
    found: dict[str, Any] = {}
    for name, wanted in (("answerable", True), ("unanswerable", False)):
        here = [(one.record, k) for one, k in zip(asked, kinds, strict=True) if one.answerable == wanted]
        records = [record for record, _ in here]
        shares = {kind: share([k == kind for _, k in here], records).to_dict() for kind in KINDS} if here else {}
        wrong = {"wrong": share([k in WRONG for _, k in here], records).to_dict()} if here else {}
        found[name] = {"questions": len(here), **wrong, **shares}
    return found


def _confidence(
    reader: Reader, asked: Sequence[Asked], texts: Sequence[str], kinds: Sequence[Kind]
) -> dict[str, Any] | None:
    """Judge each signal on all answers that claim something, be it to a question without an answer; None: none does."""
    some = [i for i, kind in enumerate(kinds) if kind in (*WRONG, "grounded")]
    if not some:
        return None
    questions = [asked[i].question.text for i in some]
    told = [claim(texts[i], question) for i, question in zip(some, questions, strict=True)]
    claims = [" ".join(said(text, question)) or text for text, question in zip(told, questions, strict=True)]
    # Claims are words without regard to case: what was written is a way to say it as well.
    ways = [
        tuple(dict.fromkeys((*paraphrases(one, question), f"{texts[i]}\n")))
        for i, one, question in zip(some, claims, questions, strict=True)
    ]
    right, records = np.array([kinds[i] == "grounded" for i in some]), [asked[i].record for i in some]
    found = signals(reader, [asked[i].prompt for i in some], [texts[i] for i in some], ways, right, records)
    return {
        "answers": len(some),
        "wrong": share(~right, records).to_dict(),
        "brier_of_base_rate": float(right.mean() * (1 - right.mean())),
        "signals": {name: judged(x, right, records, name in PROBABILITIES) for name, x in found.items()},
    }


def _beside(parts: dict[str, Any]) -> dict[str, float | None]:
    """Numbers that a table shows under the share of wrong answers."""

    def value(*path: str) -> float | None:
        found: Any = parts
        for name in path:
            found = (found or {}).get(name)
        return found["value"] if isinstance(found, dict) else found

    signal = ("confidence", "signals")
    return {
        "grounded": value("answerable", "grounded"),
        "misread": value("answerable", "misread"),
        "not in the context": value("answerable", "absent"),
        "abstained": value("answerable", "abstained"),
        # Without it a model that says nothing at all would look like one that is never wrong.
        "no answer": value("answerable", "none"),
        "wrong, not answerable": value("unanswerable", "wrong"),
        "abstained, not answerable": value("unanswerable", "abstained"),
        "chosen right": value("chosen", "right"),
        "chosen right by a uniform guess": value("chosen", "guess"),
        "log-loss of choices, nats": value("chosen", "log_loss"),
        "log-loss of a uniform guess, nats": value("chosen", "log_loss_of_guess"),
        "wrong statements of summaries": value("summaries", "wrong"),
        "AUROC of answer probability": value(*signal, "answer probability", "auroc"),
        "AUROC of probe": value(*signal, "probe", "auroc"),
    }
