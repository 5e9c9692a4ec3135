"""Synthetic tasks: recall, induction and needle among distractors, drawn as a pure function of seed and step.

What a sequence asks its reader to bind (its set of key-value pairs; for induction its repeated passage) is a
combination. A hash of the combination decides its split, so that no combination of dev or test is ever trained on,
while training sees every token. The unit is the whole set, not the single pair: with single pairs held out, a model
learns from training that they do not occur, and dev would measure that.

Shapes: B sequences, T = context; sequences are drawn with T + 1 tokens.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diffattn.data.base import NOT_SCORED, Batch, DataError, Split, SyntheticData

HELDOUT_SEED = 20_241_007
"""Dev and test are drawn from it, whatever the seed of a run."""
SHARES = 20
"""One combination in so many is dev's, another one test's, as with text: 90/5/5."""
BLOCK = 64
"""Held-out sequences are drawn in blocks of this many, so that a run's batch size does not change them."""


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


DEFAULTS = {
    "recall": Sizes(keys=32, values=32, pairs=16, queries=0),
    "needle": Sizes(keys=64, values=64, pairs=4, queries=4),
    "induction": Sizes(keys=64, values=0, pairs=0, queries=0),
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
        self.sizes = _sizes(config, context)
        self.vocab_size = self.sizes.keys + self.sizes.values
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

    def describe(self) -> str:
        """The task, its sizes, and what guessing reaches."""
        s = self.sizes
        if self.config.task == "recall":
            return (
                f"associative recall, {s.pairs} pairs of {s.keys} keys and {s.values} values (training: 1 to {s.pairs} "
                f"pairs), context {self.context}; guessing among the values shown: {1 / s.pairs:.3f}"
            )
        if self.config.task == "needle":
            counts = fact_counts(s.pairs)
            guess = sum(1 / n for n in counts) / len(counts)
            return (
                f"needle among distractors, {' or '.join(map(str, counts))} facts ({s.values} values) in Markov noise "
                f"of {s.keys} symbols, {s.queries} queries, context {self.context}; "
                f"guessing among the facts: {guess:.3f}"
            )
        return (
            f"induction, a passage of {self.context // 4} to {self.context // 2} of {s.keys} symbols repeated, context "
            f"{self.context}; guessing: {1 / s.keys:.3f}"
        )

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The names of the ids, separated by spaces."""
        return " ".join(self.labels(ids))

    def labels(self, ids: Sequence[int] | Tensor) -> list[str]:
        """k0, k1, ... for keys and noise, v0, v1, ... for values."""
        return [f"k{int(i)}" if i < self.sizes.keys else f"v{int(i) - self.sizes.keys}" for i in ids]

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
            drawn = self._draw_any(rng, int(missing * excess) + 4, training=split == "train")
            share = (drawn.combinations >> np.uint64(32)) % np.uint64(SHARES)
            wanted = share >= 2 if split == "train" else share == ("dev", "test").index(split)
            kept.append(Drawn(*(part[wanted] for part in drawn)))
            missing -= int(wanted.sum())
            if missing <= 0:
                return Drawn(*(np.concatenate(parts)[:count] for parts in zip(*kept, strict=True)))
        raise DataError(f"{self.describe()}: too few combinations for a {split} split of their own; add keys or values")

    def _draw_any(self, rng: np.random.Generator, count: int, training: bool) -> Drawn:
        if self.config.task == "recall":
            return draw_recall(rng, count, self.context, self.sizes, training)
        if self.config.task == "needle":
            return draw_needle(rng, count, self.context, self.sizes)
        return draw_induction(rng, count, self.context, self.sizes)


def draw_recall(rng: np.random.Generator, count: int, context: int, sizes: Sizes, training: bool) -> Drawn:
    """Pairs "k v k v ...", then the question "k" with the answer "v" behind it, once for each pair in another order.

    Keys of a sequence are distinct, values too. Held-out sequences have `sizes.pairs` pairs, training sequences 1 to
    that many. What is left of the context repeats questions, unscored: the answers of a second asking are too easy, and
    with them every kind of attention learns the task in 60 steps.
    """
    keys = _distinct(rng, count, sizes.keys, sizes.pairs)
    values = _distinct(rng, count, sizes.values, sizes.pairs) + sizes.keys
    pairs = rng.integers(1, sizes.pairs + 1, (count, 1)) if training else np.full((count, 1), sizes.pairs)
    # Two columns of the sequence are one place: a pair, or a question with its answer.
    places = np.arange((context + 2) // 2)[None, :]
    shown = np.arange(sizes.pairs)[None, :] < pairs
    order = np.argsort(np.where(shown, rng.random((count, sizes.pairs)), 2.0), axis=1)
    again = (rng.random((count, places.size)) * pairs).astype(np.int64)
    asked = np.clip(places - pairs, 0, sizes.pairs - 1)
    first_time = np.take_along_axis(order, asked, axis=1)
    which = np.where(places < pairs, places, np.where(places < 2 * pairs, first_time, again))
    sequences = np.empty((count, 2 * places.size), dtype=np.int64)
    sequences[:, 0::2] = np.take_along_axis(keys, which, axis=1)
    sequences[:, 1::2] = np.take_along_axis(values, which, axis=1)
    positions = np.arange(context)[None, :]
    answers = (positions % 2 == 0) & (positions >= 2 * pairs) & (positions < 4 * pairs)
    return Drawn(sequences[:, : context + 1], answers, _set_hash(keys, values, sizes, shown))


def draw_needle(rng: np.random.Generator, count: int, context: int, sizes: Sizes) -> Drawn:
    """Facts "k v" at random places of Markov noise over the keys, then `sizes.queries` questions "k" with answers "v".

    A key may appear in the noise too, but a value follows it in its fact and its answers only. Keys of facts are
    distinct, values (single tokens, so of equal length and none a part of another) too.
    """
    facts = rng.choice(fact_counts(sizes.pairs), (count, 1))
    keys = _distinct(rng, count, sizes.keys, sizes.pairs)
    values = _distinct(rng, count, sizes.values, sizes.pairs) + sizes.keys
    body = context + 1 - 2 * sizes.queries
    sequences = np.empty((count, context + 1), dtype=np.int64)
    sequences[:, :body] = _noise(rng, count, body, sizes.keys)
    # Distinct starts among body - pairs, each moved by its rank: facts never overlap.
    starts = np.sort(_distinct(rng, count, body - sizes.pairs, sizes.pairs), axis=1) + np.arange(sizes.pairs)
    starts = rng.permuted(starts, axis=1)
    shown = np.arange(sizes.pairs)[None, :] < facts
    rows = np.broadcast_to(np.arange(count)[:, None], shown.shape)[shown]
    sequences[rows, starts[shown]] = keys[shown]
    sequences[rows, starts[shown] + 1] = values[shown]
    asked = rng.permuted(np.arange(sizes.queries)[None, :] % facts, axis=1)
    sequences[:, body::2] = np.take_along_axis(keys, asked, axis=1)
    sequences[:, body + 1 :: 2] = np.take_along_axis(values, asked, axis=1)
    positions = np.arange(context)
    answers = np.broadcast_to((positions >= body) & ((positions - body) % 2 == 0), (count, context))
    return Drawn(sequences, answers, _set_hash(keys, values, sizes, shown))


def draw_induction(rng: np.random.Generator, count: int, context: int, sizes: Sizes) -> Drawn:
    """A passage of context/4 to context/2 distinct symbols, repeated to the end; answers from the repetition on."""
    length = rng.integers(context // 4, context // 2 + 1, (count, 1))
    passage = _distinct(rng, count, sizes.keys, context // 2)
    sequences = np.take_along_axis(passage, np.arange(context + 1)[None, :] % length, axis=1)
    answers = np.arange(context)[None, :] >= length
    ranks = np.arange(context // 2)[None, :]
    signs = _signs(context // 2 * sizes.keys)[ranks * sizes.keys + passage]
    return Drawn(sequences, answers, np.where(ranks < length, signs, np.uint64(0)).sum(axis=1))


def fact_counts(pairs: int) -> list[int]:
    """How many facts a needle sequence may hold: 1, 2, 4, ... up to `pairs`, equally often."""
    return [1 << i for i in range(pairs.bit_length())]


def _noise(rng: np.random.Generator, count: int, length: int, symbols: int) -> np.ndarray:
    """A Markov chain in which up to four symbols, the same in every run, can follow each symbol: [count, length].

    Each follower is a permutation of the symbols, so in the long run all symbols are equally frequent.
    """
    fixed = np.random.Generator(np.random.Philox(key=[HELDOUT_SEED + 1, 0]))
    table = fixed.permuted(np.tile(np.arange(symbols), (4, 1)), axis=1).T
    steps = rng.integers(0, 4, (length, count))
    noise = np.empty((length, count), dtype=np.int64)
    noise[0] = rng.integers(0, symbols, count)
    for place in range(1, length):
        noise[place] = table[noise[place - 1], steps[place]]
    return noise.T


def _distinct(rng: np.random.Generator, count: int, among: int, wanted: int) -> np.ndarray:
    """`wanted` distinct numbers below `among` in random order, for each of `count` rows."""
    return np.argsort(rng.random((count, among), dtype=np.float32), axis=1)[:, :wanted]


def _set_hash(keys: np.ndarray, values: np.ndarray, sizes: Sizes, shown: np.ndarray) -> np.ndarray:
    """A hash of the set of shown pairs, whatever their order: [B] uint64."""
    signs = _signs(sizes.keys * sizes.values)[keys * sizes.values + values - sizes.keys]
    return np.where(shown, signs, np.uint64(0)).sum(axis=1)


_signs_of: dict[int, np.ndarray] = {}


def _signs(count: int) -> np.ndarray:
    """A fixed random 64-bit number for each of `count` things; a sum of them identifies a set."""
    if count not in _signs_of:
        rng = np.random.Generator(np.random.Philox(key=[HELDOUT_SEED + 2, 0]))
        _signs_of[count] = rng.integers(0, 1 << 64, count, dtype=np.uint64)
    return _signs_of[count]


def _sizes(config: SyntheticData, context: int) -> Sizes:
    """Fill in the task's defaults and refuse what it cannot draw; DataError says which number to change."""
    if config.task not in DEFAULTS:
        raise DataError(f"unknown synthetic task {config.task!r}; known: {', '.join(DEFAULTS)}")
    defaults = asdict(DEFAULTS[config.task])
    given = {name: getattr(config, name) for name in defaults if getattr(config, name) is not None}
    for name, value in given.items():
        if defaults[name] == 0:
            raise DataError(f"the task {config.task} has no {name}; leave --data.{name} unset")
        if value < 1:
            raise DataError(f"--data.{name} must be at least 1, got {value}")
    sizes = replace(DEFAULTS[config.task], **given)
    if config.heldout_sequences < 1:
        raise DataError(f"--data.heldout_sequences must be at least 1, got {config.heldout_sequences}")
    if sizes.pairs > min(sizes.keys, sizes.values):
        raise DataError(
            f"{sizes.pairs} pairs need as many distinct keys and values, got {sizes.keys} and {sizes.values}"
        )
    if config.task == "needle" and (sizes.pairs & (sizes.pairs - 1) or sizes.queries % sizes.pairs):
        raise DataError(
            f"needle hides 1, 2, 4, ... facts and asks for each equally often: expected a power of two of pairs and a "
            f"multiple of it of queries, got {sizes.pairs} and {sizes.queries}"
        )
    least = {"recall": 4 * sizes.pairs, "needle": 3 * sizes.pairs + 2 * sizes.queries, "induction": 8}[config.task]
    if context < least:
        raise DataError(f"the task {config.task} needs a context of at least {least} tokens, got {context}")
    if config.task == "induction" and sizes.keys < context // 2:
        raise DataError(f"a passage of {context // 2} distinct symbols needs as many keys, got {sizes.keys}")
    return sizes


def _batch(drawn: Drawn, first: int) -> Batch:
    tokens = np.ascontiguousarray(drawn.sequences[:, :-1])
    targets = np.where(drawn.answers, drawn.sequences[:, 1:], NOT_SCORED)
    documents = np.broadcast_to(np.arange(first, first + len(tokens))[:, None], tokens.shape).copy()
    return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), torch.from_numpy(documents))
