"""Ways to sample at equal entropy: what they get wrong, and how much their texts differ."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffattn.evals.confidence import fitting
from diffattn.evals.grounding import WRONG, Kind
from diffattn.evals.intervals import mean
from diffattn.evals.reader import GREEDY, ModelReader, Sampling
from diffattn.evals.records import Asked
from diffattn.evals.summaries import wrong_statements
from diffattn.model.generate import probabilities

METHODS: dict[str, Callable[[float], Sampling]] = {
    "temperature": lambda x: Sampling(temperature=x),
    "top_p": lambda x: Sampling(temperature=1.0, top_p=x),
    "min_p": lambda x: Sampling(temperature=1.0, min_p=1 - x),
}
"""Each with its parameter x in (0, 1], along which entropy grows up to that of plain sampling."""
POSITIONS = 128
"""Places whose distributions are looked at."""
HALVINGS = 25
NGRAM = 3


@torch.no_grad()
def next_logits(reader: ModelReader, pairs: Sequence[tuple[str, str]]) -> Tensor:
    """Give the logits [N, V] that every token of the texts, and the line's end, were drawn from, at most 128."""
    found: list[Tensor] = []
    for prompt, text in pairs:
        if sum(map(len, found)) >= POSITIONS:
            break
        ids, whole = reader.encode(prompt), reader.encode(prompt + fitting(reader, prompt, text))
        hidden = reader.model.hidden(torch.tensor([whole], device=reader.model.head.device))[0, len(ids) - 1 :]
        found.append((hidden @ reader.model.head.T).double())
    return torch.cat(found)[:POSITIONS]


def entropy(logits: Tensor, how: Sampling) -> float:
    """The mean entropy, nats, of what is sampled from at logits [N, V]; greedy has none."""
    if how.temperature == 0:
        return 0.0
    p = probabilities(logits, how.temperature, how.top_k, how.top_p, how.min_p)
    return float(torch.special.entr(p).sum(-1).mean())


def at_entropy(logits: Tensor, method: str, target: float) -> Sampling:
    """Find a method's parameter with which the mean entropy at logits [N, V] is nearest to the target, by halving.

    Entropy grows with each parameter, for top-p and min-p in steps, the smaller the more places there are.
    """
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(logits, METHODS[method](middle)) < target else (low, middle)
    ends = [METHODS[method](x) for x in (low, high) if x > 0]
    return min(ends, key=lambda how: abs(entropy(logits, how) - target))


def samplings(logits: Tensor, shares: Sequence[float]) -> list[tuple[str, float, Sampling]]:
    """Give greedy, and each method at each share of plain sampling's entropy: (method, share, how)."""
    plain = entropy(logits, Sampling(temperature=1.0))
    found = [("greedy", 0.0, GREEDY)]
    found += [(method, share, at_entropy(logits, method, share * plain)) for share in shares for method in METHODS]
    return found


def distinct(texts: Sequence[str]) -> float:
    """0 where all texts of a question are the same, 1 where all differ; regardless of case and spaces."""
    return (len({" ".join(text.casefold().split()) for text in texts}) - 1) / (len(texts) - 1) if texts[1:] else 0.0


def distinct_ngrams(texts: Sequence[str]) -> float | None:
    """The share of different runs of three words among all that the texts have together; None: they have none."""
    split = [text.casefold().split() for text in texts]
    runs = [tuple(some[i : i + NGRAM]) for some in split for i in range(len(some) - NGRAM + 1)]
    return len(set(runs)) / len(runs) if runs else None


Answer = Callable[[Sequence[Asked], Sampling], tuple[list[Kind], list[str]]]
"""Write answers in a way, and judge them: the kinds, and the texts."""


def compared(
    reader: ModelReader,
    asked: Sequence[Asked],
    greedy: tuple[list[Kind], list[str]],
    answer: Answer,
    shares: Sequence[float],
    seeds: int,
    summarise: Callable[[Sampling], tuple[list[list[Kind]], list[str]]] | None,
) -> list[dict[str, Any]]:
    """Sample answers, and summaries if wanted: what is wrong beside how much texts differ; a row for each way.

    Entropies are made equal on the places of the greedy answers; each way's entropy along its own texts is told as
    well. wrong: the share among answerable questions, over all seeds; over_temperature: what it is above that of
    temperature at equal entropy, question by question; where_greedy_is_grounded: errors that sampling alone makes.
    """
    sure = np.array([kind == "grounded" for kind in greedy[0]])
    logits = next_logits(reader, _pairs(asked, greedy[1]))
    able, records = (np.array([getattr(one, name) for one in asked]) for name in ("answerable", "record"))

    def share_of(values: np.ndarray, where: np.ndarray) -> dict[str, Any] | None:
        return mean(values[where], records[where].tolist()).to_dict() if where.any() else None

    rows: list[dict[str, Any]] = []
    by_temperature: dict[float, np.ndarray] = {}
    for method, level, how in samplings(logits, shares):
        each = [replace(how, seed=seed) for seed in range(seeds if how.temperature else 1)]
        drawn = [answer(asked, one) for one in each] if level else [greedy]
        wrong = np.array([[kind in WRONG for kind in kinds] for kinds, _ in drawn]).mean(axis=0)
        by_temperature |= {level: wrong} if method == "temperature" else {}
        row = {
            "method": method,
            "share_of_entropy": level,
            "sampling": asdict(how),
            "entropy": entropy(logits, how),
            "entropy_of_its_own_texts": entropy(next_logits(reader, _pairs(asked, drawn[0][1])), how),
            "wrong": share_of(wrong, able),
            "over_temperature": share_of(wrong - by_temperature[level], able) if level else None,
            "where_greedy_is_grounded": share_of(wrong, sure),
            "where_not_answerable": share_of(wrong, ~able),
            "distinct": float(np.mean([distinct(some) for some in zip(*(texts for _, texts in drawn), strict=True)])),
        }
        if summarise is not None:
            row["summaries"] = _summaries([summarise(one) for one in each])
        rows.append(row)
    return rows


def _pairs(asked: Sequence[Asked], texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(one.prompt, text) for one, text in zip(asked, texts, strict=True)]


def _summaries(drawn: Sequence[tuple[list[list[Kind]], list[str]]]) -> dict[str, Any]:
    kinds = [some for kinds, _ in drawn for some in kinds]
    records = [number for kinds, _ in drawn for number in range(len(kinds))]
    runs = [distinct_ngrams(some) for some in zip(*(texts for _, texts in drawn), strict=True)]
    found = [x for x in runs if x is not None]
    return {
        "wrong": wrong_statements(kinds, records),
        "distinct_ngrams": float(np.mean(found)) if found else None,
    }
