"""What do few bits cost? Loss, and scores of other tasks, with rounded attention logits, weights and activations."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from diffattn.evals.base import Progress, Result
from diffattn.evals.intervals import mean
from diffattn.evals.reader import ModelReader
from diffattn.evals.rounding import OVER, By, Per, check_bits, logits_rounded, weights_rounded
from diffattn.evals.texts import Part, check_text, documents, named, passages, token_nats
from diffattn.model.decoder import Decoder

What = Literal["logits", "weights", "activations"]
ENTRIES = 2**22
"""Entries of a layer's maps at once, where a single passage does not have more; it changes no number."""


@dataclass(frozen=True)
class Setting:
    """One way to round a model."""

    what: What
    """"activations": with the weights that they meet."""
    bits: int
    per: Per | None = None
    """Logits that share a scale; weights have one for each output channel, activations one for each token."""

    def __str__(self) -> str:
        named = "weights and activations" if self.what == "activations" else self.what
        return f"{named} of {self.bits} bits" + (f" per {self.per}" if self.per else "")


@dataclass(frozen=True, kw_only=True)
class Quantise:
    """Loss with rounded attention logits (arXiv 2410.05258, figure 8), weights, and weights with activations."""

    name: ClassVar[str] = "quantise"

    what: tuple[What, ...] = ("logits", "weights", "activations")
    """What is rounded, one at a time; "activations": together with the weights."""
    bits: tuple[int, ...] = (16, 8, 6, 4)
    """Of logits, each from 2 to 16."""
    per: tuple[Per, ...] = ("head",)
    """Which logits share a scale: those of a "tensor" (all heads of a map), of a "head" or of a "row" (one query)."""
    weight_bits: tuple[int, ...] = (8, 4)
    """Of weights, and of the activations that meet them."""
    by: By = "auto"
    """Who rounds weights: "torchao" (the extra `quant`), "simulated" in floating point to the same values, or "auto":
    torchao where it can; the result says who did, torchao with its version."""
    source: str = "stdlib"
    """The documents: as in `TextData`, or "prose"; none shorter than a passage is read."""
    part: Part = "dev"
    """Their split, as training made it; "all": all documents, for a text the model was not trained on."""
    window: int = 256
    """Tokens that a passage is read by; the model's context where that is less."""
    passages: int = 64
    """Stretches of text, spread over the documents."""
    then: tuple[str, ...] = ()
    """Further tasks, with their own defaults, that each rounded model is put to."""

    def check(self) -> None:
        """Look at the options, those of further tasks too, and read the documents; ValueError: one cannot be used."""
        self._settings()
        check_text(self.source, self.part)
        for task in self._others().values():
            task.check()

    def run(self, reader: ModelReader, limit: int | None, seed: int, progress: Progress) -> Result:
        """Measure the change of the loss against the model as it is, on the same targets.

        parts: loss of the model as it is; of each setting the loss, its change and who rounded; results of further
        tasks. ValueError: options that do not exist, no document as long as a passage, logits of a layer that cannot
        be rounded.
        """
        self.check()
        settings, others = self._settings(), self._others()
        length = min(self.window, reader.context)
        wanted = self.passages if limit is None else min(self.passages, limit)
        texts = documents(self.source, self.part)
        rows, owners = passages(reader.tokenizer, texts, length + 1, max(1, wanted))
        clusters = np.repeat(owners, length).tolist()
        plain = nats(reader.model, rows)
        then = {name: {"unrounded": task.run(reader, limit, seed, progress).to_dict()} for name, task in others.items()}
        found: list[dict[str, Any]] = []
        changes: list[np.ndarray] = []
        for setting in settings:
            with applied(reader.model, setting, self.by) as (model, by):
                losses = nats(model, rows)
                identity = f"{reader.identity}, {setting}, {by}"
                # A scale that queries share would know of the padding between rows.
                size = 1 if setting.per in ("tensor", "head") else reader.batch_size
                other = ModelReader(model, reader.tokenizer, identity, size)
                for name, task in others.items():
                    then[name][str(setting)] = task.run(other, limit, seed, progress).to_dict()
            changes.append(losses - plain)
            loss, change = mean(losses.ravel(), clusters), mean(changes[-1].ravel(), clusters)
            found.append({**asdict(setting), "by": by, "loss": loss.to_dict(), "change": change.to_dict()})
            progress.tell(self.name, len(found), len(settings))
        names, unrounded = named(rows), mean(plain.ravel(), clusters)
        changed = {str(setting): x["change"]["value"] for setting, x in zip(settings, found, strict=True)}
        beside = {"loss": unrounded.value, **{f"change with {name}": change for name, change in changed.items()}}
        head = min((i for i, x in enumerate(settings) if x.what == settings[0].what), key=lambda i: settings[i].bits)
        return Result(
            task=self.name,
            metric=f"loss with {settings[head]} - loss of the model as it is, nats per token on the same targets",
            measure=mean(changes[head].ravel(), clusters),
            settings={
                "source": self.source,
                "part": self.part,
                "window": length,
                "passages": len(rows),
                "documents": len(np.unique(owners)),
                "rounded": [str(setting) for setting in settings],
                "not rounded": "embedding, output head, norms, single parameters",
                "then": list(others),
            },
            seconds=progress.seconds,
            model=reader.identity,
            parts={"beside": beside, "loss": unrounded.to_dict(), "rounded": found, "then": then},
            outcomes=dict(zip(names, changes[head].mean(axis=1).tolist(), strict=True)),
            clusters=dict(zip(names, map(str, owners), strict=True)),
            unit="tokens",
            paired_by="passages",
        )

    def _settings(self) -> list[Setting]:
        for name, known in (("what", get_args(What)), ("per", tuple(OVER)), ("by", get_args(By))):
            given = (self.by,) if name == "by" else getattr(self, name)
            if wrong := [value for value in given if value not in known]:
                raise ValueError(f"{name} names {wrong[0]!r}; there are {', '.join(known)}")
        found: list[Setting] = []
        for what in dict.fromkeys(self.what):
            for bits in dict.fromkeys(self.bits if what == "logits" else self.weight_bits):
                check_bits(bits)
                found += [Setting(what, bits, per) for per in dict.fromkeys(self.per if what == "logits" else (None,))]
        if not found:
            raise ValueError("there is nothing to round: what, bits, per or weight_bits is empty")
        return found

    def _others(self) -> dict[str, Any]:
        from diffattn.evals.tasks import TASKS  # it knows this task too

        known = [name for name in TASKS if name != self.name]
        if wrong := [name for name in self.then if name not in known]:
            raise ValueError(f"then names {wrong[0]!r}; there are {', '.join(known)}")
        return {name: TASKS[name]() for name in self.then}


@contextmanager
def applied(model: Decoder, setting: Setting, by: By) -> Iterator[tuple[Decoder, str]]:
    """Give the rounded model, which is not to be used outside, and who rounded it."""
    if setting.what != "logits":
        yield weights_rounded(model, setting.bits, setting.what == "activations", by)
        return
    assert setting.per is not None, "logits have a scale per something"
    with logits_rounded(model, setting.bits, setting.per):
        yield model, "simulated: logits are rounded as numbers"


def nats(model: Decoder, rows: np.ndarray) -> np.ndarray:
    """Give the loss in nats of each target, [N, T], of passages [N, T + 1]."""
    heads = max(block.mixer.heads for block in model.blocks())
    size = max(1, ENTRIES // (heads * (rows.shape[1] - 1) ** 2))
    found: Sequence[np.ndarray] = [
        token_nats(model, rows[first : first + size, :-1], rows[first : first + size, 1:])
        for first in range(0, len(rows), size)
    ]
    return np.concatenate(found)
