"""The shares that two fitted curves tell: what an arm needs, of what the baseline has, for the same loss."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.lab.scaling_fit import Curves, interval

Json = dict[str, Any]
AXES = ("parameters", "tokens")


@dataclass(frozen=True)
class Fits:
    """The curves of all runs, those of the bootstraps, and the seeds that both rest on."""

    fitted: Curves
    drawn: Curves | None
    """None: there is one seed."""
    seeds: int


def cost_line(points: list[Json], arm: str, kind: str) -> Any:
    """log FLOPs or seconds per token by log N, a straight line through the sizes; None where it was not measured."""
    pairs = [(math.log(p["parameters"]), cost) for p in points if (cost := p[kind][arm])]
    if not pairs:
        return None
    at, costs = np.array([x for x, _ in pairs]), np.log([cost for _, cost in pairs])
    line = np.polynomial.Polynomial.fit(at, costs, 1 if np.ptp(at) > 0.1 else 0)
    return line.convert()


def shares_at(place: Json, points: list[Json], cost: Json, arm: int, fits: Fits) -> Json:
    """What the arm needs at a place, of what the baseline has there, for the same loss, each with its interval.

    place: parameters and tokens. cost: kind -> `cost_line` of baseline and arm. Gives, None where no number will do:
    parameters (at equal tokens), tokens (at equal parameters), scale (both by one factor, so that tokens per parameter
    stay), flops and seconds (of training, along that scale); seen: whether what is needed lies within what was run.
    """
    vary = [len({point[key] for point in points}) > 1 for key in AXES]
    values, spread = (
        {} if curves is None else _logs(curves, arm, place, cost, vary) for curves in (fits.fitted, fits.drawn)
    )
    found: Json = {}
    for kind, value in values.items():
        axes = [key for key, varies in zip(AXES, vary, strict=True) if varies and kind in (key, "scale")]
        found[kind] = measured(value, spread.get(kind), fits.seeds) if np.isfinite(value) else None
        if found[kind] and axes:
            needs = {key: place[key] * found[kind]["value"] for key in axes}
            found[kind] |= {"needs": needs, "seen": all(_within(needs[key], [p[key] for p in points]) for key in axes)}
        elif found[kind]:
            found[kind]["seen"] = found["scale"]["seen"]
    return found


def measured(value: Any, drawn: Any, seeds: int) -> Json:
    """A factor from its logarithm, and its interval where there is one."""
    ends = None if drawn is None else interval(float(value), drawn, seeds)
    # Beyond e^20 an end says nothing but that there is none.
    low, high = (None if ends is None or abs(end) > 20 else math.exp(end) for end in ends or (0, 0))
    return {"value": math.exp(float(value)), "low": low, "high": high}


def _logs(curves: Curves, arm: int, place: Json, cost: Json, vary: list[bool]) -> dict[str, np.ndarray]:
    """The logarithms of the shares; not finite where there is none."""
    size, tokens = curves.terms(0, place["parameters"], place["tokens"])
    (alpha, beta), (n, d) = curves.exponents, curves.shifts(arm)
    nothing = np.full(np.shape(size), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Solved for k: size (k s_N)^-alpha + tokens s_D^-beta = size + tokens, and the other way round.
        by_size = -np.log((size + tokens - tokens * np.exp(-beta * d)) / size) / alpha - n
        by_tokens = -np.log((size + tokens - size * np.exp(-alpha * n)) / tokens) / beta - d
    both = _both(size, tokens, alpha, beta, n, d)
    found = {"parameters": by_size if vary[0] else nothing, "tokens": by_tokens if vary[1] else nothing, "scale": both}
    for kind, (base, own) in cost.items():
        if base is not None and own is not None:
            at = math.log(place["parameters"])
            found[kind] = own(at + vary[0] * both) + vary[1] * both - base(at)
    return found


def _both(size: np.ndarray, tokens: np.ndarray, alpha: Any, beta: Any, n: Any, d: Any) -> np.ndarray:
    """log k with size (k s_N)^-alpha + tokens (k s_D)^-beta = size + tokens, by bisection between e^-10 and e^10."""
    low, high = np.full(np.shape(size), -10.0), np.full(np.shape(size), 10.0)
    for _ in range(50):
        k = (low + high) / 2
        short = size * np.exp(-alpha * (n + k)) + tokens * np.exp(-beta * (d + k)) > size + tokens
        low, high = np.where(short, k, low), np.where(short, high, k)
    return (low + high) / 2


def _within(value: float, run: list[float]) -> bool:
    """A hundredth is left for what the arms of a point differ by."""
    return 0.99 * min(run) <= value <= 1.01 * max(run)
