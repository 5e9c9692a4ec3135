"""Batches of a synthetic task, as a pure function of seed and step, and which combinations belong to which split."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from diffattn.data.base import NOT_SCORED, Batch, DataError, Split, SyntheticData
from diffattn.data.synthetic.draws import HELDOUT_SEED
from diffattn.data.synthetic.hallucination_small import HallucinationSmall
from diffattn.data.synthetic.induction import Induction
from diffattn.data.synthetic.many_shot_small import ManyShotSmall
from diffattn.data.synthetic.needle import Needle
from diffattn.data.synthetic.needle_small import NeedleSmall
from diffattn.data.synthetic.recall import Recall
from diffattn.data.synthetic.sequences import Drawn, Sequences
from diffattn.data.synthetic.unlearn import Unlearn

SHARES = 20
"""One combination in so many is dev's, another one test's, as with text: 90/5/5."""
BLOCK = 64
"""Held-out sequences are drawn in blocks of this many, so that a run's batch size does not change them."""
TASKS: dict[str, type[Sequences]] = {
    "recall": Recall,
    "induction": Induction,
    "needle": Needle,
    "needle_small": NeedleSmall,
    "many_shot_small": ManyShotSmall,
    "hallucination_small": HallucinationSmall,
    "unlearn": Unlearn,
}


class SyntheticTask:
    """Batches of one synthetic task; only answers are scored, every sequence is a document of its own."""

    train_tokens = None
    token_bytes = None

    def __init__(self, config: SyntheticData, *, context: int, batch_size: int, seed: int) -> None:
        self.config = config
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.task = _sized(config, context)
        self.sizes = self.task.sizes
        self.vocab_size = self.task.vocab_size
        self.grader = self.task.grader
        identity = json.dumps([config.task, asdict(self.sizes), HELDOUT_SEED]).encode()
        self.fingerprint: dict[str, str | int] = {
            "source": hashlib.blake2b(identity, digest_size=16).hexdigest(),
            "tokenizer": config.task,
            "vocab_size": self.vocab_size,
        }

    def batch(self, step: int) -> Batch:
        """Sequences of the training combinations, of every difficulty."""
        return _batch(self._draw(self.seed, step, "train", self.batch_size), first=step * self.batch_size)

    def evaluation(self, split: Split, tokens: int | None = None) -> Iterator[Batch]:
        """The first `tokens` of the held-out sequences (None: all), recall at its full number of pairs."""
        count = self.config.heldout_sequences
        if tokens is not None:
            count = min(count, max(1, round(tokens / self.context)))
        blocks = [self._draw(HELDOUT_SEED, block, split, BLOCK) for block in range(-(-count // BLOCK))]
        drawn = Drawn(*(np.concatenate(parts)[:count] for parts in zip(*blocks, strict=True)))
        for first in range(0, count, self.batch_size):
            rows = slice(first, first + self.batch_size)
            yield _batch(Drawn(drawn.sequences[rows], drawn.answers[rows], drawn.combinations[rows]), first)

    def heldout_tokens(self, split: Split) -> int:
        """Those of all held-out sequences."""
        return self.config.heldout_sequences * self.context

    def describe(self) -> str:
        """The task, its sizes, and what guessing reaches."""
        return self.task.describe()

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The names of the ids, separated by spaces."""
        return " ".join(self.labels(ids))

    def labels(self, ids: Sequence[int] | Tensor) -> list[str]:
        """k0, k1, ... for keys and noise, v0, v1, ... for values."""
        return self.task.labels(ids)

    def sentence(self) -> Tensor:
        """The first dev sequence."""
        return next(self.evaluation("dev", self.context)).tokens[0]

    def _draw(self, seed: int, number: int, split: str, count: int) -> Drawn:
        """`count` sequences whose combinations belong to the split: drawn in excess, the others dropped."""
        rng = np.random.Generator(np.random.Philox(key=[seed, number * 3 + ("train", "dev", "test").index(split)]))
        excess = 1.25 if split == "train" else 1.5 * SHARES
        kept: list[Drawn] = []
        missing = count
        for _ in range(64):
            drawn = self.task.draw(rng, int(missing * excess) + 4, training=split == "train")
            share = (drawn.combinations >> np.uint64(32)) % np.uint64(SHARES)
            wanted = share >= 2 if split == "train" else share == ("dev", "test").index(split)
            kept.append(Drawn(*(part[wanted] for part in drawn)))
            missing -= int(wanted.sum())
            if missing <= 0:
                return Drawn(*(np.concatenate(parts)[:count] for parts in zip(*kept, strict=True)))
        raise DataError(f"{self.describe()}: too few combinations for a {split} split of their own; add keys or values")


def _sized(config: SyntheticData, context: int) -> Sequences:
    """The task with its defaults filled in; DataError says which number it cannot draw."""
    if config.task not in TASKS:
        raise DataError(f"unknown synthetic task {config.task!r}; known: {', '.join(TASKS)}")
    kind = TASKS[config.task]
    defaults = asdict(kind.defaults)
    given = {name: getattr(config, name) for name in defaults if getattr(config, name) is not None}
    for name, value in given.items():
        if defaults[name] == 0:
            raise DataError(f"the task {config.task} has no {name}; leave --data.{name} unset")
        if value < 1:
            raise DataError(f"--data.{name} must be at least 1, got {value}")
    if config.heldout_sequences < 1:
        raise DataError(f"--data.heldout-sequences must be at least 1, got {config.heldout_sequences}")
    return kind(replace(kind.defaults, **given), context)


def _batch(drawn: Drawn, first: int) -> Batch:
    tokens = np.ascontiguousarray(drawn.sequences[:, :-1])
    targets = np.where(drawn.answers, drawn.sequences[:, 1:], NOT_SCORED)
    documents = np.broadcast_to(np.arange(first, first + len(tokens))[:, None], tokens.shape).copy()
    return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), torch.from_numpy(documents))
