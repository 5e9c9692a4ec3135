"""Pieces of text of about a context, and how well a model predicts their tokens."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from diffattn.data.base import NOT_SCORED
from diffattn.data.tokenizer import Tokenizer
from diffattn.evals.intervals import Measure, mean
from diffattn.evals.texts import spread, token_nats
from diffattn.model.decoder import Decoder


@dataclass(frozen=True)
class Piece:
    """A stretch of a document."""

    text: bytes
    document: int


@dataclass(frozen=True)
class Judged:
    """Losses of a model: an entry for each scored token."""

    nats: np.ndarray
    sizes: np.ndarray
    """Bytes of text behind each token."""
    documents: np.ndarray
    pieces: np.ndarray
    """The place of its piece among all that were judged."""

    def loss(self) -> Measure:
        """Nats per token."""
        return mean(self.nats, self.documents.tolist())

    def bits_per_byte(self) -> Measure:
        """Bits / bytes, independent of the vocabulary: the mean over bytes, each with its share of its token."""
        sizes = self.sizes.clip(min=1)
        return mean((self.nats / sizes / math.log(2)).repeat(sizes), self.documents.repeat(sizes).tolist())

    def by_piece(self, count: int) -> np.ndarray:
        """Give each of `count` pieces its bits over the mean bytes of one, [count]: their mean is `bits_per_byte`."""
        bits = np.bincount(self.pieces, self.nats / math.log(2), minlength=count)
        return bits * count / self.sizes.clip(min=1).sum()

    def above(self, other: "Judged") -> Measure:
        """Nats per token above those of the same tokens in another reading."""
        return mean(self.nats - other.nats, self.documents.tolist())

    def to_dict(self) -> dict[str, Any]:
        """Give loss and bits per byte ready for JSON."""
        return {"loss": self.loss().to_dict(), "bits_per_byte": self.bits_per_byte().to_dict()}


def cut(tokenizer: Tokenizer, texts: Iterable[bytes], context: int) -> Iterator[list[Piece]]:
    """Cut each UTF-8 document between characters into pieces of about `context` + 1 tokens; a rest below half is left.

    Documents without a piece are left out.
    """
    for number, document in enumerate(texts):
        text = document.decode()
        tokens = len(tokenizer.encode([document])[0])
        size = max(2, len(text) * (context + 1) // max(1, tokens))
        found = [text[first : first + size] for first in range(0, len(text), size)]
        if pieces := [Piece(piece.encode(), number) for piece in found if 2 * len(piece) >= size]:
            yield pieces


def chosen(documents: Iterable[list[Piece]], wanted: int, source: str) -> list[Piece]:
    """Choose up to `wanted` pieces from as many documents as possible; ValueError, with the source, for none."""
    some = list(islice(documents, 4 * wanted))
    if not some:
        raise ValueError(
            f"{source}: no held-out document fills half of the model's context; give longer texts, or more"
        )
    return [some[document][place] for document, place in spread([len(pieces) for pieces in some], wanted)]


def encoded(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> list[np.ndarray]:
    """Give the ids of each piece."""
    return tokenizer.encode([piece.text for piece in pieces])


def as_rows(
    ids: Sequence[np.ndarray], context: int, scored: Sequence[np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Give tokens and targets, both [N, T], of texts cut at T = context; what is not scored is -100.

    scored: the places of each text's tokens that are scored; None: all but the first, which nothing stands before.
    """
    width = min(context, max(len(one) for one in ids) - 1)
    tokens = np.zeros((len(ids), width), dtype=np.int64)
    targets = np.full((len(ids), width), NOT_SCORED, dtype=np.int64)
    for row, one in enumerate(ids):
        places = np.arange(len(one)) if scored is None else scored[row]
        places = places[(places > 0) & (places <= width)]
        tokens[row, : len(one) - 1] = one[: min(width, len(one) - 1)]
        targets[row, places - 1] = one[places]
    return tokens, targets


def judge(
    model: Decoder,
    tokenizer: Tokenizer,
    pieces: Sequence[Piece],
    ids: Sequence[np.ndarray] | None = None,
    scored: Sequence[np.ndarray] | None = None,
) -> Judged:
    """Score the tokens of pieces within the model's context; ids: theirs, where they are known; scored as `as_rows`."""
    tokens, targets = as_rows(encoded(tokenizer, pieces) if ids is None else ids, model.config.context, scored)
    kept = targets != NOT_SCORED
    sizes = np.array([len(piece) for piece in tokenizer.pieces])
    owners = np.array([piece.document for piece in pieces])
    nats, rows = token_nats(model, tokens, targets)[kept], np.nonzero(kept)[0]
    return Judged(nats, sizes[targets[kept]], owners[rows], rows)
