"""Planted models: a few lines of Python that read and write text as a trained model would."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from diffattn.evals.reader import Sampling, Scored, until


class Planted:
    """A reader whose every answer is known beforehand; one token is one character.

    chance gives the log-probability of a continuation of a prompt; speaks gives the text that follows a prompt.
    """

    def __init__(
        self,
        chance: Callable[[str, str], float] | None = None,
        speaks: Callable[[str], str] | None = None,
        context: int = 4096,
        identity: str = "planted",
    ) -> None:
        self.chance = chance or (lambda prompt, continuation: -1.0)
        self.speaks = speaks or (lambda prompt: "")
        self.context, self.identity = context, identity
        self.asked = 0

    def count(self, text: str) -> int:
        return len(text) + 1

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
        self.asked += len(pairs)
        return [self._scored(self.chance(*pair), len(pair[1])) for pair in pairs]

    def write(self, prompts: Sequence[str], max_new_tokens: int, stops: Sequence[str], how: Sampling) -> list[str]:
        self.asked += len(prompts)
        return [until(self.speaks(prompt)[:max_new_tokens], stops) for prompt in prompts]

    def _scored(self, total: float, length: int) -> Scored:
        each = np.full(length, total / length)
        return Scored(
            total=total,
            tokens=each,
            likeliest=np.maximum(each, math.log(0.5)),
            unlikeliest=np.full(length, -20.0),
            energy=np.full(length, 1.0),
            entropy=np.full(length, 1.0),
            greedy=False,
            state=np.zeros(4),
        )
