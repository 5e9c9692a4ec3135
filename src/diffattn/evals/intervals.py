"""Numbers with intervals, for one model or for two on the same items.

Items that share a document (a needle's answers, a story's questions) are not independent: they are resampled together.
Across trained arms the unit is the seed, and `diffattn.stats` judges; nothing here does.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

LEVEL = 0.95
"""Share of intervals that should hold the truth."""
MANY = 300
"""From so many items on, a share's interval is the bootstrap's."""
CLUSTERS = 50
"""With fewer clusters the percentile bootstrap is too narrow, so that a t interval takes its place."""
DRAWS = 1000
MEMORY = 1_000_000
"""Numbers drawn at once."""
Z = 1.959963984540054
"""The normal quantile of 97.5 %."""


ALONE = "one document: none"
"""Of how things vary between documents, one tells nothing."""


@dataclass(frozen=True)
class Measure:
    """A number and how well it is known."""

    value: float
    low: float
    high: float
    n: int
    """Items behind it."""
    interval: str
    """How the interval was made; it holds the truth in 95 % of repetitions."""

    def to_dict(self) -> dict[str, Any]:
        """Give the fields ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.interval == ALONE:
            return f"{self.value:.4g} (no interval: one document, n = {self.n})"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g}, n = {self.n})"


def share(hits: Sequence[bool] | Sequence[float] | np.ndarray, clusters: Sequence[Hashable] | None = None) -> Measure:
    """The share of items that hit, [n] of 0 and 1; clusters: the document of each item, None where each is its own.

    Below 300 items Wilson's interval, with n reduced to what the clusters are worth; from there on the bootstrap over
    documents. ValueError: no items.
    """
    x, ids = _checked(hits, clusters)
    p, n = float(x.mean()), len(x)
    many = int(ids.max()) + 1
    if n >= MANY and many >= CLUSTERS and 0 < p < 1:
        return _bootstrap(x, ids)
    worth, z = float(n), Z
    if many < n:
        spread = _standard_error(x, ids)
        # Clusters that all agree show no spread; then each is worth one item.
        worth = p * (1 - p) / spread**2 if spread > 0 and 0 < p < 1 else float(many)
        worth = min(float(n), max(worth, 1.0))
        z = t_quantile(many) if many > 1 else math.inf
    if math.isinf(z):
        return Measure(p, 0.0, 1.0, n, ALONE)
    how = "Wilson" if many == n else "Wilson, n reduced to documents"
    return Measure(p, *wilson(p, worth, z), n, how)


def wilson(p: float, worth: float, z: float = Z) -> tuple[float, float]:
    """Wilson's interval of a share p of so many independent items, at a quantile z; p itself always lies in it."""
    centre = (p + z * z / (2 * worth)) / (1 + z * z / worth)
    half = z / (1 + z * z / worth) * math.sqrt(p * (1 - p) / worth + z * z / (4 * worth * worth))
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def mean(values: Sequence[float] | np.ndarray, clusters: Sequence[Hashable] | None = None) -> Measure:
    """The mean of values [n], for instance log-losses; clusters as in `share`.

    Below 50 documents a t interval over them, else the bootstrap. ValueError: no values, or one that is not finite.
    """
    x, ids = _checked(values, clusters)
    many = int(ids.max()) + 1
    if many >= CLUSTERS:
        return _bootstrap(x, ids)
    if many == 1:
        return Measure(float(x.mean()), -math.inf, math.inf, len(x), ALONE)
    half = t_quantile(many) * _standard_error(x, ids)
    return Measure(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half, len(x), "t over documents")


def mcnemar(first: Sequence[bool] | np.ndarray, second: Sequence[bool] | np.ndarray) -> tuple[Measure, float]:
    """Two models on the same items [n]: second - first in shares, and McNemar's exact two-sided p value.

    The interval is Wald's with half an item added to each cell (Agresti and Min 2005). ValueError: other lengths.
    """
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"two models are paired on the same items; got {a.shape} and {b.shape} outcomes")
    lost, won, n = int((a & ~b).sum()), int((~a & b).sum()), len(a)
    differ = lost + won
    tail = sum(math.comb(differ, k) for k in range(min(lost, won) + 1)) / 2**differ
    l, w, m = lost + 0.5, won + 0.5, n + 2
    centre, half = (w - l) / m, Z * math.sqrt((w + l) - (w - l) ** 2 / m) / m
    value = (won - lost) / n
    low, high = max(-1.0, min(value, centre - half)), min(1.0, max(value, centre + half))
    return Measure(value, low, high, n, "paired, Agresti and Min"), min(1.0, 2 * tail)


def difference(first: Measure, second: Measure) -> Measure:
    """first - second of measures on different items, their half-widths added as squares (Zou and Donner 2008).

    As of independent measures: where the two share documents whose scores go together, the interval is wider than it
    had to be.
    """
    value = first.value - second.value
    low = value - math.hypot(first.value - first.low, second.high - second.value)
    high = value + math.hypot(first.high - first.value, second.value - second.low)
    return Measure(value, low, high, first.n + second.n, f"of two: {first.interval}; {second.interval}")


def _checked(values: Sequence[Any] | np.ndarray, clusters: Sequence[Hashable] | None) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or not len(x):
        raise ValueError("there is nothing to average: no item was judged")
    if not np.isfinite(x).all():
        raise ValueError("an item's score is not finite: the model's logits hold NaN or infinity")
    if clusters is None:
        return x, np.arange(len(x))
    assert len(clusters) == len(x), "each item has its cluster"
    number = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    return x, np.array([number[name] for name in clusters])


def t_quantile(documents: int) -> float:
    """What a standard error over so many documents is multiplied by."""
    # scipy comes with an extra, and where nothing is averaged over few documents it is not needed.
    from diffattn.stats import t_critical

    return t_critical(documents, 1 - LEVEL)


def _standard_error(x: np.ndarray, ids: np.ndarray) -> float:
    """Of the mean over items, whose clusters may differ in size: the ratio estimator's."""
    sums, counts = np.bincount(ids, x), np.bincount(ids)
    many = len(sums)
    residuals = sums - x.mean() * counts
    return float(np.sqrt(many / (many - 1) * (residuals**2).sum()) / len(x)) if many > 1 else math.inf


def _bootstrap(x: np.ndarray, ids: np.ndarray) -> Measure:
    sums, counts = np.bincount(ids, x), np.bincount(ids)
    many, rng = len(sums), np.random.default_rng(0)
    means = np.empty(DRAWS)
    for first in range(0, DRAWS, at_once := max(1, MEMORY // many)):
        drawn = rng.integers(many, size=(len(means[first : first + at_once]), many), dtype=np.int32)
        means[first : first + at_once] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    how = "bootstrap over items" if many == len(x) else "bootstrap over documents"
    return Measure(float(x.mean()), float(low), float(high), len(x), how)
