"""Texts of any length for a model of fixed context: a prompt loses its beginning, a long text is read in windows.

The models of lm-eval do the same, so that numbers can be compared.
"""

from collections.abc import Sequence

import numpy as np

from diffattn.evals.reader import ModelReader, Sampling, Scored


def windows(prompt: Sequence[int], new: Sequence[int], context: int) -> list[tuple[list[int], list[int]]]:
    """Split ids into pairs that fit: each of the new ids stands once behind as much as the context still holds.

    As many new ids as the context has tokens go together; the last pair of a long text sees most of what came before.
    """
    whole = [*prompt, *new]
    pairs: list[tuple[list[int], list[int]]] = []
    for first in range(len(prompt), len(whole), context):
        last = min(first + context, len(whole))
        # The last id is predicted and never read.
        pairs.append((whole[max(0, last - 1 - context) : first], whole[first:last]))
    return pairs


class Windowed:
    """A reader of texts of any length."""

    def __init__(self, reader: ModelReader) -> None:
        self.reader = reader
        self.identity, self.context = reader.identity, reader.context

    def count(self, text: str) -> int:
        """Tokens of a text, its start token included."""
        return self.reader.count(text)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
        """Judge continuations, in windows where they need more than one."""
        parts = [windows(prompt, new, self.context) for prompt, new in self.reader.split(pairs)]
        scored = iter(self.reader.score_ids([pair for part in parts for pair in part]))
        return [_joined([next(scored) for _ in part]) for part in parts]

    def write(self, prompts: Sequence[str], max_new_tokens: int, stops: Sequence[str], how: Sampling) -> list[str]:
        """Continue prompts, of which the end is read that leaves room for max_new_tokens, fewer than the context."""
        room = self.context - max_new_tokens
        return self.reader.write_ids([self.reader.encode(p)[-room:] for p in prompts], max_new_tokens, stops, how)


def _joined(parts: list[Scored]) -> Scored:
    return Scored(
        total=sum(part.total for part in parts),
        tokens=np.concatenate([part.tokens for part in parts]),
        likeliest=np.concatenate([part.likeliest for part in parts]),
        unlikeliest=np.concatenate([part.unlikeliest for part in parts]),
        energy=np.concatenate([part.energy for part in parts]),
        entropy=np.concatenate([part.entropy for part in parts]),
        greedy=all(part.greedy for part in parts),
        state=parts[0].state,
    )
