"""unlearn: every fact is stated twice, and half of them are contradicted the second time; the last statement counts."""

from collections.abc import Sequence
from math import comb

import numpy as np

from diffattn.data.base import DataError, Grade, Grader, Question
from diffattn.data.synthetic.draws import distinct, set_hash
from diffattn.data.synthetic.sequences import Drawn, Sequences, Sizes


class Unlearn(Sequences):
    """Statements "k v", two for each key in random order, then the question "k" with its last "v", once for each key.

    The second statement repeats the first, or, with probability 1/2, flips: it gives another value, and the first is a
    distractor from then on.
    """

    defaults = Sizes(keys=32, values=32, pairs=8, queries=0)

    def __init__(self, sizes: Sizes, context: int) -> None:
        super().__init__(sizes, context)
        if sizes.pairs > sizes.keys or 2 * sizes.pairs > sizes.values:
            raise DataError(
                f"{sizes.pairs} pairs that may flip need as many distinct keys and twice as many values, got "
                f"{sizes.keys} and {sizes.values}"
            )
        self._needs_context("unlearn", 6 * sizes.pairs)

    def describe(self) -> str:
        """The sizes, and one of the values that stand there and have not been an answer yet as a guess."""
        s = self.sizes
        return (
            f"unlearn, {s.pairs} facts of {s.keys} keys and {s.values} values (training: 1 to {s.pairs}), each stated "
            f"twice, half of them contradicted, context {self.context}; guessing among unused values: "
            f"{self._guess():.3f}"
        )

    def draw(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        """Held-out sequences have all facts, training 1 to that many; what is left of the context asks again."""
        s, context = self.sizes, self.context
        keys = distinct(rng, count, s.keys, s.pairs)
        values = distinct(rng, count, s.values, 2 * s.pairs) + s.keys
        first, flips = values[:, : s.pairs], rng.random((count, s.pairs)) < 0.5
        last = np.where(flips, values[:, s.pairs :], first)
        facts = rng.integers(1, s.pairs + 1, (count, 1)) if training else np.full((count, 1), s.pairs)
        # Two columns of the sequence are one place: a statement, or a question with its answer.
        places = np.arange((context + 2) // 2)[None, :]
        shown = np.arange(s.pairs)[None, :] < facts
        # Statements i and i + pairs are of fact i; whichever comes later is its last.
        both = np.concatenate((shown, shown), axis=1)
        order = np.argsort(np.where(both, rng.random((count, 2 * s.pairs)), 2.0), axis=1)
        rank = np.argsort(order, axis=1)
        earlier = np.take_along_axis(rank < np.roll(rank, s.pairs, axis=1), order, axis=1)
        asked = np.argsort(np.where(shown, rng.random((count, s.pairs)), 2.0), axis=1)
        again = (rng.random((count, places.size)) * facts).astype(np.int64)
        states = np.clip(places, 0, 2 * s.pairs - 1) + np.zeros((count, 1), dtype=np.int64)
        asks = np.take_along_axis(asked, np.clip(places - 2 * facts, 0, s.pairs - 1), axis=1)
        stating = places < 2 * facts
        which = np.where(
            stating, np.take_along_axis(order % s.pairs, states, axis=1), np.where(places < 3 * facts, asks, again)
        )
        early = stating & np.take_along_axis(earlier, states, axis=1)
        sequences = np.empty((count, 2 * places.size), dtype=np.int64)
        sequences[:, 0::2] = np.take_along_axis(keys, which, axis=1)
        sequences[:, 1::2] = np.where(
            early, np.take_along_axis(first, which, axis=1), np.take_along_axis(last, which, axis=1)
        )
        positions = np.arange(context)[None, :]
        answers = (positions % 2 == 0) & (positions >= 4 * facts) & (positions < 6 * facts)
        members = ((keys * s.values) + first - s.keys) * s.values + last - s.keys
        return Drawn(sequences[:, : context + 1], answers, set_hash(members, s.keys * s.values**2, shown))

    @property
    def grader(self) -> Grader:
        """How often the old value is still given."""
        return Grader(
            questions=(Question("stated twice"), Question("contradicted")),
            answers=("right", "the old value", "of another key", "not in the context"),
            grade=self._grade,
        )

    def _grade(self, seen: Sequence[int], target: int, given: int) -> Grade:
        told = list(zip(seen[0:-1:2], seen[1::2], strict=True))
        own = [value for key, value in told if key == seen[-1]]
        values = {value for _, value in told}
        facts = len({key for key, _ in told})
        # Two statements of each fact, then one answered question of each that has been asked for.
        unused = len(values) - (len(told) - 2 * facts)
        if given == target:
            answer = 0
        else:
            answer = 1 if given in own else 2 if given in values else 3
        return Grade(int(own[0] != own[1]), answer, 1 / unused)

    def _guess(self) -> float:
        """Mean over questions and over the number of flips, a binomial draw."""
        pairs = self.sizes.pairs
        found = [
            comb(pairs, flips) / 2**pairs / (pairs + flips - used)
            for flips in range(pairs + 1)
            for used in range(pairs)
        ]
        return sum(found) / pairs
