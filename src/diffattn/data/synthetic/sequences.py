"""What a synthetic task is: sizes, what is wrong with them, how sequences are drawn, and how answers are told apart.

Shapes: B sequences, T = context; sequences are drawn with T + 1 tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from diffattn.data.base import DataError, Grader


class Drawn(NamedTuple):
    """Sequences [B, T + 1], which targets are answers [B, T], and the hash of each combination [B] uint64."""

    sequences: np.ndarray
    answers: np.ndarray
    combinations: np.ndarray


@dataclass(frozen=True)
class Sizes:
    """The task's sizes with the defaults filled in; `keys` come first among the ids, `values` follow."""

    keys: int
    values: int
    pairs: int
    queries: int


class Sequences:
    """The sequences of one task at its sizes; each task is a subclass in a file of its own."""

    defaults: ClassVar[Sizes]
    """A size of 0 is one that the task has not."""

    def __init__(self, sizes: Sizes, context: int) -> None:
        self.sizes = sizes
        self.context = context

    @property
    def vocab_size(self) -> int:
        """Keys and values, and whatever else the task writes."""
        return self.sizes.keys + self.sizes.values

    def draw(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        """`count` sequences of any split; training may be easier than what is held out."""
        raise NotImplementedError

    def describe(self) -> str:
        """The task, its sizes, and what guessing reaches, which stands last."""
        raise NotImplementedError

    def labels(self, ids: Sequence[int] | Tensor) -> list[str]:
        """k0, k1, ... for keys and noise, v0, v1, ... for values."""
        return [f"k{int(i)}" if i < self.sizes.keys else f"v{int(i) - self.sizes.keys}" for i in ids]

    @property
    def grader(self) -> Grader | None:
        """How questions and answers are told apart; None: only right and wrong are."""
        return None

    def _needs_distinct_pairs(self) -> None:
        s = self.sizes
        if s.pairs > min(s.keys, s.values):
            raise DataError(f"{s.pairs} pairs need as many distinct keys and values, got {s.keys} and {s.values}")

    def _needs_context(self, task: str, least: int) -> None:
        if self.context < least:
            raise DataError(f"the task {task} needs a context of at least {least} tokens, got {self.context}")


def counted(number: int, what: str) -> str:
    """ "1 fact", "2 facts"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
