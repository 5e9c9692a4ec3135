"""Does a less noisy map trade generality? Loss on other text, under character noise, and around a short fine-tuning."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from diffattn.evals.base import Progress, Result
from diffattn.evals.intervals import difference
from diffattn.evals.noise import check_share, corrupted, same_tokens
from diffattn.evals.pieces import Judged, Piece, chosen, cut, encoded, judge
from diffattn.evals.reader import ModelReader
from diffattn.evals.texts import Part, check_text, documents, named
from diffattn.evals.tuning import Tuning, tuned


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Loss on another corpus, under character noise, and before and after a short fine-tuning to that corpus."""

    name: ClassVar[str] = "shift"

    home: str = "stdlib"
    """What the model was trained on: as in `TextData`, or "prose", the standard library's own prose."""
    away: tuple[str, ...] = ("prose",)
    """Other texts; the first is what the model is fine-tuned to."""
    split: Literal["dev", "test"] = "dev"
    """The held-out documents that are judged; fine-tuning reads the training split."""
    noise: float = 0.05
    """Share of the printable ASCII characters that others take the place of."""
    pieces: int = 128
    """Pieces of each text that are judged, each of about the model's context."""
    tuning: Tuning = field(default_factory=Tuning)
    """The fine-tuning; with 0 steps it is left out."""

    def check(self) -> None:
        """Look at the options, and read the texts; ValueError: one cannot be used."""
        if not self.away or self.home in self.away:
            raise ValueError(f"away is {list(self.away)}; it needs at least one text other than home, {self.home}")
        check_share(self.noise)
        self.tuning.check()
        for text in (self.home, *self.away):
            check_text(text, self.split)
        if self.tuning.steps:
            check_text(self.away[0], "train")

    def run(self, reader: ModelReader, limit: int | None, seed: int, progress: Progress) -> Result:
        """Measure the gap: bits per byte on the first text away from home - on held-out text of home.

        parts: loss and bits per byte of every text; noise: what it adds to the loss of the tokens that it left alone,
        and the loss of all tokens of noisy text; tuning: what was learned of the new text and forgotten of the old, on
        the same tokens. One text may be easier than another for every model: what tells is how the gaps of two models
        differ. The seed draws the noise and the order of fine-tuning. ValueError: nothing away from home, an empty
        source, noise outside 0 to 1, a tokenizer that changes text.
        """
        self.check()
        wanted = max(1, self.pieces if limit is None else min(self.pieces, limit))
        names = [self.home, *self.away]
        texts = {name: chosen(self._cut(reader, name, self.split), wanted, name) for name in names}
        steps = len(names) + 1 + (self.tuning.steps > 0)
        before: dict[str, Judged] = {}
        for done, name in enumerate(names, 1):
            before[name] = judge(reader.model, reader.tokenizer, texts[name])
            progress.tell(self.name, done, steps)
        noise = noise_of(reader, texts[self.home], self.noise, seed)
        progress.tell(self.name, len(names) + 1, steps)
        parts: dict[str, Any] = {"texts": {name: found.to_dict() for name, found in before.items()}, "noise": noise}
        if self.tuning.steps:
            parts["tuning"] = self._tuning(reader, texts, before, seed)
            progress.tell(self.name, steps, steps)
        parts["beside"] = _beside(parts)
        first = self.away[0]
        scores = {name: self._scores(reader, name, texts[name], before[name]) for name in (first, self.home)}
        return Result(
            task=self.name,
            metric=f"gap, bits per byte on {first} - on {self.home}",
            measure=difference(before[first].bits_per_byte(), before[self.home].bits_per_byte()),
            settings={
                **asdict(self),
                "context": reader.context,
                "pieces": {name: len(found) for name, found in texts.items()},
                "seed": seed,
            },
            seconds=progress.seconds,
            model=reader.identity,
            parts=parts,
            outcomes=scores[first],
            against=scores[self.home],
            clusters={
                piece: f"{name} {one.document}"
                for name, some in scores.items()
                for piece, one in zip(some, texts[name], strict=True)
            },
            unit="bytes",
            paired_by="pieces",
        )

    def _scores(self, reader: ModelReader, source: str, pieces: Sequence[Piece], found: Judged) -> dict[str, float]:
        """Bits per byte by piece, named by source and tokens: another model has the same names for the same ones."""
        names = [f"{source} {name}" for name in named(encoded(reader.tokenizer, pieces))]
        return dict(zip(names, found.by_piece(len(pieces)).tolist(), strict=True))

    def _cut(self, reader: ModelReader, source: str, part: Part) -> Iterator[list[Piece]]:
        return cut(reader.tokenizer, documents(source, part), reader.context)

    def _tuning(
        self, reader: ModelReader, texts: dict[str, list[Piece]], before: dict[str, Judged], seed: int
    ) -> dict[str, Any]:
        away, needed = self.away[0], self.tuning.steps * self.tuning.batch_size
        read = list(islice(chain.from_iterable(self._cut(reader, away, "train")), needed))
        ids = encoded(reader.tokenizer, read)
        student = tuned(reader.model, ids, self.tuning, seed)
        if reader.model.head.dtype != torch.float32:
            # The student has learned in float32, whose rounding must not pass for something learned.
            start = tuned(reader.model, ids, replace(self.tuning, steps=0), seed)
            before = {name: judge(start, reader.tokenizer, texts[name]) for name in (self.home, away)}
        after = {name: judge(student, reader.tokenizer, texts[name]) for name in (self.home, away)}
        return {
            "text": away,
            "pieces": len(read),
            "after": {name: found.to_dict() for name, found in after.items()},
            "learned": before[away].above(after[away]).to_dict(),
            "forgotten": after[self.home].above(before[self.home]).to_dict(),
        }


def _beside(parts: dict[str, Any]) -> dict[str, float]:
    found = {f"bits per byte on {name}": text["bits_per_byte"]["value"] for name, text in parts["texts"].items()}
    found["noise adds, nats per untouched token"] = parts["noise"]["added"]["value"]
    if "tuning" in parts:
        for what in ("learned", "forgotten"):
            found[f"{what} by fine-tuning, nats per token"] = parts["tuning"][what]["value"]
    return found


def noise_of(reader: ModelReader, clean: Sequence[Piece], share: float, seed: int) -> dict[str, Any]:
    """Give the loss under noise: of all tokens, and of those that it left alone beside their loss in clean text."""
    drawn = [corrupted(piece.text, share, seed * 2**32 + number) for number, piece in enumerate(clean)]
    noisy = [Piece(text, piece.document) for (text, _), piece in zip(drawn, clean, strict=True)]
    ids = [encoded(reader.tokenizer, some) for some in (clean, noisy)]
    places: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for number, (text, changed) in enumerate(drawn):
        pair = (clean[number].text, ids[0][number]), (text, ids[1][number])
        one, other = same_tokens(reader.tokenizer, *pair, changed)
        # Scored in both: neither the first token nor beyond the context.
        kept = (np.minimum(one, other) > 0) & (np.maximum(one, other) <= reader.context)
        places[0].append(one[kept])
        places[1].append(other[kept])
    before = judge(reader.model, reader.tokenizer, clean, ids[0], places[0])
    after = judge(reader.model, reader.tokenizer, noisy, ids[1], places[1])
    return {
        "share": share,
        "replaced": sum(int(changed.sum()) for _, changed in drawn),
        "untouched_clean": before.loss().to_dict(),
        "untouched_noisy": after.loss().to_dict(),
        "added": after.above(before).to_dict(),
        "all_noisy": judge(reader.model, reader.tokenizer, noisy, ids[1]).to_dict(),
    }
