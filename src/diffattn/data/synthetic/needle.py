"""Needle: facts among noise."""

import numpy as np

from diffattn.data.base import DataError
from diffattn.data.synthetic.draws import distinct, noise, set_hash
from diffattn.data.synthetic.sequences import Drawn, Sequences, Sizes


class Needle(Sequences):
    """Facts "k v" at random places of Markov noise over the keys, then questions "k" with answers "v"."""

    defaults = Sizes(keys=64, values=64, pairs=4, queries=4)

    def __init__(self, sizes: Sizes, context: int) -> None:
        super().__init__(sizes, context)
        self._needs_distinct_pairs()
        if sizes.pairs & (sizes.pairs - 1) or sizes.queries % sizes.pairs:
            raise DataError(
                f"needle hides 1, 2, 4, ... facts and asks for each equally often: expected a power of two of pairs "
                f"and a multiple of it of queries, got {sizes.pairs} and {sizes.queries}"
            )
        self._needs_context("needle", 3 * sizes.pairs + 2 * sizes.queries)

    @property
    def fact_counts(self) -> list[int]:
        """How many facts a sequence may hold: 1, 2, 4, ... up to `pairs`, equally often."""
        return [1 << i for i in range(self.sizes.pairs.bit_length())]

    def describe(self) -> str:
        """The sizes, and one of the facts as a guess."""
        s, counts = self.sizes, self.fact_counts
        guess = sum(1 / n for n in counts) / len(counts)
        return (
            f"needle among distractors, {' or '.join(map(str, counts))} facts ({s.values} values) in Markov noise "
            f"of {s.keys} symbols, {s.queries} queries, context {self.context}; "
            f"guessing among the facts: {guess:.3f}"
        )

    def draw(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        """A key may appear in the noise too, but a value follows it in its fact and its answers only.

        Keys of facts are distinct, values (single tokens, so of equal length and none a part of another) too.
        """
        s, context = self.sizes, self.context
        facts = rng.choice(self.fact_counts, (count, 1))
        keys = distinct(rng, count, s.keys, s.pairs)
        values = distinct(rng, count, s.values, s.pairs) + s.keys
        body = context + 1 - 2 * s.queries
        sequences = np.empty((count, context + 1), dtype=np.int64)
        sequences[:, :body] = noise(rng, count, body, s.keys)
        # Distinct starts among body - pairs, each moved by its rank: facts never overlap.
        starts = np.sort(distinct(rng, count, body - s.pairs, s.pairs), axis=1) + np.arange(s.pairs)
        starts = rng.permuted(starts, axis=1)
        shown = np.arange(s.pairs)[None, :] < facts
        rows = np.broadcast_to(np.arange(count)[:, None], shown.shape)[shown]
        sequences[rows, starts[shown]] = keys[shown]
        sequences[rows, starts[shown] + 1] = values[shown]
        asked = rng.permuted(np.arange(s.queries)[None, :] % facts, axis=1)
        sequences[:, body::2] = np.take_along_axis(keys, asked, axis=1)
        sequences[:, body + 1 :: 2] = np.take_along_axis(values, asked, axis=1)
        positions = np.arange(context)
        answers = np.broadcast_to((positions >= body) & ((positions - body) % 2 == 0), (count, context))
        combinations = set_hash(keys * s.values + values - s.keys, s.keys * s.values, shown)
        return Drawn(sequences, answers, combinations)
