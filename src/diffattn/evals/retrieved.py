"""What a model retrieved: answers judged, summed up, and as a heat map over depth and length."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.evals.base import Item, Progress, ask
from diffattn.evals.facts import GIVEN, Given, given, kind
from diffattn.evals.hiding import Cell, Hidden, Place, room
from diffattn.evals.intervals import mean, share
from diffattn.evals.reader import Reader
from diffattn.evals.table import WIDEST, as_text


@dataclass(frozen=True)
class Outcome:
    """How a sample was answered; lists have an entry for each asked number."""

    hidden: Hidden
    written: list[Given]
    """In the text that the model wrote."""
    chosen: list[Given]
    """The likeliest of the options, behind the right answers to what was asked before."""
    log_losses: list[float]
    """-log of the right option's probability among the options, nats."""

    @property
    def found(self) -> bool:
        """All asked numbers are written."""
        return all(each == "right" for each in self.written)


def put(reader: Reader, name: str, hidden: Sequence[Hidden], progress: Progress) -> list[Outcome]:
    """Ask a model: once to write all answers of a sample, and once for each answer to choose.

    The right option's place goes round from sample to sample, so that who always takes the first one only guesses.
    """
    writes = [Item(one.id, one.prompt(), max_new_tokens=room(one.sample), cluster=one.id) for one in hidden]
    texts = [answer.text for answer in ask(reader, f"{name}-written", writes, progress)]
    chooses = [
        Item(f"{one.id}/{asked}", one.prompt(asked), one.choices(asked, turn), cluster=one.id)
        for turn, one in enumerate(hidden)
        for asked in range(len(one.sample.answers))
    ]
    chosen = iter(ask(reader, f"{name}-chosen", chooses, progress))
    outcomes: list[Outcome] = []
    for turn, (one, text) in enumerate(zip(hidden, texts, strict=True)):
        kinds: list[Given] = []
        losses: list[float] = []
        for asked, right in enumerate(one.sample.answers):
            answer = next(chosen)
            kinds.append(kind(answer.text.removeprefix(one.sample.gap), right, one.sample))
            losses.append(answer.log_loss(one.choices(asked, turn).index(one.sample.gap + right)))
        outcomes.append(Outcome(one, given(text, one.sample), kinds, losses))
    return outcomes


def summed(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Sum up, ready for JSON: written answers (all of a sample, and each) and choices, with what guessing gives."""
    clusters = [one.hidden.id for one in outcomes for _ in one.written]
    options = [len(one.hidden.options) for one in outcomes for _ in one.written]
    written: list[Given] = [each for one in outcomes for each in one.written]
    chosen: list[Given] = [each for one in outcomes for each in one.chosen]
    losses = [each for one in outcomes for each in one.log_losses]
    return {
        "samples": len(outcomes),
        "tokens": sum(one.hidden.tokens for one in outcomes) / len(outcomes),
        "written": {
            "all": share([one.found for one in outcomes]).to_dict(),
            "each": share([each == "right" for each in written], clusters).to_dict(),
            "guess": 0.0,
            "given": _shares(written),
        },
        "chosen": {
            "each": share([each == "right" for each in chosen], clusters).to_dict(),
            "guess": sum(1 / n for n in options) / len(options),
            "log_loss": mean(losses, clusters).to_dict(),
            "log_loss_of_guess": sum(math.log(n) for n in options) / len(options),
            "given": _shares(chosen),
        },
    }


def _shares(kinds: Sequence[Given]) -> dict[str, float]:
    counts = Counter(kinds)
    return {name: counts[name] / len(kinds) for name in GIVEN}


def by_place(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Give the heat map, ready for JSON: an entry for each cell, length and depth."""
    places: dict[Place, list[Outcome]] = {}
    for one in outcomes:
        places.setdefault(one.hidden.place, []).append(one)
    return [
        {
            "facts": place.cell.facts,
            "asked": place.cell.asked,
            "length": place.length,
            "depth": place.depth,
            "all": share([one.found for one in some]).to_dict(),
            "each": _each([one.written for one in some]),
            "chosen": _each([one.chosen for one in some]),
            "guess": sum(1 / len(one.hidden.options) for one in some) / len(some),
        }
        for place, some in sorted(places.items())
    ]


def _each(answers: Sequence[Sequence[Given]]) -> dict[str, Any]:
    clusters = [number for number, some in enumerate(answers) for _ in some]
    return share([each == "right" for some in answers for each in some], clusters).to_dict()


def unasked(asked: Iterable[Place], wanted: Sequence[Place], left_out: Sequence[Place], limit: int | None) -> str:
    """Say which of the places that a heat map could show have no question; empty: each has one.

    left_out: those that do not hold their facts; the others have none because of the limit.
    """
    asked, wanted = {*asked}, [*dict.fromkeys(wanted)]
    if not (missing := len(wanted) - len(asked)):
        return ""
    told = [f"No question at {missing} of {len(wanted)} places (facts, length, depth)"]
    for key, named in (("cell", "{}"), ("length", "{} tokens"), ("depth", "depth {} %")):
        seen = {getattr(place, key) for place in asked}
        if never := [one for one in dict.fromkeys(getattr(place, key) for place in wanted) if one not in seen]:
            told.append("none at all at " + ", ".join(named.format(one) for one in never))
    if left_out:
        told.append(f"{len({*left_out})} do not hold the facts")
    if limit is not None and missing > len({*left_out}):
        enough = -(-limit // len(wanted)) * len(wanted)
        told.append(f"--limit {enough} asks at each" + (" that does" if left_out else ""))
    return "; ".join(told) + "."


def heat_table(heat: Sequence[dict[str, Any]], width: int = WIDEST) -> str:
    """Write the heat map as text: for each cell a line for each depth, a column for each score and length, per cent."""
    tables: list[str] = []
    for cell in dict.fromkeys((entry["facts"], entry["asked"]) for entry in heat):
        here = [entry for entry in heat if (entry["facts"], entry["asked"]) == cell]
        depths, lengths = (sorted({entry[key] for entry in here}) for key in ("depth", "length"))
        at = {(entry["depth"], entry["length"]): entry for entry in here}
        columns = [(score, length) for score in ("each", "chosen") for length in lengths]
        named = {"each": "written", "chosen": "chosen"}
        rows = [[f"{Cell(*cell)}: % (of n)", *(f"{named[score]}, {length} tokens" for score, length in columns)]]
        for depth in depths:
            found = [at.get((depth, length), {}).get(score) for score, length in columns]
            rows.append([f"depth {depth} %", *(f"{100 * x['value']:.0f} ({x['n']})" if x else "-" for x in found)])
        guess = sum(entry["guess"] for entry in here) / len(here)
        rows.append(["guess", *("0" if score == "each" else f"{100 * guess:.0f}" for score, _ in columns)])
        tables.append(as_text(rows, width))
    return "\n\n".join(tables)
