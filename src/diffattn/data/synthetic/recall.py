"""Recall: values by key."""

import numpy as np

from diffattn.data.synthetic.draws import distinct, set_hash
from diffattn.data.synthetic.sequences import Drawn, Sequences, Sizes


class Recall(Sequences):
    """Pairs "k v k v ...", then the question "k" with the answer "v" behind it, once for each pair in another order."""

    defaults = Sizes(keys=32, values=32, pairs=16, queries=0)

    def __init__(self, sizes: Sizes, context: int) -> None:
        super().__init__(sizes, context)
        self._needs_distinct_pairs()
        self._needs_context("recall", 4 * sizes.pairs)

    def describe(self) -> str:
        """The sizes, and one of the values shown as a guess."""
        s = self.sizes
        return (
            f"associative recall, {s.pairs} pairs of {s.keys} keys and {s.values} values (training: 1 to {s.pairs} "
            f"pairs), context {self.context}; guessing among the values shown: {1 / s.pairs:.3f}"
        )

    def draw(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        """Keys of a sequence are distinct, values too; held-out sequences have all pairs, training 1 to that many.

        What is left of the context repeats questions, unscored: the answers of a second asking are too easy, and with
        them every kind of attention learns the task in 60 steps.
        """
        s, context = self.sizes, self.context
        keys = distinct(rng, count, s.keys, s.pairs)
        values = distinct(rng, count, s.values, s.pairs) + s.keys
        pairs = rng.integers(1, s.pairs + 1, (count, 1)) if training else np.full((count, 1), s.pairs)
        # Two columns of the sequence are one place: a pair, or a question with its answer.
        places = np.arange((context + 2) // 2)[None, :]
        shown = np.arange(s.pairs)[None, :] < pairs
        order = np.argsort(np.where(shown, rng.random((count, s.pairs)), 2.0), axis=1)
        again = (rng.random((count, places.size)) * pairs).astype(np.int64)
        asked = np.clip(places - pairs, 0, s.pairs - 1)
        first_time = np.take_along_axis(order, asked, axis=1)
        which = np.where(places < pairs, places, np.where(places < 2 * pairs, first_time, again))
        sequences = np.empty((count, 2 * places.size), dtype=np.int64)
        sequences[:, 0::2] = np.take_along_axis(keys, which, axis=1)
        sequences[:, 1::2] = np.take_along_axis(values, which, axis=1)
        positions = np.arange(context)[None, :]
        answers = (positions % 2 == 0) & (positions >= 2 * pairs) & (positions < 4 * pairs)
        combinations = set_hash(keys * s.values + values - s.keys, s.keys * s.values, shown)
        return Drawn(sequences[:, : context + 1], answers, combinations)
