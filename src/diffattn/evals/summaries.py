"""Summaries of generated records: their statements "X's field is value." are found and judged by rule."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from diffattn.evals.base import Item, Progress, ask
from diffattn.evals.grounding import KINDS, WORD, WRONG, Kind, judge_statement, statements, told
from diffattn.evals.intervals import mean, share
from diffattn.evals.reader import Reader, Sampling
from diffattn.evals.records import SUMMARY_LEADS, Prepared, question_prompt


@dataclass(frozen=True)
class Summaries:
    """What is asked to be summed up: a prompt for each context, and how many statements are judged."""

    prompts: list[str]
    contexts: list[str]
    statements: int
    """Only so many are judged, the first ones."""
    characters: int
    """Room for them, at which every summary is cut."""

    def first(self, count: int) -> "Summaries":
        """Give only the first contexts."""
        return replace(self, prompts=self.prompts[:count], contexts=self.contexts[:count])

    def write(self, reader: Reader, name: str, how: Sampling, progress: Progress) -> tuple[list[list[Kind]], list[str]]:
        """Write summaries: the kind of each of their first statements, and the texts."""
        prompts = enumerate(self.prompts)
        items = [Item(str(i), prompt, max_new_tokens=self.characters) for i, prompt in prompts]
        texts = [answer.text[: self.characters] for answer in ask(reader, f"{name}-summaries", items, progress, how)]
        facts = map(told, self.contexts)
        kinds: list[list[Kind]] = [
            [judge_statement(one, known) for one in statements(self._whole(text))[: self.statements]]
            for text, known in zip(texts, facts, strict=True)
        ]
        return kinds, texts

    def _whole(self, text: str) -> str:
        """Give a text without a last word that may go on where it was cut: its beginning is no statement of it."""
        return text if len(text) < self.characters else re.sub(rf"{WORD}$", "", text)


def summaries(reader: Reader, prepared: Prepared, most: int, limit: int | None, seed: int) -> Summaries | None:
    """Ask for the facts of one person of each record, with as many statements as fit, at most so many.

    None: not even one fits, or the records are no generated ones.
    """
    records, contexts = prepared.records[:limit], prepared.contexts[:limit]
    if prepared.facts is None:
        return None
    draw = random.Random(f"{seed}/summaries")
    questions = [f"Facts of {draw.choice(record.names)}?" for record in records]
    longest = max(len(sentence) for context in contexts for sentence in context.split(".")) + len(". ")
    for lead, count in product(SUMMARY_LEADS, range(most, 0, -1)):
        prompts = [lead + question_prompt(*pair) for pair in zip(contexts, questions, strict=True)]
        if max(map(reader.count, prompts)) + count * longest <= reader.context:
            return Summaries(prompts, contexts, count, count * longest)
    return None


def summed(kinds: Sequence[Sequence[Kind]]) -> dict[str, Any]:
    """Sum up statements, [summaries][statements], ready for JSON.

    by_place: the first, second ... statement by itself, among the summaries that have so many; there, two models are
    compared at the same number of statements.
    """
    flat = [(number, kind) for number, some in enumerate(kinds) for kind in some]
    most = max(map(len, kinds))
    return {
        "summaries": len(kinds),
        "statements": len(flat),
        "wrong": wrong_statements(kinds),
        "wrong_per_summary": mean([sum(kind in WRONG for kind in some) for some in kinds]).to_dict(),
        "kinds": {name: sum(kind == name for _, kind in flat) for name in KINDS},
        "by_place": [
            share([some[place] in WRONG for some in kinds if len(some) > place]).to_dict() for place in range(most)
        ],
    }


def wrong_statements(kinds: Sequence[Sequence[Kind]], records: Sequence[int] | None = None) -> dict[str, Any] | None:
    """Give the share of wrong statements; records: of each summary, one each where left out. None: no statement."""
    records = range(len(kinds)) if records is None else records
    flat = [(record, kind in WRONG) for record, some in zip(records, kinds, strict=True) for kind in some]
    return share([hit for _, hit in flat], [record for record, _ in flat]).to_dict() if flat else None
