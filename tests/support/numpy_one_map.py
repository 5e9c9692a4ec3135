"""The variants with one map for each head, as formulas in NumPy written from the papers, apart from the library.

S are logits without mask and bias; letters and the form of a formula as in `numpy_parts`.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy import ndarray as Array

from support.numpy_parts import (
    Formula,
    Settings,
    Weights,
    bias,
    keys,
    linear_map,
    logistic,
    normalised,
    normed,
    queries,
    scaled_logits,
    values,
    visible,
)


def one_map(weights: Callable[[Array, Array, Array, int, Weights, Settings], Array]) -> Formula:
    """From weights(logits, bias, visible, head, w, s) [T, S] to the heads' reads."""

    def heads(w: Weights, x: Array, s: Settings) -> list[Array]:
        seen = visible(x, s)
        reads = zip(scaled_logits(w, x, s), values(w, x, s), strict=True)
        return [weights(S, bias(h, x, s), seen, h, w, s) @ v for h, (S, v) in enumerate(reads)]

    return heads


softmax = normed(one_map(lambda S, add, seen, h, w, s: normalised(S + add, seen)))
sink = normed(one_map(lambda S, add, seen, h, w, s: normalised(S + add, seen, w["sink"][h])))
affine = one_map(lambda S, add, seen, h, w, s: np.where(seen, 2 * normalised(S + add, seen) - 1, 0.0))
sigmoid = one_map(lambda S, add, seen, h, w, s: np.where(seen, logistic(S + add + w["bias"][h]), 0.0))
linear = one_map(lambda S, add, seen, h, w, s: np.where(seen, S + add, 0.0) / counted(seen))


def counted(seen: Array) -> Array:
    """[T, 1]: how many keys each query sees, 1 for those that see none."""
    return np.maximum(seen.sum(axis=1, keepdims=True), 1)


def softmax1(w: Weights, x: Array, s: Settings) -> list[Array]:
    ordinary = s.site.layer == s.site.layers - 1 and not s.config.last_layer
    if ordinary:
        return softmax(w, x, s)
    return normed(one_map(lambda S, add, seen, h, w, s: normalised(S + add, seen, 0.0)))(w, x, s)


@one_map
def expm1(S: Array, add: Array, seen: Array, h: int, w: Weights, s: Settings) -> Array:
    """max(0, e^S - 1) divided by its sum over the row and eps; with logits of order 1 nothing overflows."""
    above = np.where(seen, np.maximum(0.0, np.exp(S + add) - 1), 0.0)
    return above / (s.config.eps + above.sum(axis=1, keepdims=True))


@normed
def qk_norm(w: Weights, x: Array, s: Settings) -> list[Array]:
    q, k, v, seen = queries(w, x, s), keys(w, x, s), values(w, x, s), visible(x, s)
    heads = []
    for h in s.heads():
        key = k[s.group(h)]
        lengths = np.linalg.norm(q[h], axis=1)[:, None] * np.linalg.norm(key, axis=1)[None, :]
        cosine = q[h] @ key.T / lengths
        heads.append(normalised(w["gain"][h] * cosine + bias(h, x, s), seen) @ v[h])
    return heads


def output_gate(w: Weights, x: Array, s: Settings) -> list[Array]:
    gates = np.split(logistic(linear_map(w, "gate", x)), s.config.heads, axis=1)
    return [head * gate for head, gate in zip(softmax(w, x, s), gates, strict=True)]


def dex(w: Weights, x: Array, s: Settings) -> list[Array]:
    share = float(w["progress"])
    a = min(1.0, share)
    lam = (1 - a) * share * s.config.lambda_init + a * float(w["lam_learned"])
    chosen = s.heads() if s.config.dex_heads is None else s.config.dex_heads
    heads = softmax(w, x, s)
    return [o - lam * o @ w["w_d"] if h in chosen else o for h, o in enumerate(heads)]


def all_maps(w: Weights, x: Array, s: Settings) -> list[Array]:
    seen = visible(x, s)
    return [normalised(S + bias(h, x, s), seen) for h, S in enumerate(scaled_logits(w, x, s))]


def map_mix(w: Weights, x: Array, s: Settings) -> list[Array]:
    maps, v, mix = all_maps(w, x, s), values(w, x, s), w["mix"]
    if s.config.rows_sum_to_one:
        # Of the ways to make rows sum to 1, the one that moves the matrix least.
        mix = mix + (1 - mix.sum(axis=1, keepdims=True)) / s.config.heads
    return [sum(mix[i, j] * maps[j] for j in s.heads()) @ v[i] for i in s.heads()]


def map_mix_mlp(w: Weights, x: Array, s: Settings) -> list[Array]:
    maps, v = np.stack(all_maps(w, x, s)), values(w, x, s)
    made = np.zeros_like(maps)
    for t in range(maps.shape[1]):
        for key in range(maps.shape[2]):
            column = maps[:, t, key]
            hidden = [u / 2 * (1 + math.erf(u / math.sqrt(2))) for u in w["mix_in"] @ column]
            made[:, t, key] = column + w["mix_out"] @ np.array(hidden)
    return [made[h] @ v[h] for h in s.heads()]


ONE_MAP: dict[str, Formula] = {
    "affine": affine,
    "dex": dex,
    "expm1": expm1,
    "linear": linear,
    "map_mix": map_mix,
    "map_mix_mlp": map_mix_mlp,
    "output_gate": output_gate,
    "qk_norm": qk_norm,
    "sigmoid": sigmoid,
    "sink": sink,
    "softmax": softmax,
    "softmax1": softmax1,
}
