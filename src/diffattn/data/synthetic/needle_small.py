"""needle_small: the paper's multi-needle cells at the size of a small model, with names that look alike."""

from collections.abc import Sequence

import numpy as np

from diffattn.data.base import DataError, Grade, Grader, Question
from diffattn.data.synthetic.draws import distinct, noise, set_hash
from diffattn.data.synthetic.sequences import Drawn, Sequences, Sizes, counted

FACTS = (1, 2, 4, 6)
"""Facts of a sequence, of which at most `queries` are asked for: (1, 1), (2, 2), (4, 2), (6, 2) of arXiv 2410.05258."""


class NeedleSmall(Sequences):
    """Facts "a b v" about two-symbol names at random places of Markov noise, then questions "a b" with answers "v".

    In half of the sequences each name that is asked for has a lookalike: a further fact whose name shares one of its
    two symbols. Facts that are not asked for are distractors; every name is asked for once.
    """

    defaults = Sizes(keys=32, values=32, pairs=6, queries=2)

    def __init__(self, sizes: Sizes, context: int) -> None:
        super().__init__(sizes, context)
        self.cells = [n for n in FACTS if n <= sizes.pairs]
        if sizes.pairs not in FACTS or sizes.queries > sizes.pairs:
            raise DataError(
                f"needle_small hides {', '.join(map(str, FACTS))} facts and asks for each once: expected one of these "
                f"as pairs and no more queries than that, got {sizes.pairs} and {sizes.queries}"
            )
        if sizes.pairs + sizes.queries > min(sizes.keys, sizes.values):
            raise DataError(
                f"{sizes.pairs} facts and {sizes.queries} lookalikes need as many distinct keys and values, got "
                f"{sizes.keys} and {sizes.values}"
            )
        self._needs_context("needle_small", 3 * sizes.pairs + 6 * sizes.queries - 1)

    def describe(self) -> str:
        """The sizes, and a guess among the values that stand there and have not been an answer yet."""
        s = self.sizes
        return (
            f"needle_small, {' or '.join(map(str, self.cells))} facts in Markov noise, names of two out of {s.keys} "
            f"symbols, {s.values} values, up to {s.queries} asked for, half of the sequences with lookalikes, context "
            f"{self.context}; guessing among unused values: {self._guess():.3f}"
        )

    def draw(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        """Names share no symbol but with their lookalikes; values are distinct, and stand behind names only."""
        s, context, most = self.sizes, self.context, self.sizes.pairs + self.sizes.queries
        facts = rng.choice(self.cells, (count, 1))
        asked = np.minimum(facts, s.queries)
        first, second = (distinct(rng, count, s.keys, most) for _ in range(2))
        values = distinct(rng, count, s.values, most) + s.keys
        # Fact pairs + j looks like fact j: one of its two symbols is replaced by that one's.
        sides = rng.random((count, s.queries)) < 0.5
        first[:, s.pairs :] = np.where(sides, first[:, : s.queries], first[:, s.pairs :])
        second[:, s.pairs :] = np.where(sides, second[:, s.pairs :], second[:, : s.queries])
        alike = rng.random((count, 1)) < 0.5
        ranks = np.arange(most)[None, :]
        shown = np.where(ranks < s.pairs, ranks < facts, alike & (ranks - s.pairs < asked))
        sequences = noise(rng, count, context + 1, s.keys).copy()
        body = context + 1 - 3 * s.queries
        # Distinct starts, each moved by twice its rank: facts of three tokens never overlap.
        starts = np.sort(distinct(rng, count, body - 2 * most, most), axis=1) + 2 * np.arange(most)
        starts = rng.permuted(starts, axis=1)
        rows = np.broadcast_to(np.arange(count)[:, None], shown.shape)
        told = (first, second, values)
        for offset, part in enumerate(told):
            sequences[rows[shown], starts[shown] + offset] = part[shown]
        # The last question ends the sequence; which of the first facts is asked last does not matter, for they are
        # drawn and placed alike.
        questions = np.arange(s.queries)[None, :] < asked
        places = context + 1 - 3 * np.arange(1, s.queries + 1)[None, :] + np.zeros((count, 1), dtype=np.int64)
        for offset, part in enumerate(told):
            sequences[rows[:, : s.queries][questions], places[questions] + offset] = part[:, : s.queries][questions]
        answers = np.zeros((count, context), dtype=bool)
        answers[rows[:, : s.queries][questions], places[questions] + 1] = True
        members = (first * s.keys + second) * s.values + values - s.keys
        return Drawn(sequences, answers, set_hash(members, s.keys**2 * s.values, shown))

    @property
    def grader(self) -> Grader:
        """Questions by the number of facts, with and without lookalikes; wrong answers by whose value was given."""
        return Grader(
            questions=tuple(
                Question(counted(n, "fact") + alike, f"facts{alike}", n)
                for alike in ("", ", with lookalikes")
                for n in self.cells
            ),
            answers=("right", "of a lookalike", "of another name", "not in the context"),
            grade=self._grade,
        )

    def _grade(self, seen: Sequence[int], target: int, given: int) -> Grade:
        told = [(seen[i - 2], seen[i - 1], seen[i]) for i in range(2, len(seen)) if seen[i] >= self.sizes.keys]
        facts = set(told)
        a, b = seen[-2:]
        alike = {v for c, d, v in facts if (c == a) != (d == b)}
        kind = self.cells.index(
            next(n for n in self.cells if n + bool(alike) * min(n, self.sizes.queries) == len(facts))
        )
        if given == target:
            answer = 0
        else:
            answer = 1 if given in alike else 2 if given in {v for _, _, v in facts} else 3
        # An answered question has told its fact a second time.
        unused = len(facts) - (len(told) - len(facts))
        return Grade(kind + bool(alike) * len(self.cells), answer, 1 / unused)

    def _guess(self) -> float:
        """Mean over all questions: cells and lookalikes are equally often."""
        found = [
            1 / (n + alike * min(n, self.sizes.queries) - used)
            for n in self.cells
            for alike in (0, 1)
            for used in range(min(n, self.sizes.queries))
        ]
        return sum(found) / len(found)
