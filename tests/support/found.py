"""What is left in evals/inside.json and maps.json, made up: numbers of plausible size that differ between heads."""

import math
import random
from typing import Any

from diffattn.evals.inside import (
    DISTANCES,
    LOSSES,
    RANKS,
    WEIGHTS,
    Allocation,
    Curve,
    FirstApart,
    Inside,
    LamInside,
    LayerInside,
    LayerOutliers,
    MapInside,
    Outliers,
    OutputsInside,
    PairInside,
    PerHead,
    Share,
    SignalToNoise,
    Spread,
)


def found_inside(
    draw: random.Random,
    layers: int,
    heads: int,
    two_maps: bool,
    answers: int = 900,
    mixing: list[list[float]] | None = None,
) -> dict[str, Any]:
    """An Inside of a model; answers: rows with a marked answer; mixing: the matrix of every layer, if there is one."""
    looked = [_layer(draw, layer, heads, two_maps, bool(answers), mixing) for layer in range(layers)]
    return Inside(4096, 16, answers, looked, found_outliers(draw, layers, 1.0)).to_dict()


def found_outliers(draw: random.Random, layers: int, progress: float) -> Outliers:
    """Spreads that grow while a model trains."""
    found: list[LayerOutliers] = []
    for layer in range(layers):
        logits, hidden = _spread(draw, 6 + 9 * progress), _spread(draw, 3 + 20 * progress * layer)
        apart = FirstApart(logits, logits), FirstApart(hidden, hidden)
        found.append(LayerOutliers(layer, logits, hidden, 0.2, *apart))
    last = found[-1]
    apart = last.logits_apart, last.hidden_apart
    return Outliers(4096, last.logits, last.hidden, 0.2, 3, *apart, last.hidden.ratio, found)


def _layer(
    draw: random.Random, layer: int, heads: int, two_maps: bool, answers: bool, mixing: list[list[float]] | None
) -> LayerInside:
    def per_head(middle: float) -> PerHead:
        values = [middle * draw.uniform(0.7, 1.3) for _ in range(heads)]
        return PerHead(sum(values) / heads, list(values))

    lam = 0.3 + 0.2 * layer
    names = ["A1", "A2", "effective"] if two_maps else ["A", "effective"]
    pair = PairInside(
        cosine=per_head(0.5),
        lam=per_head(lam),
        lam_least_squares=per_head(lam + 0.2),
        r2=per_head(0.35),
        r2_learned=per_head(0.2),
        jensen_shannon=per_head(0.25),
        js_loss_correlation=per_head(0.1),
        js_by_loss=_curve(heads, [0.1 + 0.03 * place for place in range(len(LOSSES))]),
    )
    ratio = SignalToNoise(per_head(0.4), per_head(1.1), per_head(1.0))
    return LayerInside(
        layer=layer,
        heads=heads,
        lam=LamInside(lam, lam - 0.1, lam + 0.1, 0.0, 0.0) if two_maps else None,
        maps=[_map(draw, name, heads, two_maps and name == "effective", answers, per_head) for name in names],
        pair=pair if two_maps else None,
        outputs=OutputsInside(
            first_weight=per_head(0.3),
            first_contribution=per_head(0.05),
            relative_norm=per_head(0.2),
            signal_to_noise=ratio if answers else None,
            outside_hull=per_head(0.4),
            hull_samples=200,
        ),
        mixing=mixing,
    )


def _map(draw: random.Random, name: str, heads: int, signed: bool, answers: bool, per_head: Any) -> MapInside:
    negative = 0.2 if signed else 0.0

    def share(absolute: float) -> Share:
        return Share(PerHead(absolute * (1 - 2 * negative), []), PerHead(absolute, []))

    effective = name == "effective"
    near = draw.uniform(0.1, 0.4)
    mass = [math.exp(-near * place) for place in range(len(DISTANCES[:8]))]
    ranks = [math.exp(-near * place) for place in range(RANKS)]
    weights = [10.0 ** (place - 6) for place in range(len(WEIGHTS))]
    return MapInside(
        name=name,
        coefficient=PerHead(-0.5 if name == "A2" else 1.0, []),
        allocation=Allocation(share(0.3) if answers else None, share(0.25), share(0.45 if answers else 0.75)),
        negative_mass=PerHead(negative, []),
        exact_zeros=PerHead(0.0, []),
        non_convex_rows=PerHead(0.9 if signed else 0.0, []),
        effective_keys=per_head(12.0),
        dead_keys=per_head(0.02),
        weight_by_distance=_curve(heads, [m / 40 for m in mass]),
        mass_by_distance=_curve(heads, [m / sum(mass) for m in mass]),
        sorted_mass=_curve(heads, [share / sum(ranks) for share in ranks]),
        head_cosine=[[1.0 if i == j else 0.3 for j in range(heads)] for i in range(heads)],
        gradient_norm=None if effective else per_head(0.01),
        gradient_by_weight=None if effective else _curve(heads, weights),
    )


def _curve(heads: int, values: list[float]) -> Curve:
    return Curve(list(values), [list(values) for _ in range(heads)])


def _spread(draw: random.Random, top: float) -> Spread:
    top *= draw.uniform(0.9, 1.1)
    return Spread(top, 0.97 * top, 0.95 * top, 0.8 * top, 0.6 * top, 0.7, 1.0, top, 2 + top, 10_000)


def found_maps(arm: str, draw: random.Random, tokens: tuple[str, ...]) -> dict[str, Any]:
    """Maps of three heads on a passage: two and their difference where the arm's name says so."""
    heads = []
    for layer, head in ((0, 0), (1, 1), (2, 2)):
        first, second = (_attention(len(tokens), sharp, draw) for sharp in (3.0, 1.2))
        if arm.startswith("diff"):
            lam = (0.29, 0.55, 0.63)[layer]
            branches = [("A1", 1.0, first), ("A2", -lam, second)]
        else:
            branches = [("A", 1.0, first)]
        effective = [
            [round(sum(c * a[t][s] for _, c, a in branches), 4) for s in range(len(tokens))] for t in range(len(tokens))
        ]
        named = [{"name": n, "coefficient": c, "map": a} for n, c, a in branches]
        heads.append({"layer": layer, "head": head, "branches": named, "effective": effective})
    return {"tokens": list(tokens), "heads": heads}


def _attention(length: int, sharp: float, draw: random.Random) -> list[list[float]]:
    likes = [draw.gauss(0, 1) for _ in range(length)]
    rows = []
    for t in range(length):
        logits = [sharp * (likes[s] + 0.4 * draw.gauss(0, 1) + (0.8 if t - s == 1 else 0)) for s in range(t + 1)]
        weights = [math.exp(x - max(logits)) for x in logits]
        rows.append([round(w / sum(weights), 4) for w in weights] + [0.0] * (length - t - 1))
    return rows
