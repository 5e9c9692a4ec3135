"""The loss of a smoothed bigram table: what counting pairs of tokens reaches, printed beside every loss."""

import numpy as np

from diffattn.data.base import Data, Split
from diffattn.data.corpus import Corpus

FITTED_ON = 50_000_000
"""Training tokens that are counted, at most."""
STRENGTHS = tuple(2.0**i for i in range(-2, 11))
"""Weights of the unigram prior that are tried on dev."""
ADDED = 0.1
"""Added to each count of the unigram table, so that no token has probability zero."""


def bigram_loss(data: Data, split: Split, tokens: int | None = None) -> float | None:
    """Nats per scored token of a bigram table fitted on the training split; None for synthetic data.

    p(b | a) = (count(a b) + s p(b)) / (count(a) + s), where p(b) is the add-0.1 unigram table and s the best of 0.25,
    0.5, ..., 1024 on dev (MacKay & Peto 1995, eq. 4, with one s). The targets are those of `data.evaluation(split,
    tokens)`.
    """
    if not isinstance(data, Corpus):
        return None
    table = _Table(data.train_stream(FITTED_ON), data.vocab_size, data.tokenizer.end)
    dev = table.lookup(data, "dev", tokens)
    strength = min(STRENGTHS, key=lambda s: table.loss(*dev, s))
    return table.loss(*(dev if split == "dev" else table.lookup(data, split, tokens)), strength)


class _Table:
    """Counts of the training split; pairs are kept as sorted codes a * V + b, for V^2 cells may not fit in memory."""

    def __init__(self, stream: np.ndarray, vocab_size: int, end: int) -> None:
        self.vocab_size = vocab_size
        inside = stream[:-1] != end  # what follows end-of-text begins another document
        before, after = stream[:-1][inside].astype(np.int64), stream[1:][inside]
        self.codes, self.pairs = np.unique(before * vocab_size + after, return_counts=True)
        self.totals = np.bincount(before, minlength=vocab_size)
        singles = np.bincount(after, minlength=vocab_size) + ADDED
        self.unigram = singles / singles.sum()

    def lookup(self, data: Corpus, split: Split, tokens: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each scored target: how often its pair and its predecessor were seen, and its unigram probability."""
        pairs, totals, unigram = [], [], []
        for batch in data.evaluation(split, tokens):
            scored = (batch.targets >= 0).numpy()
            before, after = batch.tokens.numpy()[scored], batch.targets.numpy()[scored]
            codes = before * self.vocab_size + after
            places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
            pairs.append(np.where(self.codes[places] == codes, self.pairs[places], 0))
            totals.append(self.totals[before])
            unigram.append(self.unigram[after])
        return np.concatenate(pairs), np.concatenate(totals), np.concatenate(unigram)

    @staticmethod
    def loss(pairs: np.ndarray, totals: np.ndarray, unigram: np.ndarray, strength: float) -> float:
        return float(-np.log((pairs + strength * unigram) / (totals + strength)).mean())
