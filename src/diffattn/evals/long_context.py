"""Does a model use a longer context? The same tokens under more and more of it, within that of training and beyond."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from diffattn.evals.base import Progress, Result
from diffattn.evals.intervals import mean
from diffattn.evals.reader import ModelReader
from diffattn.evals.texts import Part, check_text, documents, named, passages, token_nats
from diffattn.model.config import ModelConfig, Scaling
from diffattn.model.decoder import Decoder
from diffattn.model.stretch import stretched

SHARES = (16, 8, 4, 2, 1)
"""The visible context, as parts of the model's own."""
AS_TRAINED: Scaling = "none"


@dataclass(frozen=True, kw_only=True)
class LongContext:
    """Loss of the same targets under 1/16 of the context up to all of it and beyond; loss up to each position."""

    name: ClassVar[str] = "long_context"

    source: str = "stdlib"
    """The documents: as in `TextData`, or "prose"; none shorter than the longest context is read."""
    part: Part = "dev"
    """Their split, as training made it; "all": all documents, whole, for a text the model was not trained on."""
    beyond: tuple[int, ...] = (2, 4)
    """How many times the model's context to read on to; empty: not beyond it."""
    scalings: tuple[Scaling, ...] = ("none", "linear", "yarn")
    """What rotary does beyond; a model with other positions is only read without."""
    passages: int = 128
    """Stretches of text, each as long as the longest context, spread over the documents."""

    def check(self) -> None:
        """Look at the options, and read the documents; ValueError: one cannot be used."""
        if any(times < 2 for times in self.beyond):
            raise ValueError(f"beyond is {list(self.beyond)}; it says how many times the context to read, 2 or more")
        check_text(self.source, self.part)

    def run(self, reader: ModelReader, limit: int | None, seed: int, progress: Progress) -> Result:
        """Measure the gain: loss of a target that sees a sixteenth of the context - loss of the same that sees it all.

        parts: for each length and scaling the loss, the gain over the shortest and the change against the training
        length, all on the same targets; the mean loss up to each position ("cumulative", arXiv 2410.05258, figure 4).
        A model that is bad with little context gains more, so read the gain beside the loss. Nothing is drawn: the
        seed changes nothing. ValueError: no document as long as the longest context; beyond not above 1.
        """
        self.check()
        model = reader.model
        within = sorted({max(1, reader.context // share) for share in SHARES})
        further = [reader.context * times for times in sorted(set(self.beyond))]
        longest = max(within + further)
        wanted = self.passages if limit is None else min(self.passages, limit)
        texts = documents(self.source, self.part)
        rows, owners = passages(reader.tokenizer, texts, longest + 1, max(1, wanted))
        scalings = usable(model.config, self.scalings)
        readings: list[tuple[int, Scaling]] = [(length, AS_TRAINED) for length in within]
        readings.extend((length, scaling) for scaling in scalings for length in further)
        targets = max(1, within[0] // 2)
        seen: dict[tuple[int, Scaling], np.ndarray] = {}
        for done, (length, scaling) in enumerate(readings, 1):
            seen[length, scaling] = same_targets(model, rows, length, targets, scaling)
            progress.tell(self.name, done, len(readings) + len(scalings))
        lengths = list(_lengths(seen, owners, reader.context))
        cumulative = [
            {"scaling": scaling, "positions": list(_up_to(model, rows, owners, within + further, scaling))}
            for scaling in (scalings if further else (AS_TRAINED,))
        ]
        progress.tell(self.name, len(readings) + len(scalings), len(readings) + len(scalings))
        names, full, short = named(rows), seen[reader.context, AS_TRAINED], seen[within[0], AS_TRAINED]
        return Result(
            task=self.name,
            metric="gain from the whole context over a sixteenth of it, nats per token on the same targets",
            measure=mean((short - full).ravel(), np.repeat(owners, targets).tolist()),
            settings={
                "source": self.source,
                "part": self.part,
                "context": reader.context,
                "lengths": within + further,
                "scalings": list(scalings),
                "passages": len(rows),
                "documents": len(np.unique(owners)),
                "targets of a passage": targets,
            },
            seconds=progress.seconds,
            model=reader.identity,
            parts={"beside": _beside(lengths, reader.context), "lengths": lengths, "cumulative": cumulative},
            outcomes=dict(zip(names, (short - full).mean(axis=1).tolist(), strict=True)),
            clusters=dict(zip(names, map(str, owners), strict=True)),
            unit="tokens",
            paired_by="passages",
        )


def usable(config: ModelConfig, scalings: Sequence[Scaling]) -> tuple[Scaling, ...]:
    """Keep the scalings that a model can be read with: with rotary all, or its own where it has one; else none.

    ValueError: one that does not exist, or nothing left.
    """
    known = get_args(Scaling)
    if wrong := [scaling for scaling in scalings if scaling not in known]:
        raise ValueError(f"scalings names {wrong[0]!r}; there are {', '.join(known)}")
    own = {"none"} if config.positions != "rope" else {"none", config.rope_scaling}
    kept = set(known) if config.positions == "rope" and config.rope_scaling == "none" else own
    if not kept.intersection(scalings):
        raise ValueError(
            f"a model with positions {config.positions!r} and rope_scaling {config.rope_scaling!r} cannot be read with "
            f"{', '.join(scalings) or 'no scaling at all'}; scalings can be {', '.join(sorted(kept))}"
        )
    return tuple(scaling for scaling in dict.fromkeys(scalings) if scaling in kept)


def same_targets(
    model: Decoder, rows: np.ndarray, length: int, targets: int, scaling: Scaling = AS_TRAINED
) -> np.ndarray:
    """Give the nats [N, targets] of the last tokens of passages [N, L + 1] when the model is given `length` tokens.

    The last target is predicted from `length` tokens, the first from length - targets + 1. Beyond its context the model
    is `stretched`.
    """
    if length > model.config.context:
        model = stretched(model, length, scaling)
    return token_nats(model, rows[:, -length - 1 : -1], rows[:, -length:], last=targets)


def _lengths(seen: dict[tuple[int, Scaling], np.ndarray], owners: np.ndarray, context: int) -> Iterator[dict[str, Any]]:
    shortest, training = min(length for length, _ in seen), seen[context, AS_TRAINED]
    for (length, scaling), nats in seen.items():
        clusters = np.repeat(owners, nats.shape[1]).tolist()
        yield {
            "length": length,
            "scaling": scaling,
            "loss": mean(nats.ravel(), clusters).to_dict(),
            "gain": mean((seen[shortest, AS_TRAINED] - nats).ravel(), clusters).to_dict(),
            "change_from_training_length": mean((nats - training).ravel(), clusters).to_dict(),
        }


def _beside(lengths: list[dict[str, Any]], context: int) -> dict[str, float]:
    """Loss with the whole context, and how much it changes beyond."""
    found = {f"loss with {context} tokens": x["loss"]["value"] for x in lengths if x["length"] == context}
    for x in lengths:
        if x["length"] > context:
            found[f"change with {x['length']}, scaling {x['scaling']}"] = x["change_from_training_length"]["value"]
    return found


def _up_to(
    model: Decoder, rows: np.ndarray, owners: np.ndarray, positions: list[int], scaling: Scaling
) -> Iterator[dict[str, Any]]:
    """Mean nats of the first p targets, each of which sees all that stands before it."""
    for position, nats in zip(positions, cumulative(model, rows, positions, scaling).T, strict=True):
        yield {"position": position, "loss": mean(nats, owners.tolist()).to_dict()}


def cumulative(model: Decoder, rows: np.ndarray, positions: Sequence[int], scaling: Scaling = AS_TRAINED) -> np.ndarray:
    """Give the mean nats [N, P] of the first p targets of passages [N, L + 1], for each p of `positions`.

    All come from one reading of the whole passage, for which the model is `stretched` where its context is shorter.
    """
    length = rows.shape[1] - 1
    if length > model.config.context:
        model = stretched(model, length, scaling)
    sums = token_nats(model, rows[:, :-1], rows[:, 1:]).cumsum(axis=1)
    return np.stack([sums[:, position - 1] / position for position in positions], axis=1)
