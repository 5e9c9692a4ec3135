"""hallucination_small: facts, and questions a quarter of which they do not answer; "unknown" is right there."""

from collections import Counter
from collections.abc import Sequence
from math import comb

import numpy as np
from torch import Tensor

from diffattn.data.base import DataError, Grade, Grader, Question
from diffattn.data.synthetic.draws import distinct, set_hash
from diffattn.data.synthetic.sequences import Drawn, Sequences, Sizes

ABSENT = 0.25
"""Share of the questions whose key stands in no fact."""


class HallucinationSmall(Sequences):
    """Facts "k v k v ...", then as many questions "k" with the answer "v" behind it, or "unknown" for an absent key.

    Each question has a key of its own: a fact's, or with probability 1/4 one that stands nowhere. The id after the
    values is "unknown".
    """

    defaults = Sizes(keys=32, values=32, pairs=12, queries=0)

    def __init__(self, sizes: Sizes, context: int) -> None:
        super().__init__(sizes, context)
        self._needs_distinct_pairs()
        if 2 * sizes.pairs > sizes.keys:
            raise DataError(f"{sizes.pairs} pairs and as many absent keys need distinct keys, got {sizes.keys}")
        self._needs_context("hallucination_small", 4 * sizes.pairs)
        self.unknown = sizes.keys + sizes.values

    @property
    def vocab_size(self) -> int:
        """Keys, values, "unknown"."""
        return self.unknown + 1

    def labels(self, ids: Sequence[int] | Tensor) -> list[str]:
        """k0, ... for keys, v0, ... for values, and ? for "unknown"."""
        return ["?" if int(i) == self.unknown else label for i, label in zip(ids, super().labels(ids), strict=True)]

    def describe(self) -> str:
        """The sizes, and as a guess whatever is likelier: "unknown", or one of the values not used yet."""
        s = self.sizes
        return (
            f"hallucination_small, {s.pairs} facts of {s.keys} keys and {s.values} values (training: 1 to {s.pairs}), "
            f'as many questions, a quarter of them unanswerable, context {self.context}; guessing "unknown" or an '
            f"unused value: {self._guess():.3f}"
        )

    def draw(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        """Held-out sequences have all facts, training 1 to that many; what is left of the context repeats facts."""
        s, context = self.sizes, self.context
        keys = distinct(rng, count, s.keys, 2 * s.pairs)
        values = distinct(rng, count, s.values, s.pairs) + s.keys
        told = np.concatenate((values, np.full_like(values, self.unknown)), axis=1)
        facts = rng.integers(1, s.pairs + 1, (count, 1)) if training else np.full((count, 1), s.pairs)
        # Two columns of the sequence are one place: a fact, or a question with its answer.
        places = np.arange((context + 2) // 2)[None, :]
        shown = np.arange(s.pairs)[None, :] < facts
        order = np.argsort(np.where(shown, rng.random((count, s.pairs)), 2.0), axis=1)
        # In the place of fact i the absent key pairs + i is asked for.
        questions = order + s.pairs * (rng.random((count, s.pairs)) < ABSENT)
        again = (rng.random((count, places.size)) * facts).astype(np.int64)
        asked = np.take_along_axis(questions, np.clip(places - facts, 0, s.pairs - 1), axis=1)
        which = np.where(places < facts, places, np.where(places < 2 * facts, asked, again))
        sequences = np.empty((count, 2 * places.size), dtype=np.int64)
        sequences[:, 0::2] = np.take_along_axis(keys, which, axis=1)
        sequences[:, 1::2] = np.take_along_axis(told, which, axis=1)
        positions = np.arange(context)[None, :]
        answers = (positions % 2 == 0) & (positions >= 2 * facts) & (positions < 4 * facts)
        members = keys[:, : s.pairs] * s.values + values - s.keys
        return Drawn(sequences[:, : context + 1], answers, set_hash(members, s.keys * s.values, shown))

    @property
    def grader(self) -> Grader:
        """What is made up, what is read from the wrong fact, and what is held back, with and without an answer."""
        return Grader(
            questions=(Question("answerable"), Question("unanswerable")),
            answers=("right", "misread from the context", "not in the context", "abstained"),
            grade=self._grade,
        )

    def _grade(self, seen: Sequence[int], target: int, given: int) -> Grade:
        told = Counter(value for value in seen[1::2] if value != self.unknown)
        # An answered question has told its fact a second time.
        unused = len(told) - sum(times > 1 for times in told.values())
        absent = target == self.unknown
        if given == target:
            answer = 0
        else:
            answer = 3 if given == self.unknown else 1 if given in told else 2
        if (1 - ABSENT) / unused <= ABSENT:
            return Grade(int(absent), answer, float(absent))
        return Grade(int(absent), answer, 0.0 if absent else 1 / unused)

    def _guess(self) -> float:
        """Mean over the questions: so many facts have been answers before as come out of a binomial draw."""
        pairs = self.sizes.pairs
        found = [
            comb(before, used)
            * (1 - ABSENT) ** used
            * ABSENT ** (before - used)
            * max(ABSENT, (1 - ABSENT) / (pairs - used))
            for before in range(pairs)
            for used in range(before + 1)
        ]
        return sum(found) / pairs
