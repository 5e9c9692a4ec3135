"""What the formulas in NumPy share: projections, rotary, who sees whom, softmax, norm; one sequence, head by head.

T queries, S keys, W model width, H output heads, G groups of keys and values, D and E the widths of their heads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray as Array

from diffattn.variants.base import Site


@dataclass(frozen=True)
class Settings:
    """All that a formula depends on besides weights and tokens."""

    config: Any
    """The variant's options."""
    site: Site
    dim: int
    """D, the width of one query or key head."""
    rotary: bool = True
    causal: bool = True
    window: int | None = None
    documents: Array | None = None
    """[S] ids of the keys, negative for padding."""
    alibi: Array | None = None
    """[H] slopes."""
    mask: Array | None = None
    """[H, T, S] numbers added to the logits."""
    memory: Array | None = None
    """[S, W]: where keys and values come from instead of x."""

    def group(self, head: int) -> int:
        return head // (self.config.heads // self.config.groups)

    def heads(self) -> range:
        return range(self.config.heads)

    def lambda_init(self) -> float:
        given = self.config.lambda_init
        return 0.8 - 0.6 * math.exp(-0.3 * self.site.layer) if given is None else given


Weights = dict[str, Array]
"""A layer's parameters and buffers by name."""
Formula = Callable[[Weights, Array, Settings], list[Array]]
"""From weights, one sequence [T, W] and settings to the H output heads before the output projection, each [T, E]."""


def linear_map(w: Weights, role: str, x: Array) -> Array:
    return x @ w[f"{role}.weight"].T + w.get(f"{role}.bias", 0.0)


def written(w: Weights, heads: list[Array]) -> Array:
    return linear_map(w, "o", np.concatenate(heads, axis=1))


def rotated(x: Array, s: Settings) -> Array:
    """Channels 2i and 2i + 1 of [T, D] as one complex number, turned by position * 10000^(-2i/D)."""
    if not s.rotary:
        return x
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, s.dim, 2) / s.dim)
    numbers = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)
    return np.stack((numbers.real, numbers.imag), axis=2).reshape(x.shape)


def in_heads(projected: Array, width: int) -> list[Array]:
    return [projected[:, i : i + width] for i in range(0, projected.shape[1], width)]


def rotated_heads(projected: Array, s: Settings) -> list[Array]:
    return [rotated(head, s) for head in in_heads(projected, s.dim)]


def queries(w: Weights, x: Array, s: Settings, role: str = "q") -> list[Array]:
    return rotated_heads(linear_map(w, role, x), s)


def keys(w: Weights, x: Array, s: Settings, role: str = "k") -> list[Array]:
    return rotated_heads(linear_map(w, role, source(x, s)), s)


def scaled_logits(w: Weights, x: Array, s: Settings) -> list[Array]:
    """S = q k^T / sqrt(D) for each head, times its temperature where it has one."""
    q, k = queries(w, x, s), keys(w, x, s)
    scale = w.get("temperature", np.ones(s.config.heads)) / math.sqrt(s.dim)
    return [scale[h] * q[h] @ k[s.group(h)].T for h in s.heads()]


def values(w: Weights, x: Array, s: Settings) -> list[Array]:
    """V of each output head, that of its group."""
    per_group = np.split(linear_map(w, "v", source(x, s)), s.config.groups, axis=1)
    return [per_group[s.group(h)] for h in s.heads()]


def source(x: Array, s: Settings) -> Array:
    return x if s.memory is None else s.memory


def visible(x: Array, s: Settings) -> Array:
    """[T, S]: who may attend to whom."""
    rows, columns = len(x), len(source(x, s))
    seen = np.ones((rows, columns), dtype=bool)
    for t in range(rows):
        for key in range(columns):
            at = t + columns - rows
            if s.causal and key > at:
                seen[t, key] = False
            if s.window is not None and key <= at - s.window:
                seen[t, key] = False
            if s.documents is not None and not s.documents[key] == s.documents[at] >= 0:
                seen[t, key] = False
    return seen


def bias(h: int, x: Array, s: Settings) -> Array:
    """[T, S]: what is added to the logits of head h behind every scale and inner nonlinearity."""
    rows, columns = len(x), len(source(x, s))
    added = np.zeros((rows, columns)) if s.mask is None else s.mask[h].copy()
    if s.alibi is not None:
        distance = np.arange(columns)[None, :] - (np.arange(rows)[:, None] + columns - rows)
        added += s.alibi[h] * (distance if s.causal else -abs(distance))
    return added


def normalised(logits: Array, seen: Array, one_more: float = -np.inf) -> Array:
    """exp(logits) / (exp(one_more) + sum of exp(logits)) over the visible keys; 0 where there is none."""
    weights = np.zeros_like(logits)
    for t in range(len(logits)):
        if seen[t].any():
            high = max(one_more, logits[t, seen[t]].max())
            weights[t, seen[t]] = np.exp(logits[t, seen[t]] - high)
            weights[t] /= np.exp(one_more - high) + weights[t].sum()
    return weights


def logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def rms_norm(w: Weights, head: Array, s: Settings) -> Array:
    """Per head and token, with whatever weight there is; unchanged where the options want no norm."""
    if s.config.norm in (False, "none"):
        return head
    size = np.sqrt((head**2).mean(axis=1, keepdims=True) + s.config.norm_eps)
    return head / size * w.get("norm_weight", 1.0)


def normed(heads: Formula) -> Formula:
    return lambda w, x, s: [rms_norm(w, head, s) for head in heads(w, x, s)]
