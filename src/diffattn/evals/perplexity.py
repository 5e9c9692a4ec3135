"""Held-out loss and its parts, as sums and counts over tokens: how they were batched cannot change them."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffattn.data.base import NOT_SCORED, Batch, Grader
from diffattn.evals.kinds import Kind, by_kind, grades
from diffattn.model.decoder import Decoder
from diffattn.ops.loss import token_losses

PREDICTED = 2048
"""Tokens whose V logits are held at once to find the likeliest."""


@dataclass(frozen=True)
class Part:
    """A share of the scored tokens."""

    loss: float | None
    """Nats per token; None where there are none."""
    count: int


@dataclass(frozen=True)
class Heldout:
    """How well a model predicts held-out tokens."""

    loss: float
    """Nats per token: sum over all scored tokens / count."""
    bits_per_byte: float | None
    """The same text's bits / bytes, independent of the vocabulary; None where the bytes are not known."""
    count: int
    """Scored tokens."""
    accuracy: float
    """Share of scored tokens that were the likeliest."""
    by_position: list[float | None]
    """Nats per token at each position of the window; None where none is scored."""
    recall_hits: Part
    """Tokens whose pair with the token before occurred earlier in the same window and document (arXiv 2312.04927)."""
    other_tokens: Part
    """All other scored tokens."""
    documents: list[list[float]]
    """[sum of nats, count] of each document, in the order of the ids: what a cluster bootstrap draws from."""
    kinds: list[Kind] | None = None
    """Questions by kind and what was answered, where the data tell them apart."""

    def to_dict(self) -> dict[str, Any]:
        """Give the fields ready for JSON."""
        return asdict(self)


@torch.no_grad()
def evaluate(
    model: Decoder, batches: Iterable[Batch], token_bytes: Tensor | None = None, grader: Grader | None = None
) -> Heldout:
    """Score every target of the batches that is not -100.

    token_bytes [V]: bytes of text behind each id. grader: how the data's answers are told apart. Runs on the model's
    device, without gradients; sums are float64. ValueError: nothing to score.
    """
    training = model.training
    model.eval()
    columns = [_scored(model, batch, grader) for batch in batches]
    model.train(training)
    joined = {name: np.concatenate([column[name] for column in columns]) for name in (columns[0] if columns else ())}
    if not joined or not len(joined["loss"]):
        raise ValueError("there is nothing to evaluate: no batch has a token to score")
    loss, hit = joined["loss"], joined["hit"]
    total, count = float(loss.sum()), len(loss)
    sums, counts = np.bincount(joined["position"], loss), np.bincount(joined["position"])
    _, document = np.unique(joined["document"], return_inverse=True)
    by_document = np.stack((np.bincount(document, loss), np.bincount(document)), axis=1)
    return Heldout(
        loss=total / count,
        bits_per_byte=_bits_per_byte(total, joined["target"], token_bytes),
        count=count,
        accuracy=float(joined["correct"].mean()),
        by_position=[float(s) / int(n) if n else None for s, n in zip(sums, counts, strict=True)],
        recall_hits=_part(loss[hit]),
        other_tokens=_part(loss[~hit]),
        documents=[[float(nats), int(tokens)] for nats, tokens in by_document],
        kinds=None if grader is None else by_kind(grader, joined),
    )


def _scored(model: Decoder, batch: Batch, grader: Grader | None) -> dict[str, np.ndarray]:
    """Give the columns that everything is summed from, one entry per scored token."""
    device = model.head.device
    tokens, targets, documents = (part.to(device) for part in batch)
    mixed = batch.mixed
    hidden = model.hidden(tokens, None if mixed is None else documents)
    scored = targets != NOT_SCORED
    hidden, wanted = hidden[scored], targets[scored]
    likeliest = torch.cat([(part @ model.head.T).argmax(dim=-1) for part in hidden.split(PREDICTED)])
    kept = scored.cpu().numpy()
    return {
        "loss": token_losses(hidden, model.head, wanted).double().cpu().numpy(),
        "correct": (likeliest == wanted).cpu().numpy(),
        "target": wanted.cpu().numpy(),
        "position": np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)[kept],
        "document": documents.cpu().numpy()[kept],
        "hit": recall_hits(batch)[kept],
        **({} if grader is None else grades(grader, batch, likeliest)),
    }


def recall_hits(batch: Batch) -> np.ndarray:
    """Mark the targets [B, T] whose bigram (token, target) occurred earlier in the same row and document."""
    tokens, targets, documents = (part.cpu().numpy().astype(np.int64) for part in batch)
    rows = np.arange(len(tokens))[:, None]
    first_id, span = documents.min(), int(np.ptp(documents)) + 1
    _, window = np.unique(rows * span + documents - first_id, return_inverse=True)
    vocabulary = int(max(tokens.max(), targets.max())) + 1
    pair = (window.reshape(tokens.shape) * vocabulary + tokens) * vocabulary
    here = np.arange(tokens.size).reshape(tokens.shape)
    # A pair is complete one token later than it begins: what begins at s is known to every position t > s.
    within = documents[:, 1:] == documents[:, :-1]
    known, first = np.unique((pair[:, :-1] + tokens[:, 1:])[within], return_index=True)
    if not len(known):
        return np.zeros(tokens.shape, dtype=bool)
    begins = here[:, :-1][within][first]
    asked = pair + targets
    found = np.searchsorted(known, asked).clip(max=len(known) - 1)
    return (known[found] == asked) & (begins[found] < here) & (targets != NOT_SCORED)


def _part(loss: np.ndarray) -> Part:
    return Part(loss=float(loss.sum()) / len(loss) if len(loss) else None, count=len(loss))


def _bits_per_byte(total: float, targets: np.ndarray, token_bytes: Tensor | None) -> float | None:
    if token_bytes is None:
        return None
    size = int(token_bytes.cpu().numpy()[targets].sum())
    return total / math.log(2) / size if size else None
