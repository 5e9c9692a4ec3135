"""The variants with two maps for each head, as formulas in NumPy written from the papers, apart from the library.

S1 and S2 are logits without mask and bias, A1 and A2 the maps; letters and the form of a formula as in `numpy_parts`.
Unless said otherwise a head is V1's: V of 2D, a norm behind the read, times 1 - lambda_init.
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
    rms_norm,
    rotated_heads,
    scaled_logits,
    source,
    values,
    visible,
)

LogitPairs = Callable[[Weights, Array, Settings], list[tuple[Array, Array]]]


def lam_of(h: int, w: Weights, s: Settings) -> float:
    if s.config.lam == "exp":
        first, second = w["lambda_q1"] @ w["lambda_k1"], w["lambda_q2"] @ w["lambda_k2"]
        return math.exp(first) - math.exp(second) + s.lambda_init()
    if s.config.lam == "fixed":
        return s.lambda_init()
    raw = w["lambda_raw"][h if s.config.lam == "per_head" else 0]
    return logistic(raw) if s.config.lam == "sigmoid" else raw


def adjacent(w: Weights, x: Array, s: Settings) -> list[tuple[Array, Array]]:
    """S1 and S2 of each output head: query heads 2h and 2h + 1, key heads 2g and 2g + 1."""
    q, k = queries(w, x, s), keys(w, x, s)
    return [scored(s, (q[2 * h], q[2 * h + 1]), (k[2 * s.group(h)], k[2 * s.group(h) + 1])) for h in s.heads()]


def scored(s: Settings, q: tuple[Array, Array], k: tuple[Array, Array]) -> tuple[Array, Array]:
    return q[0] @ k[0].T / math.sqrt(s.dim), q[1] @ k[1].T / math.sqrt(s.dim)


def map_pairs(w: Weights, x: Array, s: Settings, logits: LogitPairs = adjacent) -> list[tuple[Array, Array]]:
    seen = visible(x, s)
    pairs = enumerate(logits(w, x, s))
    return [(normalised(S1 + bias(h, x, s), seen), normalised(S2 + bias(h, x, s), seen)) for h, (S1, S2) in pairs]


def v1_like(heads: Formula) -> Formula:
    """The reads behind the norm of each head and times 1 - lambda_init."""
    return lambda w, x, s: [(1 - s.lambda_init()) * rms_norm(w, head, s) for head in heads(w, x, s)]


def subtracted(logits: LogitPairs) -> Formula:
    """(A1 - lam A2) V."""

    @v1_like
    def heads(w: Weights, x: Array, s: Settings) -> list[Array]:
        v, maps = values(w, x, s), map_pairs(w, x, s, logits)
        return [(maps[h][0] - lam_of(h, w, s) * maps[h][1]) @ v[h] for h in s.heads()]

    return heads


def low_rank(w: Weights, x: Array, s: Settings) -> list[tuple[Array, Array]]:
    """Both maps' queries and keys: a shared projection plus a low-rank one of their own."""

    def heads(role: str, which: int, at: Array) -> list[Array]:
        own = linear_map(w, f"{role}{which}_up", linear_map(w, f"{role}{which}_down", at))
        return rotated_heads(linear_map(w, role, at) + own, s)

    q1, q2, k1, k2 = heads("q", 1, x), heads("q", 2, x), heads("k", 1, source(x, s)), heads("k", 2, source(x, s))
    return [scored(s, (q1[h], q2[h]), (k1[s.group(h)], k2[s.group(h)])) for h in s.heads()]


def borrowed(w: Weights, x: Array, s: Settings) -> list[tuple[Array, Array]]:
    """Signal heads of their own, and one noise head for every r of them."""
    q1, q2, k1, k2 = queries(w, x, s), queries(w, x, s, "q2"), keys(w, x, s), keys(w, x, s, "k2")
    found = []
    for h in s.heads():
        noise, group = h // s.config.share, s.group(h)
        second = noise if s.config.groups == s.config.heads else group
        found.append(scored(s, (q1[h], q2[noise]), (k1[group], k2[second])))
    return found


diff_v1 = subtracted(adjacent)
shared_diff = subtracted(low_rank)
grouped_diff = subtracted(borrowed)


@v1_like
def diff_factored(w: Weights, x: Array, s: Settings) -> list[Array]:
    v, maps = values(w, x, s), map_pairs(w, x, s)
    return [maps[h][0] @ v[h] - lam_of(h, w, s) * (maps[h][1] @ v[h]) for h in s.heads()]


@v1_like
def diff_relu(w: Weights, x: Array, s: Settings) -> list[Array]:
    v, heads = values(w, x, s), []
    for h, (A1, A2) in enumerate(map_pairs(w, x, s)):
        kept = np.maximum(0.0, A1 - lam_of(h, w, s) * A2)
        if s.config.renormalise:
            total = kept.sum(axis=1, keepdims=True)
            kept = np.divide(kept, total, out=np.zeros_like(kept), where=total > 0)
        heads.append(kept @ v[h])
    return heads


@v1_like
def diff_heaviside(w: Weights, x: Array, s: Settings) -> list[Array]:
    v, heads = values(w, x, s), []
    for h, (A1, A2) in enumerate(map_pairs(w, x, s)):
        lam = lam_of(h, w, s)
        step = np.where(A1 - lam * A2 > 0, 1.0, 0.0)
        heads.append((A1 * step if s.config.gate else A1 - lam * step) @ v[h])
    return heads


@v1_like
def diff_uniform(w: Weights, x: Array, s: Settings) -> list[Array]:
    def flat(w: Weights, x: Array, s: Settings) -> list[tuple[Array, Array]]:
        # 1 / (keys visible) is the softmax of logits 0; slopes and float masks are added to them as to the first map's.
        return [(S, 0.0 * S) for S in scaled_logits(w, x, s)]

    v, maps = values(w, x, s), map_pairs(w, x, s, flat)
    return [(maps[h][0] - lam_of(h, w, s) * maps[h][1]) @ v[h] for h in s.heads()]


@v1_like
def diff_hierarchical(w: Weights, x: Array, s: Settings) -> list[Array]:
    k, v, seen = keys(w, x, s), values(w, x, s), visible(x, s)

    def reads(q: list[Array], which: int) -> list[Array]:
        S = [q[h] @ k[2 * s.group(h) + which].T / math.sqrt(s.dim) for h in s.heads()]
        return [normalised(S[h] + bias(h, x, s), seen) @ v[h] for h in s.heads()]

    first = reads(queries(w, x, s), 0)
    second = reads(queries(w, x + np.concatenate(first, axis=1), s, "q2"), 1)
    return [first[h] - lam_of(h, w, s) * second[h] for h in s.heads()]


@v1_like
def dint(w: Weights, x: Array, s: Settings) -> list[Array]:
    v, heads = values(w, x, s), []
    documents = np.zeros(len(x)) if s.documents is None else s.documents
    for h, (A1, A2) in enumerate(map_pairs(w, x, s)):
        first, second, lam = A1 @ v[h], A2 @ v[h], lam_of(h, w, s)
        mean = np.zeros_like(first)
        for t in range(len(x)):
            own = [u for u in range(t + 1) if documents[u] == documents[t] >= 0]
            mean[t] = first[own].mean(axis=0) if own else 0.0
        heads.append(first - lam * second + lam * mean)
    return heads


def diff_fixed(w: Weights, x: Array, s: Settings) -> list[Array]:
    v, c = values(w, x, s), s.config.c
    return [(1 - c) * rms_norm(w, (A1 - c * A2) @ v[h], s) for h, (A1, A2) in enumerate(map_pairs(w, x, s))]


def tied_value(w: Weights, x: Array, s: Settings) -> list[Array]:
    v, c = values(w, x, s), s.config.c
    return [A1 @ v[h] - c * (A2 @ v[h]) for h, (A1, A2) in enumerate(map_pairs(w, x, s))]


@normed
def diff_v2(w: Weights, x: Array, s: Settings) -> list[Array]:
    q, k, v, lam = queries(w, x, s), keys(w, x, s), values(w, x, s), logistic(linear_map(w, "lambda_proj", x))

    def one_key(w: Weights, x: Array, s: Settings) -> list[tuple[Array, Array]]:
        return [scored(s, (q[2 * h], q[2 * h + 1]), (k[s.group(h)], k[s.group(h)])) for h in s.heads()]

    maps = enumerate(map_pairs(w, x, s, one_key))
    return [A1 @ v[h] - lam[:, h, None] * (A2 @ v[h]) for h, (A1, A2) in maps]


@normed
def diff_temperature(w: Weights, x: Array, s: Settings) -> list[Array]:
    def tempered(w: Weights, x: Array, s: Settings) -> list[tuple[Array, Array]]:
        return [(S, w["tau"][h] * S) for h, S in enumerate(scaled_logits(w, x, s))]

    v, maps = values(w, x, s), map_pairs(w, x, s, tempered)
    return [(maps[h][0] - maps[h][1]) @ v[h] for h in s.heads()]


@normed
def gated_logsigmoid(w: Weights, x: Array, s: Settings) -> list[Array]:
    seen, v, heads = visible(x, s), values(w, x, s), []
    for h, (S1, S2) in enumerate(adjacent(w, x, s)):
        logits = w["a"][h] * S1 - np.log(logistic(w["b"][h] * S2))
        heads.append(normalised(logits + bias(h, x, s), seen) @ v[h])
    return heads


TWO_MAPS: dict[str, Formula] = {
    "diff_factored": diff_factored,
    "diff_fixed": diff_fixed,
    "diff_heaviside": diff_heaviside,
    "diff_hierarchical": diff_hierarchical,
    "diff_relu": diff_relu,
    "diff_temperature": diff_temperature,
    "diff_uniform": diff_uniform,
    "diff_v1": diff_v1,
    "diff_v2": diff_v2,
    "dint": dint,
    "gated_logsigmoid": gated_logsigmoid,
    "grouped_diff": grouped_diff,
    "shared_diff": shared_diff,
    "tied_value": tied_value,
}
