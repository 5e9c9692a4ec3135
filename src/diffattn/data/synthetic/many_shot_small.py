"""many_shot_small: a mapping from inputs to labels, drawn anew for every sequence and told by examples alone."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from diffattn.data.base import DataError, Grade, Grader, Question
from diffattn.data.synthetic.draws import HELDOUT_SEED, distinct, set_hash
from diffattn.data.synthetic.sequences import Drawn, Sequences, Sizes, counted

GUESSED = 2048
"""Sequences that tell how far the commonest label reaches: its standard error is below 0.003."""


class ManyShotSmall(Sequences):
    """Demonstrations "k v k v ..." in random order: `pairs` inputs, each label (`values`) for equally many of them.

    A label is scored where its input has been shown before. Inputs come at random, so the labels that have come say
    nothing about the next one; shots are the demonstrations that stand before the question.
    """

    defaults = Sizes(keys=64, values=4, pairs=16, queries=0)

    def __init__(self, sizes: Sizes, context: int) -> None:
        super().__init__(sizes, context)
        if sizes.pairs > sizes.keys or sizes.pairs % sizes.values:
            raise DataError(
                f"many_shot_small gives each label to equally many distinct inputs: expected no more pairs than keys "
                f"and a multiple of the values, got {sizes.pairs}, {sizes.keys} and {sizes.values}"
            )
        self._needs_context("many_shot_small", 2 * sizes.pairs)

    def describe(self) -> str:
        """The sizes, and the commonest label so far as a guess."""
        s = self.sizes
        return (
            f"many_shot_small, {s.pairs} of {s.keys} inputs with {s.values} labels, mapped anew in every sequence, up "
            f"to {self.context // 2 - 1} shots, context {self.context}; guessing the commonest label so far: "
            f"{self._guess:.3f}"
        )

    def draw(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        """The same sequences for training and held out."""
        s, context = self.sizes, self.context
        inputs = distinct(rng, count, s.keys, s.pairs)
        labels = rng.permuted(np.tile(np.arange(s.pairs) % s.values, (count, 1)), axis=1)
        # Two columns of the sequence are one demonstration; of an even context the last one has no label.
        which = rng.integers(0, s.pairs, (count, (context + 2) // 2))
        sequences = np.empty((count, 2 * which.shape[1]), dtype=np.int64)
        sequences[:, 0::2] = np.take_along_axis(inputs, which, axis=1)
        sequences[:, 1::2] = np.take_along_axis(labels, which, axis=1) + s.keys
        answers = np.zeros((count, context), dtype=bool)
        shots = (context + 1) // 2
        answers[:, 0::2] = np.tril(which[:, :shots, None] == which[:, None, :shots], -1).any(-1)
        shown = (which[:, :shots, None] == np.arange(s.pairs)).any(1)
        return Drawn(
            sequences[:, : context + 1], answers, set_hash(inputs * s.values + labels, s.keys * s.values, shown)
        )

    @property
    def grader(self) -> Grader:
        """Questions by the number of shots before them, in ranges that double."""
        firsts = [1 << i for i in range((self.context // 2).bit_length())]
        lasts = [min(2 * first, (self.context + 1) // 2) - 1 for first in firsts]
        ranges = [(first, last) for first, last in zip(firsts, lasts, strict=True) if first <= last]
        return Grader(
            questions=tuple(
                Question(counted(b, "shot") if a == b else f"{a} to {b} shots", "shots", (a * b) ** 0.5)
                for a, b in ranges
            ),
            answers=("right", "another label shown", "no label shown"),
            grade=self._grade,
        )

    def _grade(self, seen: Sequence[int], target: int, given: int) -> Grade:
        labels = Counter(seen[1::2])
        commonest = [label for label, times in labels.items() if times == max(labels.values())]
        answer = 0 if given == target else 1 if given in labels else 2
        return Grade(labels.total().bit_length() - 1, answer, (target in commonest) / len(commonest))

    @cached_property
    def _guess(self) -> float:
        """How often the commonest label so far is right, in a fixed draw."""
        rng = np.random.Generator(np.random.Philox(key=[HELDOUT_SEED + 3, 0]))
        drawn = self.draw(rng, GUESSED, training=False)
        shots = (self.context + 1) // 2
        labels = drawn.sequences[:, 1 : 2 * shots : 2, None] == np.arange(self.sizes.values) + self.sizes.keys
        before = labels.cumsum(1) - labels
        commonest = before == before.max(-1, keepdims=True)
        right = (commonest & labels).sum(-1) / commonest.sum(-1)
        return float(right[drawn.answers[:, 0::2]].mean())
