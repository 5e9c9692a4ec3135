"""Induction: a passage repeated."""

import numpy as np

from diffattn.data.base import DataError
from diffattn.data.synthetic.draws import distinct, set_hash
from diffattn.data.synthetic.sequences import Drawn, Sequences, Sizes


class Induction(Sequences):
    """A passage of context/4 to context/2 distinct symbols, repeated to the end; answers from the repetition on."""

    defaults = Sizes(keys=64, values=0, pairs=0, queries=0)

    def __init__(self, sizes: Sizes, context: int) -> None:
        super().__init__(sizes, context)
        self._needs_context("induction", 8)
        if sizes.keys < context // 2:
            raise DataError(f"a passage of {context // 2} distinct symbols needs as many keys, got {sizes.keys}")

    def describe(self) -> str:
        """The sizes, and any symbol as a guess."""
        return (
            f"induction, a passage of {self.context // 4} to {self.context // 2} of {self.sizes.keys} symbols "
            f"repeated, context {self.context}; guessing: {1 / self.sizes.keys:.3f}"
        )

    def draw(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        """The same sequences for training and held out."""
        symbols, context = self.sizes.keys, self.context
        length = rng.integers(context // 4, context // 2 + 1, (count, 1))
        passage = distinct(rng, count, symbols, context // 2)
        sequences = np.take_along_axis(passage, np.arange(context + 1)[None, :] % length, axis=1)
        answers = np.arange(context)[None, :] >= length
        ranks = np.arange(context // 2)[None, :]
        combinations = set_hash(ranks * symbols + passage, context // 2 * symbols, ranks < length)
        return Drawn(sequences, answers, combinations)
