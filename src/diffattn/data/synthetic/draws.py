"""Draws that the synthetic tasks share: distinct numbers, Markov noise, and the hash of a set."""

import numpy as np

HELDOUT_SEED = 20_241_007
"""Dev and test are drawn from it, whatever the seed of a run."""


def distinct(rng: np.random.Generator, count: int, among: int, wanted: int) -> np.ndarray:
    """`wanted` distinct numbers below `among` in random order, for each of `count` rows."""
    return np.argsort(rng.random((count, among), dtype=np.float32), axis=1)[:, :wanted]


def noise(rng: np.random.Generator, count: int, length: int, symbols: int) -> np.ndarray:
    """A Markov chain in which up to four symbols, the same in every run, can follow each symbol: [count, length].

    Each follower is a permutation of the symbols, so in the long run all symbols are equally frequent.
    """
    fixed = np.random.Generator(np.random.Philox(key=[HELDOUT_SEED + 1, 0]))
    table = fixed.permuted(np.tile(np.arange(symbols), (4, 1)), axis=1).T
    steps = rng.integers(0, 4, (length, count))
    chain = np.empty((length, count), dtype=np.int64)
    chain[0] = rng.integers(0, symbols, count)
    for place in range(1, length):
        chain[place] = table[chain[place - 1], steps[place]]
    return chain.T


def set_hash(members: np.ndarray, among: int, shown: np.ndarray) -> np.ndarray:
    """A hash of the set of those members [B, N], numbers below `among`, that are shown [B, N]: [B] uint64."""
    return np.where(shown, _signs(among)[members], np.uint64(0)).sum(axis=1)


_signs_of: dict[int, np.ndarray] = {}


def _signs(count: int) -> np.ndarray:
    """A fixed random 64-bit number for each of `count` things; a sum of them identifies a set."""
    if count not in _signs_of:
        rng = np.random.Generator(np.random.Philox(key=[HELDOUT_SEED + 2, 0]))
        _signs_of[count] = rng.integers(0, 1 << 64, count, dtype=np.uint64)
    return _signs_of[count]
