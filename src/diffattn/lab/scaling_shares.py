"""The shares that two fitted curves tell: what an arm needs, of what the baseline has, for the same loss."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.lab.scaling_fit import Curves, differ, interval

Json = dict[str, Any]
AXES = ("parameters", "tokens")
MOST = 20.0
"""Logarithm of a factor beyond which it says nothing but that there is none."""


@dataclass(frozen=True)
class Fits:
    """The curves of all runs, those of the bootstraps, and the seeds that both rest on."""

    fitted: Curves
    drawn: Curves | None
    """None: there is one seed."""
    seeds: int


def varied(points: list[Json]) -> list[str]:
    """Those of parameters and tokens that differ between the points of a ladder."""
    return [key for key in AXES if differ([point[key] for point in points])]


def cost_line(points: list[Json], arm: str, kind: str) -> Any:
    """log FLOPs or seconds per token by log N, a straight line through the sizes; None where it was not measured."""
    pairs = [(math.log(p["parameters"]), cost) for p in points if (cost := p[kind][arm])]
    if not pairs:
        return None
    at, costs = np.array([x for x, _ in pairs]), np.log([cost for _, cost in pairs])
    line = np.polynomial.Polynomial.fit(at, costs, 1 if differ(np.exp(at)) else 0)
    return line.convert()


def shares_at(place: Json, points: list[Json], cost: Json, arm: int, fits: Fits) -> Json:
    """What the arm needs at a place, of what the baseline has there, for the same loss, each with its interval.

    place: parameters and tokens. cost: kind -> `cost_line` of baseline and arm. Gives, None where all had the same:
    parameters (at equal tokens), tokens (at equal parameters), scale (of what varied: both by one factor, so that
    tokens per parameter stay, or one alone), flops and seconds (of training, along that scale); seen: whether what is
    needed lies within what was run.
    """
    vary = [key in varied(points) for key in AXES]
    values, spread = (
        {} if curves is None else _logs(curves, arm, place, cost, vary) for curves in (fits.fitted, fits.drawn)
    )
    found: Json = {}
    for kind, value in values.items():
        axes = [key for key, varies in zip(AXES, vary, strict=True) if varies and kind in (key, "scale")]
        found[kind] = None if np.isnan(value) else measured(value, spread.get(kind), fits.seeds)
        if found[kind] and axes:
            factor = math.inf if found[kind]["value"] is None else found[kind]["value"]
            needs = {key: place[key] * factor for key in axes}
            found[kind] |= {"needs": needs, "seen": all(_within(needs[key], [p[key] for p in points]) for key in axes)}
        elif found[kind]:
            found[kind]["seen"] = found["scale"]["seen"]
    return found


def measured(value: Any, drawn: Any, seeds: int) -> Json:
    """A factor from its logarithm, and its 95 % interval where there are two seeds.

    value: None where no number is enough. unbounded: there is none, or no upper end.
    """
    ends = None if drawn is None else interval(float(value), drawn, seeds)
    low, high = (math.nan, math.nan) if ends is None else ends
    factors = {key: math.exp(at) if at < MOST else None for key, at in (("value", value), ("low", low), ("high", high))}
    return {**factors, "unbounded": bool(value >= MOST or high >= MOST)}


def _logs(curves: Curves, arm: int, place: Json, cost: Json, vary: list[bool]) -> dict[str, np.ndarray]:
    """The logarithms of the shares; infinite where no number is enough, NaN where all had the same."""
    size, tokens = curves.terms(0, place["parameters"], place["tokens"])
    (alpha, beta), (n, d) = curves.exponents, curves.shifts(arm)
    nothing = np.full(np.shape(size), np.nan)
    both = _both(size, tokens, alpha, beta, n, d)
    found = {
        # Solved for k: size (k s_N)^-alpha + tokens s_D^-beta = size + tokens, and the other way round.
        "parameters": _alone(size, size + tokens - tokens * np.exp(-beta * d), alpha, n) if vary[0] else nothing,
        "tokens": _alone(tokens, size + tokens - size * np.exp(-alpha * n), beta, d) if vary[1] else nothing,
        "scale": both,
    }
    more_size, more_tokens = (both if varies else 0.0 for varies in vary)
    for kind, (base, own) in cost.items():
        if base is not None and own is not None:
            at = math.log(place["parameters"])
            with np.errstate(invalid="ignore"):
                along = own(at + more_size) + more_tokens - base(at)
            # A line without slope makes 0 times infinity of it.
            found[kind] = np.where(np.isinf(both), np.inf, along)
    return found


def _alone(term: np.ndarray, left: np.ndarray, exponent: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """log k with term (k s)^-exponent = left; infinite where nothing is left, as the other term is too large."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left > 0, -np.log(left / term) / exponent, np.inf) - shift


def _both(size: np.ndarray, tokens: np.ndarray, alpha: Any, beta: Any, n: Any, d: Any) -> np.ndarray:
    """log k with size (k s_N)^-alpha + tokens (k s_D)^-beta = size + tokens, by bisection; infinite beyond e^10."""
    low, high = np.full(np.shape(size), -10.0), np.full(np.shape(size), 10.0)
    for _ in range(50):
        k = (low + high) / 2
        short = size * np.exp(-alpha * (n + k)) + tokens * np.exp(-beta * (d + k)) > size + tokens
        low, high = np.where(short, k, low), np.where(short, high, k)
    return np.where(high == 10.0, np.inf, (low + high) / 2)


def _within(value: float, run: list[float]) -> bool:
    """A hundredth is left for what the arms of a point differ by."""
    return 0.99 * min(run) <= value <= 1.01 * max(run)
