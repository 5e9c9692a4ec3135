"""What all needle tasks have in common: facts are hidden, asked for, and what was found is summed up."""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any, ClassVar, Literal

from diffattn.evals.answering import DENOMINATORS, attention_to, prompt_of
from diffattn.evals.base import Progress, Result, digest
from diffattn.evals.facts import Sample
from diffattn.evals.filler import NOISE, filler
from diffattn.evals.hiding import Cell, Hidden, Place, all_hidden, fitting
from diffattn.evals.intervals import share
from diffattn.evals.power import told
from diffattn.evals.reader import ModelReader, Reader
from diffattn.evals.retrieved import Outcome, by_place, put, summed, unasked
from diffattn.evals.texts import check_text
from diffattn.model.stretch import stretched
from diffattn.variants.base import check_whole

SHARES = 32
"""Lengths up to so much are multiples of the model's context, larger ones are tokens."""


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Facts hidden in filler and asked for at the end; each task says which facts."""

    name: ClassVar[str] = ""

    lengths: tuple[float, ...] = (0.5, 1.0)
    """How long prompt and answer are at most: up to 32 as multiples of the model's context, above that in tokens."""
    scaling: Literal["none", "linear", "yarn"] = "none"
    """What rotary does at lengths beyond the model's context."""
    depths: tuple[int, ...] = (0, 25, 50, 75, 100)
    """Where the answers stand: per cent of the filler before them; at 0 they come first of all, at 100 last."""
    samples: int = 10
    """Samples at each length and depth."""
    digits: int = 4
    """Of each number."""
    source: str = "stdlib"
    """The filler: "stdlib", "prose", "noise" (random words), a file, a folder, a glob, JSONL, parquet or
    hf:OWNER/NAME."""
    attention: int = 8
    """Samples of each cell and length whose attention is looked at, up to 2048 tokens; 0: none."""

    filled: ClassVar[bool] = True
    """Facts stand in filler, not by themselves."""

    def cells(self) -> Sequence[Cell]:
        """Give how many facts are told and asked for; each cell is measured by itself."""
        raise NotImplementedError

    def each(self) -> int:
        """Give how many samples are drawn at each length and depth."""
        return self.samples

    def draw(self, draw: random.Random, cell: Cell, depth: float) -> Sample:
        """Draw the facts of a sample whose answers stand at a depth, 0 to 1."""
        raise NotImplementedError

    def run(self, reader: Reader, limit: int | None, seed: int, progress: Progress) -> Result:
        """Measure the share of samples whose asked numbers the model writes, all of them: see `facts.given`.

        limit: at most so many samples, spread over cells, lengths and depths. parts: cells: all answers and each,
        written, and chosen among the numbers of the context (log-loss beside accuracy), with what guessing gives; heat:
        the same by length and depth; unasked: where it has no question, in words; told: what so many samples can tell;
        attention: at the answering positions. A cell that the longest length does not hold is told fewer facts, and
        what a shorter length does not hold is left out: see settings. ValueError: nothing fits, settings out of range,
        no such source.
        """
        self.check()
        lengths = sorted({_tokens(length, reader.context) for length in self.lengths})
        fits = fitting(reader, self.draw, self.cells(), lengths[-1])
        cells = list(dict.fromkeys(fits.values()))
        places = [Place(cell, length, depth) for cell in cells for length in lengths for depth in self.depths]
        samples = self.each() if limit is None else min(self.each(), -(-limit // len(places)))
        text = filler(self.source, lengths[-1]) if self.filled else None
        hidden, left_out = all_hidden(reader, self.draw, places, samples, seed, text)
        if not hidden:
            raise ValueError(f"{self.name}: no place holds its facts, or their names and numbers stand in the filler")
        outcomes, attention = self._ask(reader, _spread(hidden, limit), progress)
        settings = {
            "context": reader.context,
            "tokens": lengths,
            "cells": {str(wanted): str(fits[wanted]) if wanted in fits else "does not fit" for wanted in self.cells()},
            "left_out": [str(place) for place in left_out],
            "limit": limit,
            "seed": seed,
        }
        return Result(
            task=self.name,
            metric="share of samples with all asked numbers written",
            measure=share([one.found for one in outcomes]),
            settings={**asdict(self), **settings},
            seconds=progress.seconds,
            model=reader.identity,
            parts={
                "beside": _beside(summed(outcomes)),
                "cells": {str(cell): summed(some) for cell in cells if (some := _of(outcomes, cell))},
                "heat": by_place(outcomes),
                "unasked": unasked((one.hidden.place for one in outcomes), places, left_out, limit),
                "told": {"place": told(samples), "all": told(len(outcomes))},
                "attention": {"denominators": DENOMINATORS, "at": attention},
            },
            outcomes={f"{one.hidden.id}-{digest(one.hidden.prompt())}": float(one.found) for one in outcomes},
            unit="samples",
        )

    def check(self) -> None:
        """Look at the options, draw a sample of each cell, and read the filler; ValueError: one cannot be used."""
        check_whole("samples", self.samples, 1)
        check_whole("digits", self.digits, 1)
        check_whole("attention", self.attention, 0)
        if not self.depths or not all(0 <= depth <= 100 for depth in self.depths):
            raise ValueError(f"depths are per cent, 0 to 100, and at least one is needed; got {list(self.depths)}")
        if not self.lengths or not all(0 < length < math.inf for length in self.lengths):
            raise ValueError(f"lengths are finite and above 0, and at least one is needed; got {list(self.lengths)}")
        for cell in self.cells():
            self.draw(random.Random(0), cell, 0.5)
        if self.filled and self.source != NOISE:
            check_text(self.source)

    def _ask(
        self, reader: Reader, hidden: Sequence[Hidden], progress: Progress
    ) -> tuple[list[Outcome], list[dict[str, Any]]]:
        """Ask length by length, the model stretched where it must be; and look at its attention."""
        outcomes: list[Outcome] = []
        looks: list[dict[str, Any]] = []
        for length, some in groupby(sorted(hidden, key=lambda one: one.place.length), lambda one: one.place.length):
            here, able = list(some), self._reader(reader, length)
            outcomes += put(able, self.name, here, progress)
            if not isinstance(able, ModelReader):
                continue
            for cell in dict.fromkeys(one.place.cell for one in here):
                looked = [one for one in here if one.place.cell == cell][: self.attention]
                if layers := attention_to(able, _prompts(able, looked)):
                    looks.append({"facts": cell.facts, "asked": cell.asked, "length": length, "layers": layers})
        return outcomes, looks

    def _reader(self, reader: Reader, length: int) -> Reader:
        if length <= reader.context:
            return reader
        if not isinstance(reader, ModelReader):
            raise ValueError(f"{length} tokens are beyond the context of {reader.context}")
        model = stretched(reader.model, length, self.scaling)
        identity = f"{reader.identity}-{length}-{self.scaling}"
        return ModelReader(model, reader.tokenizer, identity, reader.batch_size)


def _tokens(length: float, context: int) -> int:
    return int(length * context if length <= SHARES else length)


def _spread(hidden: Sequence[Hidden], limit: int | None) -> Sequence[Hidden]:
    """Choose at most so many, evenly over cells, lengths and depths.

    One of each part of the list, at another place each time, or all might stand at the first depth.
    """
    count = len(hidden) if limit is None else min(limit, len(hidden))
    ends = pairwise(i * len(hidden) // count for i in range(count + 1))
    return [hidden[first + i % (last - first)] for i, (first, last) in enumerate(ends)]


def _of(outcomes: Sequence[Outcome], cell: Cell) -> list[Outcome]:
    return [one for one in outcomes if one.hidden.place.cell == cell]


def _beside(all_cells: dict[str, Any]) -> dict[str, float]:
    """Numbers that a table shows under the share."""
    written, chosen = all_cells["written"], all_cells["chosen"]
    return {
        "each asked number written": written["each"]["value"],
        "each chosen among the context's": chosen["each"]["value"],
        "chosen by a guess": chosen["guess"],
        "log-loss of choices, nats": chosen["log_loss"]["value"],
        "log-loss of a guess, nats": chosen["log_loss_of_guess"],
    }


def _prompts(reader: ModelReader, hidden: Sequence[Hidden]) -> list[Any]:
    return [
        prompt_of(reader, one.prompt(asked), answer, len(one.context))
        for one in hidden
        for asked, answer in enumerate(one.sample.answers)
    ]
