"""What a model could know of being wrong: signals of confidence, and how well each of them tells wrong answers.

n answers of several records; what a record's answers share is kept out of training and resampled together.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from diffattn.evals.intervals import CLUSTERS, Measure, Z, share, t_quantile, wilson
from diffattn.evals.reader import Reader, Scored

FOLDS = 5
BINS = 10
COVERAGES = (0.25, 0.5, 0.75, 1.0)
RIDGE = 1.0
"""Of the probe, whose inputs are standardised and scaled to a length of about 1."""
STEPS = 25
"""Of Newton's method; it converges in under 10."""

TOKEN_FEATURES: dict[str, Callable[[Scored], float]] = {
    "minimum probability": lambda s: float(np.exp(s.tokens.min())),
    "mean probability": lambda s: float(np.exp(s.tokens).mean()),
    "deviation from the likeliest": lambda s: -float((np.exp(s.likeliest) - np.exp(s.tokens)).max()),
    "spread": lambda s: float((np.exp(s.likeliest) - np.exp(s.unlikeliest)).min()),
    "energy": lambda s: float(s.energy.mean()),
}
"""The first four are those of arXiv 2405.19648, each with the sign that makes more of it more confident; energy is the
mean of log-sum-exp of the logits (arXiv 2010.03759)."""
PROBABILITIES = ("minimum probability", "mean probability", "answer probability")
"""Signals that are probabilities of being right as they are; the others only rank."""


def signals(
    reader: Reader,
    prompts: Sequence[str],
    texts: Sequence[str],
    ways: Sequence[Sequence[str]],
    right: np.ndarray,
    records: Sequence[Hashable],
) -> dict[str, np.ndarray]:
    """Give every signal [n] of the answers that a model wrote; ways: paraphrases of each (`grounding.paraphrases`).

    "answer probability" is summed over those that fit the context; "probe" is read from the state at the prompt's end,
    trained on other records. Where no record is another, there is no probe.
    """
    scored = reader.score(
        [(prompt, fitting(reader, prompt, text)) for prompt, text in zip(prompts, texts, strict=True)]
    )
    found = {name: np.array([feature(s) for s in scored]) for name, feature in TOKEN_FEATURES.items()}
    lines = [
        (number, (prompt, way))
        for number, (prompt, some) in enumerate(zip(prompts, ways, strict=True))
        for way in some
        if reader.count(prompt + way) <= reader.context
    ]
    summed = np.zeros(len(prompts))
    for (number, _), one in zip(lines, reader.score([pair for _, pair in lines]), strict=True):
        summed[number] += math.exp(one.total)
    found["answer probability"] = summed
    if len(set(records)) > 1:
        found["probe"] = probe(np.stack([s.state for s in scored]), right, records)
    return found


def fitting(reader: Reader, prompt: str, text: str) -> str:
    """Cut what a model wrote to what it can read again: bytes that are no text come back as longer ones."""
    while len(text) > 1 and reader.count(prompt + text) > reader.context:
        text = text[:-1]
    return text or "\n"


def judged(confidence: np.ndarray, right: np.ndarray, records: Sequence[Hashable], probability: bool) -> dict[str, Any]:
    """Tell how well a confidence [n] tells right answers [n] from wrong ones, ready for JSON.

    auroc: None where all are right or all are wrong. calibrated: the Brier score and the expected calibration error of
    a logistic fit on other records (None: there are none); raw: of the confidence itself, where it is a probability.
    risk: the share of wrong ones among the most confident, by coverage.
    """
    fit = across(records, lambda train, test: _calibrate(confidence[train], right[train], confidence[test]))
    order = np.argsort(-confidence, kind="stable")
    kept = {coverage: order[: max(1, round(coverage * len(order)))] for coverage in COVERAGES}
    both = 0 < right.sum() < len(right)
    return {
        "auroc": auroc(confidence, right, records).to_dict() if both else None,
        "raw": _quality(confidence, right) if probability else None,
        "calibrated": None if fit is None else _quality(fit, right),
        "risk": {
            f"{100 * coverage:.0f} %": share(~right[some], [records[i] for i in some]).to_dict()
            for coverage, some in kept.items()
        },
    }


def auroc(confidence: np.ndarray, right: np.ndarray, records: Sequence[Hashable]) -> Measure:
    """The probability that a right answer has more confidence than a wrong one, of equals a half.

    The variance is that of clustered placements (Obuchowski 1997), the interval Wilson's with as many items as would
    vary so. ValueError: all are right, or all are wrong.
    """
    x, y = confidence[right], confidence[~right]
    if not len(x) or not len(y):
        raise ValueError("an AUROC needs answers that are right and answers that are wrong")
    # Placements: the share of the other side that an answer is on the right side of.
    above, below = _ranked(x, y), 1 - _ranked(y, x)
    area = float(above.mean())
    number = {name: i for i, name in enumerate(dict.fromkeys(records))}
    ids, many = np.array([number[name] for name in records]), len(number)
    sums = np.bincount(ids[right], above - area, many) / len(x) + np.bincount(ids[~right], below - area, many) / len(y)
    if many == 1:
        return Measure(area, 0.0, 1.0, len(confidence), "one record: none")
    variance = many / (many - 1) * float((sums**2).sum())
    fewest = float(min(len(x), len(y), many))
    worth = area * (1 - area) / variance if variance > 0 and 0 < area < 1 else fewest
    low, high = wilson(area, worth, t_quantile(many) if many < CLUSTERS else Z)
    return Measure(area, low, high, len(confidence), "Wilson, n from placements by record")


def _ranked(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each value the share of the others that are smaller, equal ones counting half."""
    order = np.sort(others)
    return (np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right")) / (2 * len(order))


def across(records: Sequence[Hashable], fit: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray | None:
    """Predict each answer [n] from those of other records, in five folds; fit(train, test): places. None: no others."""
    number = {name: i for i, name in enumerate(dict.fromkeys(records))}
    folds = np.array([number[name] % FOLDS for name in records])
    if len(number) < 2:
        return None
    found = np.empty(len(folds))
    for fold in range(min(FOLDS, len(number))):
        test = np.flatnonzero(folds == fold)
        found[test] = fit(np.flatnonzero(folds != fold), test)
    return found


def probe(states: np.ndarray, right: np.ndarray, records: Sequence[Hashable]) -> np.ndarray:
    """Rank answers [n] by a ridge regression of being right on states [n, W], fitted on other records."""
    x = np.asarray(states, dtype=float)
    spread = x.std(axis=0)
    # States are standardised without a look at what is right.
    x = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / math.sqrt(x.shape[1])

    def ridge(train: np.ndarray, test: np.ndarray) -> np.ndarray:
        # Without the base rate, which is higher among the others where a record has more wrong answers than most.
        target = right[train] - right[train].mean()
        weights = np.linalg.solve(x[train] @ x[train].T + RIDGE * np.eye(len(train)), target)
        return x[test] @ (x[train].T @ weights)

    found = across(records, ridge)
    assert found is not None, "a probe needs two records"
    return found


def _calibrate(confidence: np.ndarray, right: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Fit a logistic curve with Platt's targets, which keep it finite where a side is empty or both are apart."""
    centre, scale = confidence.mean(), confidence.std() or 1.0
    x = np.stack([np.ones(len(confidence)), (confidence - centre) / scale], axis=1)
    hits = right.sum()
    target = np.where(right, (hits + 1) / (hits + 2), 1 / (len(right) - hits + 2))
    # A start at the base rate and a slight pull on the slope: where confidence is constant, it has none.
    base = float(target.mean())
    weights, pull = np.array([math.log(base / (1 - base)), 0.0]), np.array([0.0, 1e-3])
    for _ in range(STEPS):
        p = _sigmoid(x @ weights)
        gradient = x.T @ (p - target) + pull * weights
        curvature = (x.T * np.maximum(p * (1 - p), 1e-9)) @ x + np.diag(pull)
        weights = weights - np.clip(np.linalg.solve(curvature, gradient), -2, 2)
    return _sigmoid(weights[0] + weights[1] * (new - centre) / scale)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -50, 50)))


def _quality(probability: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Give the Brier score, and the expected calibration error over ten bins of equal width."""
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, probability - right, BINS)
    return {
        "brier": float(((probability - right) ** 2).mean()),
        "calibration_error": float(np.abs(gaps).sum() / len(right)),
    }
